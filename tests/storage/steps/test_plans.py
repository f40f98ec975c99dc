"""No hot statement scans a table that grows, be it large, or grown since it was planned."""

import contextlib
import dataclasses
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.intent import Complete, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TaskType
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import ProcessQuery
from progressor.storage.postgres import locks
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Connection
from progressor.storage.processes import admissions
from progressor.storage.processes.processes import Wanted
from progressor.storage.steps import claims, settlements
from tests.support.builders import make_task
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import (
    Reads,
    keep_unvacuumed,
    reads_of,
    scheduled_task,
    seed,
    seeded_key,
)
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    LEASE_TIMEOUT,
    NAMESPACE,
    NO_TIME,
    STATEMENT_TIMEOUT,
    UNREACHABLE,
    Store,
    a_request,
    connect,
    create_namespace,
    fresh_key,
    success,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.plain_tables]

ORDERS = ProcessFilter(namespace="orders")
IN_ERROR = ProcessFilter(statuses=(ProcessStatus.ERROR,))
BATCH = 32
WAITING, RUNNING, TASKS = 50_000, 500, 1_000_000
GROWING = {"processes", "tasks", "schedule", "events"}
PER_ITEM = 12
"""Rows that may be read per table for one item: its own, by several statements, and neighbours."""

PAGES_PER_ITEM = 100
"""Pages of indexes that may be read per table for one item, on any version of PostgreSQL.

Most need fewer than 16; queue counts 34 to 50, by how many entries of the index are dead. A whole
index of `WAITING` rows has several hundred.
"""

HOUR = dt.timedelta(hours=1)
WAITING_NUMBERS = range(10_001, 10_001 + BATCH)
RUNNING_NUMBERS = range(WAITING + 1, WAITING + 1 + BATCH)
DUE_NUMBERS = range(900, 900 + BATCH)

OUTCOMES: tuple[Outcome, ...] = (
    success(events=2), success(SetTimer(after=HOUR)), success(SetTimer(after=NO_TIME)),
    success(Complete()), BROKEN, UNREACHABLE, success(RemoveProcess()), success(),
)  # fmt: skip


async def admit_starts(store: Store) -> object:
    entries = [
        admissions.Entry(
            a_request(fresh_key(), TaskType.INIT, idempotency_key="k"), number % 2 == 0,
            EXPIRES_AFTER,
        )
        for number in range(BATCH)
    ]  # fmt: skip
    return await store.admissions._starts._kind.write(_connection(store), entries, False)


async def admit_known_starts(store: Store) -> object:
    entries = [
        admissions.Entry(
            a_request(seeded_key(number), TaskType.INIT, idempotency_key="k"), True, EXPIRES_AFTER
        )
        for number in WAITING_NUMBERS
    ]
    return await store.admissions._starts._kind.write(_connection(store), entries, False)


async def admit_requests(store: Store) -> object:
    entries = [
        admissions.Entry(
            a_request(seeded_key(number), idempotency_key=f"k{number}"), True, EXPIRES_AFTER
        )
        for number in [*WAITING_NUMBERS[::2], *RUNNING_NUMBERS[::2]]
    ]
    return await store.admissions._requests._kind.write(_connection(store), entries, False)


def settlement_entries(*, continues: bool) -> list[settlements.Entry]:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        settlements.Entry(
            key=seeded_key(number),
            task_id=scheduled_task(number),
            task_type=TaskType.CALL,
            attempt=1,
            token=number,
            settlement=settle(
                make_task(),
                OUTCOMES[number % len(OUTCOMES)],
                namespace=NAMESPACE,
                now=now,
                spread=0.0,
            ),
            process=None,
            continues=continues,
            expires_after=EXPIRES_AFTER,
        )
        for number in RUNNING_NUMBERS
    ]


async def settle_tasks(store: Store) -> object:
    entries = settlement_entries(continues=True)
    return await store.settlements._plain._kind.write(_connection(store), entries, False)


async def recall_settlements(store: Store) -> object:
    """The batch again: every lease is lost, and each settlement found by its token."""
    return await store.settlements._plain._kind.write(
        _connection(store),
        [dataclasses.replace(each, token=0) for each in settlement_entries(continues=True)],
        True,
    )


async def claim_tasks(store: Store) -> object:
    wanted = [
        claims.Wanted(
            key=seeded_key(number), task_id=scheduled_task(number), expires_after=EXPIRES_AFTER
        )
        for number in DUE_NUMBERS
    ]
    claimed = await store.claims.claim_tasks(store.pool, wanted)
    assert len(claimed) == BATCH
    return claimed


