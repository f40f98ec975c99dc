"""What does the engine cost? python -m bench [--only NAME ...] [--quick] [--profile] ..."""

import argparse
import asyncio
import datetime as dt
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import uvloop
from rich.console import Console

from bench.measurement import Measurement, Pace
from bench.questions import call, handover, latency, relay, start, steps, timers
from bench.report import line_of, table_of
from bench.stage import Stage, open_stage

_QUESTIONS: Mapping[str, Callable[[Stage, Pace], Awaitable[list[Measurement]]]] = {
    "relay": relay.ask,
    "start": start.ask,
    "call": call.ask,
    "steps": steps.ask,
    "timers": timers.ask,
    "latency": latency.ask,
    "handover": handover.ask,
}
_QUICK = Pace(seconds=2.0, warm_up=1.0, turns=1, scale=0.2)
_TABLE_WIDTH = 140


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=_QUESTIONS, default=list(_QUESTIONS), metavar="NAME",
        help=f"of {', '.join(_QUESTIONS)}",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, help="length of a turn")
    parser.add_argument("--turns", type=int, help="turns, of which the median is reported")
    parser.add_argument("--scale", type=float, help="share of processes, timers, calls, to 1")
    parser.add_argument("--json", type=Path, help="append the lines of JSON to this file")
    parser.add_argument("--dsn", default="", help="a PostgreSQL to make a database in, and drop it")
    parser.add_argument("--quick", action="store_true", help="one short turn of everything")
    parser.add_argument("--profile", action="store_true", help="look into the engine meanwhile")
    return parser.parse_args()


def _pace_of(arguments: argparse.Namespace) -> Pace:
    pace = _QUICK if arguments.quick else Pace()
    seconds = arguments.seconds or pace.seconds
    return Pace(
        seconds=seconds,
        warm_up=min(pace.warm_up, seconds),
        turns=arguments.turns or pace.turns,
        scale=arguments.scale or pace.scale,
    )


async def _main(arguments: argparse.Namespace) -> None:
    people, pace = Console(stderr=True, width=_TABLE_WIDTH), _pace_of(arguments)
    answered: list[Measurement] = []
    async with open_stage(arguments.dsn, profile=arguments.profile) as stage:
        for name in arguments.only:
            load = os.getloadavg()[0]
            people.print(f"{name} ...")
            date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            for measurement in await _QUESTIONS[name](stage, pace):
                answered.append(measurement)
                line = line_of(measurement, date=date, load=load)
                print(line, flush=True)
                if arguments.json is not None:
                    with arguments.json.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
        if stage.profiler is not None:
            stage.profiler.show(people)
    people.print(table_of(answered))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(_arguments()))
