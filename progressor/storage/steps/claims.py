"""Claims: tasks whose time has come are leased to this replica."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from progressor import errors
from progressor.clock import Clock
from progressor.domain import values
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Function
from progressor.storage.postgres.pools import Pool
from progressor.storage.postgres.rows.records import reader
from progressor.storage.steps.settlements import Due

_SQL = statements.load("steps/claims")

PASSES_SECONDS = 1.0
"""For how long no claim waits for locked processes again, once one was locked for LOCK_TIMEOUT: a
backlog is claimed as places become free, and would stand still for that time at each of them."""

FLOOR_MARGIN = dt.timedelta(seconds=10)
"""Longer than from the instant at which a task becomes due to the commit of what made it so."""

FULL_SHARE = 0.01
FULL_SECONDS_MAX = 10.0


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A leased task, since when it was due, and the replica that put it in the schedule."""

    task: RunningTask
    due_at: dt.datetime
    set_by: int


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A task to claim by its id; ``expires_after`` as in admissions.Entry."""

    key: ProcessKey
    task_id: int
    expires_after: dt.timedelta


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many tasks of a namespace this replica can take.

    ``requests_first`` says whose turn it is: places go to the oldest request and the oldest of all
    tasks by turns. ``requests_only``: no timers are claimed. ``after`` is the time and the id of
    the last task that `find_upcoming` returned.
    """

    namespace: str
    limit: int
    expires_after: dt.timedelta
    requests_first: bool = False
    requests_only: bool = False
    after: tuple[dt.datetime, int] | None = None


class Overdue(NamedTuple):
    """The first task of a namespace that was due by ``until``; None: there was none."""

    namespace: str
    due_at: dt.datetime | None
    until: dt.datetime


