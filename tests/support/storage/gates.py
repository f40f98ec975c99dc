"""Storage with constraints as three replicas use it, one deed after the other.

A task is claimed only because a statement reported it, as a replica's due queue and gate wake-ups
do it: a task that no statement reports is never run, and the last check finds it.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Any, LiteralString, TypeVar

from progressor import errors
from progressor.domain.processes.admission import Request
from progressor.domain.processes.intent import Outcome, Rejected, RemoveProcess
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TIMER_TYPES, RunningTask, TaskType
from progressor.storage.gates.gates import BEFORE_ALL
from progressor.storage.processes.settlements import Written
from progressor.storage.rows.effects import Again, LoweredGate
from tests.support.models.machine import Machinery
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    empty,
    key_of,
    success,
)

T = TypeVar("T")

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
_FIRST_BY_TIME: LiteralString = """
    SELECT process_id, min(run_at)
    FROM progressor.gated
    WHERE state = 'time'
    GROUP BY process_id"""
_NAMED: LiteralString = """
    SELECT order_key FROM progressor.gated WHERE process_id = %(process_id)s
    UNION
    SELECT unnest(gates) FROM progressor.gated WHERE process_id = %(process_id)s
    UNION
    SELECT gate FROM progressor.gate_holders WHERE process_id = %(process_id)s"""
_LOCK: LiteralString = """
    SELECT FROM progressor.processes
    WHERE (namespace, process_id) = (%s, %s)
    FOR NO KEY UPDATE"""


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
            store.told.clear()
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
        writes = self.stores[store].writes
        self.run(writes.set_gate(NAMESPACE.name, gate, capacity=capacity, expected_revision=0))
        while not self.run(writes.evict_holders(LoweredGate(NAMESPACE.name, gate))).is_done:
            pass
        self.hear()
        # No one else is at work: a holder that does not run has given way. Of another gate, one
        # that ran when its capacity was lowered, and was handed back since, keeps it.
        overfull = self.observer.execute(_OVERFULL, (gate,)).fetchall()
        assert overfull == [], overfull

    def claim_told(self, store: int) -> None:
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
            told, store.told[:] = list(store.told), []
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
        self._judge_told()

    def _judge_told(self) -> None:
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
            self.run(self.stores[0].writes.cancel(key_of(process_id), task_id))
        self.hear()
        return bool(starts)

    def everything_ends_by_what_is_told(self) -> None:
        """Give every gate room, let time pass, and see that all that waits is done."""
        for (gate,) in self.observer.execute("SELECT gate FROM progressor.gates").fetchall():
            self.set_gate(gate, PLENTY, 0)
        for _ in range(_ROUNDS_MAX):
            self.clock.advance(LONG)
            self.promote_due(0)
            while self.again:
                self.look_again(0)
            self.claim_told(0)
            self.judge()
            if not self.held and not self._solve_contradictions():
                break
            for _ in list(self.held):
                self.settle(0, success())
        left = self.observer.execute(_LEFT).fetchall()
        assert left == [], f"{left}, held {self.held}, due {self.due}"
