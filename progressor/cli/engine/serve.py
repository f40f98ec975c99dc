"""The command serve: one replica of the engine, or several behind one port.

    supervisor              holds the port, runs the embedded PostgreSQL, processes no tasks
    replica process 1 .. n  a replica with its own id, heartbeat, pools and scanners

A Python process uses one core; n replica processes use n. They share only the database and the
port, over which the kernel distributes connections, and behave like replicas on several machines.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import logging
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import msgspec

import progressor
from progressor import errors
from progressor.api.server.binding import reserved
from progressor.cli.engine.hosting import host, warn_of_exposure
from progressor.cli.engine.replica_process import (
    Notification,
    ReplicaFailed,
    ReplicaListens,
    ReplicaServes,
)
from progressor.cli.input.options import Settings, option
from progressor.cli.input.signals import forever, run_loop, signals
from progressor.cli.output import ExitCode, report_words
from progressor.engine import engine as app
from progressor.engine.engine import Engine
from progressor.settings.config import Config
from progressor.settings.sections import METRICS_OFF, Database
from progressor.storage.postgres.pools import connections_allowed
from progressor.telemetry.logs.setup import set_up_logs

WORKERS_KEY = "server.workers"
_MODULE = "progressor.cli.engine.replica_process"
_PAUSE_MIN_SECONDS = 0.5
_PAUSE_MAX_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_RECONNECT_SECONDS = 1.0
# On top of the drain timeout: writing decided settlements (5 s), closing connections, a margin.
_DRAIN_GRACE = dt.timedelta(seconds=20)

_log = logging.getLogger(__name__)

Paused = Annotated[
    bool,
    option(
        "Pause all namespaces of the database before any step begins, for example after a restore; "
        "`progressor namespace resume --all` ends it."
    ),
]


def serve(*, settings: Settings = Settings(), paused: Paused = False) -> ExitCode:
    """Run an engine until SIGTERM or SIGINT drains it; a second signal ends it at once.

    Without a DSN it runs an embedded PostgreSQL. While PostgreSQL is unavailable, the engine waits
    for it and its health is NOT_SERVING. With --workers it runs several processes that share the
    port, each on one core; a client's connection stays with one of them.
    """
    config = settings.load()
    config.check_exposure()
    count = count_of(config.server.workers)
    if count > 1:
        return supervise(config, count, paused=paused)
    open_engine = functools.partial(app.engine, paused=paused)
    run_loop(host(config, work=_announce, open_engine=open_engine))
    return ExitCode.DONE


async def _announce(engine: Engine) -> None:
    where: dict[str, object] = {"addresses": engine.addresses, "database": engine.database}
    if engine.metrics_url:
        where["metrics"] = engine.metrics_url
    _log.info("engine listening", extra=where)
    await engine.serving.wait()
    _log.info("engine serves", extra=where)
    await forever()


def count_of(workers: int) -> int:
    """Return the number of processes; for 0, the number of cores that this process may use.

    Raises:
        ConfigError: More than one cannot share a port on this system.
    """
    if sys.platform != "linux":
        if workers > 1:
            raise errors.ConfigError(WORKERS_KEY, f"must be 1 except on Linux, got {workers}")
        return 1
    return workers or len(os.sched_getaffinity(0))


def supervise(config: Config, count: int, *, paused: bool = False) -> ExitCode:
    """Run `count` replica processes until a signal drains them; return the exit code.

    If `paused`, the first one pauses all namespaces; the others start once it serves.

    Raises:
        ConfigError: An address is in use, or cannot be bound.
        EmbeddedPostgresError: It cannot be started.
    """
    # Not uvloop, which forks where asyncio spawns; speed does not matter here.
    with asyncio.Runner() as runner:
        return runner.run(_supervise(config, count, paused=paused))


async def _supervise(config: Config, count: int, *, paused: bool) -> ExitCode:
    set_up_logs(level=config.log.level, log_format=config.log.format)
    leaving = asyncio.Event()
    database = config.database.description
    warn_of_exposure(config)
    with signals(leaving):
        async with contextlib.AsyncExitStack() as stack:
            bind = tuple(
                [await stack.enter_async_context(reserved(it)) for it in config.server.bind]
            )
            dsns = await stack.enter_async_context(app.databases(config, replicas=count))
            shared = dataclasses.replace(
                config.reached(dsns), server=dataclasses.replace(config.server, bind=bind)
            )
            supervisor = Supervisor(
                shared, count, database=database, leaving=leaving, paused=paused
            )
            return await supervisor.run()


class Supervisor:
    """Keeps replica processes running; they share all settings but their names.

    They are fresh interpreters because gRPC's threads do not survive a fork. A signal drains all.
    One that exits is restarted after a growing delay; until all have served for the first time, an
    error of one counts as a wrong configuration and ends all. If the supervisor dies, the kernel
    kills its replica processes, and the guard stops the embedded PostgreSQL.
    """

    def __init__(
        self,
        config: Config,
        count: int,
        *,
        database: str,
        leaving: asyncio.Event,
        paused: bool = False,
    ) -> None:
        self._config = config
        self._leaving = leaving
        self._where: dict[str, object] = {
            "addresses": config.server.bind,
            "database": database,
            "replicas": count,
        }
        self._processes = [
            _ReplicaProcess(config, number, paused=paused and number == 1)
            for number in range(1, count + 1)
        ]
        # Later starts would pause again what an operator has resumed meanwhile.
        self._may_start = asyncio.Event()
        if not paused:
            self._may_start.set()
        self._listened = self._served = False
        self._code = ExitCode.DONE
        self._reported: ReplicaFailed | None = None

    async def run(self) -> ExitCode:
        """Run until `leaving` is set, or a process fails at the start; then wait for all.

        On cancellation the processes keep running until this one ends: then the kernel kills them.
        """
        async with asyncio.TaskGroup() as group:
            keeping = [
                group.create_task(self._keep_running(process), name=f"keep {process.name}")
                for process in self._processes
            ]
            counting = group.create_task(self._count_connections(), name="count connections")
            await self._leaving.wait()
            self._may_start.set()
            counting.cancel()
            _log.info("engine drains", extra=self._where)
            for process in self._processes:
                process.signal(signal.SIGTERM)
            timeout = self._config.server.drain_timeout + _DRAIN_GRACE
            _, late = await asyncio.wait(keeping, timeout=timeout.total_seconds())
            if late:
                _log.error("killing replicas that have not drained in time")
                self._code = self._code or ExitCode.FAILED
                for process in self._processes:
                    process.signal(signal.SIGKILL)
        _log.info("engine stopped")
        return self._code

    async def _keep_running(self, process: "_ReplicaProcess") -> None:
        """Run a process, and restart it when it exits, until `leaving` is set."""
        clock = asyncio.get_running_loop().time
        pause = _PAUSE_MIN_SECONDS
        if not process.paused:
            await self._may_start.wait()
        while not self._leaving.is_set():
            began_at = clock()
            async for notification in process.run(self._leaving):
                self._take(process, notification)
            code = process.exit_code
            if self._leaving.is_set():
                # SIGTERM kills a process that does not handle signals yet.
                if code not in {0, -signal.SIGTERM} and not self._is_reported(process.failed):
                    facts = {"replica": process.name, "exit_code": code}
                    _log.error("replica exited with an error", extra=facts)
                    self._code = self._code or _exit_code(code)
            elif not self._served and code >= 0:
                self._give_up(process)
            else:
                is_steady = clock() - began_at > _STEADY_SECONDS
                pause = _PAUSE_MIN_SECONDS if is_steady else pause
                facts = {"replica": process.name, "exit_code": code, "restart_in_seconds": pause}
                _log.error("replica exited; restarting it", extra=facts)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._leaving.wait()
                pause = min(2 * pause, _PAUSE_MAX_SECONDS)

    def _take(self, process: "_ReplicaProcess", notification: Notification) -> None:
        match notification:
            case ReplicaListens(metrics_url):
                process.listens, process.metrics_url = True, metrics_url
                if not self._listened and all(it.listens for it in self._processes):
                    self._listened = True
                    urls = [it.metrics_url for it in self._processes if it.metrics_url]
                    self._where |= {"metrics": urls} if urls else {}
                    _log.info("engine listening", extra=self._where)
            case ReplicaServes():
                process.serves, process.paused = True, False
                self._may_start.set()
                if self._served:
                    facts = {"replica": process.name, "metrics": process.metrics_url}
                    _log.info("replica serves again", extra=facts)
                elif all(it.serves for it in self._processes):
                    self._served = True
                    _log.info("engine serves", extra=self._where)
            case ReplicaFailed():
                process.failed = notification
                is_late = self._served or self._leaving.is_set()
                if is_late and not self._is_reported(notification):
                    why, reason = notification.message, notification.reason
                    facts = {"replica": process.name, "why": why, "reason": reason}
                    _log.error("replica failed", extra=facts)

    def _give_up(self, process: "_ReplicaProcess") -> None:
        """End all processes with the error of one that failed at the start."""
        code, failed = process.exit_code, process.failed
        if failed is None:
            # The log has its traceback.
            words = f"replica {process.name} exited with code {code}"
            failed = ReplicaFailed(words, "INTERNAL", {}, code)
        self._reported = failed
        self._code = self._code or (_exit_code(code) if code else ExitCode.FAILED)
        self._leaving.set()
        report_words(failed.message, failed.reason, failed.fields, code=self._code, as_json=False)

    def _is_reported(self, failed: ReplicaFailed | None) -> bool:
        """Return whether this error, of another process, is the one that ended all."""
        return failed is not None and failed == self._reported

    async def _count_connections(self) -> None:
        """Warn if the replicas may need more connections than PostgreSQL allows."""
        async with asyncio.TaskGroup() as group:
            for cell, config in self._config.by_cell.items():
                facts: dict[str, object] = {"cell": cell} if self._config.cells else {}
                group.create_task(
                    self._count_connections_of(config.database, facts), name=f"count in {cell}"
                )

    async def _count_connections_of(self, database: Database, facts: dict[str, object]) -> None:
        wanted = len(self._processes) * database.connections_max
        allowed: int | None = None
        while allowed is None:
            try:
                allowed = await asyncio.to_thread(connections_allowed, database, database.dsn)
            except errors.StorageUnavailableError:
                await asyncio.sleep(_RECONNECT_SECONDS)
        if wanted > allowed:
            keys = f"{WORKERS_KEY}, database.*_connections_max; max_connections of PostgreSQL"
            facts |= {"wanted": wanted, "allowed": allowed, "keys": keys}
            _log.warning(
                "the replicas may need more connections than PostgreSQL allows", extra=facts
            )


class _ReplicaProcess:
    """The process of one replica, which may be a new one after an exit."""

    def __init__(self, config: Config, number: int, *, paused: bool) -> None:
        self.name = f"{config.replica.name}-{number}"
        self.listens = self.serves = False
        self.metrics_url = ""
        self.failed: ReplicaFailed | None = None
        self.paused = paused
        """Whether it pauses all namespaces: not again after it has served, when it is restarted."""
        self.exit_code = 0
        """Of the last process that ended; if negative, the number of the signal that ended it."""
        at = config.telemetry.metrics_at(number)
        own = METRICS_OFF if at is None else str(at)
        self._config = dataclasses.replace(
            config,
            replica=dataclasses.replace(config.replica, name=self.name),
            telemetry=dataclasses.replace(config.telemetry, metrics_bind=own),
        )
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, leaving: asyncio.Event) -> AsyncIterator[Notification]:
        """Run a process to its end, and yield its notifications."""
        self.failed = None
        self._process = process = await asyncio.create_subprocess_exec(
            *_command(self.name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C in the terminal must reach the supervisor only, which passes it on.
            start_new_session=True,
        )
        if leaving.is_set():
            self.signal(signal.SIGTERM)
        assert process.stdin is not None, "asked for a pipe"
        assert process.stdout is not None, "asked for a pipe"
        process.stdin.write(pickle.dumps((os.getpid(), self._config, self.paused)))
        process.stdin.close()
        async for line in process.stdout:
            yield msgspec.json.decode(line, type=Notification)
        self.exit_code = await process.wait()
        self._process = None
        self.listens = self.serves = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is running."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # Not `send_signal`, which reaps a process that has just ended; asyncio, which then
                # cannot, logs "Unknown child process".
                os.kill(self._process.pid, number)


def _command(name: str) -> list[str]:
    """Return the command that runs a replica process; `name` is for ps."""
    # `-m` puts the working directory first in the path, which is right only if this package is
    # imported from there; `-P` prevents that.
    from_here = Path(progressor.__file__).parents[1] == Path.cwd()
    return [sys.executable, *(() if from_here else ("-P",)), "-m", _MODULE, name]


def _exit_code(code: int) -> ExitCode:
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED
