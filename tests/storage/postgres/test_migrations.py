"""Migrations and functions: the same from anywhere, at once, and never against a newer database."""

import concurrent.futures
import datetime as dt
import re
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from progressor import errors
from progressor.storage.postgres import migrations, statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.locks import LOCK_TIMEOUT
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.schema import lock_waits, outside
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.postgres import schema
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.doctor import execute
from tests.support.storage.doctor.rows import replica


@pytest.fixture
def bare(cluster: Cluster) -> str:
    """Return an empty database."""
    return cluster.create_database()


def function_schemas(conninfo: str) -> set[str]:
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'progressor\\_%'"
        ).fetchall()
    return {row[0] for row in found}


def test_together_they_are_the_schema_of_today(database: str) -> None:
    with psycopg.connect(database) as connection:
        assert schema.schema_of(connection) == schema.FILE.read_text("utf-8")


def test_two_of_one_number_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    for name in ("0007_pre_left", "0007_pre_right"):
        (folder / f"{name}.sql").touch()
    monkeypatch.setattr(statements, "priv", lambda: tmp_path)

    with pytest.raises(AssertionError, match="0007_pre_left and 0007_pre_right have the same"):
        migrations.migrations()


def test_are_applied_once(bare: str) -> None:
    first, second = migrate(bare), migrate(bare)

    assert first == [each.name for each in migrations.migrations()]
    assert second == []


