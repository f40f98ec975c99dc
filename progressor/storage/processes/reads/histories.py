"""Histories: ranges of events, read by key, cut where a message is full."""

import dataclasses
from typing import Any

from progressor import errors
from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.process import HistoryPage
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import connection_of
from progressor.storage.rows import tasks as rows

_SQL = statements.load("processes/processes")

PAGE_EVENTS_MAX = 1000
"""Events read by one statement; a longer range takes several."""


class Histories:
    """Reads events."""

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
            StorageUnavailableError: PostgreSQL is unreachable.
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

    async def _page(
        self, key: ProcessKey, direction: Direction, *, after: int, last: int, limit: int
    ) -> list[Event]:
        backward = direction is Direction.BACKWARD
        parameters: dict[str, Any] = dataclasses.asdict(key) | {
            # From nowhere backward is from behind the newest.
            "after": last + 1 if backward and after == 0 else after,
            "last": last,
            "limit": limit,
        }
        statement = _SQL["history_backward" if backward else "history_forward"]
        # Without the statement timeout: a page of large events may take longer.
        async with connection_of(self._context.pool, reads_only=True) as connection:
            cursor = await connection.execute(statement, parameters, binary=True)
            return [rows.event(row) for row in await cursor.fetchall()]
