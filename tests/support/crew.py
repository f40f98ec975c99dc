"""`progressor serve --workers N` as a process, with its log and its replicas."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.points import PATIENCE_SECONDS
from tests.support.replica import SETTINGS

NAME = "crew"
_MEMBER = "progressor.cli.engine.replica_process"
_ECHO_SECONDS = 0.3


class CrewProcess:
    """A running crew, whose log is read as it is written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a process with its stderr to be read."""
        self.process = process
        self.lines: list[str] = []
        self._has_ended = False
        self._news = asyncio.Condition()

    @property
    def pid(self) -> int:
        """The process id of the parent."""
        return self.process.pid

    def members(self) -> dict[str, int]:
        """Return the process ids of the replicas there are now, by their names."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split()
        found = {}
        for child in map(int, children):
            with contextlib.suppress(FileNotFoundError):
                arguments = Path(f"/proc/{child}/cmdline").read_text("utf-8").split("\0")
                if _MEMBER in arguments:
                    found[arguments[-2]] = child
        return found

    def logged(self, event: str, **facts: object) -> list[dict[str, Any]]:
        """Return the log records of an event, with these facts among theirs, in order."""
        records = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [
            it
            for it in records
            if it["event"] == event and all(it.get(name) == fact for name, fact in facts.items())
        ]

    async def told(self, event: str, **facts: object) -> dict[str, Any]:
        """Wait until an event is in the log, and return its first record."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS), self._news:
                await self._news.wait_for(lambda: self.logged(event, **facts) or self._has_ended)
        found = self.logged(event, **facts)
        assert found, f"not in the log: {event!r} {facts}\n{''.join(self.lines)}"
        return found[0]

    async def address(self) -> str:
        """Wait until all replicas serve, and return where."""
        (found,) = (await self.told("engine serves"))["addresses"]
        return str(found)

    async def left(self) -> int:
        """Wait until it has ended, and return its exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()

    async def hurry(self) -> int:
        """Send SIGTERM again and again until it has ended, and return its exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self.process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ECHO_SECONDS):
                        return await self.process.wait()

    async def read(self) -> None:
        """Read the log to its end."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self._news:
                self.lines.append(line.decode())
                # pytest shows it where the test fails.
                sys.stderr.write(self.lines[-1])
                self._news.notify_all()
        async with self._news:
            self._has_ended = True
            self._news.notify_all()


@contextlib.asynccontextmanager
async def running_crew(
    settings: Mapping[str, str], *, count: int = 2
) -> AsyncIterator[CrewProcess]:
    """Run `progressor serve` with so many workers; it is killed in the end if it has not left."""
    chosen = {**SETTINGS, "replica.name": NAME, "log.format": "json", **settings}
    flags = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "serve", "--workers", str(count), *flags,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": ""},
    )  # fmt: skip
    crew = CrewProcess(process)
    async with asyncio.TaskGroup() as group:
        group.create_task(crew.read())
        try:
            yield crew
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def gone(process: int) -> None:
    """Wait until a process, which need not be our child, has ended."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def kill(process: int) -> None:
    """End a process at once."""
    os.kill(process, signal.SIGKILL)
