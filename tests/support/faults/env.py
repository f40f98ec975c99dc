"""An environment whose engine reaches PostgreSQL through a proxy, and what holds after any fault.

What is asserted after a fault is not the way but the invariants: that what was acknowledged is
there exactly once, that no step of one lease was asked for twice, that what has ended never
changes. The invariants of the database are the doctor's, who looks at it after every test.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import psycopg
import pytest

from progressor import errors
from progressor.sdk import EngineUnavailableError
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.engine.replica import Env, Replica, open_env
from tests.support.faults.faults import FAULTS, Fault, Make, cut_after
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Step
from tests.support.storage.doctor.invariants import Past

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

UNCACHED: Mapping[str, str] = {"snapshots.bytes_max": "0"}
"""For an engine that reads the history of a process at each step."""

ATTEMPT_SECONDS = 1.9
"""Of a request that the client shall not repeat by itself: an engine without PostgreSQL asks for a
pause of a second, and that much must be left twice."""

CELL_SECONDS = 60
ALL_CELLS = bool(os.environ.get("FAULTS_ALL"))

UNKNOWN = (
    errors.StorageUnavailableError,
    errors.DeadlineExceededError,
    EngineUnavailableError,
)
"""The errors after which a caller cannot know whether the request was accepted."""

_numbers = itertools.count(1)

EVENTS = """
    SELECT process_id, array_agg(payload ORDER BY event_id)
    FROM progressor.events WHERE namespace = %(namespace)s GROUP BY process_id"""
CALLS = """
    SELECT status::text, attempt_count FROM progressor.tasks
    WHERE namespace = %(namespace)s AND task_type = 'call'"""
LEASED = "SELECT process_id FROM progressor.running WHERE namespace = %(namespace)s"
"""Queries for `rows`."""

_RESTLESS = """
    SELECT process_id, task_id FROM progressor.running WHERE namespace = %(namespace)s
    UNION ALL
    SELECT process_id, task_id FROM progressor.schedule
    WHERE namespace = %(namespace)s AND due_at < clock_timestamp() + interval '1 second'"""
_EVENTS = """
    SELECT payload FROM progressor.events
    WHERE namespace = %(namespace)s AND process_id = %(process_id)s ORDER BY event_id"""
_TASKS = """
    SELECT args, status::text FROM progressor.tasks
    WHERE namespace = %(namespace)s AND process_id = %(process_id)s AND task_type::text = %(type)s
    ORDER BY task_id"""
_STATUS = """
    SELECT status::text FROM progressor.processes
    WHERE namespace = %(namespace)s AND process_id = %(process_id)s"""
_LOCK = """
    SELECT FROM progressor.processes
    WHERE namespace = %(namespace)s AND process_id = %(process_id)s FOR UPDATE"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FaultEnv(Env):
    """An environment behind a proxy; no fault touches its observer.

    `fault` makes what happens to the statement that an operation is about.
    """

    proxy: Proxy
    observer: psycopg.Connection[Any]
    fault: Make = cut_after
    past: Past = dataclasses.field(default_factory=Past)

    @classmethod
    def of(cls, env: Env, **fields: Any) -> Self:
        same = {name: getattr(env, name) for name in ("replica", "processor", "client", "session")}
        return cls(**same, **fields)

    def fresh(self) -> str:
        return f"p{next(_numbers)}"

    async def fresh_running(self, *steps: Step) -> str:
        process_id = self.fresh()
        await self.running(process_id, *steps)
        return process_id

    @contextlib.asynccontextmanager
    async def under(self, text: str, make: Make | None = None) -> AsyncIterator[Fault]:
        """Have the fault happen to a statement inside.

        A stall ends once the engine has given the statement up. Leaving waits until the fault has
        happened, and until everything flows again.
        """
        given_up = self.proxy.given_up_count
        fault = self.proxy.arm((make or self.fault)(text))
        async with asyncio.TaskGroup() as group:
            releasing = group.create_task(self._release(fault, given_up + 1))
            yield fault
            await releasing

    async def _release(self, fault: Fault, given_up: int) -> None:
        await fault.struck()
        if fault.is_stall:
            await self.proxy.gave_up(given_up)
        self.proxy.restore()

    @contextlib.asynccontextmanager
    async def cell(self, fault: str) -> AsyncIterator[Self]:
        """Play one cell of a matrix inside, and judge it once nothing is in hand."""
        try:
            async with asyncio.timeout(CELL_SECONDS):
                yield dataclasses.replace(self, fault=FAULTS[fault])
                await self.at_rest()
        finally:
            self.proxy.restore()
        self.judge()

    async def until(self, holds: Callable[[], bool]) -> None:
        await until(self.points, holds)

    async def at_rest(self) -> None:
        await self.until(lambda: not self.rows(_RESTLESS))

    def rows(self, query: str, **values: object) -> list[Any]:
        return rows(self.observer, self, query, **values)

    def events(self, process_id: str) -> list[bytes]:
        return [payload for (payload,) in self.rows(_EVENTS, process_id=process_id)]

    def tasks(self, process_id: str, task_type: str = "call") -> list[tuple[bytes, str]]:
        return self.rows(_TASKS, process_id=process_id, type=task_type)

    def status(self, process_id: str) -> str | None:
        found = self.rows(_STATUS, process_id=process_id)
        return found[0][0] if found else None

    @contextlib.asynccontextmanager
    async def locked(self, process_id: str) -> AsyncIterator[None]:
        async with await psycopg.AsyncConnection.connect(
            self.observer.info.dsn, password=self.observer.info.password or None
        ) as connection:
            await connection.execute(_LOCK, {"namespace": self.namespace, "process_id": process_id})
            yield
            await connection.rollback()

    def judge(self) -> None:
        """Assert the invariants that the database alone does not show."""
        assert self.past.look(self.observer) == []
        assert asked_twice(self) == []


