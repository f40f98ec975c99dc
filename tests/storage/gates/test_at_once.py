"""Three replicas at once over the same few gates: no deadlock, and nothing is left to a scan.

A task is claimed only because a statement reported it, as a replica's due queue and gate wake-ups
do it: a task that no statement reports is never run, and the last check finds it.
"""

import asyncio
import contextlib
import datetime as dt
import random
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, LiteralString

import psycopg
import pytest

from progressor import errors
from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.admission import Request
from progressor.domain.processes.intent import Complete, Outcome, Rejected, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TIMER_TYPES, RunningTask, TaskType
from progressor.storage.gates.gates import BEFORE_ALL
from progressor.storage.postgres.rows.effects import Again, LoweredGate
from progressor.storage.steps.settlements import Written
from tests.support.models.machine import Machinery, machinery
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    UNREACHABLE,
    a_request,
    empty,
    key_of,
    success,
)

PLENTY = 1000
"""The capacity of a gate that no task waits for."""

LONG = dt.timedelta(seconds=100)
"""Longer than the starvation timeout, any timer and any retry."""

_ROUNDS_MAX = 100

_VERSIONS: LiteralString = """
    SELECT task_id, order_key, order_version, state::text
    FROM progressor.gated
    WHERE order_key IS NOT NULL"""
_KEPT_STARTS: LiteralString = """
    SELECT process_id, task_id FROM progressor.gated WHERE task_type = 'init' AND state = 'order'"""
_OVERFULL: LiteralString = """
    SELECT h.*
    FROM progressor.gates g
    JOIN progressor.gate_holders h USING (namespace, gate)
    JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
    WHERE g.gate = %s AND g.held > g.capacity AND h.hold = 'task'"""
_LEFT: LiteralString = """
    SELECT 'gated', t::text FROM progressor.gated t
    UNION ALL
    SELECT 'schedule', t::text FROM progressor.schedule t
    UNION ALL
    SELECT 'running', t::text FROM progressor.running t"""
_WAITING: LiteralString = """
    SELECT task_id, due_at FROM progressor.schedule
    WHERE status = 'waiting' AND due_at IS NOT NULL"""
_STILL_DUE: LiteralString = """
    SELECT FROM progressor.schedule AS s
    WHERE s.task_id = %s AND s.status = 'waiting' AND s.due_at <= %s
      AND NOT EXISTS (
          SELECT FROM progressor.running AS r
          WHERE (r.namespace, r.process_id) = (s.namespace, s.process_id)
      )"""
_BROKEN: LiteralString = "SELECT process_id FROM progressor.processes WHERE status = 'error'"
_FIRST_BY_TIME: LiteralString = """
    SELECT process_id, min(run_at)
    FROM progressor.gated
    WHERE state = 'time'
    GROUP BY process_id"""


