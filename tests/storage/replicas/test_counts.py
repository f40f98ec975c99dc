"""Counts of processes: exact after every write, whatever compacts and scans beside it."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.admission import Import
from progressor.domain.processes.intent import Complete, SetTimer
from progressor.domain.processes.process import ProcessCount, ProcessCounts, ProcessStatus
from progressor.domain.views.filter import ProcessFilter
from progressor.storage.postgres.functions import Functions
from progressor.storage.replicas.counts import Compacted, Counts
from progressor.storage.replicas.replicas import draw_replica_id
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    Store,
    a_request,
    create_namespace,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
OLD_REPLICA = """
    INSERT INTO progressor.replicas (replica_id, name, version, functions, started_at, heartbeat_at)
    VALUES (nextval('progressor.replica_ids'), 'old', '0', 'pg_catalog', %(now)s, %(now)s)"""
UNCOUNTED = "UPDATE progressor.processes SET status = 'error', detail = '' WHERE status = 'running'"
EXACT, INEXACT = Compacted(is_exact=True, scan_due=False), Compacted(is_exact=False, scan_due=True)


@pytest.fixture
def counts(store: Store, database: str, observer: psycopg.Connection[Any]) -> Counts:
    """Return the counts of a database in which no replica has run but by draw_replica_id."""
    observer.execute("DELETE FROM progressor.replicas")
    observer.execute(
        "UPDATE progressor.process_count_state SET is_exact = true, scan_due_at = 'infinity',"
        " replica_id = (SELECT CASE WHEN is_called THEN last_value ELSE 0 END"
        " FROM progressor.replica_ids)"
    )
    return Counts(store.context, database)


async def test_each_status_is_counted_by_namespace(
    store: Store, counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    await store.start(fresh_key())
    await store.ready()
    await store.started(fresh_key(), success(Complete(b"")))
    for _ in range(2):
        await store.broken(fresh_key())
    removed = await store.ready()
    await store.remove(removed)
    terminated = fresh_key()
    await store.broken(terminated)
    await store.terminate(terminated, "no use")
    recovered = fresh_key()
    await store.broken(recovered)
    await store.recover(recovered)
    await store.put(Import(key=fresh_key(), status=ProcessStatus.FINISHED))

    expected = ProcessCounts(
        namespace="orders", init_count=1, running_count=2, error_count=2, finished_count=3
    )
    assert await counts.read() == await counts.read("orders") == (expected,)
    assert [expected.total, expected.of([ProcessStatus.ERROR]).total] == [8, 2]
    assert broken_invariants(observer) == {}


async def test_namespaces_and_statuses_are_counted_without_reading_processes(
    store: Store, counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    await store.broken(fresh_key())
    observer.execute("INSERT INTO progressor.process_counts VALUES ('orders', NULL, 'init', 9)")
    init, error = (ProcessStatus.INIT,), (ProcessStatus.ERROR,)

    async def count(**fields: Any) -> int:
        return (await counts.count(ProcessFilter(**fields), exact_max=100)).count

    assert [await count(), await count(namespace="orders")] == [10, 10]
    assert [await count(statuses=init), await count(statuses=init + error)] == [9, 10]
    assert await count(statuses=init, id_prefix="p") == 0


async def test_more_than_the_limit_are_estimated(store: Store, counts: Counts) -> None:
    for _ in range(3):
        await store.broken(fresh_key())

    exact = await counts.count(ProcessFilter(failure_reason="BUG"), exact_max=3)
    estimate = await counts.count(ProcessFilter(failure_reason="BUG"), exact_max=2)

    assert exact == ProcessCount(count=3)
    assert (estimate.count >= 3, estimate.is_estimate) == (True, True)


async def test_a_step_that_leaves_the_status_counts_nothing(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    key = await store.ready(success(SetTimer(after=HOUR)))
    written = "SELECT count(*) FROM progressor.process_counts"
    before = observer.execute(written).fetchone()

    await store.settled(await store.run_task(a_request(key)), success(events=1))

    assert observer.execute(written).fetchone() == before == (2,)


async def test_writers_compactions_and_scans_do_not_disturb_each_other(
    stores: tuple[Store, ...], counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    async def lives(replica: Store) -> None:
        for number in range(40):
            key = fresh_key()
            await replica.started(key, (success(), BROKEN, success(Complete(b"")))[number % 3])
            if number % 4 == 0:
                await replica.remove(key)

    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(lives(replica)) for replica in stores for _ in range(4)]
        while not all(writer.done() for writer in writers):
            await counts.compact(rows_max=0)
            assert not await counts.recount()
            assert broken_invariants(observer) == {}
    await counts.compact(rows_max=0)

    assert observer.execute("SELECT count(*) FROM progressor.process_counts").fetchone() == (3,)
    assert [each.total for each in await counts.read()] == [240]
    assert broken_invariants(observer) == {}


async def test_the_counts_are_small_again_after_many_changes_in_one_transaction(
    counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    """Such as those that are made while a long one keeps VACUUM from removing the merged rows."""

    def pages() -> int:
        [(size,)] = observer.execute(
            "SELECT pg_relation_size('progressor.process_counts')"
            " / current_setting('block_size')::integer"
        ).fetchall()
        return int(size)

    observer.execute(
        "INSERT INTO progressor.process_counts"
        " SELECT 'orders', NULL, 'running', 1 FROM generate_series(1, 50000)"
    )
    most = pages()
    for _ in range(3):
        await counts.compact(rows_max=-9)
        observer.execute("VACUUM progressor.process_counts")

    assert pages() < most / 10


async def test_while_an_older_release_runs_the_counts_are_estimates_and_scanned(
    store: Store, counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    await store.ready()
    observer.execute(OLD_REPLICA, {"now": store.clock.now()})
    observer.execute(UNCOUNTED)

    assert await counts.compact() == INEXACT
    assert [each.is_estimate for each in await counts.read()] == [True]
    assert await counts.recount() == 2
    # Corrected, and not exact yet: it still runs.
    [counted] = await counts.read()
    assert (counted.error_count, counted.is_estimate) == (1, True)
    assert await counts.compact() == Compacted(is_exact=False, scan_due=False)

    store.clock.advance(dt.timedelta(minutes=1))
    assert await counts.compact() == INEXACT
    assert await counts.recount() == 0
    assert await counts.compact() == EXACT
    assert [each.is_estimate for each in await counts.read()] == [False]


async def test_an_older_release_is_noticed_after_it_has_gone(
    store: Store, counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    await draw_replica_id(store.pool, Functions())
    assert await counts.compact() == EXACT

    observer.execute("SELECT nextval('progressor.replica_ids')")
    await draw_replica_id(store.pool, Functions())

    assert await counts.compact() == INEXACT
    await draw_replica_id(store.pool, Functions())
    assert await counts.recount() == 0
    assert await counts.compact() == EXACT


async def test_one_replica_compacts_and_one_scans_at_a_time(
    counts: Counts, observer: psycopg.Connection[Any]
) -> None:
    with observer.transaction():
        observer.execute("SELECT FROM progressor.process_count_state FOR UPDATE")
        observer.execute("SELECT pg_advisory_xact_lock(7306915)")

        assert await counts.compact() == Compacted(is_exact=None, scan_due=None)
        assert await counts.recount() is None


async def test_namespaces_without_processes_are_counted_and_deleted_ones_are_not(
    store: Store, counts: Counts, database: str, observer: psycopg.Connection[Any]
) -> None:
    other = store.namespace.__class__(name="a", processor_targets=("127.0.0.1:1",))
    create_namespace(database, other)
    observer.execute("INSERT INTO progressor.process_counts VALUES ('gone', NULL, 'init', 1)")

    assert await counts.read() == (ProcessCounts(namespace="a"), ProcessCounts(namespace="orders"))
    assert await counts.read("gone") == ()
    assert await counts.recount() == 1
    observer.execute("DELETE FROM progressor.namespaces WHERE name = 'a'")
