"""Slots and leases: who gets a free worker, and how a replica lets go of its leases."""

import asyncio

import pytest

from progressor.domain.processes.task import RunningTask
from progressor.runtime.core.leases import Ending, LeaseHandle, Leases
from progressor.runtime.core.slots import Slots
from tests.support.builders import make_key, make_namespace, make_process, make_task
from tests.support.runtime.harness import (
    begun,
)
from tests.support.runtime.virtual_time import settled

TWO_PLACES = make_namespace(worker_count_max=2)
OTHER = make_namespace("invoices", worker_count_max=1)


class StepRunner:
    """Runs tasks until told that they are done."""

    def __init__(self) -> None:
        self.begun_ids: list[int] = []
        self.done = asyncio.Event()

    async def run(self, task: RunningTask) -> None:
        self.begun_ids.append(task.task_id)
        await self.done.wait()


def idle_workers() -> Slots:
    return Slots(StepRunner().run)


def test_each_namespace_has_its_own_workers() -> None:
    slots = idle_workers()
    slots.reserve(OTHER)

    assert slots.reserve(TWO_PLACES)
    assert not slots.reserve(OTHER)
    assert slots.busy_total == 2


def test_a_fresh_request_does_not_overtake_a_backlog() -> None:
    slots = idle_workers()
    slots.reserve(TWO_PLACES)
    slots.mark_backlog("orders")

    assert not slots.reserve(TWO_PLACES)
    assert slots.reserve_up_to(TWO_PLACES, 5) == 1


@pytest.mark.parametrize("backlog", [False, True])
def test_a_draining_replica_has_no_places(backlog: bool) -> None:
    slots = idle_workers()
    slots.draining = True

    assert not slots.reserve(TWO_PLACES)
    assert slots.reserve_up_to(TWO_PLACES, 1) == 0
    if backlog:
        slots.mark_backlog("orders")
    assert slots.has_backlog("orders") is backlog


def test_a_paused_namespace_has_no_places_and_keeps_its_backlog() -> None:
    paused: dict[str, None] = {"orders": None}
    slots = Slots(StepRunner().run, paused=paused)

    taken = slots.reserve(TWO_PLACES), slots.reserve_up_to(TWO_PLACES, 1), slots.reserve(OTHER)
    slots.look_for_due(TWO_PLACES)
    held_back = slots.backlogs()
    paused.clear()

    assert taken == (False, 0, True)
    assert (held_back, slots.backlogs(), slots.reserve_up_to(TWO_PLACES, 5)) == (
        {},
        {"orders": 1},
        2,
    )


def test_with_fewer_workers_no_step_starts_until_enough_have_ended() -> None:
    slots = idle_workers()
    slots.reserve_up_to(TWO_PLACES, 2)
    smaller = make_namespace(worker_count_max=1)

    assert slots.reserve_up_to(smaller, 1) == 0
    slots.give_back("orders", 2)
    assert slots.reserve_up_to(smaller, 5) == 1


def test_a_mark_made_while_the_backlog_was_looked_at_keeps_it_open() -> None:
    slots = idle_workers()
    slots.reserve(TWO_PLACES)
    slots.mark_backlog("orders")
    seen = slots.backlogs()["orders"]
    slots.mark_backlog("orders")

    slots.clear_backlog("orders", seen)

    assert slots.has_backlog("orders")


async def test_steps_give_their_slots_back_and_workers_end_with_the_last_step() -> None:
    runner, stop = StepRunner(), asyncio.Event()
    slots = Slots(runner.run)
    running = await begun(slots.run(stop))
    slots.reserve(TWO_PLACES)
    slots.reserve(OTHER)
    slots.start(make_task())
    slots.start(make_task(process=make_process(key=make_key(namespace="invoices"))))

    stop.set()
    await settled()
    too_early = running.done()
    runner.done.set()
    await slots.idle()
    await running

    assert (too_early, slots.busy_total) == (False, 0)
    assert len(runner.begun_ids) == 2


async def test_a_bug_in_a_step_ends_all_workers() -> None:
    async def fail(_task: RunningTask) -> None:
        raise ZeroDivisionError

    slots = Slots(fail)
    running = await begun(slots.run(asyncio.Event()))
    slots.reserve(TWO_PLACES)
    slots.start(make_task())

    with pytest.raises(ExceptionGroup) as caught:
        await running

    assert caught.group_contains(ZeroDivisionError)


async def test_a_lease_without_a_place_is_a_bug() -> None:
    stop = asyncio.Event()
    slots = idle_workers()
    running = await begun(slots.run(stop))
    slots.reserve(TWO_PLACES)
    slots.give_back("orders")

    with pytest.raises(AssertionError, match="without a slot"):
        slots.start(make_task())

    stop.set()
    await running


async def ask(handle: LeaseHandle) -> None:
    """Ask a processor that never answers."""
    handle.asking = asyncio.current_task()
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("ending", Ending)
async def test_releasing_leases_cancels_the_request_in_flight(ending: Ending) -> None:
    leases = Leases()
    handle = leases.take(make_task())

    asking = asyncio.ensure_future(ask(handle))
    await settled()
    leases.let_go(ending)

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert handle.ending is ending


def test_what_is_leased_while_leases_are_lost_is_abandoned_before_it_begins() -> None:
    leases = Leases()
    leases.let_go(Ending.ABANDONED)
    leases.lost = True
    late = leases.take(make_task())
    leases.lost = False

    assert late.ending is Ending.ABANDONED
    assert leases.take(make_task(task_id=8, token=80)).ending is None
