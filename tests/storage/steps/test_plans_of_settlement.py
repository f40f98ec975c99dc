"""Settling reads the rows of its items, also where the planner believes that there are none."""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.processes.intent import (
    Complete,
    Outcome,
    RemoveProcess,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TaskType
from progressor.storage.postgres.pools import Connection
from progressor.storage.steps import settlements, turns
from tests.conftest import TEMPLATE
from tests.support.builders import make_process, make_task
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import reads_of, scheduled_task, seed, seeded_key
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    NAMESPACE,
    NO_TIME,
    TABLES,
    UNREACHABLE,
    Store,
    connect,
    empty,
    success,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.plain_tables]

WAITING, RUNNING, TASKS = 2_000, 500, 10_000
PER_ITEM = 12
"""Rows that may be read per table for one item: its own, by several statements, and neighbours."""
TASKS_EACH = TASKS // (WAITING + RUNNING) + 1
PER_REMOVAL = 1 + 3 * TASKS_EACH
"""The same where the process goes: its task, and all its tasks for those who wait for them, for the
answers that are kept, and to delete them."""

PAGES_PER_ITEM = 20
"""Pages of indexes: less than any index here has, so that none may be read whole for an item."""

BEHIND = 3
"""Calls that wait behind each of those that run."""

HOUR = dt.timedelta(hours=1)
REMOVAL = success(RemoveProcess())
OUTCOMES: tuple[Outcome, ...] = (
    success(events=1), success(SetTimer(after=HOUR)), success(SetTimer(after=NO_TIME)),
    success(UnsetTimer()), success(Complete()), REMOVAL, BROKEN, UNREACHABLE,
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def misled(cluster: Cluster) -> AsyncIterator[Connection]:
    """Return a session on full tables of which PostgreSQL has noted pages, and no rows."""
    conninfo = cluster.create_database(TEMPLATE)
    seed(conninfo, waiting=WAITING, running=RUNNING, tasks=TASKS, analyze=False)
    with psycopg.connect(conninfo, autocommit=True) as observer:
        empty(observer)
        observer.execute("VACUUM (ANALYZE, TRUNCATE false)")
    seed(conninfo, waiting=WAITING, running=RUNNING, tasks=TASKS, analyze=False)
    with psycopg.connect(conninfo, autocommit=True) as observer:
        noted = observer.execute(
            "SELECT sum(relpages) > 100, sum(reltuples) = 0 FROM pg_class"
            " WHERE relnamespace = 'progressor'::regnamespace AND relkind = 'r'"
            " AND relname = ANY (%s)",
            [[table for table in TABLES if table != "namespaces"]],
        ).fetchone()
    assert noted == (True, True)
    async with await connect(conninfo) as connection:
        yield connection
    cluster.drop_database(conninfo)


@pytest.mark.parametrize("size", [1, 8, 128])
@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_only_the_rows_of_the_items_are_read(
    misled: Connection, outcome: Outcome, size: int, *, continues: bool
) -> None:
    async def work(store: Store) -> object:
        connection: Any = store.pool
        written = await store.settlements._plain._kind.write(
            connection.lent, entries(outcome, size=size, continues=continues), False
        )
        assert all(isinstance(each, settlements.Written) for each in written)
        return written

    rows_max = PER_REMOVAL if outcome == REMOVAL else PER_ITEM
    reads = await reads_of(misled, ManualClock(), work)

    assert {
        table: each
        for table, each in reads.items()
        if each.sequential + each.by_index > rows_max * size
        or each.index_pages > PAGES_PER_ITEM * size
    } == {}


@pytest.mark.parametrize("size", [1, 8, 64])
async def test_a_turn_reads_only_its_own_rows(misled: Connection, size: int) -> None:
    async def work(store: Store) -> object:
        connection: Any = store.pool
        firsts = entries(success(events=1), size=size, continues=True)
        batch = []
        for first in firsts:
            running = make_task(
                process=make_process(key=first.key), task_id=first.task_id, token=first.token
            )
            line = await store.turns.line(running, BEHIND)
            assert len(line) == BEHIND
            steps = [
                dataclasses.replace(first, task_id=it.task_id, token=it.token)
                for it in (running, *line[:-1])
            ]
            batch.append(turns.Turn(steps=steps, following=line[-1]))
        written = await store.turns._turns._kind.write(connection.lent, batch, False)
        assert not any(isinstance(each, settlements.LeaseLost) for each in written)
        return written

    await misled.execute(_BEHIND[0], [WAITING, WAITING + size, BEHIND])
    await misled.execute(_BEHIND[1], [WAITING, WAITING + size, BEHIND])
    reads = await reads_of(misled, ManualClock(), work)
    await misled.execute("DELETE FROM progressor.schedule WHERE task_id >= 3000000000")
    await misled.execute("DELETE FROM progressor.tasks WHERE task_id >= 3000000000")

    assert {
        table: each
        for table, each in reads.items()
        if each.sequential + each.by_index > PER_ITEM * (1 + BEHIND) * size
        or each.index_pages > PAGES_PER_ITEM * (1 + BEHIND) * size
    } == {}


_BEHIND: tuple[LiteralString, ...] = (
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, created_at)
    SELECT (n * 7919 %% 1024)::smallint, 'orders', 'p' || n, 3000000000 + 1000 * n + k, 'call',
        'waiting', '2025-01-01'
    FROM generate_series(%s + 1, %s) n, generate_series(1, %s) k""",
    """
    INSERT INTO progressor.schedule
        (slot, namespace, process_id, task_id, task_type, status, replica_id)
    SELECT (n * 7919 %% 1024)::smallint, 'orders', 'p' || n, 3000000000 + 1000 * n + k, 'call',
        'waiting', 1
    FROM generate_series(%s + 1, %s) n, generate_series(1, %s) k""",
)


def entries(outcome: Outcome, *, size: int, continues: bool) -> list[settlements.Entry]:
    """Return settlements of calls that were seeded as running."""
    now = ManualClock().now()
    return [
        settlements.Entry(
            key=seeded_key(number),
            task_id=scheduled_task(number),
            task_type=TaskType.CALL,
            attempt=1,
            token=number,
            settlement=settle(
                make_task(task_type=TaskType.CALL, attempt=1, first_started_at=now),
                outcome,
                namespace=NAMESPACE,
                now=now,
                spread=0.0,
            ),
            process=None,
            continues=continues,
            expires_after=EXPIRES_AFTER,
        )
        for number in range(WAITING + 1, WAITING + 1 + size)
    ]
