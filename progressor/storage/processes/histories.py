"""Histories, cut where a message is full; and traces: tasks with the events of each."""

import dataclasses
from typing import Any, NamedTuple

from progressor import errors
from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.message import MessageKind, RefusedMessage
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.process import HistoryPage, TaskTrace
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import connection_of

_SQL = statements.load("processes/processes")

PAGE_EVENTS_MAX = 1000
"""Events read by one statement; a longer range takes several."""

EVENTS_MAX = 1000
"""Events shown per task."""

_TASK_ID_MAX = 2**63 - 1


class _Memo(NamedTuple):
    key: str | None
    value: bytes | None


class Histories:
    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, last_event_id: int, bytes_max: int
    ) -> HistoryPage:
        """Read the events of a range, as many as fit into `bytes_max`, but one at least.

        ``last_event_id`` is the history's end as the caller knows it: later events are left out,
        so that a history fits the process it is read for.

        Raises:
            EventNotFoundError: The range starts after an event that does not exist.
        """
        if wanted.after > last_event_id:
            raise errors.EventNotFoundError(key.process_id, wanted.after)
        events: list[Event] = []
        room, size, after = wanted.limit, 0, wanted.after
        while room is None or room > 0:
            limit = PAGE_EVENTS_MAX if room is None else min(room, PAGE_EVENTS_MAX)
            page = await self._page(
                key, wanted.direction, after=after, last=last_event_id, limit=limit
            )
            for event in page:
                size += len(event.payload) + 64
                if events and size > bytes_max:
                    return HistoryPage(events=tuple(events), next_after=events[-1].event_id)
                events.append(event)
            if len(page) < limit:
                break
            after = page[-1].event_id
            room = None if room is None else room - len(page)
        return HistoryPage(events=tuple(events), next_after=None)

    async def memos(self, key: ProcessKey, task_id: int, token: int) -> dict[str, bytes] | None:
        """Read the memos of a task, to which only the holder of its lease can add one.

        Return None if the lease has been lost, since the memos may have gone with it.
        """
        rows = await self._context.read(
            _Memo, _SQL["read_memos"], key, task_id=task_id, token=token
        )
        if not rows:
            return None
        return {key: value for key, value in rows if key is not None and value is not None}

    async def _page(
        self, key: ProcessKey, direction: Direction, *, after: int, last: int, limit: int
    ) -> tuple[Event, ...]:
        backward = direction is Direction.BACKWARD
        statement = _SQL["history_backward" if backward else "history_forward"]
        # From nowhere backward is from behind the newest.
        after = last + 1 if backward and after == 0 else after
        # Without the statement timeout: a page of large events may take longer.
        async with connection_of(self._context.pool, reads_only=True) as connection:
            return await self._context.read_on(
                connection, Event, statement, key, after=after, last=last, limit=limit
            )


class _TraceRow(NamedTuple):
    trace: TaskTrace
    first_event_id: int | None
    event_count: int | None
    refused: list[Any] | None

    def messages(self) -> tuple[RefusedMessage, ...]:
        return tuple(
            RefusedMessage(number, MessageKind(kind), *rest)
            for number, kind, *rest in self.refused or ()
        )


class _First(NamedTuple):
    task_id: int | None


class Traces:
    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def read(
        self,
        key: ProcessKey,
        *,
        after: int,
        limit: int,
        direction: Direction = Direction.FORWARD,
    ) -> tuple[TaskTrace, ...]:
        """Read `limit` tasks of a process after a task id, in a direction, with their events.

        Backward from 0 is from the newest.

        Raises:
            ProcessNotFoundError: There is no such process.
        """
        read_on, is_backward = self._context.read_on, direction is Direction.BACKWARD
        before = (after or _TASK_ID_MAX) if is_backward else _TASK_ID_MAX
        events: dict[int, list[Event]] = {}
        async with self._context.connection(reads_only=True) as connection:
            if is_backward:
                (first,) = await read_on(
                    connection, _First, _SQL["find_last_tasks"], key, before=before, limit=limit
                )
                after = before if first.task_id is None else first.task_id - 1
            tasks = await read_on(
                connection, _TraceRow, _SQL["trace_tasks"], key,
                after=after, before=before, limit=limit,
            )  # fmt: skip
            if not tasks and not await read_on(connection, int, _SQL["find_init_task"], key):
                raise errors.ProcessNotFoundError(key.namespace, key.process_id)
            counts = {
                it.first_event_id: min(it.event_count, EVENTS_MAX) for it in tasks if it.event_count
            }
            if counts:
                for event in await read_on(
                    connection, Event, _SQL["trace_events"], key,
                    first=list(counts), count=list(counts.values()),
                ):  # fmt: skip
                    events.setdefault(event.task_id, []).append(event)
        found = [events.get(it.trace.task_id, ()) for it in tasks]
        if sum(map(len, found)) < sum(counts.values()):
            # Removed since its tasks were read.
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        traces = tuple(
            dataclasses.replace(it.trace, events=tuple(own), refused_messages=it.messages())
            for it, own in zip(tasks, found, strict=True)
        )
        return traces[::-1] if is_backward else traces
