"""Autovacuum freezes what is final when it first comes by, and nobody has to ask for it."""

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from progressor.domain.processes.intent import Complete
from progressor.storage.postgres.migrations import migrate
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import own_cluster
from tests.support.postgres.vacuum import until_autovacuumed
from tests.support.storage.store import create_namespace, fresh_key, running_stores, success

pytestmark = pytest.mark.slow

TABLES = ("events", "processes", "tasks")
PROCESS_COUNT = 60
NEXT_TRANSACTION: LiteralString = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
# No row of a table is of a transaction before it, unless the row is frozen.
OLDEST_UNFROZEN: LiteralString = """
    SELECT relname, relfrozenxid::text::bigint
    FROM pg_class
    WHERE relnamespace = 'progressor'::regnamespace AND relname = ANY (%s)"""


@pytest.fixture
def conninfo() -> Iterator[str]:
    """Yield a database of a server whose autovacuum looks for work each second."""
    with own_cluster(autovacuum_naptime="1s") as cluster:
        conninfo = cluster.create_database()
        migrate(conninfo)
        create_namespace(conninfo)
        yield conninfo


async def test_autovacuum_freezes_all_rows_of_finished_processes(conninfo: str) -> None:
    async with running_stores(conninfo, clock=ManualClock()) as (store,):
        await store.beat()
        for _ in range(PROCESS_COUNT):
            await store.started(fresh_key(), success(Complete(), events=2))
    with psycopg.connect(conninfo, autocommit=True) as observer:
        [(after,)] = observer.execute(NEXT_TRANSACTION).fetchall()
        for table in TABLES:
            # 200,000, after which a table is vacuumed, would take minutes.
            observer.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_vacuum_threshold = 10,"
                " autovacuum_vacuum_insert_threshold = 10)".encode()
            )

        await until_autovacuumed(observer, *TABLES)

        oldest: dict[str, Any] = dict(observer.execute(OLDEST_UNFROZEN, [list(TABLES)]).fetchall())
        assert oldest.keys() == {*TABLES}
        assert {table for table, transaction in oldest.items() if transaction < after} == set()
