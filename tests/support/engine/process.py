"""Processes that a test starts, kills, freezes and starts anew: engines, and what else it needs."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.replica import SETTINGS, serving

ROOT = Path(__file__).parents[3]
NAME = "replica"
"""Of a supervisor's replicas; each has a number behind it."""

_MODULE = "progressor.cli.engine.replica_process"
_PAUSE_SECONDS = 0.05
_REPEAT_SECONDS = 0.3

Line = Mapping[str, Any]  # it is JSON


def flags_of(settings: Mapping[str, str]) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


class ChildProcess:
    """`python -m` something in a directory; its output goes to `log`, or where ours goes."""

    def __init__(
        self,
        *command: str,
        log: Path | None = None,
        environment: Mapping[str, str] = {},
        directory: Path = ROOT,
    ) -> None:
        self._command = command
        self._log = log
        self._directory = directory
        self._environment = {**os.environ, "PROGRESSOR_CONFIG": "", **environment}
        self._process: asyncio.subprocess.Process | None = None
        self._is_wanted = False

    @property
    def pid(self) -> int:
        assert self._process is not None, "started before"
        return self._process.pid

    @property
    def has_left_by_itself(self) -> bool:
        ended = self._process is not None and self._process.returncode is not None
        return self._is_wanted and ended

    async def start(self) -> None:
        with contextlib.ExitStack() as stack:
            log = None if self._log is None else stack.enter_context(self._log.open("ab"))
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._command,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._directory, env=self._environment,
            )  # fmt: skip
        self._is_wanted = True

    def kill(self) -> None:
        self._send(signal.SIGKILL, ends=True)

    def terminate(self) -> None:
        self._send(signal.SIGTERM, ends=True)

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    async def left(self) -> int:
        """Wait until it has ended, and return its exit code."""
        assert self._process is not None, "started before"
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._process.wait()

    def _send(self, number: signal.Signals, *, ends: bool = False) -> None:
        self._is_wanted = self._is_wanted and not ends
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(number)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start it; it is killed when the context is left, if it is still there."""
        await self.start()
        try:
            yield
        finally:
            self.kill()
            await self.left()


class ReplicaProcess(ChildProcess):
    """`progressor serve`, and what it has logged; with ``log.format`` json, an object a line."""

    def __init__(
        self, settings: Mapping[str, str], *flags: str, log: Path | None = None, **options: Any
    ) -> None:
        chosen = {**SETTINGS, **settings}
        super().__init__("progressor", "serve", *flags, *flags_of(chosen), log=log, **options)
        self.address = chosen["server.bind"]
        self._path = log

    @property
    def text(self) -> str:
        assert self._path is not None, "it logs to a file"
        return self._path.read_text()

    @property
    def records(self) -> list[Line]:
        whole, _, _ = self.text.rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def logged(self, event: str, **fields: object) -> list[Line]:
        return [
            record
            for record in self.records
            if record["event"] == event and fields.items() <= record.items()
        ]

    async def log_record(self, event: str, count: int = 1, **fields: object) -> Line:
        try:
            await eventually(
                lambda: len(self.logged(event, **fields)) >= count, pause=_PAUSE_SECONDS
            )
        except TimeoutError:
            message = f"not in the log: {event!r} {fields}\n{self.text}"
            raise AssertionError(message) from None
        return self.logged(event, **fields)[0]

    async def ended(self) -> list[Line]:
        self.terminate()
        assert await self.left() == 0
        return self.records


class Supervised(ReplicaProcess):
    def replicas(self) -> dict[str, int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split()
        found = {}
        for child in map(int, children):
            with contextlib.suppress(FileNotFoundError):
                arguments = Path(f"/proc/{child}/cmdline").read_text("utf-8").split("\0")
                if _MODULE in arguments:
                    found[arguments[-2]] = child
        return found

    async def serving_address(self) -> str:
        (found,) = (await self.log_record("engine serves"))["addresses"]
        return str(found)

    async def terminate_repeatedly(self) -> int:
        """Send SIGTERM again and again until it has ended, and return its exit code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REPEAT_SECONDS):
                        return await self.left()


@contextlib.asynccontextmanager
async def running_process(
    conninfo: str,
    directory: Path,
    settings: Mapping[str, str] = {},
    *,
    log: bool = False,
    environment: Mapping[str, str] = {},
) -> AsyncIterator[ReplicaProcess]:
    """Run `progressor serve` on a database, on a unix socket in `directory`.

    With `log` it logs JSON to a file there; else where ours goes.
    """
    bind = f"unix:{directory}/engine.sock"
    form = {"log.format": "json"} if log else {}
    process = ReplicaProcess(
        {"database.dsn": conninfo, "server.bind": bind, **form, **settings},
        log=directory / "engine.log" if log else None,
        environment=environment,
    )
    async with process.running():
        async with asyncio.timeout(PATIENCE_SECONDS):
            await serving(bind)
        yield process


@contextlib.asynccontextmanager
async def running_supervisor(
    settings: Mapping[str, str], *flags: str, count: int = 2
) -> AsyncIterator[Supervised]:
    with tempfile.TemporaryDirectory() as directory:
        supervised = Supervised(
            {"replica.name": NAME, "log.format": "json", **settings},
            "--workers",
            str(count),
            *flags,
            log=Path(directory) / "supervisor.log",
        )
        async with supervised.running():
            yield supervised


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
    os.kill(process, signal.SIGKILL)


def free_ports(count: int, among: Sequence[int]) -> list[int]:
    """Return the first ports among these that are free on this machine."""
    found: list[int] = []
    for port in among:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    message = f"no {count} free ports in {among}"
    raise OSError(message)
