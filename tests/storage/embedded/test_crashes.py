"""Whatever of an embedded server is killed, its data is kept and it can be started again."""

import datetime as dt
import os
import signal
from pathlib import Path

import pytest

from progressor import errors
from progressor.storage.embedded.binaries import find_binaries, major_version
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.postgres.cluster import wait_until_no_server
from tests.support.postgres.embedded import (
    on_linux,
    owner,
    pids,
    put_row,
    read_row,
    socket_directory,
    started,
)


@on_linux
def test_kill_of_the_owner_leaves_no_server_and_keeps_the_data(made: Path) -> None:
    with owner(made) as process:
        put_row(started(process))
        process.kill()
        process.wait()

        wait_until_no_server(made)
        with EmbeddedPostgres(data_directory=made) as server:
            assert read_row(server.conninfo) == 7


@on_linux
def test_a_start_right_after_kill_of_the_owner_waits_for_the_old_server(made: Path) -> None:
    with owner(made) as process:
        put_row(started(process))
        process.kill()
        process.wait()

        with EmbeddedPostgres(data_directory=made) as server:
            assert read_row(server.conninfo) == 7


@on_linux
def test_kill_of_owner_guard_and_server_keeps_the_data(made: Path) -> None:
    with owner(made) as process:
        put_row(started(process))
        for victim in (process.pid, *reversed(pids(made))):
            os.kill(victim, signal.SIGKILL)
        process.wait()

        with EmbeddedPostgres(data_directory=made) as server:
            assert read_row(server.conninfo) == 7


@on_linux
def test_kill_of_the_guard_stops_the_server(made: Path) -> None:
    with owner(made) as process:
        started(process)

        os.kill(pids(made)[1], signal.SIGKILL)

        wait_until_no_server(made)


def test_a_killed_server_can_be_started_again(made: Path) -> None:
    server = EmbeddedPostgres(data_directory=made)
    put_row(server.start())
    os.kill(pids(made)[0], signal.SIGKILL)
    server.stop()

    with server:
        assert read_row(server.conninfo) == 7


@on_linux
def test_a_stale_lock_whose_number_lives_on_is_forgotten(made: Path) -> None:
    server = EmbeddedPostgres(data_directory=made)
    put_row(server.start())
    lines = (made / "postgres/postmaster.pid").read_text("ascii").splitlines()
    server.stop()
    other_pid = str(os.getppid())
    stale = "\n".join([other_pid, *lines[1:]])
    (made / "postgres/postmaster.pid").write_text(stale + "\n", "ascii")
    (made / ".s.PGSQL.5432.lock").write_text(stale + "\n", "ascii")

    with server:
        assert read_row(server.conninfo) == 7


@on_linux
def test_an_initdb_killed_half_way_is_made_again(home: Path, data: Path) -> None:
    real = find_binaries()
    fake, reached = home / "fake", home / "reached"
    fake.mkdir()
    (fake / "postgres").symlink_to(real / "postgres")
    script = f"#!/bin/sh\necho {major_version(real)} > $2/PG_VERSION\necho > {reached}\n"
    (fake / "initdb").write_text(script + "exec sleep 600\n", "ascii")
    (fake / "initdb").chmod(0o755)
    os.mkfifo(reached)
    with owner(data, binaries=fake) as process:
        reached.read_text("ascii")
        process.kill()
        process.wait()

        with EmbeddedPostgres(data_directory=data) as server:
            put_row(server.conninfo)
            assert read_row(server.conninfo) == 7
    assert not (home / "data/initdb-new").exists()


def test_an_initdb_that_fails_says_why_and_leaves_nothing_running(home: Path, data: Path) -> None:
    fake = home / "fake"
    fake.mkdir()
    (fake / "postgres").symlink_to(find_binaries() / "postgres")
    (fake / "initdb").write_text("#!/bin/sh\necho the disk is made of cheese\nexit 3\n", "ascii")
    (fake / "initdb").chmod(0o755)

    with pytest.raises(errors.EmbeddedPostgresError, match="made of cheese"):
        EmbeddedPostgres(data_directory=data, binaries=fake).start()
    with EmbeddedPostgres(data_directory=data) as server:
        put_row(server.conninfo)


def test_a_server_that_does_not_come_up_in_time_is_stopped(made: Path) -> None:
    server = EmbeddedPostgres(data_directory=made)
    with server:
        put_row(server.conninfo)

    with pytest.raises(errors.EmbeddedPostgresError, match="did not start"):
        server.start(dt.timedelta(0))
    wait_until_no_server(made, seconds=0.5)
    with server:
        assert read_row(server.conninfo) == 7


@on_linux
def test_a_private_socket_directory_goes_with_a_killed_owner(home: Path) -> None:
    directory = home / ("l" * 120)
    with owner(directory) as process:
        sockets = socket_directory(started(process))
        process.kill()
        process.wait()

        with EmbeddedPostgres(data_directory=directory):
            assert not sockets.exists()
