"""Lineage: a copy of a database gives out nothing that the original has given out since."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.clock import SystemClock
from progressor.domain.processes.task import TaskResult, TaskType
from progressor.domain.views.replica import ReplicaLoad
from progressor.settings.sections import Database, ReplicaSettings
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pools, connection_of, open_pools
from progressor.storage.replicas.counts import Counts
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.replicas import draw_replica_id
from progressor.storage.steps.settlements import LeaseLost
from tests.conftest import TEMPLATE
from tests.support.postgres.cluster import Cluster
from tests.support.storage.store import (
    a_request,
    create_namespace,
    fresh_key,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")

IDLE = ReplicaLoad(step_count=0, caller_count=0)
FAR = 2**32
SEQUENCES = ("task_ids", "lease_tokens", "replica_ids", "message_ids", "audit_entries_entry_id_seq")


@pytest.fixture
def original(cluster: Cluster) -> Iterator[str]:
    """Return a database on which no replica has been."""
    conninfo = cluster.create_database(TEMPLATE)
    create_namespace(conninfo)
    yield conninfo
    cluster.drop_database(conninfo)


@pytest.fixture
def observer(original: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(original, autocommit=True) as connection:
        yield connection


@contextlib.asynccontextmanager
async def connected(conninfo: str, lineage: Lineage) -> AsyncIterator[Pools]:
    pools = await open_pools(
        Database(dsn=conninfo, front_connections_max=8), conninfo, check_new=lineage.check
    )
    try:
        yield pools
    finally:
        await pools.close()


async def reached(conninfo: str) -> Lineage:
    """Return the lineage that a replica finds that starts now."""
    lineage = Lineage(Functions())
    async with connected(conninfo, lineage) as pools, connection_of(pools.front):
        return lineage


def move(observer: psycopg.Connection[Any]) -> None:
    """Have a database look as if it were a copy of one that was elsewhere."""
    observer.execute("UPDATE progressor.lineage SET identity = 'elsewhere'")


def end_sessions(observer: psycopg.Connection[Any]) -> None:
    """End all other sessions, as a restart does."""
    observer.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def drawn(observer: psycopg.Connection[Any]) -> list[int]:
    """Return the next value of each sequence."""
    values = ", ".join(f"nextval('progressor.{name}')" for name in SEQUENCES)
    row = observer.execute(f"SELECT {values}".encode()).fetchone()
    assert row is not None
    return list(row)


async def test_a_survivor_of_the_lost_future_settles_nothing_in_the_restored_database(
    cluster: Cluster,
) -> None:
    """It was asked to pay; in the restored database its ids and its token were a question."""
    with contextlib.ExitStack() as undo:
        original = cluster.create_database(TEMPLATE)
        undo.callback(cluster.drop_database, original)
        create_namespace(original)
        key = fresh_key()
        async with running_stores(original) as [store]:
            await store.started(key)
        copy = cluster.copy_database(original)
        undo.callback(cluster.drop_database, copy)
        async with running_stores(original) as [store]:
            paying = await store.run_task(a_request(key, TaskType.CALL, args=b"pay"))
            payment = store.entry(paying, success(response=b"paid 1,000,000"))

        async with running_stores(copy) as [survivor]:
            asking = await survivor.run_task(a_request(key, TaskType.CALL, args=b"balance?"))
            written = await survivor.settlements.submit(payment)
            await survivor.settled(asking, success(response=b"7"))

            answer = await survivor.results.await_task(key, asking.task_id)

    assert isinstance(written, LeaseLost)
    assert isinstance(answer, TaskResult)
    assert answer.response == b"7"
    assert asking.task_id > paying.task_id + FAR
    assert asking.token > paying.token + FAR


async def test_a_new_database_has_the_first_epoch_and_counts_from_one(
    original: str, observer: psycopg.Connection[Any]
) -> None:
    found = [await reached(original), await reached(original)]

    assert [it.epoch for it in found] == [1, 1]
    assert drawn(observer) == [1] * len(SEQUENCES)


async def test_of_many_who_notice_at_once_one_begins_the_epoch(
    original: str, observer: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    await reached(original)
    before = drawn(observer)
    move(observer)
    with caplog.at_level(logging.WARNING):
        found = await asyncio.gather(*(reached(original) for _ in range(8)))
    after = drawn(observer)

    assert len({it.epoch for it in found}) == 1
    assert found[0].epoch > 1
    assert all(new > old + FAR for new, old in zip(after, before, strict=True))
    assert all(new < 2**53 for new in after)
    assert caplog.messages.count("the database has a new lineage") == 1


async def test_a_connection_to_another_lineage_is_closed_before_it_is_used(
    original: str, observer: psycopg.Connection[Any]
) -> None:
    lineage = Lineage(Functions())
    async with connected(original, lineage) as pools:
        async with connection_of(pools.front):
            pass
        move(observer)
        end_sessions(observer)
        with pytest.raises(errors.StorageUnavailableError):
            async with connection_of(pools.front) as connection:
                await connection.execute("SELECT 1")
        async with asyncio.timeout(10):
            await lineage.lost.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), connection_of(pools.front):
                pytest.fail("a connection to another lineage was lent")

    assert lineage.epoch == 1


@pytest.mark.parametrize("copied", ["before", "after"])
async def test_a_backup_of_before_the_last_epoch_gives_out_nothing_of_it_again(
    original: str, observer: psycopg.Connection[Any], copied: str
) -> None:
    """A standby takes over, and later a backup is restored that knows nothing of that."""
    await reached(original)
    if copied == "after":
        move(observer)
        await reached(original)
    backup = observer.execute("SELECT * FROM progressor.lineage").fetchall()
    values = drawn(observer)
    move(observer)
    given_up = await reached(original)
    last = drawn(observer)

    observer.execute("UPDATE progressor.lineage SET epoch = %s", [backup[0][1]])
    for name, value in zip(SEQUENCES, values, strict=True):
        observer.execute("SELECT setval(%s, %s)", [f"progressor.{name}", value])
    move(observer)
    restored = await reached(original)

    assert restored.epoch > given_up.epoch
    assert all(new > old for new, old in zip(drawn(observer), last, strict=True))


async def test_a_server_that_was_set_back_to_a_snapshot_is_noticed_by_a_replica_of_before(
    original: str,
) -> None:
    lineage = await reached(original)
    heartbeats = beating(original, lineage)
    heartbeats.beat(draining=False, load=IDLE)
    lineage.remember(2**62)
    with pytest.raises(errors.StorageLineageError):
        heartbeats.beat(draining=False, load=IDLE)
    with pytest.raises(errors.StorageLineageError):
        heartbeats.beat(draining=False, load=IDLE)
    heartbeats.close()

    # Once, although both beats are of before.
    again = await reached(original)
    assert again.epoch > lineage.epoch
    assert (await reached(original)).epoch == again.epoch


async def test_a_beat_of_another_lineage_renews_nothing(
    original: str, observer: psycopg.Connection[Any]
) -> None:
    lineage = await reached(original)
    heartbeats = beating(original, lineage)
    heartbeats.beat(draining=False, load=IDLE)
    observer.execute("UPDATE progressor.replicas SET heartbeat_at = 'epoch'")
    move(observer)
    await reached(original)
    begun = observer.execute("SELECT heartbeat_at FROM progressor.replicas").fetchall()
    with pytest.raises(errors.StorageLineageError):
        heartbeats.beat(draining=False, load=IDLE)
    heartbeats.close()

    # But with the epoch, each replica got as long as a lease lasts to notice.
    [(recent,)] = observer.execute("SELECT %s > now() - interval '1 minute'", begun[0]).fetchall()
    assert recent
    assert observer.execute("SELECT heartbeat_at FROM progressor.replicas").fetchall() == begun


async def test_the_counts_stay_exact(original: str, observer: psycopg.Connection[Any]) -> None:
    async with running_stores(original) as [store]:
        await draw_replica_id(store.pool, Functions())
        counts = Counts(store.context, original)
        before = await counts.compact()
    move(observer)
    async with running_stores(original) as [store]:
        await draw_replica_id(store.pool, Functions())
        after = await Counts(store.context, original).compact()

    assert before == after


async def test_where_the_server_hides_its_identifier_the_rest_has_to_do(
    original: str, observer: psycopg.Connection[Any]
) -> None:
    observer.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    observer.execute("DROP ROLE IF EXISTS plain")
    observer.execute("CREATE ROLE plain")
    schema = Functions().schema
    observer.execute(
        f"GRANT USAGE ON SCHEMA progressor, {schema} TO plain;"
        "GRANT ALL ON ALL TABLES IN SCHEMA progressor TO plain".encode()
    )
    plain = make_conninfo(original, options="-c role=plain")
    try:
        lineage = await reached(plain)
        identity = observer.execute("SELECT identity FROM progressor.lineage").fetchone()
    finally:
        observer.execute("DROP OWNED BY plain; DROP ROLE plain")

    assert lineage.epoch == 1
    assert identity is not None
    assert identity[0].startswith("/0000000")


def beating(conninfo: str, lineage: Lineage) -> Heartbeats:
    return Heartbeats(
        dsn=conninfo,
        identity=Identity(replica_id=4711, name="r", version="1", functions=""),
        lineage=lineage,
        replica=ReplicaSettings(),
        clock=SystemClock(),
    )
