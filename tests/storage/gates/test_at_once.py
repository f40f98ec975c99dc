"""Three replicas at once over the same few gates: no deadlock, and nothing is left to a scan."""

import asyncio
import contextlib
import datetime as dt
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import Complete, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.task import TaskType
from progressor.storage.rows.effects import LoweredGate
from tests.support.models.machine import machinery
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.gates import GatedStorage
from tests.support.storage.store import BROKEN, NAMESPACE, UNREACHABLE, a_request, key_of, success

PROCESSES = [f"p{number}" for number in range(8)]
GATES, ORDERS = "abc", "vw"
STORES_COUNT, PARTIES_EACH = 3, 3
DEEDS_EACH = 50
CALM = dt.timedelta(seconds=60)
"""The starvation timeout by which no task gets old: the clock stands still."""


class Party:
    """One of those who write at once; it handles what its replica is notified of."""

    def __init__(self, storage: GatedStorage, store: int, seed: int, *, holds: bool) -> None:
        self.storage = storage
        self.number = store
        self.store = storage.stores[store]
        self.random = random.Random(seed)
        self.holds = holds
        self.admitted: list[tuple[str, int]] = []
        self.deeds: dict[Callable[[], Awaitable[None]], int] = {
            self.call: 12, self.settle: 16, self.cancel: 3, self.set_gate: 2, self.renew: 1,
            self.simple_repair: 1,
        }  # fmt: skip

    async def live(self, deeds: int) -> None:
        for deed in self.random.choices([*self.deeds], [*self.deeds.values()], k=deeds):
            # A session keeps a lock for longer than a statement waits: the caller gets an error.
            with contextlib.suppress(errors.StorageLockedError, errors.RequestError):
                await deed()
            await self.see_to_what_is_told()

    def constraints(self) -> Constraints | None:
        if self.random.random() < 0.15:
            return None
        wanted = self.random.sample(GATES, self.random.choice([1, 1, 2, 3]))
        is_ordered = self.random.random() < 0.2
        version = Version((self.random.randrange(12),))
        is_long = self.holds and self.random.random() < 0.1
        return Constraints(
            gates=dict.fromkeys(wanted, 1),
            order=Order(self.random.choice(ORDERS), version) if is_ordered else None,
            priority=self.random.randrange(1, 6),
            hold=GateHold.PROCESS if is_long else GateHold.TASK,
        )

    async def call(self) -> None:
        process_id = self.random.choice(PROCESSES)
        request = a_request(key_of(process_id), constraints=self.constraints())
        task_id = await self.storage.admit(request, self.number, run=self.random.random() < 0.7)
        if task_id is not None:
            self.admitted.append((process_id, task_id))

    async def settle(self) -> None:
        await self.storage.claim_noted(self.number)
        if self.storage.held:
            timer = SetTimer(after=dt.timedelta(), constraints=self.constraints())
            outcomes: list[Outcome] = [
                *[success()] * 16, UNREACHABLE, UNREACHABLE, success(timer), BROKEN,
                success(Complete(b"")), success(RemoveProcess()),
            ]  # fmt: skip
            outcome = self.random.choice(outcomes)
            await self.storage.settle_one(self.random.randrange(1000), outcome)

    async def cancel(self) -> None:
        if self.admitted:
            process_id, task_id = self.admitted.pop(self.random.randrange(len(self.admitted)))
            await self.store.writes.cancel(key_of(process_id), task_id)

    async def set_gate(self) -> None:
        capacity = self.random.choice([0, 1, 1, 2, 3])
        await self.store.writes.set_gate(
            NAMESPACE.name,
            gate := self.random.choice(GATES),
            capacity=capacity,
            expected_revision=0,
        )
        await self.store.writes.evict_holders(LoweredGate(NAMESPACE.name, gate))

    async def renew(self) -> None:
        process_id = self.random.choice(PROCESSES)
        with contextlib.suppress(errors.ProcessNotFoundError):
            await self.store.writes.remove(key_of(process_id))
        request = a_request(key_of(process_id), TaskType.INIT, constraints=self.constraints())
        await self.storage.admit(request, self.number, run=True)

    async def simple_repair(self) -> None:
        repaired = await self.store.writes.simple_repair(key_of(self.random.choice(PROCESSES)))
        if repaired.due is not None:
            due = repaired.due
            self.storage.note_due(due.key, due.task_id, due.due_at)

    async def see_to_what_is_told(self) -> None:
        self.storage.hear()
        again, self.storage.again = tuple(self.storage.again), {}
        if not again:
            return
        try:
            promoted = await self.store.gates.look_again(NAMESPACE.name, again)
        except errors.StorageError:
            self.storage.again.update(dict.fromkeys(again))
        else:
            self.store.told.append(promoted)


@pytest.mark.matrix
@pytest.mark.parametrize("holds", [False, True], ids=["by task", "by process too"])
@pytest.mark.parametrize("starvation_timeout", [CALM, dt.timedelta()], ids=["young", "old"])
@pytest.mark.parametrize("seed", range(2))
def test_three_replicas_at_once_leave_nothing_to_a_scan(
    own_database: str, seed: int, starvation_timeout: dt.timedelta, holds: bool
) -> None:
    ended = threading.Event()
    broken: list[dict[str, list[Any]]] = []
    watch = threading.Thread(target=_watch, args=(own_database, ended, broken), name="watch")
    with machinery(
        own_database, count=STORES_COUNT, starvation_timeout=starvation_timeout
    ) as three:
        storage = GatedStorage(three)
        watch.start()
        try:
            three.run(_crowd(storage, seed, holds=holds))
        finally:
            ended.set()
            watch.join()

        while storage.again:
            storage.look_again(0)
        storage.promote_due(0)
        storage.judge()
        storage.everything_ends_by_what_is_told()

    assert broken == []
    with psycopg.connect(own_database, autocommit=True) as observer:
        counted = observer.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert counted == (0,)


async def _crowd(storage: GatedStorage, seed: int, *, holds: bool) -> None:
    for process_id in PROCESSES:
        await storage.admit(a_request(key_of(process_id), TaskType.INIT), 0, run=True)
        await storage.settle_one(0, success())
    async with asyncio.TaskGroup() as group:
        for number in range(STORES_COUNT * PARTIES_EACH):
            party = Party(storage, number % STORES_COUNT, seed * 100 + number, holds=holds)
            group.create_task(party.live(DEEDS_EACH), name=f"party {number}")


def _watch(conninfo: str, ended: threading.Event, broken: list[dict[str, list[Any]]]) -> None:
    """Look again and again whether the invariants hold that hold at any moment."""
    with psycopg.connect(conninfo, autocommit=True) as observer:
        while not ended.is_set() and not broken:
            if found := broken_invariants(observer):
                broken.append(found)


def test_a_retry_is_claimed_though_its_first_attempt_was_claimed_by_another_than_was_told(
    own_database: str,
) -> None:
    with machinery(own_database, count=STORES_COUNT) as three:
        storage = GatedStorage(three)
        storage.request(a_request(key_of("p"), TaskType.INIT), 0, run=True)
        storage.settle(0, success())
        storage.request(a_request(key_of("p")), 0, run=False)
        storage.claim_due(1, 1)
        storage.settle(0, UNREACHABLE)

        storage.claim_told(0)

        storage.judge()
        storage.everything_ends_by_what_is_told()
