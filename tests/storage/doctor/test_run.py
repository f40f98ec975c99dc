"""An doctor_run only looks, gives up what takes too long, and says what it could not do."""

import datetime as dt
import os
import socket
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from progressor import errors
from progressor.storage.doctor import run as doctor_run
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.findings import State, bytes_of, count_of, ok, span_of
from progressor.storage.doctor.run import Check, DoctorRun
from progressor.storage.embedded.server import running_conninfo
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.doctor import execute, find, looking, role

NOW = dt.timedelta()


@pytest.fixture(scope="module")
def cluster(durable_cluster: Cluster) -> Cluster:
    """Return a server in which the doctor finds nothing wrong."""
    return durable_cluster


class TestExamining:
    def test_writes_nothing(self, orders: str) -> None:
        with (
            looking(orders) as looked,
            pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        ):
            looked.rows("DELETE FROM progressor.namespaces")

    def test_leaves_no_transaction_open_between_questions(self, orders: str) -> None:
        with looking(orders) as looked, psycopg.connect(orders, autocommit=True) as observer:
            looked.rows("SELECT 1 AS one")
            row = observer.execute(
                "SELECT state, backend_xmin FROM pg_stat_activity"
                " WHERE application_name = 'progressor doctor' AND datname = current_database()"
            ).fetchone()

        assert row == ("idle", None)

    def test_a_question_that_takes_too_long_is_given_up(self, orders: str) -> None:
        slow = Check(group="g", name="n", examine=_asking("SELECT 1 FROM pg_sleep(60)"))
        with looking(orders, timeout=dt.timedelta(milliseconds=50)) as looked:
            found = slow.find(looked)

            assert looked.rows("SELECT 1 AS one") == [{"one": 1}]
        assert found.state is State.NOT_DONE
        assert "not answered within 0.05 s" in found.words

    def test_a_table_that_is_locked_is_not_waited_for_any_longer(self, orders: str) -> None:
        with psycopg.connect(orders) as other:
            other.execute("LOCK TABLE progressor.replicas IN ACCESS EXCLUSIVE MODE")

            found = find(orders, "heartbeats", timeout=dt.timedelta(milliseconds=50))

        assert found.state is State.NOT_DONE

    def test_a_connection_that_is_cut_ends_it(self, orders: str) -> None:
        any_check = Check(group="g", name="n", examine=_asking("SELECT 1"))
        with looking(orders) as looked:
            backend = looked.told_backend
            execute(orders, f"SELECT pg_terminate_backend({backend}, 5000)")

            with pytest.raises(errors.StorageUnavailableError):
                any_check.find(looked)

    def test_a_server_that_is_silent_for_ever_ends_it(
        self, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(doctor_run, "_GRACE", NOW)
        silent = Check(group="g", name="n", examine=_asking("SELECT 1"))
        with looking(orders, timeout=dt.timedelta(milliseconds=100)) as looked:
            # What we send from here on goes nowhere, and nothing comes back.
            ours, theirs = socket.socketpair()
            with ours, theirs:
                os.dup2(ours.fileno(), looked.connection.fileno())

                with pytest.raises(errors.StorageUnavailableError):
                    silent.find(looked)

    def test_a_database_that_is_not_there_is_storage_unavailable(self, orders: str) -> None:
        nowhere = make_conninfo(orders, dbname="nowhere")
        with pytest.raises(errors.StorageUnavailableError), looking(nowhere):
            pass

    def test_a_role_that_may_nothing_learns_what_it_may(self, orders: str) -> None:
        with role(orders, "doctor_blind") as conninfo:
            found = {each.name: find(conninfo, each.name) for each in environment.CHECKS}

        undone = {name for name, each in found.items() if each.state is State.NOT_DONE}
        assert undone >= {"migrations", "heartbeats", "due_tasks", "broken_processes"}
        assert "permission denied" in found["heartbeats"].words
        assert found["server"].state is State.OK
        assert found["indexes"].state is State.OK
        assert {each.state for each in found.values()} <= {State.OK, State.NOT_DONE}


class TestWhereAnEmbeddedServerListens:
    def test_is_told_by_its_directory(self, cluster: Cluster) -> None:
        if not cluster.is_embedded:
            pytest.skip("the server of the tests is not embedded")
        _, home = cluster._owned()

        found = running_conninfo(home / "data")

        assert conninfo_to_dict(found) == conninfo_to_dict(cluster.conninfo)

    def test_none_runs_there(self, tmp_path: Path) -> None:
        with pytest.raises(errors.StorageUnavailableError, match=r"is running: start its engine"):
            running_conninfo(tmp_path)

    def test_one_is_starting(self, tmp_path: Path) -> None:
        (tmp_path / "postgres").mkdir()
        (tmp_path / "postgres" / "postmaster.pid").write_text("1\n/data\n0\n5432\n/tmp\n\n")

        with pytest.raises(errors.StorageUnavailableError, match="starting or stopping"):
            running_conninfo(tmp_path)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (1.234, "1.23 s"), (60, "60 s"), (119, "119 s"), (600, "10 min"),
     (7200, "2 h"), (400 * 86_400, "400 d")],
)  # fmt: skip
def test_a_duration_is_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert span_of(seconds) == text


def test_counts_and_sizes_are_told_with_their_units() -> None:
    assert count_of(1, "process") == "1 process"
    assert count_of(1234, "process") == "1,234 processes"
    assert count_of(0, "index") == "0 indexes"
    assert count_of(2, "body") == "2 bodies"
    agreeing = [count_of(it, "row", one="is", more="are") for it in (0, 1, 2)]
    assert agreeing == ["0 rows are", "1 row is", "2 rows are"]
    assert [bytes_of(each) for each in (512, 2048, 3 << 30)] == ["512 bytes", "2 KiB", "3 GiB"]


def _asking(query: Any) -> Any:
    def examine(looked: DoctorRun) -> object:
        looked.rows(query)
        return ok("answered")

    return examine
