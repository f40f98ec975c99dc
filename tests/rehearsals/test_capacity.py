"""docs/how-to/deploy/plan-capacity.md: the bytes that processes and calls leave on the disk."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor.sdk import BYTES, Client, NamespaceConfig, Processor, Step
from tests.rehearsals.releases import open_fleet
from tests.support.engine.process import ROOT
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/how-to/deploy/plan-capacity.md").read_text("utf-8")
_ROW = re.compile(r"^\| (a \w+)[^|]*\| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)
STATED = {
    name: (int(stored.replace(",", "")), int(wal.replace(",", "")))
    for name, stored, wal in _ROW.findall(PAGE)
}
TOLERANCE = 0.25

PROCESSES, CALLS, AT_ONCE = 2000, 5, 64
PAYLOAD = b"x" * 100

_STORED = b"""
    SELECT sum(pg_total_relation_size(oid))::bigint, pg_current_wal_lsn() - '0/0'::pg_lsn
    FROM pg_class WHERE relnamespace = 'progressor'::regnamespace AND relkind = 'r'"""


def _processor() -> Processor[Any]:
    made: Processor[Any] = Processor("capacity", codec=BYTES)

    @made.init
    @made.call
    async def keep(step: Step[Any]) -> bytes:
        step.state = PAYLOAD
        step.emit(PAYLOAD)
        return PAYLOAD

    return made


def _measured(conninfo: str) -> tuple[int, int]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(_STORED).fetchone()
    assert row is not None, "aggregates have a row"
    return int(row[0]), int(row[1])


def _apart(before: tuple[int, int], after: tuple[int, int], count: int) -> tuple[int, int]:
    """Return what one of `count` has added."""
    return (after[0] - before[0]) // count, (after[1] - before[1]) // count


async def _each(names: list[str], ask: Callable[[str], Awaitable[object]]) -> None:
    waiting = iter(names)

    async def one() -> None:
        for name in waiting:
            await ask(name)

    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(one(), name=f"caller {number}")


async def test_processes_and_calls_take_what_the_page_says(
    durable_cluster: Cluster, tmp_path: Path
) -> None:
    conninfo = durable_cluster.create_database()
    names = [f"process-{number}" for number in range(PROCESSES)]
    async with (
        _processor().running("127.0.0.1:0") as target,
        open_fleet(conninfo, tmp_path, "one") as fleet,
    ):
        await fleet.start("one")
        async with Client(fleet.addresses[0], namespace="capacity", codec=BYTES) as client:
            config = NamespaceConfig(name="capacity", processor_targets=(target,))
            await client.namespaces.create(config)
            empty = _measured(conninfo)
            await _each(names, lambda name: client.start(name, PAYLOAD))
            started = _measured(conninfo)
            await _each(names * CALLS, lambda name: client.call(name, PAYLOAD))
            called = _measured(conninfo)

    found = {
        "a process": _apart(empty, started, PROCESSES),
        "a call": _apart(started, called, PROCESSES * CALLS),
    }
    sys.stdout.write(f"{found}\n")
    assert set(STATED) == set(found)
    for name, stated in STATED.items():
        assert list(found[name]) == pytest.approx(list(stated), rel=TOLERANCE), name
