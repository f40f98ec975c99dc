"""Compares the database functions of two checkouts: python -m bench.releases OLD [--batches 1 5].

Both releases' functions stand in one database and are called in alternating turns with the same
items, on a connection each. What counts is the time that PostgreSQL's backend was on a CPU, so that
the ratio holds on a machine that others share.

With --partitions N it compares plain tables with partitioned ones: a database of OLD without any,
and one of this checkout in N partitions by slot.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table

from bench.cpu import on_cpu_seconds
from bench.parts import raw_writes
from bench.parts.raw_writes import Functions
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.storage.embedded.server import EmbeddedPostgres

_ROOT = Path(__file__).parents[1]
_NAMESPACE = "bench"
_SCHEMAS = """
SELECT n.nspname
FROM pg_namespace n
JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'settle_tasks'
ORDER BY n.oid"""
_KINDS = ("start", "first step", "call", "step")


@dataclasses.dataclass(slots=True)
class _Release:
    """The functions of one checkout, and the seconds that each kind of item took in each turn."""

    functions: Functions
    connection: psycopg.AsyncConnection[tuple[object, ...]]
    seconds: dict[str, list[float]]

    @contextlib.contextmanager
    def measured(self, kind: str) -> Iterator[None]:
        pid = self.connection.info.backend_pid
        before = on_cpu_seconds(pid)
        yield
        self.seconds[kind][-1] += on_cpu_seconds(pid) - before

    async def take_turn(self, batches: list[list[ProcessKey]]) -> None:
        for seconds in self.seconds.values():
            seconds.append(0.0)
        functions, connection = self.functions, self.connection
        for keys in batches:
            with self.measured("start"):
                started = await functions.start(connection, raw_writes.starts(keys))
            with self.measured("first step"):
                await functions.settle(connection, raw_writes.settlements(keys, started))
            with self.measured("call"):
                called = await functions.admit(connection, raw_writes.calls(keys))
            with self.measured("step"):
                await functions.settle(connection, raw_writes.settlements(keys, called))


def _migrate(checkout: Path, dsn: str, *options: str) -> None:
    python = checkout / ".venv/bin/python"
    subprocess.run(
        [python, "-m", "progressor", "migrate", "--dsn", dsn, *options],
        cwd=checkout,
        check=True,
        stdout=subprocess.DEVNULL,
    )


async def _compare(
    dsns: tuple[str, str], *, batch: int, items: int, turns: int
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind: microseconds per item of old and new, and old / new."""
    connect = psycopg.AsyncConnection.connect
    async with (
        await connect(dsns[0], autocommit=True) as old,
        await connect(dsns[1], autocommit=True) as new,
    ):
        first, last = [
            [name for (name,) in await (await each.execute(_SCHEMAS)).fetchall()]
            for each in (old, new)
        ]
        if dsns[0] == dsns[1] and len(first) < 2:
            sys.exit("both checkouts have the same functions: there is nothing to compare")
        releases = [
            _Release(await Functions.found(each, schema), each, {kind: [] for kind in _KINDS})
            for each, schema in ((old, first[0]), (new, last[-1]))
        ]
        numbers = itertools.count()
        for turn in range(turns + 1):
            for release in releases if turn % 2 else reversed(releases):
                await release.take_turn(
                    [
                        [process_key(_NAMESPACE, f"p{batch}-{next(numbers)}") for _ in range(batch)]
                        for _ in range(max(1, items // batch))
                    ]
                )
    before, after = (release.seconds for release in releases)
    rows = []
    per_item = 1e6 / (max(1, items // batch) * batch)
    for kind in _KINDS:
        # The first turn fills caches and plans.
        pairs = list(zip(before[kind][1:], after[kind][1:], strict=True))
        ratios = sorted(old_seconds / new_seconds for old_seconds, new_seconds in pairs)
        cost = [statistics.median(each) * per_item for each in zip(*pairs, strict=True)]
        quartiles = statistics.quantiles(ratios, n=4)
        rows.append(
            (
                str(batch),
                kind,
                *(f"{each:.1f}" for each in cost),
                f"{statistics.median(ratios):.3f}",
                f"{quartiles[0]:.3f} … {quartiles[2]:.3f}",
            )
        )
    return iter(rows)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.releases", description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout of the older release, set up")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 5, 50], metavar="ITEMS")
    parser.add_argument("--items", type=int, default=1000, help="items of each kind in a turn")
    parser.add_argument("--turns", type=int, default=20, help="turns of each release")
    parser.add_argument("--partitions", metavar="N", help="of the tables of this checkout alone")
    arguments = parser.parse_args()
    table = Table(*("batch", "kind", "old µs", "new µs", "old / new", "quartiles"))
    with (
        tempfile.TemporaryDirectory(prefix="progressor-bench-", dir="/var/tmp") as directory,
        EmbeddedPostgres(data_directory=Path(directory) / "data", durable=False) as postgres,
    ):
        dsns = (postgres.conninfo, postgres.conninfo)
        options = []
        if arguments.partitions is not None:
            dsns = (postgres.conninfo, make_conninfo(postgres.conninfo, dbname="partitioned"))
            options = ["--partitions", arguments.partitions]
            with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
                connection.execute("CREATE DATABASE partitioned TEMPLATE template0")
        _migrate(arguments.old.resolve(), dsns[0])
        _migrate(_ROOT, dsns[1], *options)
        for dsn in set(dsns):
            with psycopg.connect(dsn) as connection:
                connection.execute(
                    "INSERT INTO progressor.namespaces"
                    " (name, revision, config, created_at, updated_at)"
                    " VALUES (%s, 1, '{}', now(), now())",
                    (_NAMESPACE,),
                )
        for batch in arguments.batches:
            rows = asyncio.run(
                _compare(dsns, batch=batch, items=arguments.items, turns=arguments.turns)
            )
            for row in rows:
                table.add_row(*row)
    Console(width=100).print(table)


if __name__ == "__main__":
    _main()
