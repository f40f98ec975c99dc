"""A part in a process of its own, and the communication with it."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

_READY_SECONDS = 90.0
_END_SECONDS = 40.0
_LINE_BYTES_MAX = 256 * 1024 * 1024
"""Of an answer: a client's holds the time of every call."""


class Peer:
    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self.ready: dict[str, Any] = {}
        self._process = process

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    async def ask(self, **order: object) -> dict[str, Any]:
        """Send an order and return the answer.

        Raises:
            RuntimeError: The order failed, or the part has exited.
        """
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await self.hear()
        if "failed" in answer:
            message = f"the {self.name} could not: {answer['failed']}"
            raise RuntimeError(message)
        return answer

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "started with a pipe"
        line = await self._process.stdout.readline()
        if not line:
            message = f"the {self.name} has exited; its output is above"
            raise RuntimeError(message)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def end(self) -> None:
        """End its input and wait until it exits; a part that does not exit is killed."""
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def until_ready(self) -> None:
        async with asyncio.timeout(_READY_SECONDS):
            self.ready = await self.hear()


@contextlib.asynccontextmanager
async def spawned(name: str, *arguments: str) -> AsyncIterator[Peer]:
    """Run `bench.parts.<name>` within the context; it may not be ready yet."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"bench.parts.{name}", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        limit=_LINE_BYTES_MAX,
    )  # fmt: skip
    peer = Peer(name, process)
    try:
        yield peer
    finally:
        await peer.end()


@contextlib.asynccontextmanager
async def started(name: str, *arguments: str) -> AsyncIterator[Peer]:
    """Run `bench.parts.<name>` within the context, and wait until it is ready."""
    async with spawned(name, *arguments) as peer:
        await peer.until_ready()
        yield peer
