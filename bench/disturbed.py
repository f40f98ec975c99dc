"""Measures the rate that remains after a fault, and the time to recover.

python -m bench.disturbed [--only NAME ...] [--turns N] [--seconds N] [--out FILE]
"""

import argparse
import asyncio
import datetime as dt
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from bench.disturbing import cells, judging, resuming, zombies
from bench.disturbing.judging import Line
from bench.disturbing.pace import Pace
from bench.disturbing.tables import tables_of
from bench.machine import commit, machine, python

KILLS, RESUME = "kills_p99", "postgres_resume"

_CELLS = {**cells.CELLS, **cells.OTHERS}
_TABLE_WIDTH = 130


def _parser() -> argparse.ArgumentParser:
    pace = Pace()
    parser = argparse.ArgumentParser(prog="python -m bench.disturbed", description=__doc__)
    add = parser.add_argument
    add(
        "--only", nargs="+", default=list(cells.CELLS), metavar="NAME",
        choices=(*_CELLS, KILLS, RESUME),
        help=f"of {', '.join((*_CELLS, KILLS, RESUME))}; the first {len(cells.CELLS)}",
    )  # fmt: skip
    add("--turns", type=int, default=pace.turns, help="number of turns; medians are reported")
    add("--seconds", type=float, default=pace.seconds, help="seconds of a window without a fault")
    add("--warm-up", type=float, default=pace.warm_up, help="seconds before the first window")
    add("--callers", type=int, default=pace.callers, help="over all replicas")
    add(
        "--hold-seconds",
        type=float,
        default=pace.hold_seconds,
        help="seconds for which xmin is held, or pg_dump runs",
    )
    add("--backlog", type=int, default=pace.backlog, help="timers that are due at once")
    add("--processes", type=int, default=pace.processes, help=f"with a step in hand, in {KILLS}")
    add(
        "--lease-seconds", type=float, default=pace.lease_seconds,
        help=f"lease timeout of the replicas, in {KILLS}",
    )  # fmt: skip
    add(
        "--policy", choices=("retry", "fail"), default="retry",
        help=f"what becomes of zombies, in {KILLS}",
    )  # fmt: skip
    add("--json", action="store_true", help="print the document instead of tables")
    add("--out", type=Path, help="write the document to this file")
    return parser


def _pace_of(arguments: argparse.Namespace) -> Pace:
    return Pace(
        seconds=arguments.seconds,
        warm_up=arguments.warm_up,
        turns=arguments.turns,
        callers=arguments.callers,
        hold_seconds=arguments.hold_seconds,
        backlog=arguments.backlog,
        processes=arguments.processes,
        lease_seconds=arguments.lease_seconds,
        fails=arguments.policy == "fail",
    )


async def _measure(name: str, pace: Pace) -> list[Line]:
    turns = range(pace.turns)
    if name == KILLS:
        return [judging.of_kills(pace, [await zombies.turn(pace) for _ in turns])]
    if name == RESUME:
        return [
            judging.of_resuming(way, [await resuming.turn(way, pace) for _ in turns])
            for way in resuming.WAYS
        ]
    cell = _CELLS[name]
    return [judging.of_cell(name, cell, [await cells.turn(cell, pace) for _ in turns])]


async def _measured(name: str, pace: Pace, people: Console) -> list[Line]:
    """Run a measurement; an error is reported, and the next measurements still run."""
    people.print(f"{name} ...")
    try:
        return await _measure(name, pace)
    except Exception as error:  # noqa: BLE001  told here, and by the exit code
        people.print(traceback.format_exc(), markup=False)
        return [{"name": name, "complaints": [f"{name} was not measured: {error!r}"]}]


def _complaints(lines: list[Line]) -> Iterator[str]:
    for line in lines:
        for complaint in line["complaints"]:
            yield f"{line['name']}: {complaint}"


async def _main(arguments: argparse.Namespace) -> int:
    people, pace = Console(stderr=True, width=_TABLE_WIDTH), _pace_of(arguments)
    lines: list[Line] = []
    for name in arguments.only:
        lines += await _measured(name, pace, people)
    for table in tables_of(lines):
        people.print(table)
    for complaint in _complaints(lines):
        people.print(complaint, style="red", markup=False)
    _write(_document(lines), arguments)
    return 1 if any(line["complaints"] for line in lines) else 0


def _document(lines: list[Line]) -> dict[str, Any]:
    return {
        "name": "disturbed",
        "command": " ".join(["python -m bench.disturbed", *sys.argv[1:]]),
        "passed": not any(line["complaints"] for line in lines),
        "measured": lines,
        "commit": commit(),
        "machine": machine(),
        "python": python(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _write(document: dict[str, Any], arguments: argparse.Namespace) -> None:
    text = json.dumps(document) + "\n"
    if arguments.json:
        sys.stdout.write(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, "utf-8")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_main(_parser().parse_args())))
