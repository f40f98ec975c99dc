"""Replicas: their rows and heartbeats, and the leases of replicas that are gone."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Collection, Mapping

from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.domain.views.replica import ReplicaView
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of

_SQL = statements.load("replicas/replicas")

_NO_TIME = dt.timedelta()

STRAY_AGE = dt.timedelta(seconds=0.5)
"""Younger leases do not count as strays yet: most replies are still on their way."""


class ZombieCause(enum.StrEnum):
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
    started_at: dt.datetime
    found_at: dt.datetime
    cause: ZombieCause
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tried_for: dt.timedelta = dt.timedelta()
    part: Part | None = None
    replica_id: int | None = None
    """The replica that had the lease."""
    broken_by: int | None = None


async def draw_replica_id(pool: Pool, functions: Functions) -> int:
    draw = functions.call("draw_replica_id")
    async with connection_of(pool) as connection:
        [(drawn,)] = await draw.rows(connection)
    return int(drawn)


class Replicas:
    """The table of replicas, and the leases of replicas that are gone.

    ``lease_timeout`` is for replicas that do not tell their own.
    """

    def __init__(self, context: StorageContext, *, lease_timeout: dt.timedelta) -> None:
        self._context = context
        self._lease_timeout = lease_timeout

    async def retire(self, replica_id: int) -> None:
        await self._context.execute(_SQL["retire_replica"], replica_id=replica_id)

    async def delete_dead(self, *, retention: dt.timedelta) -> int:
        """Delete the rows of replicas silent for longer than `retention`; return how many."""
        return await self._context.execute(_SQL["delete_dead_replicas"], retention=retention)

    async def read_clock(self) -> dt.datetime:
        return await self._context.now()

    async def find_zombies(
        self,
        *,
        limit: int,
        known: Collection[int],
        jumped_at: dt.datetime | None = None,
        jump: dt.timedelta = _NO_TIME,
    ) -> tuple[Zombie, ...]:
        """Find at most `limit` lost leases, oldest first.

        ``known`` are the tokens that this replica holds: its other leases older than STRAY_AGE
        may be strays, whose answer was lost, or is still on its way. A step leased before
        ``jumped_at`` may take ``jump`` longer: PostgreSQL's clock has gone ahead by that.
        """
        return await self._context.read(
            Zombie,
            _SQL["find_zombies"],
            lease_timeout=self._lease_timeout,
            stray_age=STRAY_AGE,
            known=list(known),
            limit=limit,
            jumped_at=jumped_at,
            jump=jump,
        )

    async def list(self, *, after: int, limit: int) -> tuple[ReplicaView, ...]:
        return await self._context.read(
            ReplicaView,
            _SQL["list_replicas"],
            lease_timeout=self._lease_timeout,
            after=after,
            limit=limit,
        )
