"""The record of runs is settled and deleted at a cost that grows with it, a window at a time."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.schedules.schedule import OverlapPolicy, Schedule
from progressor.storage.postgres.pools import Connection
from progressor.storage.schedules.runs import DeletedTo
from tests.support.clock import ManualClock
from tests.support.postgres.reads import reads_of
from tests.support.storage.schedules import MINUTE, a_spec, schedule_store
from tests.support.storage.store import Store, connect, create_namespace, running_stores

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEDULES, RUNNING = 12, 60
PER_RUN = 3
"""Rows of processes that may be read for one run: where it is, once."""

WINDOW = 50
DAY = dt.timedelta(days=1)

_RUNS = """
    INSERT INTO progressor.schedule_runs
        (slot, namespace, schedule_id, instant, cause, state, overlap_policy, due_at, recorded_at,
        started_at, process_slot, process_id, task_type, task_id)
    SELECT s.slot, s.namespace, s.schedule_id, at, 'time', 'running', 'skip', at, at, at, 1,
        s.schedule_id || '/' || n, 'init', n
    FROM progressor.schedules s
    CROSS JOIN generate_series(1, %(count)s) n
    CROSS JOIN LATERAL (SELECT s.next_instant - n * '1 h'::interval) i (at)"""
_PROCESSES = """
    INSERT INTO progressor.processes (slot, namespace, process_id, status, created_at,
        status_changed_at, init_task_id)
    SELECT f.process_slot, f.namespace, f.process_id, 'running', f.instant, f.instant, f.task_id
    FROM progressor.schedule_runs f"""


@pytest_asyncio.fixture(loop_scope="module")
async def worked(
    cluster: Any,
) -> AsyncIterator[tuple[Connection, ManualClock, list[Schedule]]]:
    """Return a connection to a database whose schedules have runs at work, and the schedules."""
    conninfo = cluster.create_database("progressor_template")
    create_namespace(conninfo)
    clock = ManualClock()
    spec = a_spec(overlap_policy=OverlapPolicy.SKIP)
    async with running_stores(conninfo, clock=clock) as (store,):
        schedules = [await schedule_store(store).create(spec) for _ in range(SCHEDULES)]
        with psycopg.connect(conninfo, autocommit=True) as filler:
            filler.execute(_RUNS.encode(), {"count": RUNNING})
            filler.execute(_PROCESSES.encode())
        connection = await connect(conninfo)
        yield connection, clock, schedules
        await connection.close()
    cluster.drop_database(conninfo)


async def test_a_run_looks_once_at_each_run_of_its_schedule(
    worked: tuple[Connection, ManualClock, list[Schedule]],
) -> None:
    connection, clock, _ = worked
    clock.advance(MINUTE)
    ran: list[str] = []

    async def run(store: Store) -> None:
        ran.extend(await schedule_store(store).run_due())

    reads = await reads_of(connection, clock, run)

    assert ran == ["skipped"] * SCHEDULES
    assert reads["processes"].by_index <= PER_RUN * SCHEDULES * RUNNING


async def test_retention_looks_once_at_each_run_of_a_schedule(
    worked: tuple[Connection, ManualClock, list[Schedule]],
) -> None:
    connection, clock, schedules = worked
    key = schedules[0].key

    async def forget(store: Store) -> None:
        runs = schedule_store(store).runs
        at: DeletedTo | None = DeletedTo()
        while at is not None:
            at = (await runs.delete_old(key.slot, at, kept=1, age=DAY, limit=WINDOW)).next

    reads = await reads_of(connection, clock, forget)

    assert reads["processes"].by_index <= PER_RUN * RUNNING
    assert reads["schedule_runs"].by_index <= 5 * RUNNING
