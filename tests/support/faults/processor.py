"""A processor in a process of its own, so that it can die in the middle of a step.

As a module it is that process: ``python -m tests.support.faults.processor ADDRESS MODE DIRECTORY``.
It answers each step with one event and its args. The first time that it sees args that begin with
``die`` it ends by SIGKILL, and with ``hang`` it does not answer; the file of that name in the
directory remembers it. An init with ``timer SECONDS`` sets a timer, and each timer that it is asked
to run is a line of the file ``timers``, with the instant. The file ``serves`` has the instant since
which it serves.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from progressor.sdk import BYTES, Processor, Step, running
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import ChildProcess

STREAM, UNARY = "stream", "unary"
TIMERS, SERVES = "timers", "serves"


def processor(directory: Path) -> Processor[Any]:
    """Return the processor; `directory` is where it remembers its misdeeds."""
    echo: Processor[Any] = Processor("echo", codec=BYTES)

    @echo.init
    @echo.call
    async def answer(step: Step[Any]) -> bytes:
        args = bytes(step.args or b"")
        if args.startswith((b"die", b"hang")):
            with contextlib.suppress(FileExistsError):
                (directory / args.decode()).touch(exist_ok=False)
                if args.startswith(b"die"):
                    os.kill(os.getpid(), signal.SIGKILL)
                await asyncio.Event().wait()
        if args.startswith(b"timer "):
            step.set_timer(after=float(args.split()[1]))
        if args:
            step.emit(args)
        return args

    @echo.timeout
    async def tick(_step: Step[Any]) -> None:
        with (directory / TIMERS).open("a") as file:
            file.write(f"{time.time()}\n")

    return echo


@contextlib.asynccontextmanager
async def processor_process(
    address: str, mode: str, directory: Path
) -> AsyncIterator[ChildProcess]:
    """Run the processor until the context is left; it is killed then, if it is still there."""
    process = ChildProcess(__name__, address, mode, str(directory))
    async with process.running(), grpc.aio.insecure_channel(address) as channel:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await channel.channel_ready()
        yield process


async def _main(address: str, mode: str, directory: Path) -> None:
    async with running(processor(directory), bind=address, streaming=mode == STREAM):
        (directory / SERVES).write_text(str(time.time()))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
