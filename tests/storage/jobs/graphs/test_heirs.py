"""A leader that comes under the name of one that is gone is another one, with a job of its own.

A session that waits for a leader's lock while that is removed ends up without one: the row is gone,
and one that has come meanwhile is not locked. It must leave the new job as it is, however much
that looks like the old one.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.task import RunningTask
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import specs
from tests.support.postgres.locks import until_blocked
from tests.support.storage.jobs.store import DONE, JobStore, job_store, leader_of
from tests.support.storage.store import BROKEN, connect, create_namespace, empty, running_stores

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEADER = leader_of(1)
TRIES = 10
LOCK_TIMEOUT_SECONDS = 0.3
KEY = [LEADER.slot, LEADER.namespace, LEADER.process_id]
GATED = Constraints(gates={"g": 1})

_TAKE_PLACE = """
    WITH gone AS (
        DELETE FROM progressor.processes
        WHERE (slot, namespace, process_id) = (%s, %s, %s)
        RETURNING *
    )
    INSERT INTO progressor.processes
    SELECT * FROM gone"""
_TOLD = (
    "SELECT * FROM progressor.processes WHERE process_id = %s",
    "SELECT * FROM progressor.jobs WHERE process_id = %s",
    "SELECT * FROM progressor.job_nodes WHERE process_id = %s ORDER BY ordinal",
)

Tasks = dict[str, RunningTask]
Write = Callable[[JobStore, Tasks], Coroutine[Any, Any, None]]


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(database: str, observer: psycopg.Connection[Any]) -> AsyncIterator[JobStore]:
    create_namespace(database)
    empty(observer)
    async with running_stores(database, clock=ManualClock()) as [store]:
        yield job_store(store)


async def settle(jobs: JobStore, tasks: Tasks) -> None:
    await jobs.settle(tasks["a"])


async def maintain(jobs: JobStore, _: Tasks) -> None:
    await jobs.control.maintain(LEADER)


async def retry(jobs: JobStore, _: Tasks) -> None:
    with contextlib.suppress(errors.RequestError):
        await jobs.control.retry(LEADER, deadline=None, timeout=None)


async def recover(jobs: JobStore, _: Tasks) -> None:
    await jobs.recovered()


async def in_hand(jobs: JobStore) -> Tasks:
    """Lay out a job whose first node is in hand, with one to start after it."""
    await jobs.submit(LEADER, specs({"a": (), "b": ("a",)}))
    return await jobs.claim()


async def upkeep_due(jobs: JobStore) -> Tasks:
    """Create a job with a node that the next replica to maintain it must start."""
    await jobs.submit(LEADER, specs({"a": ()}, constraints=GATED))
    return {}


async def failed(jobs: JobStore) -> Tasks:
    """Lay out one that has failed."""
    await jobs.submit(LEADER, specs({"a": (), "b": ("a",)}))
    await jobs.settled((await jobs.claim())["a"], BROKEN)
    await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)
    return {}


async def forgotten(jobs: JobStore) -> Tasks:
    """Lay out one that was never told of the end of a node."""
    tasks = await in_hand(jobs)
    await jobs.store.settled(tasks["a"], DONE)
    return tasks


@pytest.mark.parametrize(
    ("lay_out", "write"),
    [(in_hand, settle), (upkeep_due, maintain), (failed, retry), (forgotten, recover)],
    ids=lambda each: each.__name__,
)
async def test_is_left_as_it_is(
    database: str,
    observer: psycopg.Connection[Any],
    jobs: JobStore,
    lay_out: Callable[[JobStore], Coroutine[Any, Any, Tasks]],
    write: Write,
) -> None:
    before = list[Any]()
    for _ in range(TRIES):
        empty(observer, keep=("namespaces",))
        tasks = await lay_out(jobs)
        before = told(observer)
        begun_at = time.monotonic()
        async with await connect(database) as other:
            async with other.transaction():
                await other.execute(_TAKE_PLACE, KEY)
                writing = asyncio.create_task(write(jobs, tasks))
                await until_blocked(observer)
            waited = time.monotonic() - begun_at
        await writing
        if waited < LOCK_TIMEOUT_SECONDS:
            break
        # It gave up on a slow machine, and asked again: by then the new leader is there.

    assert told(observer) == before


def told(observer: psycopg.Connection[Any]) -> list[Any]:
    """Return what the tables say of the leader and its job."""
    return [observer.execute(query, [LEADER.process_id]).fetchall() for query in _TOLD]
