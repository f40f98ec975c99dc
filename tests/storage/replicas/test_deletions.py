"""Deletions of namespaces and schedules: no lock outlasts a statement, no table is read whole."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio

from progressor import errors, job_errors
from progressor.clock import SystemClock
from progressor.domain.processes.namespace import Namespace
from progressor.domain.schedules.schedule import schedule_key
from progressor.settings import config
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, Pools, open_pools
from progressor.storage.postgres.writer import IDLE_IN_TRANSACTION_SECONDS
from progressor.storage.schedules.schedules import Schedules
from tests.support.storage.schedules import a_spec
from tests.support.storage.store import NAMESPACE, create_namespace, lent

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESS_COUNT = 20_000
HELD: LiteralString = """
    SELECT l.relation::regclass::text, l.mode
    FROM pg_locks l
    WHERE l.pid = %s AND l.locktype = 'relation' AND l.mode LIKE '%%Share%%Lock%%'
        AND l.mode <> 'AccessShareLock'"""
SCANNED: LiteralString = """
    SELECT indexrelname, idx_scan FROM pg_stat_user_indexes WHERE relname = 'processes'"""
SHOWN: LiteralString = "SHOW idle_in_transaction_session_timeout"
SEEDED: LiteralString = """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, last_event_id,
         init_task_id)
    SELECT n %% 1024, 'orders', 'p' || n, 'running', now(), now(), 0, n
    FROM generate_series(1, %s) n"""


class Watched(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection that looks after each of its statements which locks it still holds."""

    observer: psycopg.Connection[Any]
    held: list[tuple[str, str]]

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        cursor = await super().execute(*arguments, **options)
        self.held += self.observer.execute(HELD, [self.info.backend_pid]).fetchall()
        return cursor


@pytest_asyncio.fixture(loop_scope="module")
async def watched(database: str) -> AsyncIterator[Watched]:
    """Return a connection whose locks are looked at whenever the replica has the word."""
    create_namespace(database)
    async with await Watched.connect(database, autocommit=True, prepare_threshold=None) as opened:
        with psycopg.connect(database, autocommit=True) as observer:
            opened.observer, opened.held = observer, []
            yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def pools(database: str) -> AsyncIterator[Pools]:
    loaded = config.load(environment={}, flags={"database.dsn": database})
    opened = await open_pools(loaded.database, database)
    yield opened
    await opened.close()


def context_of(watched: Watched) -> StorageContext:
    return StorageContext(
        pool=lent(watched),
        functions=Functions(),
        clock=SystemClock(),
        replica_id=1,
        statement_timeout=dt.timedelta(seconds=10),
    )


async def test_a_replica_holds_no_lock_while_it_has_the_word_in_deleting_a_namespace(
    watched: Watched,
) -> None:
    namespaces = Namespaces(context_of(watched))
    await namespaces.create(Namespace(name="gone", processor_targets=("a:1",)))

    await namespaces.delete("gone")

    assert watched.held == []
    with pytest.raises(errors.NamespaceNotFoundError):
        await namespaces.delete("gone")


async def test_a_replica_holds_no_lock_while_it_has_the_word_in_deleting_a_schedule(
    watched: Watched,
) -> None:
    schedules = Schedules(context_of(watched))

    key = schedule_key(NAMESPACE.name, "s")
    await schedules.create(key, a_spec(), paused=False, note="")

    await schedules.delete(key, expected_revision=0)

    assert watched.held == []
    with pytest.raises(job_errors.ScheduleNotFoundError):
        await schedules.delete(key, expected_revision=0)


@pytest.mark.plain_tables
async def test_a_deletion_looks_for_processes_by_the_index_of_their_namespace(
    watched: Watched,
) -> None:
    watched.observer.execute(SEEDED, [PROCESS_COUNT])
    namespaces = Namespaces(context_of(watched))
    await namespaces.create(Namespace(name="empty", processor_targets=("a:1",)))
    before = await scans(watched)

    with contextlib.suppress(errors.NamespaceNotEmptyError):
        await namespaces.delete("orders")
    await namespaces.delete("empty")

    after = await scans(watched)
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "processes_by_creation": 2
    }


@pytest.mark.parametrize("name", ["front", "worker", "scan"])
async def test_a_transaction_that_stands_still_ends_on_every_pool(pools: Pools, name: str) -> None:
    pool: Pool = getattr(pools, name)
    async with pool.connection() as connection:
        row = await (await connection.execute(SHOWN)).fetchone()

    assert row == (f"{IDLE_IN_TRANSACTION_SECONDS}s",)


async def test_what_an_operator_has_set_for_idle_transactions_stays(database: str) -> None:
    dsn = f"{database} options='-c idle_in_transaction_session_timeout=17s'"
    loaded = config.load(environment={}, flags={"database.dsn": dsn})
    opened = await open_pools(loaded.database, dsn)
    async with opened.front.connection() as connection:
        row = await (await connection.execute(SHOWN)).fetchone()
    await opened.close()

    assert row == ("17s",)


async def scans(connection: Watched) -> dict[str, int]:
    """Return how often each index of processes was looked into."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    # The counters go out when the session is idle next.
    await connection.execute("SELECT 1")
    await asyncio.sleep(0)
    return dict(connection.observer.execute(SCANNED).fetchall())
