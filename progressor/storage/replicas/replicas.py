"""Replicas: who is there, who was heard of when, and the leases of those who are not."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Collection, Mapping
from typing import Any

from progressor.clock import Clock
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.domain.views.replica import ReplicaView
from progressor.storage.postgres import arrays, statements
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
            return tuple(_zombie(row) for row in await cursor.fetchall())


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
            return tuple(_view(row) for row in await cursor.fetchall())


def _view(row: rows.Row) -> ReplicaView:
    return ReplicaView(
        replica_id=row[0],
        name=row[1],
        version=row[2],
        functions=row[3],
        started_at=row[4],
        heartbeat_at=row[5],
        heartbeat_age=row[6],
        lease_timeout=row[7],
        draining=row[8],
        step_count=row[9],
        caller_count=row[10],
        clock_offset=None if row[11] is None else dt.timedelta(seconds=row[11]),
        lease_count=row[12],
    )


def _zombie(row: rows.Row) -> Zombie:
    return Zombie(
        key=ProcessKey(row[0], row[1], row[2]),
        task_id=row[3],
        task_type=rows.TASK_TYPES[row[4]],
        attempt=row[5],
        token=row[6],
        first_started_at=row[7],
        found_at=row[9],
        cause=ZombieCause(row[10]),
        trace_context=row[11] or {},
        part=part_of(row[12]),
        replica_id=row[8],
        broken_by=row[13],
    )
