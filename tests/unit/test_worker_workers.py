"""Workers: places, and who gets them."""

import asyncio

import pytest

from progressor.domain.processes.task import RunningTask
from progressor.runtime.core.slots import Workers
from tests.support.builders import make_key, make_namespace, make_process, make_task
from tests.support.virtual_time import in_virtual_time, settled

TWO_PLACES = make_namespace(worker_count_max=2)
OTHER = make_namespace("invoices", worker_count_max=1)


class Carrier:
    """Carries tasks until told that they are done."""

    def __init__(self) -> None:
        self.carried: list[int] = []
        self.done = asyncio.Event()

    async def carry(self, task: RunningTask) -> None:
        self.carried.append(task.task_id)
        await self.done.wait()


def idle_workers() -> Workers:
    return Workers(Carrier().carry)


def test_a_request_gets_a_place_while_there_is_one() -> None:
    workers = idle_workers()

    got = [workers.reserve(TWO_PLACES) for _ in range(3)]

    assert got == [True, True, False]
    assert workers.busy_count("orders") == 2


def test_the_places_of_namespaces_are_apart() -> None:
    workers = idle_workers()
    workers.reserve(OTHER)

    assert workers.reserve(TWO_PLACES)
    assert not workers.reserve(OTHER)
    assert workers.busy_total == 2


def test_a_fresh_request_does_not_overtake_a_backlog() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)
    workers.mark_backlog("orders")

    assert not workers.reserve(TWO_PLACES)
    assert workers.reserve_up_to(TWO_PLACES, 5) == 1


def test_a_backlog_of_one_namespace_keeps_nobody_else_waiting() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)
    workers.mark_backlog("orders")

    assert workers.reserve(OTHER)


def test_due_tasks_get_no_more_places_than_they_want() -> None:
    assert idle_workers().reserve_up_to(TWO_PLACES, 1) == 1


@pytest.mark.parametrize("backlog", [False, True])
def test_a_draining_replica_has_no_places(backlog: bool) -> None:
    workers = idle_workers()
    workers.draining = True

    assert not workers.reserve(TWO_PLACES)
    assert workers.reserve_up_to(TWO_PLACES, 1) == 0
    if backlog:
        workers.mark_backlog("orders")
    assert workers.has_backlog("orders") is backlog


def test_a_backlog_can_be_marked_before_any_place_was_ever_asked_for() -> None:
    workers = idle_workers()
    workers.draining = True
    workers.reserve_up_to(TWO_PLACES, 1)

    workers.mark_backlog("orders")

    assert workers.has_backlog("orders")


def test_nothing_is_known_of_a_namespace_that_was_never_seen() -> None:
    workers = idle_workers()

    assert not workers.has_backlog("orders")
    assert workers.busy_count("orders") == 0


def test_a_smaller_crew_takes_nobody_until_enough_steps_have_ended() -> None:
    workers = idle_workers()
    workers.reserve_up_to(TWO_PLACES, 2)
    smaller = make_namespace(worker_count_max=1)

    assert workers.reserve_up_to(smaller, 1) == 0
    workers.give_back("orders", 2)
    assert workers.reserve_up_to(smaller, 5) == 1


def test_a_larger_crew_has_room_at_once() -> None:
    workers = idle_workers()
    workers.reserve_up_to(TWO_PLACES, 2)

    assert workers.reserve(make_namespace(worker_count_max=3))


def test_giving_back_what_was_not_taken_is_a_bug() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)

    with pytest.raises(AssertionError, match="more places given back"):
        workers.give_back("orders", 2)


def test_a_place_that_becomes_free_calls_for_the_backlog() -> None:
    workers = idle_workers()
    workers.reserve_up_to(TWO_PLACES, 2)
    workers.mark_backlog("orders")
    quiet = not workers.room_made.is_set()

    workers.give_back("orders")

    assert quiet
    assert workers.room_made.is_set()
    assert workers.backlogs() == {"orders": 1}


def test_a_place_that_becomes_free_without_a_backlog_calls_nobody() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)

    workers.give_back("orders")

    assert not workers.room_made.is_set()


def test_a_backlog_that_finds_room_is_called_at_once() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)

    workers.mark_backlog("orders")

    assert workers.room_made.is_set()


def test_a_backlog_without_a_free_place_is_not_offered() -> None:
    workers = idle_workers()
    workers.reserve_up_to(TWO_PLACES, 2)
    workers.mark_backlog("orders")

    assert workers.backlogs() == {}


def test_a_mark_made_while_the_backlog_was_looked_at_keeps_it_open() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)
    workers.mark_backlog("orders")
    seen = workers.backlogs()["orders"]
    workers.mark_backlog("orders")

    workers.clear_backlog("orders", seen)

    assert workers.has_backlog("orders")


def test_a_late_clearing_does_not_open_a_backlog_again() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)
    workers.mark_backlog("orders")
    workers.clear_backlog("orders", 1)

    workers.clear_backlog("orders", 0)

    assert not workers.has_backlog("orders")


def test_requests_and_all_that_is_due_take_turns() -> None:
    workers = idle_workers()
    workers.reserve_up_to(TWO_PLACES, 1)
    workers.reserve_up_to(OTHER, 1)

    turns = [workers.next_turn("orders") for _ in range(4)]

    assert turns == [True, False, True, False]
    assert workers.next_turn("invoices")


@in_virtual_time
async def test_a_step_gives_its_place_back_when_it_ends() -> None:
    carrier, stop = Carrier(), asyncio.Event()
    workers = Workers(carrier.carry)
    running = asyncio.ensure_future(workers.run(stop))
    await settled()
    workers.reserve(TWO_PLACES)

    workers.start(make_task())
    carrier.done.set()
    await workers.idle()

    assert workers.busy_count("orders") == 0
    stop.set()
    await running


@in_virtual_time
async def test_workers_end_only_when_the_last_step_has_ended() -> None:
    carrier, stop = Carrier(), asyncio.Event()
    workers = Workers(carrier.carry)
    running = asyncio.ensure_future(workers.run(stop))
    await settled()
    workers.reserve(TWO_PLACES)
    workers.reserve(OTHER)
    workers.start(make_task())
    workers.start(make_task(process=make_process(key=make_key(namespace="invoices"))))

    stop.set()
    await settled()
    too_early = running.done()
    carrier.done.set()
    await running

    assert not too_early
    assert len(carrier.carried) == 2


@in_virtual_time
async def test_a_bug_in_a_step_ends_all_workers() -> None:
    async def fail(_task: RunningTask) -> None:
        raise ZeroDivisionError

    workers = Workers(fail)
    running = asyncio.ensure_future(workers.run(asyncio.Event()))
    await settled()
    workers.reserve(TWO_PLACES)
    workers.start(make_task())

    with pytest.raises(ExceptionGroup) as caught:
        await running

    assert caught.group_contains(ZeroDivisionError)


def test_a_lease_without_workers_is_a_bug() -> None:
    workers = idle_workers()
    workers.reserve(TWO_PLACES)

    with pytest.raises(AssertionError, match="while no workers run"):
        workers.start(make_task())


@in_virtual_time
async def test_a_lease_without_a_place_is_a_bug() -> None:
    stop = asyncio.Event()
    workers = idle_workers()
    running = asyncio.ensure_future(workers.run(stop))
    await settled()
    workers.reserve(TWO_PLACES)
    workers.give_back("orders")

    with pytest.raises(AssertionError, match="without a place"):
        workers.start(make_task())

    stop.set()
    await running
