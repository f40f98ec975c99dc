"""Who may run an embedded server: root in the name of the owner, or any user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from progressor.storage.embedded.binaries import find_binaries
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.postgres.cluster import wait_until_no_server
from tests.support.postgres.embedded import (
    SYSTEM_BINARIES,
    on_linux,
    owner,
    pids,
    put_row,
    python_path,
    read_row,
    started,
)

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
