"""What the doctor finds in a test's database, and what makes it ill."""

import asyncio
import contextlib
import datetime as dt
import socket
import struct
import threading
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from progressor.settings.sections import Database, ReplicaSettings
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.findings import Finding
from progressor.storage.doctor.invariants import checks as invariants
from progressor.storage.doctor.run import DoctorRun, open_run
from tests.support.engine.points import PATIENCE_SECONDS

TIMEOUT = dt.timedelta(seconds=20)

_KEY_DATA = b"K\x00\x00\x00\x0c"
_CHUNK_BYTES = 65536
_SOCKET_SECONDS = 30.0
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def looking(
    conninfo: str, *, database: Database | None = None, timeout: dt.timedelta = TIMEOUT
) -> Iterator[DoctorRun]:
    chosen = database or Database(dsn=conninfo)
    with open_run(
        conninfo, database=chosen, replica=ReplicaSettings(name="doctor"), timeout=timeout
    ) as doctor_run:
        yield doctor_run


def find(
    conninfo: str, name: str, *, database: Database | None = None, timeout: dt.timedelta = TIMEOUT
) -> Finding:
    (check,) = [
        each for each in (*environment.CHECKS, *invariants.checks(deep=True)) if each.name == name
    ]
    with looking(conninfo, database=database, timeout=timeout) as doctor_run:
        return check.find(doctor_run)


def execute(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def clocks_told(conninfo: str) -> None:
    """Wait until every replica has told its clock: its second heartbeat tells of the first."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection,
    ):
        without_offset = "SELECT FROM progressor.replicas WHERE clock_offset IS NULL"
        while (await connection.execute(without_offset)).rowcount:  # noqa: ASYNC110  without a notification
            await asyncio.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def role(conninfo: str, name: str) -> Iterator[str]:
    """Create a role that may do nothing, and return how to connect as it."""
    execute(conninfo, f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    try:
        yield make_conninfo(conninfo, user=name, password=name)
    finally:
        execute(conninfo, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@contextlib.contextmanager
def pretending_relay(conninfo: str) -> Iterator[str]:
    """Relay one connection, telling its client another backend's number, as poolers do.

    Yields the conninfo of the relay.
    """
    given = conninfo_to_dict(conninfo)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(_SOCKET_SECONDS)
        server = stack.enter_context(_connected(str(given["host"]), str(given.get("port", 5432))))
        thread = threading.Thread(target=_relay, args=(listener, server), name="pretending relay")
        thread.start()
        stack.callback(thread.join)
        port = listener.getsockname()[1]
        elsewhere = {
            "host": "127.0.0.1",
            "port": port,
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        yield make_conninfo(**{**given, **elsewhere})


def _connected(host: str, port: str) -> socket.socket:
    if host.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
    else:
        server = socket.create_connection((host, int(port)))
    server.settimeout(_SOCKET_SECONDS)
    return server


def _relay(listener: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client, _ = listener.accept()
        with client:
            client.settimeout(_SOCKET_SECONDS)
            up = threading.Thread(target=_copy, args=(client, server, False), name="up")
            up.start()
            _copy(server, client, True)
            up.join()


def _copy(source: socket.socket, target: socket.socket, pretends: bool) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            place = data.find(_KEY_DATA) if pretends else -1
            if place >= 0:
                start = place + len(_KEY_DATA)
                data = data[:start] + struct.pack("!i", 1) + data[start + 4 :]
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
