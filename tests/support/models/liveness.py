"""Liveness: once faults stop, everything due is done, soon and with few claims.

Let faults stop at an instant T, in whatever state: a replica that is silent stays so (one speaks
up if none is left), the others beat, and processors succeed. Then:

1. Past T + LEASE_TIMEOUT, one look for zombies collects every lease of a silent replica, and every
   lease that ran out; what is still leased is in the hands of a replica that lives.
2. By SCAN_INTERVAL later all that is due has been claimed: what became due meanwhile by its id,
   from the agendas that the living filled before; the rest by the scan for what is overdue.
3. By LONGEST_BACKOFF later nothing waits for a retry.

So at T + LEASE_TIMEOUT + SCAN_INTERVAL + LONGEST_BACKOFF nothing runs, and the schedule has only
timers of a later time. Every process has ended, is broken, or is past its init and takes a call at
once.

Rounds are bounded, too. A worker that may go on with what stands behind its task needs one round of
claims in each of 2 and 3. One that may not (its replica drains, or its turns are up) hands the next
task to the schedule; then a round does a task of each line, and the last of them the timer.
"""

import datetime as dt
from collections.abc import Iterable

from progressor.domain.processes.intent import RemoveProcess
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TIMER_TYPES, TaskType
from tests.support.models.modelled_processes import ModelledStorage
from tests.support.models.strategies import LONGEST_BACKOFF
from tests.support.storage.store import LEASE_TIMEOUT, key_of, success

SCAN_INTERVAL = dt.timedelta(seconds=1)
OVERDUE = SCAN_INTERVAL
_TICK = dt.timedelta(microseconds=1)
_NOT_AT_ALL = dt.timedelta()


def faults_stop(storage: ModelledStorage, *, continues: bool) -> None:
    """Let faults stop now, and assert the invariant; the clock is the later for it."""
    storage.alive = storage.alive or {0}
    storage.beat()
    _collect_within_the_lease_timeout(storage)
    for pause in (SCAN_INTERVAL, LONGEST_BACKOFF):
        rounds_max = _rounds_max(storage, continues=continues)
        rounds = _work_through(storage, pause, continues=continues)
        assert rounds <= rounds_max, f"{rounds} rounds of claims where {rounds_max} will do"
    _assert_that_only_timers_are_left(storage)
    _assert_that_processes_take_calls(storage)


def _collect_within_the_lease_timeout(storage: ModelledStorage) -> None:
    storage.clock.advance(LEASE_TIMEOUT + _TICK)
    storage.beat()
    for store in sorted(storage.alive):
        storage.collect(store)
    assert {held.store for held in storage.held.values()} <= storage.alive


def _work_through(storage: ModelledStorage, pause: dt.timedelta, *, continues: bool) -> int:
    """Claim and settle whatever is due by the end of a pause; return how many rounds it took."""
    _finish_what_is_held(storage, continues=continues)
    overdue = storage.due()
    agendas = {store: storage.upcoming(store, pause) for store in storage.alive}
    storage.clock.advance(pause)
    storage.beat()
    upcoming = storage.due() - overdue
    by_id = {
        task_id
        for store, agenda in agendas.items()
        for task_id in storage.claim_by_id(store, agenda)
    }
    assert by_id == upcoming, "on the agenda of no replica that lives"
    scanning = min(storage.alive)
    by_scan = storage.claim_overdue(scanning, since=OVERDUE, wait=False)
    assert by_scan == overdue, "not found by the scan"
    rounds = 1
    _finish_what_is_held(storage, continues=continues)
    while storage.due():
        # What a worker could not go on with is marked as a backlog, and asked for at once.
        storage.claim_overdue(scanning, since=_NOT_AT_ALL, wait=True)
        _finish_what_is_held(storage, continues=continues)
        rounds += 1
    return rounds


def _rounds_max(storage: ModelledStorage, *, continues: bool) -> int:
    if continues:
        return 1
    processes = storage.model.processes.values()
    lines = [len(process.line) + len(process.timers) for process in processes]
    return 1 + max(lines, default=0)


def _finish_what_is_held(storage: ModelledStorage, *, continues: bool) -> None:
    while storage.held:
        held = next(iter(storage.held.values()))
        removes = held.task.task_type is TaskType.REMOVE
        storage.settle(held, success(RemoveProcess() if removes else None), continues=continues)


def _assert_that_only_timers_are_left(storage: ModelledStorage) -> None:
    observer = storage.machinery.observer
    assert observer.execute("SELECT task_id FROM progressor.running").fetchall() == []
    left = observer.execute(
        "SELECT process_id, task_type::text, s.status::text, attempt_count, due_at > %s"
        " FROM progressor.schedule s"
        " JOIN progressor.tasks t USING (slot, namespace, process_id, task_id, task_type)",
        [storage.clock.now()],
    ).fetchall()
    assert {row[1] for row in left} <= TIMER_TYPES
    # Of several timers of a process the earliest waits.
    assert {row[2:] for row in left} <= {("waiting", 0, True), ("blocked", 0, True)}
    waiting = [row[0] for row in left if row[2] == "waiting"]
    assert sorted(waiting) == sorted({row[0] for row in left})


def _assert_that_processes_take_calls(storage: ModelledStorage) -> None:
    processes = storage.model.processes
    assert ProcessStatus.INIT not in {process.status for process in processes.values()}
    for process_id in _running(storage):
        storage.request(TaskType.CALL, process_id, min(storage.alive))
    assert {held.task.key for held in storage.held.values()} == {
        key_of(process_id) for process_id in _running(storage)
    }
    _finish_what_is_held(storage, continues=True)


def _running(storage: ModelledStorage) -> Iterable[str]:
    return [
        process_id
        for process_id, process in storage.model.processes.items()
        if process.status is ProcessStatus.RUNNING
    ]
