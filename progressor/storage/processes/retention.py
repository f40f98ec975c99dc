"""Retention: what is old enough is deleted, a small batch at a time."""

import datetime as dt

from progressor.clock import Clock
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of


class Retention:
    """Deletes finished processes and records of ended tasks."""

    def __init__(self, *, pool: Pool, functions: Functions, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._delete_finished = functions.call("delete_finished").statement
        self._delete_old_tasks = functions.call("delete_old_tasks").statement

    async def delete_finished(self, namespace: str, *, age: dt.timedelta, limit: int) -> int:
        """Delete at most `limit` processes that finished longer ago than `age`; return how many."""
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(
                self._delete_finished, [self._clock.pinned(), namespace, age, limit]
            )
            row = await cursor.fetchone()
        assert row is not None, "delete_finished returns a row"
        return int(row[0])

    async def delete_old_tasks(
        self, slot: int, namespace: str, *, age: dt.timedelta, limit: int
    ) -> int:
        """Delete at most `limit` tasks of one slot that ended longer ago than `age`."""
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(
                self._delete_old_tasks, [self._clock.pinned(), slot, namespace, age, limit]
            )
            row = await cursor.fetchone()
        assert row is not None, "delete_old_tasks returns a row"
        return int(row[0])
