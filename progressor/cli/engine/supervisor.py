"""Several replicas behind one port, and the parent that starts them and keeps them up.

    parent         holds the port, runs the embedded PostgreSQL, carries nothing itself
    member 1 .. n  a replica each, with an id, a heartbeat, pools and scanners of its own

One Python process uses one core; a crew uses as many as it has members. They share nothing but the
port, over which the kernel spreads connections, and the database, by which any replicas know one
another. So everything that holds for replicas on several machines holds here.

The members are fresh interpreters, for gRPC's threads do not survive a fork. A signal to the parent
drains all of them. A member that dies is replaced, after a pause that grows; until all have served
for the first time, an error of one is an error of the configuration and ends the crew. When the
parent dies the kernel ends the members, and the guard of the embedded PostgreSQL stops that.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import progressor
from progressor import errors
from progressor.api.server.binding import reserved
from progressor.cli.engine.replica_process import Failed, Listens, News, Serves
from progressor.cli.input.signals import signals
from progressor.cli.output.exit_codes import ExitCode
from progressor.cli.output.failure import report_words
from progressor.engine import engine as app
from progressor.settings.config import Config
from progressor.settings.sections import METRICS_OFF
from progressor.storage.embedded.capacity import connections_allowed
from progressor.telemetry.logs.setup import set_up_logs

WORKERS_KEY = "server.workers"

_MEMBER = "progressor.cli.engine.replica_process"
_PAUSE_MIN_SECONDS = 0.5
_PAUSE_MAX_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_RECONNECT_SECONDS = 1.0
# Beyond the drain timeout: writing what is decided (5 s), closing connections, and some more.
_DRAIN_GRACE = dt.timedelta(seconds=20)

_log = logging.getLogger(__name__)


def count_of(workers: int) -> int:
    """Return how many processes a setting stands for: 0 is one for each core that we may use.

    Raises:
        ConfigError: More than one cannot share a port on this system.
    """
    if sys.platform != "linux":
        if workers > 1:
            raise errors.ConfigError(WORKERS_KEY, "must be 1 but on Linux, which spreads the load")
        return 1
    return workers or len(os.sched_getaffinity(0))


def run_crew(config: Config, count: int) -> ExitCode:
    """Run `count` replicas until a signal, which drains them, and return how that ended.

    Raises:
        ConfigError: An address is taken, or cannot be bound.
        EmbeddedPostgresError: It cannot be started.
    """
    # Not uvloop: nothing here is hot, and it forks where asyncio spawns.
    with asyncio.Runner() as runner:
        return runner.run(_lead(config, count))


async def _lead(config: Config, count: int) -> ExitCode:
    set_up_logs(level=config.log.level, log_format=config.log.format)
    leaving = asyncio.Event()
    database = config.database.description
    with signals(leaving):
        async with contextlib.AsyncExitStack() as stack:
            bind = tuple(
                [await stack.enter_async_context(reserved(it)) for it in config.server.bind]
            )
            dsn = config.database.dsn or await stack.enter_async_context(
                app.embedded(config.database, replicas=count)
            )
            shared = dataclasses.replace(
                config,
                server=dataclasses.replace(config.server, bind=bind),
                database=dataclasses.replace(config.database, dsn=dsn),
            )
            return await Crew(shared, count, database=database, leaving=leaving).run()


class Crew:
    """So many replicas with the same settings, each with a name of its own."""

    def __init__(
        self, config: Config, count: int, *, database: str, leaving: asyncio.Event
    ) -> None:
        self._config = config
        self._leaving = leaving
        self._where: dict[str, object] = {
            "addresses": config.server.bind,
            "database": database,
            "replicas": count,
        }
        self._members = [
            _Member(config, number, on_news=self._hear) for number in range(1, count + 1)
        ]
        self._listened = False
        self._served = False
        self._code = ExitCode.DONE
        self._reported: Failed | None = None

    async def run(self) -> ExitCode:
        """Run until `leaving` is set, or a member fails at the start; then wait for all.

        Cancelled, it leaves the members behind, for the kernel to end them with this process.
        """
        async with asyncio.TaskGroup() as group:
            keeping = [
                group.create_task(self._keep(member), name=f"keep {member.name}")
                for member in self._members
            ]
            counting = group.create_task(self._count_connections(), name="count connections")
            await self._leaving.wait()
            counting.cancel()
            _log.info("engine drains", extra=self._where)
            for member in self._members:
                member.signal(signal.SIGTERM)
            patience = self._config.server.drain_timeout + _DRAIN_GRACE
            _, late = await asyncio.wait(keeping, timeout=patience.total_seconds())
            if late:
                _log.error("replicas have not drained in time and are killed")
                self._note(ExitCode.FAILED)
                for member in self._members:
                    member.signal(signal.SIGKILL)
        _log.info("engine stopped")
        return self._code

    async def _keep(self, member: "_Member") -> None:
        """Run a member, again and again, until the crew leaves."""
        pause = _PAUSE_MIN_SECONDS
        while not self._leaving.is_set():
            lasted, code = await member.run(self._leaving)
            if self._leaving.is_set():
                self._note_end(member, code)
            elif not self._served and code >= 0:
                self._give_up(member, code)
            else:
                pause = _PAUSE_MIN_SECONDS if lasted > _STEADY_SECONDS else pause
                facts = {"replica": member.name, "exit_code": code, "again_in_seconds": pause}
                _log.error("replica died; it is started again", extra=facts)
                await self._sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_SECONDS)

    def _hear(self, member: "_Member", news: News) -> None:
        match news:
            case Listens():
                if not self._listened and all(it.listens for it in self._members):
                    self._listened = True
                    urls = [it.metrics_url for it in self._members if it.metrics_url]
                    self._where |= {"metrics": urls} if urls else {}
                    _log.info("engine listens", extra=self._where)
            case Serves():
                if self._served:
                    facts = {"replica": member.name, "metrics": member.metrics_url}
                    _log.info("replica serves again", extra=facts)
                elif all(it.serves for it in self._members):
                    self._served = True
                    _log.info("engine serves", extra=self._where)
            case Failed():
                if (self._served or self._leaving.is_set()) and not self._is_reported(news):
                    facts = {"replica": member.name, "why": news.message, "reason": news.reason}
                    _log.error("replica failed", extra=facts)

    def _give_up(self, member: "_Member", code: int) -> None:
        """End all with the error that a member has met at the start."""
        failed = member.failed
        if failed is None:
            # Its traceback is in the log.
            failed = Failed(f"the replica {member.name} ended with {code}", "INTERNAL", {}, code)
        self._reported = failed
        self._note(_exit_code(code) if code else ExitCode.FAILED)
        self._leaving.set()
        report_words(failed.message, failed.reason, failed.fields, code=self._code, as_json=False)

    def _is_reported(self, failed: Failed | None) -> bool:
        """Say whether this is the error that ended the crew, met by another member as well."""
        return failed is not None and failed == self._reported

    def _note_end(self, member: "_Member", code: int) -> None:
        # SIGTERM ends a member only before it has begun.
        if code not in {0, -signal.SIGTERM} and not self._is_reported(member.failed):
            facts = {"replica": member.name, "exit_code": code}
            _log.error("replica did not end well", extra=facts)
            self._note(_exit_code(code))

    def _note(self, code: ExitCode) -> None:
        self._code = self._code or code

    async def _count_connections(self) -> None:
        """Say so if the members may want more connections than PostgreSQL has; ends then."""
        database = self._config.database
        wanted = len(self._members) * database.connections_max
        allowed: int | None = None
        while allowed is None:
            try:
                allowed = await asyncio.to_thread(connections_allowed, database, database.dsn)
            except errors.StorageUnavailableError:
                await asyncio.sleep(_RECONNECT_SECONDS)
        if wanted > allowed:
            facts = {
                "wanted": wanted,
                "allowed": allowed,
                "keys": f"{WORKERS_KEY}, database.*_connections_max; max_connections of PostgreSQL",
            }
            _log.warning("the replicas may want more connections than PostgreSQL has", extra=facts)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()


class _Member:
    """One place in the crew, and the process that fills it at the moment."""

    def __init__(self, config: Config, number: int, *, on_news: "_OnNews") -> None:
        self.name = f"{config.replica.name}-{number}"
        self.listens = self.serves = False
        self.metrics_url = ""
        self.failed: Failed | None = None
        at = config.telemetry.metrics_at(number)
        own = METRICS_OFF if at is None else str(at)
        self._config = dataclasses.replace(
            config,
            replica=dataclasses.replace(config.replica, name=self.name),
            telemetry=dataclasses.replace(config.telemetry, metrics_bind=own),
        )
        self._on_news = on_news
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, leaving: asyncio.Event) -> tuple[float, int]:
        """Run a process to its end; return for how many seconds, and its exit code.

        A negative code is the signal that ended it.
        """
        clock = asyncio.get_running_loop().time
        began_at = clock()
        self.listens, self.serves, self.failed = False, False, None
        self._process = process = await asyncio.create_subprocess_exec(
            *_command(self.name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C in the terminal is for the parent, which passes it on.
            start_new_session=True,
        )
        if leaving.is_set():
            self.signal(signal.SIGTERM)
        assert process.stdin is not None, "asked for a pipe"
        assert process.stdout is not None, "asked for a pipe"
        process.stdin.write(pickle.dumps((os.getpid(), self._config)))
        process.stdin.close()
        async for line in process.stdout:
            self._hear(msgspec.json.decode(line, type=News))
        code = await process.wait()
        self._process = None
        self.listens = self.serves = False
        return clock() - began_at, code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _hear(self, news: News) -> None:
        match news:
            case Listens():
                self.listens, self.metrics_url = True, news.metrics_url
            case Serves():
                self.serves = True
            case Failed():
                self.failed = news
        self._on_news(self, news)


_OnNews = Callable[[_Member, News], None]


def _command(name: str) -> list[str]:
    """Return what runs a member: by this interpreter, from the same place, named for `ps`."""
    # `-m` puts the working directory before everything else: only right where it was so for us.
    from_here = Path(progressor.__file__).parents[1] == Path.cwd()
    return [sys.executable, *(() if from_here else ("-P",)), "-m", _MEMBER, name]


def _exit_code(code: int) -> ExitCode:
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED
