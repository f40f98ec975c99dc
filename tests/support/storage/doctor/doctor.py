"""What the doctor finds in a test's database, and what makes it ill."""

import asyncio
import contextlib
import datetime as dt
import re
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import make_conninfo

from progressor.settings.sections import Database, ReplicaSettings
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.findings import Finding
from progressor.storage.doctor.invariants import checks as invariants
from progressor.storage.doctor.run import DoctorRun, open_run
from tests.support.engine.points import PATIENCE_SECONDS

TIMEOUT = dt.timedelta(seconds=20)

_POLL_SECONDS = 0.05

_DISAGREES = re.compile(
    r"(?<![\w.,/-])(?<! of )1 (?!is |\w+ss\b|status)[a-z]{2,}s\b"
    r"|\b1 \w+ (are|differ|violate|have)\b"
)
"""One of something, with a noun or a verb of more."""


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
        found = check.find(doctor_run)
    for words in (found.words, *found.offenders):
        assert not _DISAGREES.search(words), words
    return found


def execute(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def clocks_reported(conninfo: str) -> None:
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
