"""Replicas: who is there, who was heard of when, and the leases of those who are not."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from progressor.clock import Clock
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.domain.views.replica import ReplicaView
from progressor.storage.postgres import arrays, statements
from progressor.storage.postgres.context import fetch_named
from progressor.storage.postgres.pools import Pool, connection_of
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.job_membership import part_of

_SQL = statements.load("replicas/replicas")

_NO_TIME = dt.timedelta()

STRAY_AGE = dt.timedelta(seconds=0.5)
"""Younger leases do not count as strays yet: most replies are still on their way."""


class ZombieCause(enum.StrEnum):
    """How a lease was lost."""

    SILENT = "silent"
    OVERRUN = "overrun"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Zombie:
    """A leased task that no replica runs any longer. ``found_at`` is by PostgreSQL's clock.

    UNKNOWN is a lease of this very replica which it never learned of. ``broken_by`` is the task
    that broke the process before, as a repair finds it.
    """

    key: ProcessKey
    task_id: int
    task_type: TaskType
    attempt: int
    token: int
    first_started_at: dt.datetime
    found_at: dt.datetime
    cause: ZombieCause
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    part: Part | None = None
    replica_id: int | None = None
    """The replica that had the lease."""
    broken_by: int | None = None


class _ZombieRow(NamedTuple):
    slot: int
    namespace: str
    process_id: str
    task_id: int
    task_type: rows.Enum
    attempt: int
    token: int
    first_started_at: dt.datetime
    replica_id: int
    found_at: dt.datetime
    cause: str
    trace_context: dict[str, str] | None
    part: list[Any] | None
    broken_by: int | None


class _ReplicaRow(NamedTuple):
    replica_id: int
    name: str
    version: str
    functions: str
    started_at: dt.datetime
    heartbeat_at: dt.datetime
    heartbeat_age: dt.timedelta
    lease_timeout: dt.timedelta
    draining: bool
    step_count: int | None
    caller_count: int | None
    clock_offset: float | None
    lease_count: int


class Replicas:
    """The table of replicas, as an engine needs it."""

    def __init__(self, *, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def draw_id(self) -> int:
        """Return the id of a replica that starts, never used before."""
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(_SQL["draw_replica_id"])
            row = await cursor.fetchone()
        assert row is not None, "a sequence has a next value"
        return int(row[0])

    async def retire(self, replica_id: int) -> None:
        """Take a replica off the list."""
        async with connection_of(self._pool) as connection:
            await connection.execute(_SQL["retire_replica"], {"replica_id": replica_id})

    async def delete_dead(self, *, retention: dt.timedelta) -> int:
        """Delete the rows of replicas silent for longer than `retention`; return how many."""
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(
                _SQL["delete_dead_replicas"],
                {"now": self._clock.pinned(), "retention": retention},
            )
            return cursor.rowcount

    async def read_clock(self) -> dt.datetime:
        """Return PostgreSQL's clock, by which leases end."""
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(_SQL["read_clock"], {"now": self._clock.pinned()})
            row = await cursor.fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        told: dt.datetime = row[0]
        return told

    async def find_zombies(
        self,
        *,
        replica_id: int,
        lease_timeout: dt.timedelta,
        limit: int,
        known: Collection[int],
        jumped_at: dt.datetime | None = None,
        jump: dt.timedelta = _NO_TIME,
    ) -> tuple[Zombie, ...]:
        """Find at most `limit` lost leases, oldest first.

        `lease_timeout` is for replicas that do not tell their own. ``known`` are the tokens that
        this replica carries: its other leases older than STRAY_AGE may be strays, whose answer was
        lost, or is still on its way. A step leased before ``jumped_at`` may take ``jump`` longer:
        PostgreSQL's clock has gone ahead by that.
        """
        parameters: dict[str, Any] = {
            "now": self._clock.pinned(),
            "replica_id": replica_id,
            "lease_timeout": lease_timeout,
            "stray_age": STRAY_AGE,
            "known": arrays.Int8Column(known),
            "limit": limit,
            "jumped_at": jumped_at,
            "jump": jump,
        }
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(_SQL["find_zombies"], parameters)
            return tuple(map(_zombie, await fetch_named(cursor, _ZombieRow)))


class Roster:
    """The table of replicas, as people want to see it."""

    def __init__(self, *, pool: Pool, clock: Clock, lease_timeout: dt.timedelta) -> None:
        self._pool = pool
        self._clock = clock
        self._lease_timeout = lease_timeout

    async def list(self, *, after: int, limit: int) -> tuple[ReplicaView, ...]:
        """Read at most `limit` replicas with ids above `after`, in the order of their ids."""
        parameters: dict[str, Any] = {
            "now": self._clock.pinned(),
            "lease_timeout": self._lease_timeout,
            "after": after,
            "limit": limit,
        }
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(_SQL["list_replicas"], parameters)
            return tuple(map(_view, await fetch_named(cursor, _ReplicaRow)))


def _view(row: _ReplicaRow) -> ReplicaView:
    offset = row.clock_offset
    named = row._asdict() | {
        "clock_offset": None if offset is None else dt.timedelta(seconds=offset)
    }
    return ReplicaView(**named)


def _zombie(row: _ZombieRow) -> Zombie:
    return Zombie(
        key=ProcessKey(row.slot, row.namespace, row.process_id),
        task_id=row.task_id,
        task_type=rows.TASK_TYPES[row.task_type],
        attempt=row.attempt,
        token=row.token,
        first_started_at=row.first_started_at,
        found_at=row.found_at,
        cause=ZombieCause(row.cause),
        trace_context=row.trace_context or {},
        part=part_of(row.part),
        replica_id=row.replica_id,
        broken_by=row.broken_by,
    )
