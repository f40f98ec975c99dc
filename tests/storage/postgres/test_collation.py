"""Keys compare their bytes, whatever the collation of the database is."""

import psycopg

from progressor.domain.processes.process import process_key
from progressor.storage.postgres import migrations
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.schema import lock_waits
from tests.support.postgres.cluster import Cluster

BEFORE = 46
"""The last migration before keys had a collation of their own."""

NO_KEYS = {
    "access_bindings": {"created_by"},
    "access_tokens": {"name", "created_by"},
    "bulk_items": {"reason"},
    "bulk_operations": {"kind", "state", "reason", "author", "stop_reason"},
    "failures": {"reason", "message", "release"},
    "job_nodes": {"error_reason", "error_message"},
    "jobs": {"detail"},
    "lineage": {"identity"},
    "messages": {"kind", "reply"},
    "migrations": {"name", "checksum"},
    "namespaces": {"pause_reason", "pause_author"},
    "new_failures": {"reason", "message", "release"},
    "processes": {"detail", "led_by", "end_reason"},
    "refused_messages": {"kind", "reason"},
    "replicas": {"name", "version", "functions"},
    "replies": {"error_reason", "error_message"},
    "reply_requests": {"kind", "reply"},
    "schedule_runs": {"error_reason", "error_message"},
    "schedules": {"cron", "time_zone", "target", "note"},
    "tasks": {"error_reason", "error_message"},
}
"""Text that is neither a key nor in an index, and may have the database's collation."""


def test_all_text_but_what_is_listed_here_compares_its_bytes(database: str) -> None:
    found: dict[str, set[str]] = {}
    with psycopg.connect(database) as connection:
        for table, column in connection.execute(
            "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
            " WHERE c.relnamespace = 'progressor'::regnamespace AND c.relkind IN ('r', 'p')"
            " AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped"
            " AND a.attcollation NOT IN (0, '\"C\"'::regcollation)"
        ):
            found.setdefault(table, set()).add(column)

    assert found == NO_KEYS


def test_no_index_has_another_collation_but_those_that_no_key_may_use(database: str) -> None:
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT DISTINCT c.relname, k.id::regcollation::text FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indexrelid, unnest(i.indcollation) AS k (id)"
            " WHERE c.relnamespace = 'progressor'::regnamespace AND NOT c.relispartition"
            " AND k.id NOT IN (0, '\"C\"'::regcollation)"
        ).fetchall()

    of_lists = ["jobs_by_creation", "processes_by_creation", "processes_by_failure"]
    assert sorted(found) == [(name, '"POSIX"') for name in [*of_lists, "processes_in_error"]]


def test_functions_are_called_with_the_collation_of_the_keys() -> None:
    functions = Functions()

    assert b'(%b COLLATE "C", %b)' in functions.call("delete_bulk").statement
    assert b"COLLATE" not in functions.call("compact_counts").statement


def test_a_database_with_rows_gets_the_keys(cluster: Cluster) -> None:
    """And the answers in it their slots, except those that no release has looked up for long."""
    conninfo = cluster.create_database()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        migrations._prepare(connection)
        for each in migrations.migrations()[:BEFORE]:
            migrations._apply(connection, each, conninfo, lock_waits.sleep)
        connection.execute(
            "INSERT INTO progressor.processes (slot, namespace, process_id, status, created_at,"
            " status_changed_at, init_task_id)"
            " SELECT n, 'orders', 'p' || n, 'running', now(), now(), n FROM generate_series(1, 9) n"
        )
        connection.execute(
            "INSERT INTO progressor.replies (task_id, task_type, status, created_at, namespace,"
            " process_id) VALUES (1, 'init', 'finished', now(), 'orders', 'ä€𝄞'),"
            " (2, 'init', 'finished', now(), NULL, NULL)"
        )

    applied = migrate(conninfo)

    assert applied[0] == "0047_pre_keys"
    with psycopg.connect(conninfo) as connection:
        replies = connection.execute("SELECT slot, task_id FROM progressor.replies").fetchall()
        known = connection.execute(
            "SELECT count(*) > 0 FROM pg_stats WHERE tablename = 'processes'"
        ).fetchone()
    assert replies == [(process_key("orders", "ä€𝄞").slot, 1)]
    assert known == (True,), "a change of a column's type has removed its statistics"
    cluster.drop_database(conninfo)
