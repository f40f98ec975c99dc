"""The embedded server: its life, settings and users; whatever is killed, its data is kept."""

import contextlib
import datetime as dt
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from progressor import errors
from progressor.storage.embedded.binaries import find_binaries, major_version
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.postgres.cluster import wait_until_no_server

SYSTEM_BINARIES = sorted(Path("/usr/lib/postgresql").glob("1[5-9]/bin"))
ROOT = Path(__file__).parents[3]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc or namespaces")

# Starts a server, says so, and holds it until its stdin ends.
OWNER = """
import sys, pathlib, datetime as dt
from progressor.storage.embedded.server import EmbeddedPostgres
binaries = pathlib.Path(sys.argv[2]) if sys.argv[2] else None
server = EmbeddedPostgres(data_directory=pathlib.Path(sys.argv[1]), binaries=binaries)
print(server.start(), flush=True)
sys.stdin.read()
server.stop()
"""


def ask(conninfo: str, query: LiteralString) -> Any:
    with psycopg.connect(conninfo) as connection:
        [(answer,)] = connection.execute(query).fetchall()
    return answer


def put_row(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS answer")


def read_row(conninfo: str) -> int:
    return int(ask(conninfo, "SELECT answer FROM kept"))


def setting(conninfo: str, name: LiteralString) -> str:
    return str(ask(conninfo, "SHOW " + name))


def socket_directory(conninfo: str) -> Path:
    return Path(str(psycopg.conninfo.conninfo_to_dict(conninfo)["host"]))


def python_path() -> str:
    return os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])


