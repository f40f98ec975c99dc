"""To count what waits for gates no more is read than is counted, however much waits."""

from typing import LiteralString

import psycopg
import pytest

from tests.support.clock import START, ManualClock
from tests.support.postgres.reads import reads_of
from tests.support.storage.store import Store, connect, create_namespace

COUNT_MAX = 32
ROWS = 40_000
LINES = 2_000

CAUSES = 5
"""That are counted from the index alone, unless its pages have just changed."""

_GATED: LiteralString = """
    INSERT INTO progressor.gated (
        slot, namespace, process_id, task_id, task_type, state, state_since, run_at, ready_at,
        priority, order_key, order_version, gates, hold, queue, attempt, replica_id
    )
    SELECT i * 7919 %% 1024, CASE WHEN i %% 4 = 0 THEN 'elsewhere' ELSE 'orders' END, 'p' || i, i,
        CASE WHEN i %% 10 = 0 THEN 'init' ELSE 'call' END::progressor.task_type,
        k.state::progressor.gated_state, %(now)s - i * interval '1 ms',
        CASE WHEN k.state = 'time' THEN %(now)s + interval '1 hour' END, %(now)s, 3,
        CASE WHEN k.state = 'order' THEN 'v' END, CASE WHEN k.state = 'order' THEN ARRAY[i] END,
        ARRAY['g' || i %% %(lines)s], 'task',
        CASE WHEN k.state = 'gates' THEN '{g' || i %% %(lines)s || '}' END, i %% 3, 1
    FROM generate_series(1, %(rows)s) AS i
    CROSS JOIN LATERAL (
        SELECT (ARRAY['time', 'order', 'process', 'gates', 'available'])[i %% 5 + 1] AS state
    ) k"""
_LINES: LiteralString = """
    INSERT INTO progressor.gate_queues (
        namespace, queue, gates, waits_on, head_priority, head_task_id, oldest_at, oldest_id
    )
    SELECT n, '{g' || i || '}', ARRAY['g' || i], 'g' || i %% 500, 3, i, %(now)s, i
    FROM generate_series(1, %(lines)s) AS i
    CROSS JOIN unnest(ARRAY['orders', 'elsewhere']) AS n"""
_HOLDERS: LiteralString = """
    INSERT INTO progressor.gate_holders (
        slot, namespace, process_id, gate, task_id, hold, held_at
    )
    SELECT i * 7919 %% 1024, n, 'h' || i, 'g' || i, i, 'process', %(now)s
    FROM generate_series(1, %(rows)s) AS i
    CROSS JOIN unnest(ARRAY['orders', 'elsewhere']) AS n"""


def fill(conninfo: str, *, analyze: bool) -> None:
    """Have ROWS tasks with constraints wait in all states, in LINES lines of 500 gates."""
    create_namespace(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for table in ("gated", "gate_queues", "gate_holders"):
            connection.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = off)".encode()
            )
        for statement in (_GATED, _LINES, _HOLDERS):
            connection.execute(statement, {"now": START, "rows": ROWS, "lines": LINES})
        if analyze:
            connection.execute("ANALYZE")


async def count(store: Store) -> None:
    """Count what waits in both namespaces."""
    names = ["orders", "elsewhere"]
    found = await store.queues.count(names, count_max=COUNT_MAX, rows_max=COUNT_MAX * len(names))
    for queue in found:
        counts = (queue.run_at_count, queue.retry_count, queue.order_count, queue.gate_count)
        more = (queue.behind_count, queue.held_count, queue.full_gate_count)
        assert {*counts, *more} == {COUNT_MAX}


@pytest.mark.parametrize("analyze", [True, False], ids=["known", "unknown"])
async def test_no_more_is_read_than_is_counted(own_database: str, analyze: bool) -> None:
    fill(own_database, analyze=analyze)
    async with await connect(own_database) as connection:
        reads = await reads_of(connection, ManualClock(), count)

    each = 2 * COUNT_MAX
    sequential = {table for table, it in reads.items() if it.sequential}
    # Of these all rows are read, and there are few, so a scan is right.
    assert sequential <= {"namespaces", "process_counts", "process_count_state"}
    # Those that are available, the retries, the init tasks, and one that tells that there are any.
    assert reads["gated"].by_index <= (CAUSES + 3) * each + 2
    assert reads["gate_queues"].by_index <= each + 2
    assert reads["gate_holders"].by_index <= each
    assert reads["schedule"].by_index <= each
