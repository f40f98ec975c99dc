"""What runs schedules reads what it runs: not the other schedules, nor what has been run."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.schedules.schedule import OverlapPolicy, ScheduleKey, schedule_key
from progressor.storage.postgres.pools import Connection
from progressor.storage.schedules.runs import FIRST
from tests.support.builders import make_namespace
from tests.support.clock import START, ManualClock
from tests.support.postgres.reads import Reads, reads_of
from tests.support.storage.schedules import MINUTE, ScheduleStore, a_spec, schedule_store
from tests.support.storage.store import (
    LEASE_TIMEOUT,
    Store,
    connect,
    create_namespace,
    running_stores,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEDULES, RUNS_EACH, BATCH = 20_000, 10, 50
PER_ITEM = 12
"""Rows that may be read per table for one schedule: its own, by several statements."""

_SCHEDULES = """
    INSERT INTO progressor.schedules
    SELECT (jsonb_populate_record(s, jsonb_build_object(
        'slot', mod(n, 1024), 'schedule_id', 'seeded-' || n,
        'next_instant', %(start)s + n * '1 h'::interval,
        'next_at', %(start)s + n * '1 h'::interval))).*
    FROM progressor.schedules s, generate_series(1, %(count)s) n"""
_RUNS = """
    INSERT INTO progressor.schedule_runs
        (slot, namespace, schedule_id, instant, cause, state, overlap_policy, due_at, recorded_at,
        started_at, process_slot, process_id, task_type, task_id)
    SELECT s.slot, s.namespace, s.schedule_id, at, 'time', 'done', 'skip', at, at, at, 1,
        'seeded', 'init', 1
    FROM progressor.schedules s, generate_series(%(start)s - %(each)s * '1 h'::interval,
        %(start)s - '1 h'::interval, '1 h') at"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["planned", "analyzed"])
async def filled(
    cluster: Any, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Connection, ManualClock]]:
    """Return a connection to a database with schedules that are due some time after START.

    Its plans were made while there was one schedule, or for as many as there are.
    """
    conninfo = cluster.create_database("progressor_template")
    create_namespace(conninfo)
    clock = ManualClock()
    connection = await connect(conninfo)
    async with running_stores(conninfo, clock=clock) as (store,):
        await schedule_store(store).create(a_spec(overlap_policy=OverlapPolicy.QUEUE_ONE))
        await reads_of(connection, clock, _everything)
        with psycopg.connect(conninfo, autocommit=True) as filler:
            named = {"start": START, "count": SCHEDULES, "each": RUNS_EACH}
            filler.execute(_SCHEDULES.encode(), named)
            filler.execute(_RUNS.encode(), named)
            if request.param == "analyzed":
                filler.execute("ANALYZE progressor.schedules, progressor.schedule_runs")
        yield connection, clock
    await connection.close()
    cluster.drop_database(conninfo)


async def _everything(store: Store) -> None:
    """Have each statement planned."""
    timetable = schedule_store(store)
    await _run_batch(timetable)
    await timetable.runs.find_queued(after=FIRST, limit=BATCH)
    await timetable.runs.seconds_until_due()
    await timetable.runs.last(ScheduleKey(1, "orders", "seeded-1"), limit=10)


async def _run_batch(timetable: ScheduleStore) -> None:
    due = await timetable.runs.claim_due(limit=BATCH, lease=LEASE_TIMEOUT)
    items = [item for each in due if (item := timetable.scan.planned(each)) is not None]
    if items:
        await timetable.schedule_runs.run(items)


async def _queue(timetable: ScheduleStore) -> None:
    await timetable.runs.find_queued(after=FIRST, limit=BATCH)


async def _look(timetable: ScheduleStore) -> None:
    await timetable.runs.seconds_until_due()


async def _read(timetable: ScheduleStore) -> None:
    await timetable.runs.last(ScheduleKey(1, "orders", "seeded-1"), limit=10)
    await timetable.schedules.list("orders", after="seeded-1", limit=10)


@pytest.mark.parametrize(
    ("work", "items"), [(_run_batch, BATCH), (_queue, 1), (_look, 1), (_read, 20)],
    ids=["run", "queue", "look", "read"],
)  # fmt: skip
async def test_no_statement_reads_more_than_what_it_is_about(
    filled: tuple[Connection, ManualClock],
    work: Callable[[ScheduleStore], Awaitable[None]],
    items: int,
) -> None:
    connection, clock = filled
    clock.advance(START + BATCH * 60 * MINUTE - clock.now())

    reads = await reads_of(connection, clock, lambda store: work(schedule_store(store)))

    for table in ("schedules", "schedule_runs", "processes"):
        found = reads.get(table, Reads(sequential=0, by_index=0))
        assert found.sequential == 0, f"{table} is read as a whole"
        assert found.by_index <= PER_ITEM * items, f"{table}: {found}"


async def test_due_schedules_of_a_paused_namespace_are_not_read(
    filled: tuple[Connection, ManualClock],
) -> None:
    connection, clock = filled
    clock.advance(START + 2 * SCHEDULES * 60 * MINUTE - clock.now())

    async def beside_a_pause(store: Store) -> None:
        await store.namespaces.create(make_namespace("running"))
        await store.namespaces.pause(["orders"], reason="why", author="ada")
        timetable = schedule_store(store)
        key = schedule_key("running", "beside")
        await timetable.schedules.create(key, a_spec(), paused=False, note="")
        clock.advance(MINUTE)
        assert (await timetable.runs.seconds_until_due()) == 0
        [claimed] = await timetable.runs.claim_due(limit=BATCH, lease=LEASE_TIMEOUT)
        assert claimed.schedule.key == key
        assert await timetable.runs.claim_due(limit=BATCH, lease=LEASE_TIMEOUT) == ()

    reads = await reads_of(connection, clock, beside_a_pause)

    found = reads["schedules"]
    assert (found.sequential, found.by_index <= 3 * PER_ITEM) == (0, True), found