class GatedStorage:
    """Notifications not yet handled, what runs, and what must hold after each deed."""

    def __init__(self, machinery: Machinery) -> None:
        self.clock = machinery.clock
        self.stores = machinery.stores
        self.observer = machinery.observer
        self.run = machinery.run
        self.held: dict[int, tuple[RunningTask, int]] = {}
        """By token: what runs, and at which store; or ran, if its process was removed meanwhile."""
        self.due: dict[tuple[int, dt.datetime], ProcessKey] = {}
        """What was told to be due, and when; a telling does not undo the one before."""
        self.later: dict[tuple[str, dt.datetime], None] = {}
        """Which processes a replica was told to look at, and when."""
        self.again: dict[Again, None] = {}
        self.looked_at = self.clock.now()
        """Up to when instants have been looked at."""
        self._versions: dict[int, tuple[str, list[int], str]] = {}
        for store in self.stores:
            store.reported.clear()
        empty(self.observer)
        for store in self.stores:
            self.run(store.beat())

    # Deeds.

    def request(self, request: Request, store: int, *, run: bool) -> None:
        self.run(self.admit(request, store, run=run))
        self.hear()

    async def admit(self, request: Request, store: int, *, run: bool) -> int | None:
        """Admit a request; return the id of its task, None: it was refused."""
        admission = await self.stores[store].admit(request, run=run)
        if admission.running is not None:
            self._hold(admission.running, store)
        elif admission.due_now:
            assert admission.task_id is not None, "what is due has an id"
            self.note_due(request.key, admission.task_id, self.clock.now())
        return admission.task_id

    def settle(self, which: int, outcome: Outcome) -> None:
        if self.held:
            self.run(self.settle_one(which, outcome))
            self.hear()

    async def settle_one(self, which: int, outcome: Outcome) -> None:
        task, store = self.held.pop(self._token(which))
        if task.task_type is TaskType.REMOVE:
            outcome = success(RemoveProcess())
        elif isinstance(outcome, Rejected) and task.task_type in TIMER_TYPES:
            outcome = BROKEN
        try:
            written = await self.stores[store].settle(task, outcome)
        except errors.StorageLockedError:
            self._hold(task, store)
            raise
        if isinstance(written, Written):
            if written.next is not None:
                self._hold(written.next, store)
            if written.due is not None:
                self.note_due(task.key, written.due.task_id, written.due.due_at)

    def set_gate(self, gate: str, capacity: int, store: int) -> None:
        self.run(self.stores[store].set_gate(gate, capacity))
        self.hear()
        # No one else is at work: a holder that does not run has given way. Of another gate, one
        # that ran when its capacity was lowered, and was handed back since, keeps it.
        overfull = self.observer.execute(_OVERFULL, (gate,)).fetchall()
        assert overfull == [], overfull

    def claim_reported(self, store: int) -> None:
        """Claim what this and the other replicas have been told of, and what has become due."""
        self.run(self.claim_noted(store))

    async def claim_noted(self, store: int) -> None:
        now = self.clock.now()
        for noted in [noted for noted in self.due if noted[1] <= now]:
            key = self.due.pop(noted, None)
            if key is None:
                continue
            claimed = await self.stores[store].claim(key, noted[0])
            for each in claimed:
                self._hold(each.task, store)
            # A process that stays locked for longer than a statement waits is passed over.
            if not claimed and self.observer.execute(_STILL_DUE, (noted[0], now)).fetchall():
                self.due[noted] = key

    def claim_due(self, limit: int, store: int) -> None:
        for claimed in self.run(self.stores[store].claim_due(limit=limit)):
            self._hold(claimed.task, store)

    def promote_due(self, store: int) -> None:
        """Look at tasks whose instant has come."""
        at = self.clock.now()
        for noted in [noted for noted in self.later if noted[1] <= at]:
            del self.later[noted]
        promoted = self.run(self.stores[store].gates.promote_due([NAMESPACE.name]))
        self._take([promoted])
        if all(later.seconds for later in promoted.later):
            self.looked_at = at

    def look_again(self, store: int) -> None:
        """Look at all that was told as to be looked at again."""
        again, self.again = tuple(self.again), {}
        if again:
            self._take([self.run(self.stores[store].gates.look_again(NAMESPACE.name, again))])

    # What was told.

    def hear(self) -> None:
        for store in self.stores:
            told, store.reported[:] = list(store.reported), []
            self._take(told)

    def _take(self, told: Iterable[Any]) -> None:
        for promoted in told:
            for key, task_id in promoted.due:
                self.note_due(key, task_id, self.clock.now())
            for later in promoted.later:
                at = self.clock.now() + dt.timedelta(seconds=later.seconds)
                self.later[later.key.process_id, at] = None
            for upcoming in promoted.upcoming:
                at = self.clock.now() + dt.timedelta(seconds=upcoming.seconds)
                self.note_due(upcoming.key, upcoming.task_id, at)
            self.again.update(dict.fromkeys(promoted.again))

    def note_due(self, key: ProcessKey, task_id: int, due_at: dt.datetime) -> None:
        self.due[task_id, due_at] = key

    def _hold(self, task: RunningTask, store: int) -> None:
        self.held[task.token] = (task, store)

    def _token(self, which: int) -> int:
        return sorted(self.held)[which % len(self.held)]

    # What must hold.

    def judge(self) -> None:
        """Check the invariants: all of them, once nothing is left to look at."""
        is_quiet = not self.again and self.looked_at == self.clock.now()
        broken = broken_invariants(self.observer, at_rest=is_quiet, now=self.clock.now())
        assert broken == {}, broken
        if is_quiet:
            assert self.run(self.stores[0].gates.find_idle([NAMESPACE.name])) == ((), BEFORE_ALL)
        self._judge_versions()
        self._judge_reports()

    def _judge_reports(self) -> None:
        """Check that a replica was notified of each task that becomes due, with its instant."""
        now = self.clock.now()
        for told, statement in ((self.due, _WAITING), (self.later, _FIRST_BY_TIME)):
            unnoticed = [
                row
                for row in self.observer.execute(statement).fetchall()
                if not any(row[0] == it and row[1] <= at <= max(now, row[1]) for it, at in told)
            ]
            assert unnoticed == [], f"{unnoticed} of {[*told]}"

    def _judge_versions(self) -> None:
        """Check that nothing has passed a smaller version that was there before the deed."""
        was = self._versions
        rows = self.observer.execute(_VERSIONS).fetchall()
        self._versions = {row[0]: (row[1], row[2], row[3]) for row in rows}
        for task_id, (key, version, state) in self._versions.items():
            if state != "available" or (task_id in was and was[task_id][2] == "available"):
                continue
            passed = [
                other_id
                for other_id, (other_key, other, _) in self._versions.items()
                if other_key == key and other < version and other_id in was
            ]
            assert passed == [], f"task {task_id} of {key} {version} has passed {passed}"

    def _solve_contradictions(self) -> bool:
        """Cancel starts whose order keeps them; return whether there were any.

        Nothing of a process runs before its start. So a start may wait for the smaller version of
        a call that stands behind it, or behind another such start: the client must cancel
        one of them. Otherwise no circle of waits is possible.
        """
        starts = self.observer.execute(_KEPT_STARTS).fetchall()
        for process_id, task_id in starts:
            self.run(self.stores[0].cancel(key_of(process_id), task_id))
        self.hear()
        return bool(starts)

    def _recover(self) -> bool:
        """Bring the processes in error back; return whether there were any."""
        broken = self.observer.execute(_BROKEN).fetchall()
        for (process_id,) in broken:
            self.run(self.stores[0].recover(key_of(process_id)))
        self.hear()
        return bool(broken)

    def everything_ends_by_reports(self) -> None:
        """Give every gate room, let time pass, and see that all that waits is done."""
        for (gate,) in self.observer.execute("SELECT gate FROM progressor.gates").fetchall():
            self.set_gate(gate, PLENTY, 0)
        for _ in range(_ROUNDS_MAX):
            self.clock.advance(LONG)
            self.promote_due(0)
            while self.again:
                self.look_again(0)
            self.claim_reported(0)
            self.judge()
            if not self.held and not self._recover() and not self._solve_contradictions():
                break
            for _ in list(self.held):
                self.settle(0, success())
        left = self.observer.execute(_LEFT).fetchall()
        assert left == [], f"{left}, held {self.held}, due {self.due}"


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
            await self.handle_reports()

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
            await self.store.cancel(key_of(process_id), task_id)

    async def set_gate(self) -> None:
        capacity = self.random.choice([0, 1, 1, 2, 3])
        await self.store.set_capacity(gate := self.random.choice(GATES), capacity)
        await self.store.evict_holders(LoweredGate(NAMESPACE.name, gate))

    async def renew(self) -> None:
        process_id = self.random.choice(PROCESSES)
        with contextlib.suppress(errors.ProcessNotFoundError):
            await self.store.remove(key_of(process_id))
        request = a_request(key_of(process_id), TaskType.INIT, constraints=self.constraints())
        await self.storage.admit(request, self.number, run=True)

    async def simple_repair(self) -> None:
        repaired = await self.store.recover(key_of(self.random.choice(PROCESSES)))
        if repaired.due is not None:
            due = repaired.due
            self.storage.note_due(due.key, due.task_id, due.due_at)

    async def handle_reports(self) -> None:
        self.storage.hear()
        again, self.storage.again = tuple(self.storage.again), {}
        if not again:
            return
        try:
            promoted = await self.store.gates.look_again(NAMESPACE.name, again)
        except errors.StorageError:
            self.storage.again.update(dict.fromkeys(again))
        else:
            self.store.reported.append(promoted)


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
        storage.everything_ends_by_reports()

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

        storage.claim_reported(0)

        storage.judge()
        storage.everything_ends_by_reports()