def rows(observer: psycopg.Connection[Any], env: Env, query: str, **values: object) -> list[Any]:
    return observer.execute(query.encode(), {"namespace": env.namespace, **values}).fetchall()


async def until(points: Points, holds: Callable[[], bool]) -> None:
    """Wait until something holds of the database; looked at again after each scan."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await points.wait("scanned", points.count("scanned") + 1)


def asked_twice(env: Env) -> Sequence[tuple[int, int]]:
    leases = collections.Counter(
        (request.task.task_id, request.task.token) for request in env.processor.requests
    )
    return [lease for lease, count in leases.items() if count > 1]


async def insist(
    request: Callable[..., Awaitable[Any]],
    *args: Any,
    unless: tuple[type[Exception], ...] = (),
    **fields: Any,
) -> Any:
    """Send a request until its caller knows what became of it, and return the answer.

    ``unless`` are the errors that say that an earlier attempt was accepted.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(*UNKNOWN):
                try:
                    return await request(*args, **({"timeout": ATTEMPT_SECONDS} | fields))
                except unless:
                    return None


async def was_answered(request: Awaitable[object]) -> bool:
    try:
        await request
    except UNKNOWN:
        return False
    return True


def cells(operations: Iterable[str], is_chosen: Callable[[int, str], bool]) -> list[Any]:
    """Return the cells of a matrix of operations and faults; with FAULTS_ALL=1, all of them."""
    return [
        pytest.param(operation, fault, id=f"{operation}, {fault}")
        for row, operation in enumerate(operations)
        for fault in FAULTS
        if ALL_CELLS or is_chosen(row, fault)
    ]


@contextlib.asynccontextmanager
async def open_fault_env(
    proxy: Proxy, replica: Replica, observer: psycopg.Connection[Any], **options: Any
) -> AsyncIterator[FaultEnv]:
    """Make an environment on a replica behind a proxy; `options` as in `open_env`.

    Leases are lost on purpose here, so the processor does not insist on being asked one at a time.
    """
    async with open_env(replica, one_at_a_time=False, **options) as env:
        yield FaultEnv.of(env, proxy=proxy, observer=observer)
        proxy.restore()