def rooms(count: int = BATCH) -> list[claims.Room]:
    return [
        claims.Room(namespace="orders", limit=count, expires_after=EXPIRES_AFTER),
        claims.Room(namespace="elsewhere", limit=count, expires_after=EXPIRES_AFTER),
    ]


async def claim_due(store: Store) -> object:
    claimed = await store.claims.claim_due(store.pool, rooms(), overdue=NO_TIME, wait=False)
    assert len(claimed) == BATCH
    return claimed


async def find_locked(store: Store) -> object:
    """No task holds one: the most frequent question is whether that is so by now."""
    find = locks.find_locked(Functions(), STATEMENT_TIMEOUT)
    return await find(_connection(store), [seeded_key(number) for number in DUE_NUMBERS])


async def claim_nothing_due(store: Store) -> object:
    return await store.claims.claim_due(store.pool, rooms(), overdue=10 * HOUR, wait=True)


async def find_upcoming(store: Store) -> object:
    # What comes within the horizon may be read whole: PostgreSQL 15 sorts it, knowing no better.
    found, _ = await store.claims.find_upcoming(
        store.pool, rooms(), horizon=HOUR / 12, lease_timeout=LEASE_TIMEOUT
    )
    assert len(found) == BATCH
    return found


async def read_processes(store: Store) -> object:
    numbers = [*WAITING_NUMBERS[::2], *RUNNING_NUMBERS[::2]]
    wanted = [
        Wanted(seeded_key(number), HistoryRange(limit=2, direction=direction))
        for number, direction in zip(numbers, itertools.cycle(Direction))
    ]
    return await store.processes._reads._read(_connection(store), wanted)


async def first_waits(store: Store) -> object:
    numbers = [*WAITING_NUMBERS[::2], *RUNNING_NUMBERS[::2]]
    keys = [seeded_key(number) for number in numbers]
    return await store.processes.first_waits(keys)


async def read_history(store: Store) -> object:
    key = seeded_key(WAITING_NUMBERS[0])
    for direction in Direction:
        wanted = HistoryRange(limit=2, direction=direction)
        await store.processes.history(key, wanted, last_event_id=4, bytes_max=1000)
    return None


async def trace_process(store: Store) -> object:
    return await store.processes.trace(seeded_key(WAITING_NUMBERS[0]), after=0, limit=5)


async def trace_process_backward(store: Store) -> object:
    key = seeded_key(WAITING_NUMBERS[0])
    return await store.processes.trace(key, after=0, limit=5, direction=Direction.BACKWARD)


async def list_processes(store: Store) -> object:
    return await store.processes.list(ProcessQuery(filter=ORDERS, page_size=BATCH))


async def list_later_processes(store: Store) -> object:
    [last] = await store.processes.list(ProcessQuery(filter=ORDERS, page_size=1))
    before = (last.created_at - 10_000 * dt.timedelta(seconds=1), "orders", "p")
    return await store.processes.list(ProcessQuery(filter=ORDERS, page_size=BATCH, before=before))


async def list_all_processes(store: Store) -> object:
    return await store.processes.list(ProcessQuery(page_size=BATCH))


async def list_later_of_all_processes(store: Store) -> object:
    [last] = await store.processes.list(ProcessQuery(page_size=1))
    before = (last.created_at - 10_000 * dt.timedelta(seconds=1), "orders", "p")
    return await store.processes.list(ProcessQuery(page_size=BATCH, before=before))


async def list_broken_of_all_processes(store: Store) -> object:
    return await store.processes.list(ProcessQuery(filter=IN_ERROR, page_size=BATCH))


async def list_broken_processes(store: Store) -> object:
    """There are none, and 50,500 others."""
    return await store.processes.list(
        ProcessQuery(filter=dataclasses.replace(IN_ERROR, namespace="orders"), page_size=BATCH)
    )


async def put_process(store: Store) -> object:
    timer = SetTimer(after=HOUR)
    put = Import(key=fresh_key(), status=ProcessStatus.RUNNING, timer=timer, idempotency_key="k")
    return [await store.put(put) for _ in range(2)]


async def remove_process(store: Store) -> object:
    return await store.remove(seeded_key(WAITING_NUMBERS[0]))


async def simple_repair(store: Store) -> object:
    return await store.recover(seeded_key(WAITING_NUMBERS[0]))


async def await_task(store: Store) -> object:
    key = seeded_key(WAITING_NUMBERS[0])
    await store.results.await_task(key, scheduled_task(WAITING_NUMBERS[0]))
    with contextlib.suppress(errors.TaskNotFoundError):
        await store.results.await_task(key, "no such key")
    return None


async def fetch_results(store: Store) -> object:
    return await store.results.fetch(
        {scheduled_task(number): seeded_key(number) for number in WAITING_NUMBERS}
    )


