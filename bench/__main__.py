"""Measures what the engine costs: python -m bench [--quick | --smoke] [--only NAME ...] ..."""

import argparse
import asyncio
import dataclasses
import datetime as dt
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from bench import machine
from bench.catalogue import FULL, ON_DEMAND, QUESTIONS, QUICK, SMOKE, Question, asked, names_of
from bench.env import Env
from bench.measurement import Pace
from bench.report import doubts, line_of, table_of
from bench.setup import Setting, open_env

_TABLE_WIDTH = 150
_RESULTS = "results.jsonl"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="the eleven most important questions, in under 50 s")
    add("--smoke", action="store_true", help="every question for a moment, to check that it works")
    questions = ", ".join(question.name for question in QUESTIONS)
    add(
        "--only", nargs="+", default=[], metavar="NAME",
        help=f"answers, or all of {questions}; only so: {', '.join(sorted(ON_DEMAND))}",
    )  # fmt: skip
    add("--seconds", type=float, help="seconds per turn")
    add("--turns", type=int, help="number of turns; the median is reported")
    add("--scale", type=float, help="factor of the numbers of processes, timers, calls")
    add("--workers", type=int, default=1, help="processes of the engine, as serve --workers")
    add("--replicas", type=int, default=1, help="engines on the database, all of them called")
    add("--clients", type=int, default=1, help="processes that send requests")
    add(
        "--dsn",
        default="",
        help="a PostgreSQL in which to create a database, which is dropped afterwards",
    )
    add("--in-place", action="store_true", help="use the database of --dsn as it is")
    add("--out", type=Path, help="directory for the lines of JSON and a plot per question")
    add("--profile", action="store_true", help="profile the engine")
    return parser


def _arguments() -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args()
    # Only the plots need it.
    if arguments.out is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--out draws plots by matplotlib: make setup-bench, or pip install matplotlib")
    return arguments


def _pace_of(arguments: argparse.Namespace) -> Pace:
    pace = SMOKE if arguments.smoke else QUICK if arguments.quick else FULL
    seconds = arguments.seconds or pace.seconds
    return dataclasses.replace(
        pace,
        seconds=seconds,
        warm_up=min(pace.warm_up, seconds),
        turns=arguments.turns or pace.turns,
        long_turns=arguments.turns or pace.long_turns,
        scale=arguments.scale or pace.scale,
        names=names_of(arguments.only) or pace.names,
    )


@dataclasses.dataclass(slots=True)
class _Run:
    pace: Pace
    people: Console
    lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)

    async def ask(self, question: Question, env: Env) -> None:
        """Run a question; an error is reported, and the next questions still run."""
        load, begun = os.getloadavg()[0], time.monotonic()
        around = {
            "load_before": round(load, 2),
            "commit": machine.commit(),
            "machine": machine.machine(),
            "python": machine.python(),
            "postgres": env.postgres,
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python -m bench", *sys.argv[1:]]),
        }
        try:
            measured = await question.ask(env, self.pace)
        except Exception:  # noqa: BLE001  told below, and by the exit code
            self.people.print(traceback.format_exc(), markup=False)
            self.wrong.append(f"{question.name} failed")
            return
        finally:
            self.people.print(f"{question.name}: {time.monotonic() - begun:.0f} s")
        for measurement in measured:
            if self.pace.wants(measurement.name):
                self.wrong += doubts(measurement)
                line = line_of(measurement, around)
                print(line, flush=True)
                self.lines.append(json.loads(line))


async def _main(arguments: argparse.Namespace) -> int:
    people = Console(stderr=True, width=_TABLE_WIDTH)
    run = _Run(_pace_of(arguments), people)
    setting = Setting(
        dsn=arguments.dsn,
        in_place=arguments.in_place,
        workers=arguments.workers,
        replicas=arguments.replicas,
        clients=arguments.clients,
        profile=arguments.profile,
    )
    async with open_env(setting) as env:
        for question in asked(run.pace):
            await run.ask(question, env)
        if env.profiler is not None:
            env.profiler.show(people)
    people.print(table_of(run.lines, f"{machine.machine()}, commit {machine.commit()}"))
    if arguments.out is not None:
        people.print(f"written: {_write(run.lines, arguments.out)}")
    for each in run.wrong:
        people.print(f"[red]{each}[/red]")
    return 1 if run.wrong else 0


def _write(lines: list[dict[str, Any]], out: Path) -> Path:
    stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d-%H%M")
    folder = out / f"{stamp}-{machine.commit().rstrip('+')}"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / _RESULTS).write_text(text, "utf-8")
    importlib.import_module("bench.plots").draw(lines, folder)
    return folder


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_main(_arguments())))
