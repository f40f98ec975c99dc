"""Retention: deletes what is old, in small transactions; one replica at a time goes through it.

Finished processes are found by the index on when they finished. Tasks have no such index, which
each settlement would have to write: ranges of pages are read, and it is up to the caller to
remember when the next task of a range is due. Deletions skip what is locked and may be repeated, so
that two replicas that are at it for a moment do no harm.
"""

import datetime as dt
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Function
from progressor.storage.postgres.pools import connection_of

R = TypeVar("R")

_SQL = statements.load("replicas/retention")

EVENTS_MAX = 10_000
"""Events after which a transaction takes no further process."""


class DeletedProcesses(NamedTuple):
    """``more``: go on at once, at ``reached_at``. ``overdue`` is in seconds, of the last one."""

    deleted_count: int
    more: bool
    reached_at: dt.datetime | None
    overdue: float | None


class DeletedTasks(NamedTuple):
    """``due_in``: when the next ended task is due, in seconds; None: none is."""

    deleted_count: int
    due_in: float | None


class TaskTable(NamedTuple):
    """``page_count`` is that of the largest partition."""

    partition_count: int
    page_count: int


class Retention:
    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._delete_finished = context.functions.call("delete_finished", DeletedProcesses)
        self._delete_old_tasks = context.functions.call("delete_old_tasks", DeletedTasks)

    async def hold_round(self, *, lease: dt.timedelta) -> bool:
        """Return whether it is this replica that deletes, for another `lease`."""
        return bool(await self._context.execute(_SQL["hold_round"], lease=lease))

    async def delete_finished(
        self,
        namespace: str,
        *,
        age: dt.timedelta,
        limit: int,
        after: dt.datetime | None = None,
        events_max: int = EVENTS_MAX,
    ) -> DeletedProcesses:
        """Delete at most `limit` processes that finished longer ago than `age`, from `after` on."""
        return await self._delete(
            self._delete_finished,
            namespace=namespace,
            age=age.total_seconds(),
            limit=limit,
            events_max=events_max,
            after=after,
        )

    async def measure_tasks(self) -> TaskTable:
        [table] = await self._context.read(TaskTable, _SQL["measure_tasks"])
        return table

    async def delete_old_tasks(
        self, pages: range, ages: Mapping[str, dt.timedelta], *, limit: int
    ) -> DeletedTasks:
        """Delete at most `limit` ended tasks in a range of pages; ``ages`` are by namespace."""
        return await self._delete(
            self._delete_old_tasks,
            first=pages.start,
            end=pages.stop,
            namespace=list(ages),
            age=[age.total_seconds() for age in ages.values()],
            limit=limit,
        )

    async def delete_old_replies(self, *, age: dt.timedelta, limit: int) -> int:
        """Delete at most `limit` answers of removed processes older than `age`."""
        return await self._context.execute(_SQL["delete_old_replies"], age=age, limit=limit)

    async def _delete(self, function: Function[R], **named: object) -> R:
        # Without the statement timeout: a process may have a long history.
        async with connection_of(self._context.pool) as connection:
            now = self._context.clock.pinned()
            [found] = await function.rows(connection, now=now, **named)
        return found
