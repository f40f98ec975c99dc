"""Deletes what is old enough, a small batch at a time."""

import datetime as dt

from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Function
from progressor.storage.postgres.pools import connection_of


class Retention:
    """Deletes finished processes and records of ended tasks."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._delete_finished = context.functions.call("delete_finished", int)
        self._delete_old_tasks = context.functions.call("delete_old_tasks", int)

    async def delete_finished(self, namespace: str, *, age: dt.timedelta, limit: int) -> int:
        """Delete at most `limit` processes that finished longer ago than `age`; return how many."""
        return await self._count(self._delete_finished, namespace=namespace, age=age, limit=limit)

    async def delete_old_tasks(
        self, slot: int, namespace: str, *, age: dt.timedelta, limit: int
    ) -> int:
        """Delete at most `limit` tasks of one slot that ended longer ago than `age`."""
        return await self._count(
            self._delete_old_tasks, slot=slot, namespace=namespace, age=age, limit=limit
        )

    async def _count(self, function: Function[int], **named: object) -> int:
        async with connection_of(self._context.pool) as connection:
            now = self._context.clock.pinned()
            [count] = await function.rows(connection, now=now, **named)
        return count