async def find_zombies(store: Store) -> object:
    await store.beat()
    return await store.find_zombies()


async def count_waiting(store: Store) -> object:
    queues = await store.queues.count(["orders", "elsewhere"], count_max=BATCH)
    (queue,) = (it for it in queues if it.namespace == "orders")
    assert (queue.due_count, queue.timer_count) == (BATCH, BATCH)
    return queue


async def delete_finished(store: Store) -> object:
    return await store.retention.delete_finished("orders", age=HOUR, limit=BATCH)


async def delete_namespace(store: Store) -> object:
    with contextlib.suppress(errors.NamespaceNotEmptyError, errors.NamespaceNotFoundError):
        await store.namespaces.delete("orders")
    with contextlib.suppress(errors.NamespaceNotEmptyError, errors.NamespaceNotFoundError):
        await store.namespaces.delete("elsewhere")
    return None


Work = Callable[[Store], Awaitable[object]]

WORKS: dict[Work, int] = {
    admit_starts: BATCH, admit_known_starts: BATCH, admit_requests: BATCH, settle_tasks: BATCH,
    recall_settlements: BATCH, claim_tasks: BATCH, claim_due: BATCH, claim_nothing_due: 1,
    find_locked: BATCH,
    find_upcoming: BATCH, read_processes: BATCH, first_waits: BATCH, read_history: 1,
    trace_process: 5,
    trace_process_backward: 5,
    list_processes: BATCH, list_later_processes: BATCH, list_broken_processes: 1,
    list_all_processes: BATCH, list_later_of_all_processes: BATCH, list_broken_of_all_processes: 1,
    put_process: 2, remove_process: 5, simple_repair: 1, await_task: 2, fetch_results: BATCH,
    count_waiting: BATCH, delete_finished: 1, delete_namespace: 2,
}  # fmt: skip
"""What a replica does, and how many items that is."""

# A later page of List does not belong to a step, and is a plain statement. Before the first ANALYZE
# of its table PostgreSQL 15 sorts the namespace for it; autovacuum ends that within a minute.
WORKS_WITHOUT_STATISTICS = [work for work in WORKS if work is not list_later_processes]


def _connection(store: Store) -> Connection:
    connection: Any = store.pool
    return connection.lent  # type: ignore[no-any-return]  # the pool of one that the test lends


def unbounded(reads: Any, items: int) -> dict[str, Reads]:
    """Return the tables that were scanned, or read beyond what the items need.

    One that does not grow may be read whole, by its index as well.
    """
    found: dict[str, Reads] = dict(reads)
    return {
        table: each
        for table, each in found.items()
        if (table in GROWING and each.sequential)
        or each.by_index > max(PER_ITEM * items, 0 if table in GROWING else RUNNING)
        or each.index_pages > PAGES_PER_ITEM * items
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def large(database: str) -> AsyncIterator[Connection]:
    """Return a session that plans for the first time, on many rows that the planner knows of."""
    seed(database, waiting=WAITING, running=RUNNING, tasks=TASKS, analyze=True)
    async with await connect(database) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grown(cluster: Cluster) -> AsyncIterator[Connection]:
    """Return a session that planned on empty tables, which have not been analysed since."""
    conninfo = cluster.create_database("progressor_template")
    create_namespace(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as observer:
        keep_unvacuumed(observer)
    async with await connect(conninfo) as connection:
        for work in WORKS:
            with contextlib.suppress(AssertionError, ValueError, errors.RequestError):
                await reads_of(connection, ManualClock(), work)
        seed(conninfo, waiting=WAITING, running=RUNNING, tasks=2 * WAITING, analyze=False)
        yield connection
    cluster.drop_database(conninfo)


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
async def test_on_large_tables_only_the_rows_of_the_items_are_read(
    large: Connection, work: Work
) -> None:
    reads = await reads_of(large, ManualClock(), work)

    assert unbounded(reads, WORKS[work]) == {}


@pytest.mark.parametrize("work", WORKS_WITHOUT_STATISTICS, ids=lambda work: work.__name__)
async def test_on_tables_that_grew_only_the_rows_of_the_items_are_read(
    grown: Connection, work: Work
) -> None:
    reads = await reads_of(grown, ManualClock(), work)

    assert unbounded(reads, WORKS[work]) == {}


async def test_zombies_are_looked_for_among_what_runs(large: Connection, grown: Connection) -> None:
    for connection in (large, grown):
        reads = await reads_of(connection, ManualClock(), find_zombies)

        tasks = reads.get("tasks", Reads(sequential=0, by_index=0))
        assert tasks.sequential == 0
        assert tasks.by_index <= RUNNING
