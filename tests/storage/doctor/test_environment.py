"""The environment: each thing that can be ill is made ill in a real PostgreSQL, and found."""

import datetime as dt
import platform
from collections.abc import Iterator, Mapping
from typing import cast

import psycopg
import pytest

from progressor.settings.sections import Database
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.environment import schema as environment_schema
from progressor.storage.doctor.environment import server as environment_server
from progressor.storage.doctor.findings import State
from progressor.storage.doctor.run import DoctorRun
from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.postgres.migrations import migrate
from tests.support.postgres.cluster import Cluster, put_cluster
from tests.support.postgres.pgbouncer import binary, open_pgbouncer
from tests.support.postgres.proxy import running_proxy
from tests.support.storage.doctor.doctor import execute, find, looking, role
from tests.support.storage.doctor.rows import replica

NOW = dt.timedelta()


@pytest.fixture(scope="module")
def cluster(durable_cluster: Cluster) -> Cluster:
    """Return a server in which the doctor finds nothing wrong."""
    return durable_cluster


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a database on a server that loses commits, and takes prepared transactions."""
    directory = tmp_path_factory.mktemp("odd") / "data"
    put_cluster(directory)
    server = EmbeddedPostgres(
        data_directory=directory,
        settings={
            "fsync": "off",
            "full_page_writes": "off",
            "autovacuum": "off",
            "max_prepared_transactions": "3",
        },
        durable=False,
    )
    with server:
        migrate(server.conninfo)
        yield server.conninfo


def test_a_fresh_database_is_well_but_for_an_engine(orders: str) -> None:
    found = [find(orders, check.name) for check in environment.CHECKS]

    ill = {each.check: each.state for each in found if each.state is not State.OK}
    assert ill == {"heartbeats": State.WARNING}
    assert all(each.words and not each.advice for each in found if each.state is State.OK)
    assert len({each.check for each in found}) == len(found)


class TestSchema:
    @pytest.mark.plain_tables
    def test_the_expected_indexes_are_those_of_the_migrations(self, own_database: str) -> None:
        with looking(own_database) as looked:
            rows = looked.rows(environment_schema._SQL["read_indexes"])

        assert [row["name"] for row in rows] == environment_schema.index_names()

    def test_no_schema_at_all_fails_and_the_rest_is_not_done(self, cluster: Cluster) -> None:
        bare = cluster.create_database()

        found = {each.name: find(bare, each.name) for each in environment.CHECKS}

        assert found["migrations"].state is State.FAILED
        assert "no schema" in found["migrations"].words
        assert found["heartbeats"].state is State.NOT_DONE
        assert "progressor migrate" in found["heartbeats"].advice
        assert found["server"].state is State.OK
        assert found["durability"].state is State.OK

    def test_an_index_whose_building_failed(self, own_database: str) -> None:
        execute(own_database, replica(1), replica(2))
        with pytest.raises(psycopg.errors.UniqueViolation):
            execute(
                own_database,
                "CREATE UNIQUE INDEX CONCURRENTLY by_version ON progressor.replicas (version)",
            )

        found = find(own_database, "indexes")

        assert found.state is State.FAILED
        assert found.offenders == ("by_version on replicas is invalid",)

    @pytest.mark.plain_tables
    def test_an_index_in_the_order_of_an_older_collation(self, own_database: str) -> None:
        with psycopg.connect(own_database, autocommit=True) as connection:
            [name] = connection.execute(
                "SELECT collname FROM pg_collation WHERE collversion IS NOT NULL"
                " AND collencoding IN (-1, 6) AND collisdeterministic LIMIT 1"
            ).fetchone() or pytest.skip("every collation of this server is without a version")
        build = f'CREATE INDEX by_reason ON progressor.processes (end_reason COLLATE "{name}")'
        execute(own_database, build)
        before = find(own_database, "collations")
        spoil = f"UPDATE pg_collation SET collversion = '0' WHERE collname = '{name}'"  # noqa: S608  # PostgreSQL's own
        execute(own_database, spoil)

        found = find(own_database, "collations")

        assert (before.state, before.words[:7]) == (State.OK, "1 index")
        assert found.state is State.WARNING
        assert len(found.offenders) == 1
        assert found.offenders[0].startswith(f"by_reason on processes: {name} was version 0, is ")
        assert "REINDEX" in found.advice

    def test_a_database_with_an_older_collation(self, own_database: str) -> None:
        execute(
            own_database,
            "UPDATE pg_database SET datcollversion = '0' WHERE datname = current_database()",
        )

        found = find(own_database, "collations")

        assert found.state is State.WARNING
        assert "no index of the engine depends on it" in found.words
        assert "REFRESH COLLATION VERSION" in found.advice

    @pytest.mark.parametrize(
        ("threshold", "state"),
        [("TRANSACTION_ID_AGE", State.WARNING), ("TRANSACTION_ID_AGE_LAST", State.FAILED)],
    )
    def test_transaction_ids_that_grow_old(
        self, own_database: str, monkeypatch: pytest.MonkeyPatch, threshold: str, state: State
    ) -> None:
        monkeypatch.setattr(environment_schema, threshold, -1)

        assert find(own_database, "transaction_ids").state is state


class TestSessions:
    def test_one_that_is_idle_in_a_transaction(
        self, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment_server, "IDLE_IN_TRANSACTION", NOW)
        with psycopg.connect(orders, application_name="forgotten") as other:
            other.execute("SELECT count(*) FROM progressor.processes")

            found = find(orders, "transactions")

            pid = other.info.backend_pid
        assert found.state is State.WARNING
        assert found.words.startswith("1 transaction open for long")
        assert f"pid {pid} (forgotten, " in found.offenders[0]
        assert "idle in transaction" in found.offenders[0]
        assert "pg_terminate_backend" in found.advice

    def test_one_that_has_been_in_it_for_very_long(
        self, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment_server, "LONG_TRANSACTION", NOW)
        monkeypatch.setattr(environment_server, "HELD_BACK", NOW)
        with psycopg.connect(orders) as other:
            other.execute("SELECT 1")

            assert find(orders, "transactions").state is State.FAILED

    def test_one_with_an_old_snapshot(self, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment_server, "SNAPSHOT_AGE", -1)
        with psycopg.connect(orders) as other:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")

            found = find(orders, "transactions")

        assert found.state is State.WARNING
        assert "snapshot" in found.offenders[0]

    def test_one_that_begins_and_ends_is_no_matter(self, orders: str) -> None:
        with psycopg.connect(orders) as other:
            other.execute("SELECT 1")

            assert find(orders, "transactions").state is State.OK

    def test_a_role_that_sees_no_other_says_so(self, orders: str) -> None:
        with psycopg.connect(orders), role(orders, "doctor_shy") as conninfo:
            found = find(conninfo, "transactions")

        assert found.state is State.NOT_DONE
        assert found.advice == "GRANT pg_read_all_stats TO doctor_shy."

    def test_too_few_connections_for_another_replica(
        self, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = Database(dsn=orders, front_connections_max=1000)

        assert find(orders, "connections", database=large).state is State.WARNING
        monkeypatch.setattr(environment_server, "SPARE_CONNECTIONS", 1000)
        assert find(orders, "connections").state is State.FAILED

    def test_a_pooler_in_between(self, orders: str) -> None:
        with running_proxy(orders, pretends=True) as proxy:
            found = find(proxy.conninfo, "pooler")

        assert found.state is State.WARNING
        assert "LISTEN" in found.words

    @pytest.mark.skipif(binary() is None, reason="pgbouncer is not installed")
    def test_pgbouncer_in_between_hides_nothing_else(self, orders: str) -> None:
        directly = {check.name: find(orders, check.name).state for check in environment.CHECKS}
        with open_pgbouncer(orders) as pooler:
            through = {
                check.name: find(pooler.conninfo, check.name).state for check in environment.CHECKS
            }

        assert through == directly | {"pooler": State.WARNING}


class TestServer:
    def test_a_role_that_does_not_wait_for_the_disk(self, own_database: str) -> None:
        with role(own_database, "doctor_hasty"):
            execute(own_database, "ALTER ROLE doctor_hasty SET synchronous_commit = false")
            reads_only = find(own_database, "durability")
            execute(
                own_database,
                "GRANT USAGE ON SCHEMA progressor TO doctor_hasty",
                "GRANT INSERT ON progressor.processes TO doctor_hasty",
            )
            writes = find(own_database, "durability")

        assert reads_only.state is State.OK
        assert writes.state is State.FAILED
        assert writes.offenders == ("synchronous_commit is off for doctor_hasty in every database",)

    def test_a_role_that_reads_only_says_nothing_of_the_engine(self, own_database: str) -> None:
        with role(own_database, "doctor_calm") as conninfo:
            execute(
                own_database,
                "ALTER ROLE doctor_calm SET default_transaction_read_only = on",
                "ALTER ROLE doctor_calm SET synchronous_commit = off",
            )

            found = [find(conninfo, name) for name in ("server", "durability")]

        assert [each.state for each in found] == [State.OK, State.OK]

    @pytest.mark.parametrize(
        ("told", "said"),
        [
            ({"is_standby": True}, "a standby, in recovery"),
            ({"version_number": 140_011}, "encoding UTF8"),
            ({"encoding": "LATIN1"}, "encoding LATIN1"),
        ],
    )
    def test_a_server_that_is_none_for_us(self, told: Mapping[str, object], said: str) -> None:
        """By what it would tell: none of these can be had here."""
        row = {
            "version": "18.1",
            "version_number": 180_001,
            "encoding": "UTF8",
            "is_standby": False,
            "up_for": 10.0,
        }

        found = environment_server.server_verdict(cast("DoctorRun", _Told({**row, **told})))

        assert found.state is State.FAILED
        assert said in found.words


class TestOnAServerThatIsSetOddly:
    def test_commits_may_be_lost(self, odd: str) -> None:
        found = find(odd, "durability")

        assert found.state is State.FAILED
        assert found.offenders == ("fsync is off", "full_page_writes is off")

    def test_autovacuum_is_off(self, odd: str) -> None:
        found = find(odd, "autovacuum")

        assert found.state is State.FAILED
        assert found.offenders == ("autovacuum is off",)

    def test_a_transaction_was_prepared_and_forgotten(
        self, odd: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with psycopg.connect(odd) as connection:
            connection.execute("LOCK TABLE progressor.replicas IN ACCESS SHARE MODE")
            connection.execute("PREPARE TRANSACTION 'forgotten'")
        assert find(odd, "prepared_transactions").state is State.OK
        monkeypatch.setattr(environment_server, "LONG_TRANSACTION", NOW)

        found = find(odd, "prepared_transactions")
        execute(odd, "ROLLBACK PREPARED 'forgotten'")

        assert found.state is State.FAILED
        assert found.offenders[0].startswith("forgotten of postgres")
        assert find(odd, "prepared_transactions").state is State.OK

    def test_a_slot_keeps_wal(self, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
        execute(odd, "SELECT pg_create_physical_replication_slot('late', true)")
        assert find(odd, "replication_slots").state is State.OK
        monkeypatch.setattr(environment_server, "SLOT_WAL_BYTES", -1)

        found = find(odd, "replication_slots")
        execute(odd, "SELECT pg_drop_replication_slot('late')")

        assert found.state is State.WARNING
        assert found.offenders[0].startswith("late (inactive): ")


class _Told:
    """Answers every question with one row."""

    def __init__(self, row: Mapping[str, object]) -> None:
        self._row = row

    def row(self, *_: object) -> Mapping[str, object]:
        return self._row


@pytest.mark.parametrize(
    ("config_args", "says"),
    [
        (None, ""),
        ("'--prefix=/usr' '--enable-optimizations' '--with-lto'", ", an optimized build"),
        ("'--prefix=/usr'", ", built without --enable-optimizations: one with it needs 10 to 20 %"),
    ],
    ids=["unknown", "optimized", "plain"],
)
def test_the_doctor_names_how_its_python_was_built(config_args: str | None, says: str) -> None:
    words = environment.python_words(config_args)

    assert words.startswith(f"{platform.python_implementation()} {platform.python_version()}{says}")
    assert ("," in words) == bool(says)
