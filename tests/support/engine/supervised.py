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

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import SETTINGS

NAME = "replica"
_MODULE = "progressor.cli.engine.replica_process"
_ECHO_SECONDS = 0.3


class Supervised:
    """A running supervisor, whose log is read as it is written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._has_ended = False
        self._changed = asyncio.Condition()

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        return self.process.pid

    def replicas(self) -> dict[str, int]:
        """Return the process ids of the current replica processes, by their names."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split()
        found = {}
        for child in map(int, children):
            with contextlib.suppress(FileNotFoundError):
                arguments = Path(f"/proc/{child}/cmdline").read_text("utf-8").split("\0")
                if _MODULE in arguments:
                    found[arguments[-2]] = child
        return found

    def logged(self, event: str, **facts: object) -> list[dict[str, Any]]:
        """Return the log records of an event that have these fields, in order."""
        records = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [
            it
            for it in records
            if it["event"] == event and all(it.get(name) == fact for name, fact in facts.items())
        ]

    async def log_record(self, event: str, **facts: object) -> dict[str, Any]:
        """Wait until an event is in the log, and return its first record."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self.logged(event, **facts) or self._has_ended)
        found = self.logged(event, **facts)
        assert found, f"not in the log: {event!r} {facts}\n{''.join(self.lines)}"
        return found[0]

    async def address(self) -> str:
        """Wait until all replicas serve, and return their address."""
        (found,) = (await self.log_record("engine serves"))["addresses"]
        return str(found)

    async def exit_code(self) -> int:
        """Wait until it has ended, and return its exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()

    async def terminate_repeatedly(self) -> int:
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
            async with self._changed:
                self.lines.append(line.decode())
                # pytest shows it if the test fails.
                sys.stderr.write(self.lines[-1])
                self._changed.notify_all()
        async with self._changed:
            self._has_ended = True
            self._changed.notify_all()


@contextlib.asynccontextmanager
async def running_supervisor(
    settings: Mapping[str, str], *, count: int = 2
) -> AsyncIterator[Supervised]:
    """Run `progressor serve` with `count` workers; it is killed at the end if it has not exited."""
    chosen = {**SETTINGS, "replica.name": NAME, "log.format": "json", **settings}
    flags = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "serve", "--workers", str(count), *flags,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": ""},
    )  # fmt: skip
    supervised = Supervised(process)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervised.read())
        try:
            yield supervised
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def gone(process: int) -> None:
    """Wait until a process has ended; it may be another process's child."""
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
