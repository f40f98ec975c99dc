"""Traces: the tasks of a process with the events that each recorded, read by key."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from progressor import errors
from progressor.domain.processes.event import Event
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.process import TaskTrace
from progressor.storage.postgres import arrays, statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import Connection
from progressor.storage.rows import processes as views
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.constraints import constraints_of

_SQL = statements.load("processes/processes")

EVENTS_MAX = 1000
"""Events told of one task."""


class Traces:
    """Reads the lives of tasks."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def read(self, key: ProcessKey, *, after: int, limit: int) -> tuple[TaskTrace, ...]:
        """Read `limit` tasks of a process after a task id, in order, with their events.

        Raises:
            ProcessNotFoundError: There is no such process.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        named: dict[str, Any] = dataclasses.asdict(key)
        async with self._context.connection(reads_only=True) as connection:
            cursor = await connection.execute(
                _SQL["trace_tasks"], named | {"after": after, "limit": limit}, binary=True
            )
            tasks = await cursor.fetchall()
            if not tasks:
                cursor = await connection.execute(_SQL["get_process"], named, binary=True)
                if await cursor.fetchone() is None:
                    raise errors.ProcessNotFoundError(key.namespace, key.process_id)
            own = [(row[17], min(row[18], EVENTS_MAX)) for row in tasks if row[18]]
            events = await self._events(connection, key, own) if own else {}
        if sum(len(events.get(row[0], ())) for row in tasks) < sum(count for _, count in own):
            # Removed since its tasks were read.
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        return tuple(_trace(row, tuple(events.get(row[0], ()))) for row in tasks)

    async def _events(
        self, connection: Connection, key: ProcessKey, own: Sequence[tuple[int, int]]
    ) -> Mapping[int, Sequence[Event]]:
        """Read the events of tasks, given each one's first and how many; return them by task."""
        named: dict[str, Any] = dataclasses.asdict(key)
        named["first"] = arrays.Int8Column(first for first, _ in own)
        named["count"] = arrays.Int8Column(count for _, count in own)
        cursor = await connection.execute(_SQL["trace_events"], named, binary=True)
        found: dict[int, list[Event]] = {}
        for row in await cursor.fetchall():
            event = rows.event(row)
            found.setdefault(event.task_id, []).append(event)
        return found


def _trace(row: rows.Row, events: tuple[Event, ...]) -> TaskTrace:
    return TaskTrace(
        task_id=row[0],
        task_type=rows.TASK_TYPES[row[1]],
        status=rows.TASK_STATUSES[row[2]],
        created_at=row[3],
        scheduled_at=row[4],
        started_at=row[5],
        finished_at=row[6],
        attempt_count=row[7],
        args=row[8],
        caller_context=row[9] or {},
        idempotency_key=row[10],
        response=row[11] or b"",
        error=rows.task_error(row[12:17]),
        events=events,
        constraints=constraints_of(row[19]),
        spent=None if row[20] is None else views.time_spent(row[20]),
        replica_id=row[21],
    )
