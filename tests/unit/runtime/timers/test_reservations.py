"""Places: reserved before a claim, given back after it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from progressor.domain.processes.task import RunningTask
from progressor.runtime.core.slots import Slots
from progressor.runtime.timers.reservations import SlotReservations
from progressor.storage.processes.claims import Room
from tests.support.builders import (
    make_claimed,
    make_key,
    make_namespace,
    make_process,
    make_task,
    seconds,
)
from tests.support.runtime.context import make_context
from tests.support.runtime.memory import away
from tests.support.runtime.virtual_time import in_virtual_time, settled

ORDERS = make_namespace(worker_count_max=2)
INVOICES = make_namespace("invoices", worker_count_max=2)


class Harness:
    """Workers that carry until the end of time."""

    def __init__(self) -> None:
        self.carried: list[int] = []
        self.slots = Slots(self._carry)
        self.reservations = SlotReservations(slots=self.slots, context=make_context())

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.slots.run(asyncio.Event()))
        await settled()
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _carry(self, task: RunningTask) -> None:
        self.carried.append(task.task_id)
        await asyncio.get_running_loop().create_future()


def test_there_is_room_for_as_many_as_there_are_places() -> None:
    rooms = Harness().reservations.rooms([ORDERS], limit=10)

    assert rooms == [
        Room(namespace="orders", limit=2, expires_after=seconds(32), requests_first=True)
    ]


def test_every_other_room_is_for_requests_first() -> None:
    reservations = Harness().reservations

    rooms = [reservations.rooms([ORDERS], limit=1) for _ in range(2)]

    assert [[room.requests_first for room in each] for each in rooms] == [[True], [False]]


def test_there_is_no_more_room_than_a_scan_may_take() -> None:
    assert [room.limit for room in Harness().reservations.rooms([ORDERS], limit=1)] == [1]


def test_a_namespace_without_a_free_place_is_left_out() -> None:
    harness = Harness()
    harness.slots.reserve_up_to(ORDERS, 2)

    assert [room.namespace for room in harness.reservations.rooms([ORDERS, INVOICES], limit=1)] == [
        "invoices"
    ]


def test_the_places_of_a_claim_that_failed_are_given_back() -> None:
    harness = Harness()
    rooms = harness.reservations.rooms([ORDERS, INVOICES], limit=2)

    with contextlib.suppress(Exception), harness.reservations.kept(rooms):
        raise away()

    assert (harness.slots.busy_count("orders"), harness.slots.busy_count("invoices")) == (0, 0)


def test_the_places_of_a_claim_that_went_well_are_kept() -> None:
    harness = Harness()
    rooms = harness.reservations.rooms([ORDERS], limit=2)

    with harness.reservations.kept(rooms):
        pass

    assert harness.slots.busy_count("orders") == 2


@in_virtual_time
async def test_what_was_claimed_is_carried_and_the_rest_given_back() -> None:
    harness = Harness()
    rooms = harness.reservations.rooms([ORDERS, INVOICES], limit=2)
    key = make_key(namespace="invoices")
    async with harness.working():
        invoices = [
            make_claimed(make_task(task_id=task_id, process=make_process(key=key)))
            for task_id in (1, 2)
        ]

        harness.reservations.fill(rooms, invoices)
        await settled()

        assert harness.carried == [1, 2]
        assert harness.slots.busy_count("orders") == 0
        assert harness.slots.busy_count("invoices") == 2


@in_virtual_time
async def test_more_tasks_than_places_is_a_bug() -> None:
    harness = Harness()
    rooms = harness.reservations.rooms([ORDERS], limit=1)
    harness.slots.reserve(ORDERS)
    async with harness.working():
        claimed = [make_claimed(make_task(task_id=task_id)) for task_id in (1, 2)]

        with pytest.raises(AssertionError, match="than there are places"):
            harness.reservations.fill(rooms, claimed)
