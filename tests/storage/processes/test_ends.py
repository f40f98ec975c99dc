"""Ends of processes and of running tasks, at the same moment as what they compete with.

What must hold: a caller that waits for the end of a process either reads it, or is noted where the
end is written. Of a cancellation and the settlement of the step, one counts.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.intent import Complete, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import End
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.postgres.rows.effects import AwaitedEnd, Effects, RevokedLease
from progressor.storage.steps.settlements import LeaseLost
from tests.support.postgres.locks import until_blocked
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    Store,
    a_request,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = dt.timedelta(minutes=1)
ENDS: dict[str, tuple[Callable[[Store, RunningTask], Awaitable[Any]], End]] = {
    "complete": (lambda store, task: store.settle(task, success(Complete(b"r"))), End.FINISHED),
    "break": (lambda store, task: store.settle(task, BROKEN), End.FAILED),
    "leave": (lambda store, task: store.settle(task, success(RemoveProcess())), End.REMOVED),
    "terminate": (lambda store, task: store.terminate(task.key, "why"), End.TERMINATED),
    "halt": (lambda store, task: store.halt(task.key, "why"), End.FAILED),
    "remove": (lambda store, task: store.remove(task.key), End.REMOVED),
    "cancel": (lambda store, task: store.cancel(task.key, task.task_id), End.REMOVED),
}


async def wait_for(store: Store, key: ProcessKey) -> End | None:
    try:
        return (await store.results.await_process(key, until_finished=False)).verdict
    except errors.ProcessNotFoundError:
        return End.REMOVED


def announced(reported: list[Effects]) -> list[AwaitedEnd]:
    return [end for effects in reported for end in effects.process_ends]


@pytest.mark.parametrize("is_first", [True, False], ids=["wait, end", "end, wait"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_wait_and_an_end_at_once_never_miss_each_other(
    store: Store,
    other: Store,
    observer: psycopg.Connection[Any],
    database: str,
    end: str,
    is_first: bool,
) -> None:
    do, verdict = ENDS[end]
    task = await store.start(fresh_key())
    store.reported.clear()
    deeds: list[Callable[[], Awaitable[Any]]] = [
        lambda: wait_for(other, task.key),
        lambda: do(store, task),
    ]
    with psycopg.connect(database) as holder:
        holder.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
            [task.key.process_id],
        )
        tasks = []
        for count, deed in enumerate(deeds if is_first else deeds[::-1], start=1):
            tasks.append(asyncio.ensure_future(deed()))
            await until_blocked(observer, count)
        holder.rollback()
        await asyncio.gather(*tasks)

    found = tasks[0 if is_first else 1].result()
    noted = [AwaitedEnd(task.task_id, (other.replica_id,))]
    assert (found, announced(store.reported)) in [(verdict, []), (None, noted)]
    [read] = await other.results.read_ends([task.key])
    assert (End.REMOVED if read is None else read.verdict) is verdict


async def test_of_many_replicas_that_wait_the_latest_are_noted(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    task = await store.start(fresh_key())
    observer.execute(
        "UPDATE progressor.processes SET awaited_by = %s WHERE process_id = %s",
        [list(range(100, 132)), task.key.process_id],
    )
    store.reported.clear()

    for _ in range(2):
        await store.results.await_process(task.key, until_finished=False)
    await store.settle(task, success(Complete()))

    [end] = announced(store.reported)
    assert end.awaited_by == (*range(101, 132), store.replica_id)


@pytest.mark.parametrize("is_first", [True, False], ids=["cancel, settle", "settle, cancel"])
async def test_of_a_cancellation_and_a_settlement_at_once_one_counts(
    store: Store, other: Store, observer: psycopg.Connection[Any], database: str, is_first: bool
) -> None:
    key = fresh_key()
    await store.started(key, success(SetTimer(after=MINUTE)))
    task = await store.run_task(a_request(key))
    behind = await store.admit(a_request(key), run=False)
    other.reported.clear()
    with psycopg.connect(database) as holder:
        holder.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE", [key.process_id]
        )
        deeds: list[Callable[[], Awaitable[Any]]] = [
            lambda: other.cancel(key, task.task_id),
            lambda: store.settle(task, success(events=1), continues=False),
        ]
        tasks = []
        for count, deed in enumerate(deeds if is_first else deeds[::-1], start=1):
            tasks.append(asyncio.ensure_future(deed()))
            await until_blocked(observer, count)
        holder.rollback()
        found = await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, settled = found if is_first else found[::-1]
    revoked = [each.task.lease for effects in other.reported for each in effects.cancelled]
    if isinstance(settled, LeaseLost):
        assert cancelled == task.task_id
        assert revoked == [RevokedLease(store.replica_id, task.token)]
    else:
        assert (type(cancelled), revoked) == (errors.TaskHasEndedError, [])
    assert (await store.processes.get(key)).process.last_event_id == int(revoked == [])
    [claimed] = await store.claim_due()
    assert claimed.task.task_id == behind.task_id
    await store.settled(claimed.task, continues=False)
    store.clock.advance(MINUTE)
    [timer] = await store.claim_due()
    assert timer.task.task_type is TaskType.TIMEOUT
    await store.settled(timer.task, success(Complete()))
    assert broken_invariants(observer, at_rest=True, now=store.clock.now()) == {}
