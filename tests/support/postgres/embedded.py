"""Embedded servers for tests: their owners, their processes, and a row to find again."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

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


def put_row(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS answer")


def read_row(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT answer FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def setting(conninfo: str, name: str) -> str:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


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