def test_are_applied_once_by_many_at_once(bare: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        applied = list(pool.map(migrate, [bare] * 4))

    assert sorted(name for names in applied for name in names) == [
        each.name for each in migrations.migrations()
    ]
    assert function_schemas(bare) == {Functions().schema}


def test_a_changed_text_is_refused(bare: str) -> None:
    migrate(bare)
    with psycopg.connect(bare) as connection:
        connection.execute("UPDATE progressor.migrations SET checksum = 'another'")

    with pytest.raises(errors.MigrationError, match="0001_pre_initial"):
        migrate(bare)


def test_a_database_after_a_later_post_step_is_refused(bare: str) -> None:
    migrate(bare)
    with psycopg.connect(bare) as connection:
        connection.execute("INSERT INTO progressor.migrations VALUES (99, '0099_post_drop', '')")

    with pytest.raises(errors.MigrationError, match="0099_post_drop"):
        migrate(bare)


def test_a_database_after_a_later_pre_step_is_taken(bare: str) -> None:
    """The release before must run on while the new one rolls out."""
    migrate(bare)
    with psycopg.connect(bare) as connection:
        connection.execute("INSERT INTO progressor.migrations VALUES (99, '0099_pre_add', '')")

    assert migrate(bare) == []


def test_a_failed_one_leaves_nothing(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = migrations.migrations()
    broken = migrations.Migration(
        number=99,
        name="0099_pre_broken",
        text="CREATE TABLE progressor.half (); SELECT 1 / 0",
        checksum="",
    )
    monkeypatch.setattr(migrations, "migrations", lambda: (*good, broken))

    with pytest.raises(errors.StorageError):
        migrate(bare)

    with psycopg.connect(bare) as connection:
        assert connection.execute("SELECT to_regclass('progressor.half')").fetchone() == (None,)
        applied = connection.execute("SELECT count(*) FROM progressor.migrations").fetchone()
    assert applied == (len(good),)


def pre(text: str, *, name: str = "0099_pre_next") -> migrations.Migration:
    return migrations.Migration(number=int(name[:4]), name=name, text=text, checksum="")


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what adds files to those of this release."""
    ours = migrations.migrations()

    def follow(*files: migrations.Migration) -> None:
        monkeypatch.setattr(migrations, "migrations", lambda: (*ours, *files))

    return follow


class Waits:
    """What a migration waits for; `then` is done at the first time."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.words: list[str] = []
        self._then = then
        self._called = threading.Event()

    def __call__(self, why: str, seconds: float) -> None:
        self.words.append(why)
        if len(self.words) == 1:
            self._then()
        self._called.set()
        threading.Event().wait(min(seconds, 0.05))

    def come(self) -> None:
        assert self._called.wait(PATIENCE_SECONDS), "it waits for nothing"


class TestLocks:
    TEXT = "ALTER TABLE progressor.processes ADD COLUMN next integer"

    def test_a_reader_in_the_way_is_named_and_others_go_on(
        self, own_database: str, followed: Callable[..., None]
    ) -> None:
        followed(pre(self.TEXT))
        count = "SELECT count(*) FROM progressor.processes"
        with (
            psycopg.connect(own_database, application_name="report") as reader,
            psycopg.connect(own_database, autocommit=True) as another,
        ):
            reader.execute(count)

            def go_on() -> None:
                another.execute(count)
                reader.commit()

            waits = Waits(go_on)
            applied = migrate(own_database, wait=waits)
            pid = reader.info.backend_pid

        assert applied == ["0099_pre_next"]
        assert (
            f"0099_pre_next waits for a lock that is held by pid {pid} (report, " in waits.words[0]
        )

    def test_an_attempt_gives_up_before_the_hot_path_does(self) -> None:
        assert dt.timedelta(seconds=lock_waits.LOCK_SECONDS) < LOCK_TIMEOUT

    def test_a_reader_that_stays_ends_the_migration(
        self, own_database: str, followed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        followed(pre(self.TEXT))
        monkeypatch.setattr(lock_waits, "WAIT_SECONDS_MAX", 0)
        with psycopg.connect(own_database, application_name="report") as reader:
            reader.execute("SELECT count(*) FROM progressor.processes")

            with pytest.raises(errors.StorageUnavailableError, match=r"pid \d+ \(report, "):
                migrate(own_database)

    def test_an_autovacuum_in_the_way_is_ended(
        self, own_database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A session without a role is one; PostgreSQL ends it only after deadlock_timeout."""
        given: list[float] = []
        monkeypatch.setattr(
            lock_waits, "_BLOCKERS", "SELECT 1, NULL, NULL, 5.0 WHERE %(since)s IS NOT NULL"
        )
        monkeypatch.setattr(lock_waits, "bound_locks", lambda _, seconds: given.append(seconds))
        with psycopg.connect(own_database, autocommit=True) as connection:

            def attempt() -> None:
                if len(given) == 1:
                    raise psycopg.errors.LockNotAvailable

            lock_waits.with_locks(connection, attempt, what="it", wait=Waits())

        assert given == [lock_waits.LOCK_SECONDS, 1.5]

    def test_three_replicas_start_behind_a_reader(
        self, own_database: str, followed: Callable[..., None]
    ) -> None:
        followed(pre(self.TEXT))
        with psycopg.connect(own_database) as reader:
            reader.execute("SELECT count(*) FROM progressor.processes")
            with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
                waits = [Waits() for _ in range(3)]
                found = [pool.submit(migrate, own_database, wait=each) for each in waits]
                for each in waits:
                    each.come()
                reader.commit()

        assert sorted(len(it.result()) for it in found) == [0, 0, 1]


class TestOutsideATransaction:
    TEXT = (
        outside.MARKER
        + """
-- Two statements; the first is long.
CREATE INDEX CONCURRENTLY IF NOT EXISTS by_next
    ON progressor.replicas (name);
CREATE INDEX CONCURRENTLY IF NOT EXISTS by_version ON progressor.replicas (version);
"""
    )

    def valid(self, conninfo: str) -> dict[str, bool]:
        with psycopg.connect(conninfo) as connection:
            rows = connection.execute(
                "SELECT indexrelid::regclass::text, indisvalid FROM pg_index"
                " WHERE indexrelid::regclass::text ~ 'by_(next|version)'"
            ).fetchall()
        return dict(rows)

    def test_indexes_are_built_beside_replicas_that_wait(
        self, own_database: str, followed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that wait must have no snapshot that the build would wait for."""
        followed(pre(self.TEXT))
        monkeypatch.setattr(outside, "LOOK_SECONDS", 0.05)
        with (
            psycopg.connect(own_database) as writer,
            concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool,
        ):
            writer.execute("DELETE FROM progressor.replicas")
            waits = [Waits() for _ in range(3)]
            found = [pool.submit(migrate, own_database, wait=each) for each in waits]
            for each in waits:
                each.come()
            writer.commit()
            applied = sorted(it.result() for it in found)

        assert applied == [[], [], ["0099_pre_next"]]
        assert self.valid(own_database) == {
            "progressor.by_next": True,
            "progressor.by_version": True,
        }
        assert any(
            "waiting for the transaction of pid" in it for each in waits for it in each.words
        )

    def test_an_index_whose_build_was_interrupted_is_built_anew(
        self, own_database: str, followed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        followed(pre(self.TEXT))
        monkeypatch.setattr(outside, "LOOK_SECONDS", 0.05)

        def stop(_why: str, _seconds: float) -> None:
            raise KeyboardInterrupt

        with psycopg.connect(own_database) as writer:
            writer.execute("DELETE FROM progressor.replicas")
            with pytest.raises(KeyboardInterrupt):
                migrate(own_database, wait=stop)
        interrupted = self.valid(own_database)

        assert interrupted == {"progressor.by_next": False}
        assert migrate(own_database) == ["0099_pre_next"]
        assert set(self.valid(own_database).values()) == {True}

    def test_a_file_is_taken_apart_at_the_ends_of_its_statements(self) -> None:
        first, second = outside.statements_of(self.TEXT)

        assert first.endswith("ON progressor.replicas (name)")
        assert second.startswith("CREATE INDEX CONCURRENTLY IF NOT EXISTS by_version")


class TestPost:
    def test_one_waits_until_no_replica_of_another_release_is_left(
        self, own_database: str, followed: Callable[..., None]
    ) -> None:
        followed(pre("SELECT 1", name="0098_post_drop"))
        execute(own_database, replica(1))
        waits = Waits()
        early = migrate(own_database, wait=waits)
        execute(own_database, "DELETE FROM progressor.replicas")

        assert early == []
        assert waits.words == ["0098_post_drop is left for later: r1 have another release"]
        assert migrate(own_database) == ["0098_post_drop"]

    def test_what_follows_it_is_refused_meanwhile(
        self, own_database: str, followed: Callable[..., None]
    ) -> None:
        followed(pre("SELECT 1", name="0098_post_drop"), pre("SELECT 1"))
        execute(own_database, replica(1))

        with pytest.raises(errors.MigrationError, match="0099_pre_next needs 0098_post_drop"):
            migrate(own_database, wait=Waits())


class TestFunctions:
    def test_planted_ones_are_refused(self, own_database: str) -> None:
        """Anyone who may create schemas can create one of their name first."""
        schema = Functions().schema
        execute(
            own_database,
            f"DROP SCHEMA {schema} CASCADE",
            "DROP ROLE IF EXISTS mallory",
            "CREATE ROLE mallory",
            f"CREATE SCHEMA {schema} AUTHORIZATION mallory",
        )
        try:
            with pytest.raises(errors.MigrationError, match="belongs to the role mallory"):
                migrate(own_database)
        finally:
            execute(own_database, "DROP OWNED BY mallory CASCADE", "DROP ROLE mallory")

        assert migrate(own_database) == []
        assert schema in function_schemas(own_database)

    def test_one_that_was_replaced_is_refused(self, own_database: str) -> None:
        execute(
            own_database,
            f"CREATE OR REPLACE FUNCTION {Functions().schema}.merge_json"
            "(p_first jsonb, p_second jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT p_first'",
        )

        with pytest.raises(errors.MigrationError, match="deploys: changed: merge_json;"):
            migrate(own_database)

    def test_those_of_no_use_are_removed(
        self, own_database: str, followed: Callable[..., None]
    ) -> None:
        """Not those of a replica, nor those that were used lately, nor those of another role."""
        old, used, late = (
            "progressor_0123456789ab",
            "progressor_0123456789ac",
            "progressor_0123456789ad",
        )
        long_ago = "now() - interval '8 d'"
        execute(
            own_database,
            *(f"CREATE SCHEMA {name}" for name in (old, used, late)),
            *(
                f"INSERT INTO progressor.function_schemas VALUES ('{name}', {long_ago})"  # noqa: S608  our own values
                for name in (old, used)
            ),
            replica(1),
            f"UPDATE progressor.replicas SET functions = '{used}'",  # noqa: S608  our own values
        )
        followed(pre("SELECT 1"))
        migrate(own_database)

        assert function_schemas(own_database) == {used, late, Functions().schema}

    def test_of_two_releases_stand_side_by_side(
        self, bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        migrate(bare)
        today = Functions()
        for file in statements.functions():
            copy = tmp_path / file.relative_to(statements.priv())
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text("utf-8") + "-- The next release.\n", "utf-8")
        monkeypatch.setattr(statements, "priv", lambda: tmp_path)
        next_release = Functions()
        with psycopg.connect(bare) as connection, connection.cursor() as cursor:
            assert next_release.deploy(cursor)

        assert today.schema != next_release.schema
        assert function_schemas(bare) == {today.schema, next_release.schema}

    def test_are_named_by_their_text(self) -> None:
        assert Functions().schema == Functions().schema
        assert len(Functions().schema) < 63

    def test_call_each_other_within_their_release(self, bare: str) -> None:
        migrate(bare)
        with psycopg.connect(bare) as connection:
            paths = connection.execute(
                # One in SQL names nothing that has a place, and is melted into who calls it.
                "SELECT DISTINCT p.proconfig FROM pg_proc p"
                " JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'"
                " WHERE p.pronamespace = %s::regnamespace",
                [Functions().schema],
            ).fetchall()

        for (settings,) in paths:
            assert f"search_path={Functions().schema}, progressor, pg_temp" in settings

    def test_lock_in_the_one_order(self) -> None:
        """A set of processes is locked by a statement of its own, by key."""
        for file in statements.functions():
            if file.parent.name == "types":
                continue
            text = file.read_text("utf-8")
            # Statements that skip locked rows do not wait.
            waits = re.search(r"FOR NO KEY UPDATE(?! (OF \w )?SKIP LOCKED)", text)
            if "unnest(" in text and waits:
                assert re.search(
                    r"ORDER BY (\w\.)?"
                    r"(slot, (\w\.)?namespace, (\w\.)?(process|schedule)_id|namespace, \w\.gate)\n",
                    text,
                ), file.name
