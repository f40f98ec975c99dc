"""A processor in a process of its own that does something outside, once, and can die around it.

As a module it is that process: ``python -m tests.support.faults.once ADDRESS MODE DIRECTORY
ENGINE``. A call names the point of its handler at which the first attempt dies by SIGKILL, or, with
``hold`` before it, waits until it is cancelled. What it does outside is a line in the file
``outside``; its result is the number of lines by then.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from progressor.sdk import Processor, Step, running
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import ChildProcess
from tests.support.faults.processor import STREAM

BEGUN, DONE, STORED = POINTS = ("begun", "done", "stored")
"""Before the function, at its end, and after its result was stored."""

OUTSIDE = "outside"


class _Points:
    """Passes each point but the one that the call names, and that once."""

    def __init__(self, directory: Path, args: str) -> None:
        self._directory = directory
        *how, self._point = args.split()
        self._holds = bool(how)

    async def reach(self, point: str) -> None:
        if point != self._point:
            return
        try:
            (self._directory / point).touch(exist_ok=False)
        except FileExistsError:
            return
        if not self._holds:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()


def processor(directory: Path) -> Processor[Any]:
    once: Processor[Any] = Processor("once")
    once.init(lambda _: None)

    @once.call
    async def pay(step: Step[Any]) -> int:
        points = _Points(directory, step.args)

        async def act() -> int:
            with (directory / OUTSIDE).open("a") as file:
                file.write(f"attempt {step.attempt}\n")
            await points.reach(DONE)
            return count(directory)

        await points.reach(BEGUN)
        result = await step.once("act", act, type=int)
        await points.reach(STORED)
        return result

    return once


def count(directory: Path) -> int:
    """Return how often something was done outside."""
    return len((directory / OUTSIDE).read_text().splitlines())


@contextlib.asynccontextmanager
async def once_process(
    address: str, mode: str, directory: Path, engine: str
) -> AsyncIterator[ChildProcess]:
    """Run the processor until the context is left; it is killed then, if it is still there."""
    process = ChildProcess(__name__, address, mode, str(directory), engine)
    async with process.running():
        await connected(address)
        yield process


async def connected(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(PATIENCE_SECONDS):
        await channel.channel_ready()


async def _main(address: str, mode: str, directory: Path, engine: str) -> None:
    once = processor(directory)
    async with running(once, bind=address, streaming=mode == STREAM, engine=engine):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