@contextlib.contextmanager
def owner(
    directory: Path,
    *,
    binaries: Path | None = None,
    python: str = sys.executable,
    user: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that owns a server; killed at the end, if it is still there."""
    process = subprocess.Popen(
        [python, "-c", OWNER, str(directory), str(binaries or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        wait_until_no_server(directory)


def started(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def pids(directory: Path) -> tuple[int, int]:
    """Return the process ids of the server and of its guard."""
    server = int((directory / "postgres/postmaster.pid").read_text("ascii").split()[0])
    fields = Path(f"/proc/{server}/stat").read_text("ascii").rpartition(")")[2].split()
    return server, int(fields[1])


UNPRIVILEGED = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
# Becomes root of a user namespace that allows no further one, then tries to start a server.
CONFINED = """
import ctypes, os, pathlib, sys
from progressor import errors
from progressor.storage.embedded.server import EmbeddedPostgres
user, group = os.geteuid(), os.getegid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0, "no namespace"
pathlib.Path("/proc/self/setgroups").write_text("deny")
pathlib.Path("/proc/self/uid_map").write_text(f"0 {user} 1")
pathlib.Path("/proc/self/gid_map").write_text(f"0 {group} 1")
pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
print("confined", flush=True)
try:
    EmbeddedPostgres(data_directory=pathlib.Path(sys.argv[1])).start()
except errors.EmbeddedPostgresError as error:
    print(error)
"""


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


def test_a_second_start_is_refused(made: Path) -> None:
    with EmbeddedPostgres(data_directory=made) as server:
        with pytest.raises(errors.EmbeddedPostgresError, match="already running"):
            server.start()
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
        answer = ask(third, "SELECT 1")
    finally:
        server.stop()

    assert ours
    assert first == second == third
    assert socket_directory(first) != home / ("long" * 25)
    assert answer == 1


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


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("fsync", "off", "durable=False"),
        ("FSYNC", "no", "durable=False"),
        ("synchronous_commit", "off", "durable=False"),
        ("synchronous-commit", "local", "durable=False"),
        ("full_page_writes", "false", "durable=False"),
        ("hba_file", "x", "launcher's own"),
        ("listen_addresses", "x", "launcher's own"),
        ("port", "x", "launcher's own"),
        ("unix-socket_permissions", "x", "launcher's own"),
        ("jit=on -c fsync", "off", "not the name"),
    ],
)
def test_settings_that_make_the_server_another_are_refused(
    data: Path, name: str, value: str, why: str
) -> None:
    with pytest.raises(errors.EmbeddedPostgresError, match=why):
        EmbeddedPostgres(data_directory=data, settings={name: value})


def test_settings_reach_the_server_and_durability_is_full(made: Path) -> None:
    settings = {"work_mem": "12MB"}
    with EmbeddedPostgres(data_directory=made, settings=settings) as server:
        names = ("work_mem", "fsync", "synchronous_commit", "full_page_writes", "jit")
        values = [setting(server.conninfo, name) for name in names]

    assert values == ["12MB", "on", "on", "on", "off"]


def test_alter_system_cannot_turn_durability_off(made: Path) -> None:
    server = EmbeddedPostgres(data_directory=made)
    with server, psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")

    with server:
        assert setting(server.conninfo, "fsync") == "on"


def test_tcp_asks_for_the_password(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EmbeddedPostgres(data_directory=data, port=port) as server:
        put_row(server.tcp_conninfo)
        for wrong in ("password=wrong", "passfile=/dev/null"):
            stranger = f"host=127.0.0.1 port={port} user=postgres dbname=postgres {wrong}"
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(stranger)
        mode = (data / "password").stat().st_mode

    assert stat.S_IMODE(mode) == 0o600


def test_without_a_port_there_is_no_tcp(made: Path) -> None:
    with EmbeddedPostgres(data_directory=made) as server:
        assert setting(server.conninfo, "listen_addresses") == ""
        with pytest.raises(errors.EmbeddedPostgresError, match="no TCP port"):
            _ = server.tcp_conninfo


def test_an_outgrown_log_is_cut(data: Path) -> None:
    data.mkdir()
    (data / "server.log").write_bytes(b"old news\n" * 1_000_000)

    with EmbeddedPostgres(data_directory=data):
        assert (data / "server.log").stat().st_size < 100_000

    assert (data / "server.log.1").stat().st_size < 5_000_000


@on_linux
@pytest.mark.parametrize("killed", ["owner", "owner, guard and server"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_start_after_a_kill_keeps_the_data(made: Path, killed: str, *, waits: bool) -> None:
    """Right after it, the start waits for the old server."""
    with owner(made) as process:
        put_row(started(process))
        others = () if killed == "owner" else reversed(pids(made))
        for victim in (process.pid, *others):
            os.kill(victim, signal.SIGKILL)
        process.wait()
        if waits:
            wait_until_no_server(made)

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


def fake_binaries(home: Path, script: str) -> Path:
    """Return binaries whose initdb is a shell script."""
    fake = home / "fake"
    fake.mkdir()
    (fake / "postgres").symlink_to(find_binaries() / "postgres")
    (fake / "initdb").write_text(f"#!/bin/sh\n{script}\n", "ascii")
    (fake / "initdb").chmod(0o755)
    return fake


@on_linux
def test_an_initdb_killed_half_way_is_made_again(home: Path, data: Path) -> None:
    reached, major = home / "reached", major_version(find_binaries())
    os.mkfifo(reached)
    fake = fake_binaries(home, f"echo {major} > $2/PG_VERSION\necho > {reached}\nexec sleep 600")
    with owner(data, binaries=fake) as process:
        reached.read_text("ascii")
        process.kill()
        process.wait()

        with EmbeddedPostgres(data_directory=data) as server:
            put_row(server.conninfo)
            assert read_row(server.conninfo) == 7
    assert not (home / "data/initdb-new").exists()


def test_an_initdb_that_fails_says_why_and_leaves_nothing_running(home: Path, data: Path) -> None:
    fake = fake_binaries(home, "echo the disk is made of cheese\nexit 3")

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


@as_root
def test_root_runs_the_server_as_the_owner_of_the_directory(data: Path) -> None:
    binaries = reachable_binaries()
    directory = data
    directory.mkdir(mode=0o700)
    os.chown(directory, UNPRIVILEGED, UNPRIVILEGED)

    with EmbeddedPostgres(data_directory=directory, binaries=binaries) as server:
        put_row(server.conninfo)
        running = Path(f"/proc/{pids(directory)[0]}").stat().st_uid
    with EmbeddedPostgres(data_directory=directory, binaries=binaries) as server:
        assert read_row(server.conninfo) == 7
    assert running == UNPRIVILEGED
    assert {path.stat().st_uid for path in directory.iterdir()} == {UNPRIVILEGED}


@as_root
def test_an_ordinary_user_can_own_a_server(home: Path, data: Path) -> None:
    binaries, python = reachable_binaries(), reachable_python()
    home.chmod(0o777)
    with owner(data, binaries=binaries, python=python, user=UNPRIVILEGED) as process:
        conninfo = started(process)
        put_row(conninfo)
        process.kill()
        process.wait()

        wait_until_no_server(data)


@on_linux
def test_root_without_user_namespaces_is_told_what_to_do(data: Path) -> None:
    command = [sys.executable, "-c", CONFINED, str(data)]
    environment = {"PYTHONPATH": python_path()}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if not said.stdout.startswith("confined"):
        pytest.skip(f"cannot make a namespace without namespaces: {said.stderr[-200:]}")

    assert "user namespaces are not allowed here" in said.stdout
    assert "as an ordinary user" in said.stdout


def reachable_binaries() -> Path:
    """Return binaries that an unprivileged user may run; skip if a parent directory forbids it."""
    for candidate in (find_binaries(), *SYSTEM_BINARIES):
        if runs_as_nobody([str(candidate / "postgres"), "--version"]):
            return candidate
    pytest.skip("no PostgreSQL that an ordinary user may run: the checkout is private to root")


def reachable_python() -> str:
    """Return an interpreter that an unprivileged user may run with our packages, or skip."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if runs_as_nobody([candidate, "-c", "import psycopg, progressor.storage.embedded.server"]):
            return candidate
    pytest.skip("no interpreter that an ordinary user may run: it is private to root")


def runs_as_nobody(command: list[str]) -> bool:
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            cwd="/",
            env={"PYTHONPATH": python_path()},
            user=UNPRIVILEGED,
            group=UNPRIVILEGED,
            extra_groups=[],
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
