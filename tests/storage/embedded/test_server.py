"""The embedded server: its life, its directories and its binaries."""

import os
import signal
import stat
from pathlib import Path

import psycopg
import pytest

from progressor import errors
from progressor.storage.embedded.binaries import find_binaries, major_version
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.postgres.cluster import wait_until_no_server
from tests.support.postgres.embedded import (
    SYSTEM_BINARIES,
    owner,
    pids,
    put_row,
    read_row,
    setting,
    socket_directory,
    started,
)


@pytest.fixture(scope="module", params=["found", *map(str, SYSTEM_BINARIES)])
def binaries(request: pytest.FixtureRequest) -> Path:
    return find_binaries(None if request.param == "found" else Path(request.param))


def test_a_restart_keeps_the_data(data: Path, binaries: Path) -> None:
    server = EmbeddedPostgres(data_directory=data, binaries=binaries)
    with server:
        put_row(server.conninfo)

    with server:
        assert read_row(server.conninfo) == 7
        assert setting(server.conninfo, "data_checksums") == "on"
        assert setting(server.conninfo, "server_encoding") == "UTF8"


def test_stop_leaves_no_process_and_may_be_repeated(made: Path) -> None:
    server = EmbeddedPostgres(data_directory=made)
    server.start()

    server.stop()
    server.stop()

    wait_until_no_server(made, seconds=0.5)


def test_a_server_that_is_not_started_has_no_conninfo(data: Path) -> None:
    with pytest.raises(errors.EmbeddedPostgresError, match="is not running"):
        _ = EmbeddedPostgres(data_directory=data).conninfo


def test_a_second_start_of_one_object_is_refused(made: Path) -> None:
    with EmbeddedPostgres(data_directory=made) as server:
        with pytest.raises(errors.EmbeddedPostgresError, match="already running"):
            server.start()

        assert setting(server.conninfo, "cluster_name") == "progressor"


def test_a_second_object_on_the_directory_is_refused(made: Path) -> None:
    with EmbeddedPostgres(data_directory=made) as server:
        with pytest.raises(errors.EmbeddedPostgresError, match=f"process {os.getpid()}"):
            EmbeddedPostgres(data_directory=made).start()

        assert setting(server.conninfo, "cluster_name") == "progressor"


def test_a_directory_held_by_another_process_is_refused(made: Path) -> None:
    with owner(made) as process:
        started(process)

        with pytest.raises(errors.EmbeddedPostgresError, match=f"process {process.pid}"):
            EmbeddedPostgres(data_directory=made).start()


@pytest.mark.parametrize("name", ["l" * 120, "with, comma", "with 'quotes'"])
def test_any_path_will_do_and_a_private_socket_directory_is_removed(home: Path, name: str) -> None:
    with EmbeddedPostgres(data_directory=home / name) as server:
        sockets = socket_directory(server.conninfo)
        put_row(server.conninfo)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert sockets.parent == Path("/tmp")  # noqa: S108  the place is what is tested

    assert not sockets.exists()


def test_another_major_version_is_refused_and_both_are_named(made: Path) -> None:
    major = major_version(find_binaries())
    with EmbeddedPostgres(data_directory=made):
        pass
    (made / "postgres/PG_VERSION").write_text("14\n", "ascii")

    with pytest.raises(errors.EmbeddedPostgresError, match=f"PostgreSQL 14.*PostgreSQL {major}:"):
        EmbeddedPostgres(data_directory=made).start()


def test_binaries_that_are_not_there_are_refused(home: Path) -> None:
    with pytest.raises(errors.EmbeddedPostgresError, match="no postgres and initdb in"):
        find_binaries(home)


def test_a_server_whose_socket_had_to_go_elsewhere_is_found_there_again(home: Path) -> None:
    server = EmbeddedPostgres(data_directory=home / ("long" * 25))
    try:
        first = server.start()
        server.stop()
        second = server.start()
        ours, guard = pids(home / ("long" * 25))
        os.kill(guard, signal.SIGKILL)
        wait_until_no_server(home / ("long" * 25))
        third = server.start()
        with psycopg.connect(third) as connection:
            row = connection.execute("SELECT 1").fetchone()
    finally:
        server.stop()

    assert ours
    assert first == second == third
    assert socket_directory(first) != home / ("long" * 25)
    assert row == (1,)


def test_a_socket_directory_that_somebody_else_has_taken_is_left_alone(home: Path) -> None:
    directory = home / ("long" * 25)
    server = EmbeddedPostgres(data_directory=directory)
    with server:
        taken = socket_directory(server.conninfo)
    taken.write_text("another program's")
    try:
        with pytest.raises(errors.EmbeddedPostgresError, match="cannot be started"):
            server.start()
        assert taken.read_text() == "another program's"
    finally:
        taken.unlink()
