"""Compares progressor with Restate on this machine: python -m bench.compare [--only NAME ...].

Both run here, each with its own client and handlers in Python. They are asked the same by as many
callers, in alternating turns. Both are durable, as they are by default: progressor's PostgreSQL
runs with fsync and synchronous_commit, Restate is a single node that syncs its log. A ratio is
progressor's rate to Restate's, the median over pairs of turns.

`make setup-compare` installs Restate's server (from npm) and its SDK (from PyPI).
"""

import argparse
import asyncio
import datetime as dt
import sys
from pathlib import Path

import uvloop
from rich.console import Console

from bench import machine
from bench.comparing import restate
from bench.comparing.questions import QUESTIONS, Comparison, ask
from bench.comparing.table import line_of, table_of
from bench.measurement import Pace
from bench.report import doubts
from bench.setup import Setting, open_env

_TABLE_WIDTH = 170


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="NAME",
        help=f"of {', '.join(QUESTIONS)}")  # fmt: skip
    add("--seconds", type=float, default=3.0, help="seconds per turn")
    add("--turns", type=int, default=5, help="turns of each side; medians are reported")
    add("--server", type=Path, help="restate-server, if not the one of make setup-compare")
    return parser


async def _main(server: Path, names: list[str], pace: Pace) -> int:
    people = Console(stderr=True, width=_TABLE_WIDTH)
    found: list[Comparison] = []
    async with open_env(Setting()) as ours, restate.running(ours, server) as theirs:
        around = {
            "commit": machine.commit(),
            "machine": machine.machine(),
            "python": machine.python(),
            "postgres": ours.postgres,
            "restate_versions": restate.versions(server),
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python -m bench.compare", *sys.argv[1:]]),
        }
        for name in names:
            people.print(f"{name} ...")
            compared = await ask(await QUESTIONS[name](ours, theirs), pace)
            for each in compared:
                print(line_of(each, around), flush=True)
            found += compared
    versions = f"PostgreSQL {around['postgres']}; {around['restate_versions']}"
    people.print(table_of(found, f"{around['machine']}, commit {around['commit']}, {versions}"))
    sides = (side for each in found for side in (each.ours, each.theirs))
    wrong = dict.fromkeys(it for side in sides for it in doubts(side))
    for complaint in wrong:
        people.print(complaint, style="red", markup=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = _parser()
    arguments = parser.parse_args()
    try:
        restate.check_packages()
        server = restate.find_server(arguments.server)
    except restate.MissingError as error:
        parser.error(str(error))
    chosen = Pace(
        seconds=arguments.seconds, warm_up=min(1.5, arguments.seconds), turns=arguments.turns
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_main(server, arguments.only, chosen)))
