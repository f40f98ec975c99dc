"""Claims: tasks whose time has come are leased to this replica."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import Claim, RunningTask
from progressor.storage.postgres import arrays, statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Function
from progressor.storage.postgres.pools import Pool
from progressor.storage.processes.settlements import Due
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.job_membership import part_of
from progressor.storage.rows.tasks import ClaimedRow

_SQL = statements.load("processes/claims")

PASSES_SECONDS = 1.0
"""For how long no claim waits for locked processes again, once one was locked for LOCK_TIMEOUT: a
backlog is claimed as places become free, and would stand still for that time at each of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A leased task, since when it was due, and the replica that put it in the schedule."""

    task: RunningTask
    due_at: dt.datetime
    set_by: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A task to claim by its id; ``expires_after`` as in admissions.Entry."""

    key: ProcessKey
    task_id: int
    expires_after: dt.timedelta


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many tasks of a namespace this replica can take.

    ``requests_first`` says whose turn it is: places go to the oldest request and the oldest of all
    tasks by turns. ``after`` is the time and the id of the last task that `find_upcoming` told of.
    """

    namespace: str
    limit: int
    expires_after: dt.timedelta
    requests_first: bool = False
    after: tuple[dt.datetime, int] | None = None


class Claims:
    """The two ways to a lease: by id at the due time, and by search."""

    def __init__(self, context: StorageContext, *, step_grace: dt.timedelta) -> None:
        self._context = context
        self._step_grace = step_grace.total_seconds()
        self._begun = 0
        self._passes_until = float("-inf")
        self._under_way: dict[int, None] = {}
        self._sent: dict[int, asyncio.Task[Any] | None] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._claim_tasks = context.functions.call("claim_tasks", ClaimedRow)
        self._claim_due = context.functions.call("claim_due", ClaimedRow)

    @property
    def begun_count(self) -> int:
        """How many claims were begun until now."""
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

    async def claim_tasks(self, pool: Pool, wanted: Sequence[Wanted]) -> list[Claimed]:
        """Claim tasks by their ids, at most one per process.

        Safe to repeat and to cancel: a claim whose answer is lost is found by its replica or
        expires. A replica that stops does not cancel one that is with PostgreSQL: see `answered`.

        Returns:
            Those that wait and are due; the others are gone, blocked, put off or taken, or their
            process stays locked by another session: the scan finds them later.

        Raises:
            StorageUnavailableError: No connection, or it broke.
        """
        arguments: dict[str, Any] = {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "grace": self._step_grace,
            "slot": arrays.Int2Column(each.key.slot for each in wanted),
            "namespace": arrays.TextColumn(each.key.namespace for each in wanted),
            "process_id": arrays.TextColumn(each.key.process_id for each in wanted),
            "task_id": arrays.Int8Column(each.task_id for each in wanted),
            "expires_after": arrays.Float8Column(
                each.expires_after.total_seconds() for each in wanted
            ),
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

        Raises:
            StorageUnavailableError: No connection, or it broke.

        Source: SKIP LOCKED semantics, PostgreSQL manual, "SELECT - The Locking Clause".
        """
        arguments: dict[str, Any] = {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "grace": self._step_grace,
            "overdue": overdue.total_seconds(),
            "namespace": arrays.TextColumn(room.namespace for room in rooms),
            "room": arrays.Int4Column(room.limit for room in rooms),
            "requests_first": arrays.BoolColumn(room.requests_first for room in rooms),
            "expires_after": arrays.Float8Column(
                room.expires_after.total_seconds() for room in rooms
            ),
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
        function: Function[ClaimedRow],
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
            return [_claimed(row, sent_at, answered_at) for row in found]
        finally:
            del self._under_way[number]
            self._sent.pop(number, None)
            if not self._sent:
                self._quiet.set()

    async def find_overdue(
        self, pool: Pool, namespaces: Sequence[str], *, overdue: dt.timedelta
    ) -> frozenset[str]:
        """Return those of the namespaces that have a task due for `overdue` or longer."""
        parameters = {
            "now": self._context.clock.pinned(),
            "namespace": arrays.TextColumn(namespaces),
            "overdue": overdue,
        }
        async with self._context.connection(pool=pool) as connection:
            cursor = await connection.execute(_SQL["find_overdue"], parameters)
            return frozenset(row[0] for row in await cursor.fetchall())

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
        parameters = {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "horizon": horizon,
            "lease_timeout": lease_timeout,
            "namespace": arrays.TextColumn(room.namespace for room in rooms),
            "limit": arrays.Int4Column(room.limit for room in rooms),
            "after_at": arrays.InstantColumn(room.after and room.after[0] for room in rooms),
            "after_id": arrays.Int8Column(room.after and room.after[1] for room in rooms),
        }
        async with self._context.connection(pool=pool) as connection:
            cursor = await connection.execute(_SQL["find_upcoming"], parameters, binary=True)
            found = await cursor.fetchall()
        told_at = found[0][5] if found else None
        return [
            Due(key=ProcessKey(row[0], row[1], row[2]), task_id=row[3], due_at=row[4])
            for row in found
        ], told_at


def _claimed(row: ClaimedRow, sent_at: dt.datetime, answered_at: dt.datetime) -> Claimed:
    task = RunningTask(
        process=rows.process_of(
            ProcessKey(row.slot, row.namespace, row.process_id), row, part_of(row.part)
        ),
        task_id=row.task_id,
        task_type=rows.TASK_TYPES[row.task_type],
        attempt=row.attempt,
        token=row.token,
        args=row.args,
        caller_context=row.caller_context or {},
        trace_context=row.trace_context or {},
        history_range=rows.history_range(
            row.history_after, row.history_limit, backward=row.history_backward
        ),
        step_timeout=rows.seconds(row.step_timeout),
        scheduled_at=row.scheduled_at,
        started_at=row.started_at,
        first_started_at=row.first_started_at,
        claim=Claim(row.due_at, sent_at, answered_at),
        spent=None if row.spent_us is None else tuple(row.spent_us),
    )
    return Claimed(task=task, due_at=row.due_at, set_by=row.set_by)
