"""Where faults are caused: an engine that reaches its database through a proxy, and a judge.

What is asserted after a fault is not the way but the invariants: that what was acknowledged is
there exactly once, that no step of one lease was asked for twice, that what has ended never
changes. The invariants of the database are the doctor's, who looks at it after every test; see
``faults_judge``.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from progressor import errors
from progressor.sdk import Client, EngineUnavailableError
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.engine.replica import Env, Replica, open_env
from tests.support.faults.faults import Fault, Make
from tests.support.postgres.proxy import Proxy
from tests.support.storage.doctor.invariants import Past

T = TypeVar("T")
QUICK: Mapping[str, str] = {
    "replica.heartbeat_interval_seconds": "0.1",
    "replica.lease_timeout_seconds": "0.6",
    "replica.step_grace_seconds": "0.3",
    "scanner.interval_seconds": "0.1",
    "scanner.overdue_seconds": "0.1",
    "scanner.retention_interval_seconds": "0.1",
    "database.statement_timeout_seconds": "0.5",
    "database.connect_timeout_seconds": "1",
}
"""For an engine whose safety nets and timeouts are as quick as a busy machine allows."""

UNHURRIED: Mapping[str, str] = {"snapshots.bytes_max": "0"}
"""For an engine that reads the history of a process at each step."""

ATTEMPT_SECONDS = 1.9
"""Of a request that the client shall not repeat by itself: an engine without PostgreSQL asks for a
pause of a second, and that much must be left twice."""

UNKNOWN = (
    errors.StorageUnavailableError,
    errors.DeadlineExceededError,
    EngineUnavailableError,
)
"""The errors after which a caller cannot know whether the request was accepted."""

_LOOK_SECONDS = 0.005

_numbers = itertools.count(1)

_RESTLESS = """
    SELECT process_id, task_id FROM progressor.running WHERE namespace = %(namespace)s
    UNION ALL
    SELECT process_id, task_id FROM progressor.schedule
    WHERE namespace = %(namespace)s AND due_at < clock_timestamp() + interval '1 second'"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An environment whose engine is behind a proxy, and an observer that no fault touches."""

    proxy: Proxy
    env: Env
    observer: psycopg.Connection[Any]
    past: Past = dataclasses.field(default_factory=Past)

    @property
    def client(self) -> Client:
        """The client of the environment."""
        return self.env.client

    def fresh(self) -> str:
        """Return the id of a process that no test has used before."""
        return f"p{next(_numbers)}"

    @contextlib.asynccontextmanager
    async def under(self, make: Make, text: str) -> AsyncIterator[Fault]:
        """Have a fault happen to a statement inside.

        A stall ends once the engine has given the statement up. Leaving waits until the fault has
        happened, and until everything flows again.
        """
        given_up = self.proxy.given_up_count
        fault = self.proxy.arm(make(text))
        async with asyncio.TaskGroup() as group:
            releasing = group.create_task(self._release(fault, given_up + 1))
            yield fault
            await releasing

    async def _release(self, fault: Fault, given_up: int) -> None:
        await fault.struck()
        if fault.is_stall:
            await self.proxy.gave_up(given_up)
        self.proxy.restore()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of the database."""
        await until(self.env.points, holds)

    async def at_rest(self) -> None:
        """Wait until nothing of the namespace is in hand, due, or due within a second."""
        parameters = {"namespace": self.env.namespace}
        await self.until(lambda: not self.observer.execute(_RESTLESS, parameters).fetchall())

    def events(self, process_id: str) -> list[bytes]:
        """Return the payloads of a process's events, in order."""
        rows = self.observer.execute(
            "SELECT payload FROM progressor.events WHERE namespace = %s AND process_id = %s"
            " ORDER BY event_id",
            [self.env.namespace, process_id],
        ).fetchall()
        return [row[0] for row in rows]

    def tasks(self, process_id: str, task_type: str = "call") -> list[tuple[bytes, str]]:
        """Return args and status of the tasks of one type, in order."""
        return self.observer.execute(
            "SELECT args, status::text FROM progressor.tasks"
            " WHERE namespace = %s AND process_id = %s AND task_type::text = %s ORDER BY task_id",
            [self.env.namespace, process_id, task_type],
        ).fetchall()

    def status(self, process_id: str) -> str | None:
        """Return the status of a process; None: there is none."""
        row = self.observer.execute(
            "SELECT status::text FROM progressor.processes"
            " WHERE namespace = %s AND process_id = %s",
            [self.env.namespace, process_id],
        ).fetchone()
        return None if row is None else row[0]

    def judge(self) -> None:
        """Assert the invariants that the database alone does not show."""
        assert self.past.look(self.observer) == []
        assert asked_twice(self.env) == []


async def until(points: Points, holds: Callable[[], bool]) -> None:
    """Wait until something holds of the database; looked at again after each scan.

    Raises:
        TimeoutError: It did not, within 30 s.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await points.wait("scanned", points.count("scanned") + 1)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds where there is no engine to tell of it; looked at again and again.

    Raises:
        TimeoutError: It did not, within 30 s.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(_LOOK_SECONDS)


def asked_twice(env: Env) -> Sequence[tuple[int, int]]:
    """Return task and token of the leases under which a processor was asked more than once."""
    leases = collections.Counter(
        (request.task.task_id, request.task.token) for request in env.processor.requests
    )
    return [lease for lease, count in leases.items() if count > 1]


async def insisted(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what a request brings that is sent again until its caller knows what became of it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await attempt()
            except UNKNOWN:
                continue


@contextlib.asynccontextmanager
async def open_ground(
    proxy: Proxy, replica: Replica, observer: psycopg.Connection[Any], **options: Any
) -> AsyncIterator[Ground]:
    """Make an environment on a replica behind a proxy; `options` as in `open_env`.

    Leases are lost on purpose here, so the processor does not insist on being asked one at a time.
    """
    async with open_env(replica, one_at_a_time=False, **options) as env:
        yield Ground(proxy=proxy, env=env, observer=observer)
        proxy.restore()