class Floors:
    """From where overdue tasks are looked for, while that takes long.

    The index leads through the entries of all tasks that were claimed since the last vacuum, or
    since an old snapshot, such as that of a dump, keeps vacuum from removing them. Then a look at
    all of it, after which each namespace has a floor, takes 1 % of the time or one such look every
    FULL_SECONDS_MAX, and others begin FLOOR_MARGIN below the floor. What comes in further below, as
    a blocked timer does that wakes, is found by the next look at all. So a single slow look, as on
    a machine that stood still, sets no floor: two in a row do.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._floors: dict[str, dt.datetime] = {}
        self._full_at = float("-inf")
        self._full_took = 0.0

    def since(self, namespaces: Iterable[str]) -> list[dt.datetime | None]:
        """Return where to begin in each namespace; None: at the first task."""
        if self._clock.monotonic() >= self._full_at:
            return [None for _ in namespaces]
        return [self._floors.get(name) for name in namespaces]

    def note(self, found: Iterable[Overdue], *, seconds: float, full: bool) -> None:
        for row in found:
            self._floors[row.namespace] = (row.due_at or row.until) - FLOOR_MARGIN
        if full:
            lasting, self._full_took = min(seconds, self._full_took), seconds
            pause = min(FULL_SECONDS_MAX, lasting / FULL_SHARE)
            self._full_at = self._clock.monotonic() + pause


class _UpcomingRow(NamedTuple):
    due: Due
    now: dt.datetime


class Claims:
    """The two ways to a lease: by id at the due time, and by search."""

    def __init__(self, context: StorageContext, *, step_grace: dt.timedelta) -> None:
        self._context = context
        self._step_grace = step_grace.total_seconds()
        self._begun = 0
        self._passes_until = float("-inf")
        self._under_way: dict[int, None] = {}
        self._sent: dict[int, asyncio.Task[Any] | None] = {}
        self.floors = Floors(context.clock)
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._claim_tasks = context.functions.call("claim_tasks")
        self._claim_due = context.functions.call("claim_due")
        assert self._claim_tasks.columns == self._claim_due.columns, "both return the same"
        self._claimed = reader(
            Claimed, self._claim_tasks.columns, "sent_at", "answered_at", whole=True
        )

    @property
    def begun_count(self) -> int:
        return self._begun

    @property
    def answered_count(self) -> int:
        """How many of the first claims have all been answered, or given up."""
        oldest = next(iter(self._under_way), self._begun + 1)
        return oldest - 1

    def sent_by(self, task: asyncio.Task[Any]) -> bool:
        """Whether a claim of this task is with PostgreSQL, and may have leased something."""
        return task in self._sent.values()

    async def answered(self) -> None:
        """Wait until no claim is with PostgreSQL."""
        while self._sent:
            await self._quiet.wait()

    async def claim_tasks(
        self, pool: Pool, wanted: Sequence[Wanted], *, ahead: float = 0.0
    ) -> list[Claimed]:
        """Claim tasks by their ids, at most one per process, that are due within `ahead` seconds.

        Safe to repeat and to cancel: a claim whose answer is lost is found by its replica or
        expires. A replica that stops does not cancel one that is with PostgreSQL: see `answered`.

        Returns:
            Those that wait and are due; the others are gone, blocked, put off or taken, or their
            process stays locked by another session: the scan finds them later.
        """
        arguments: dict[str, Any] = {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "grace": self._step_grace,
            "ahead": ahead,
            "slot": [each.key.slot for each in wanted],
            "namespace": [each.key.namespace for each in wanted],
            "process_id": [each.key.process_id for each in wanted],
            "task_id": [each.task_id for each in wanted],
            "expires_after": [each.expires_after.total_seconds() for each in wanted],
        }
        try:
            return await self._claim_once(pool, self._claim_tasks, arguments, wait=True)
        except errors.StorageLockedError:
            return await self._claim_once(pool, self._claim_tasks, arguments, wait=False)

    async def claim_due(
        self, pool: Pool, rooms: Sequence[Room], *, overdue: dt.timedelta, wait: bool
    ) -> list[Claimed]:
        """Claim tasks that have been due for `overdue` or longer, by turns: see claim_due.sql.

        ``wait`` for processes that another session has locked, if it is not for long, instead of
        passing them over at once. For PASSES_SECONDS after one was locked for longer, they are
        passed over as long as something else is found.

        Returns:
            At most ``limit`` tasks per room; fewer than due when other replicas were faster.

        Source: SKIP LOCKED semantics, PostgreSQL manual, "SELECT - The Locking Clause".
        """
        arguments: dict[str, Any] = {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "grace": self._step_grace,
            "overdue": overdue.total_seconds(),
            "namespace": [room.namespace for room in rooms],
            "room": [room.limit for room in rooms],
            "since": self.floors.since(room.namespace for room in rooms),
            "requests_first": [room.requests_first for room in rooms],
            "expires_after": [room.expires_after.total_seconds() for room in rooms],
            "requests_only": [True if room.requests_only else None for room in rooms]
            if any(room.requests_only for room in rooms)
            else None,
        }
        if wait and self._context.clock.monotonic() < self._passes_until:
            claimed = await self._claim_once(pool, self._claim_due, arguments, wait=False)
            if claimed:
                return claimed
        try:
            return await self._claim_once(pool, self._claim_due, arguments, wait=wait)
        except errors.StorageLockedError:
            self._passes_until = self._context.clock.monotonic() + PASSES_SECONDS
            return await self._claim_once(pool, self._claim_due, arguments, wait=False)

    async def _claim_once(
        self,
        pool: Pool,
        function: Function[tuple[Any, ...]],
        arguments: Mapping[str, Any],
        *,
        wait: bool,
    ) -> list[Claimed]:
        self._begun += 1
        number = self._begun
        self._under_way[number] = None
        sent_at = self._context.clock.now()
        try:
            async with self._context.connection(pool=pool) as connection:
                self._sent[number] = asyncio.current_task()
                self._quiet.clear()
                found = await function.rows(connection, wait=wait, **arguments)
            answered_at = self._context.clock.now()
            return [self._claimed(row, sent_at, answered_at) for row in found]
        finally:
            del self._under_way[number]
            self._sent.pop(number, None)
            if not self._sent:
                self._quiet.set()

    async def find_overdue(
        self, pool: Pool, namespaces: Sequence[str], *, overdue: dt.timedelta
    ) -> frozenset[str]:
        """Return the namespaces with a task that has been due for `overdue`."""
        since = self.floors.since(namespaces)
        async with self._context.connection(pool=pool) as connection:
            begun_at = self._context.clock.monotonic()
            found = await self._context.read_on(
                connection,
                Overdue,
                _SQL["find_overdue"],
                namespace=namespaces,
                since=since,
                overdue=overdue,
            )
        seconds = self._context.clock.monotonic() - begun_at
        self.floors.note(found, seconds=seconds, full=not any(since))
        return frozenset(row.namespace for row in found if row.due_at is not None)

    async def find_upcoming(
        self,
        pool: Pool,
        rooms: Sequence[Room],
        *,
        horizon: dt.timedelta,
        lease_timeout: dt.timedelta,
    ) -> tuple[list[Due], dt.datetime | None]:
        """Find tasks due within `horizon` that this replica set, or a replica that is gone.

        Those that another living replica has set are left to it.

        Returns:
            At most ``limit`` tasks per room, and PostgreSQL's instant; None without tasks.
        """
        async with self._context.connection(pool=pool) as connection:
            found = await self._context.read_on(
                connection,
                _UpcomingRow,
                _SQL["find_upcoming"],
                horizon=horizon,
                lease_timeout=lease_timeout,
                namespace=[room.namespace for room in rooms],
                limit=[room.limit for room in rooms],
                after_at=[room.after and room.after[0] for room in rooms],
                after_id=[room.after and room.after[1] for room in rooms],
            )
        return [row.due for row in found], found[0].now if found else None
