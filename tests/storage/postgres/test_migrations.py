"""Migrations and functions: the same from anywhere, at once, and never against a newer database."""

import concurrent.futures
import re
from pathlib import Path

import psycopg
import pytest

from progressor import errors
from progressor.storage.postgres import migrations, statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate
from tests.support.postgres import schema
from tests.support.postgres.cluster import Cluster


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


def test_their_numbers_run_without_gaps() -> None:
    numbers = [each.number for each in migrations.migrations()]

    assert numbers == list(range(1, len(numbers) + 1))


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
        number=len(good) + 1,
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


class TestFunctions:
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
            assert f"search_path={Functions().schema}, progressor" in settings

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
