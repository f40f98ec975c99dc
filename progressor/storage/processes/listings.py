"""Listings: pages of processes, each with what its first unfinished task waits for.

Which processes wait for a gate, say, only the whole schedule could tell, in no order of theirs. So
a list of certain causes looks at the processes in their order, and keeps those that wait so; and at
no more than LOOKED_AT_MAX for one page, or than it can in SECONDS_MAX, which may be short then. So
may one with a filter that no index has, such as that of a status.
"""

import dataclasses
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from progressor.domain.processes.process import Process, ProcessKey, ProcessStatus
from progressor.domain.views.process import Listed, Place, ProcessPage, ProcessQuery, place_of
from progressor.domain.views.wait import UnfinishedTask, Wait
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.filters import EXAMINED_MAX, filter_document
from progressor.storage.postgres.rows.records import reader

LOOKED_AT_MAX = 5000
"""Processes that are looked at for one page."""

CHUNK_MAX = 500
"""Those of them that are read at once."""

SECONDS_MAX = 0.05
"""For examining processes and for looking at them; the first of each are always read."""

Why = Callable[[Sequence[UnfinishedTask]], tuple[Wait, ...]]


class _ListedRow(NamedTuple):
    """A process; without one, the place up to which all were examined."""

    process: Process | None
    created_at: dt.datetime
    namespace: str
    process_id: str


class _WaitsRow(NamedTuple):
    number: int
    waits: list[list[Any]]


_TASK = (
    "task_id", "task_type", "status", "due_at", "attempt_count", "lease_replica_id",
    "last_error_code", "last_error_reason", "last_error_message", "last_error_rejected",
    "last_error_metadata", "is_due", "created_at", "lease_leased_at", "lease_expires_at",
    "held_since", "gated", "timer_name",
)  # fmt: skip
_read_task = reader(UnfinishedTask, _TASK, is_json=True)


def task_of(columns: Sequence[Any]) -> UnfinishedTask:
    """Return an unfinished task, as read_processes and read_waits return it.

    Only read_waits returns the columns of constraints and timers.
    """
    return _read_task(columns if len(columns) == len(_TASK) else [*columns, None, None])


class Listings:
    def __init__(self, context: StorageContext, *, whys: Callable[[str], Awaitable[Why]]) -> None:
        self._context = context
        self._whys = whys
        self._read_waits = context.functions.call("read_waits", _WaitsRow)
        self._list_processes = context.functions.call("list_processes", _ListedRow)

    async def page(self, query: ProcessQuery) -> ProcessPage:
        """Read one page; where causes are asked for, of at most LOOKED_AT_MAX processes."""
        listed: list[Listed] = []
        size, left = query.page_size, LOOKED_AT_MAX if query.causes else query.page_size
        end = self._context.clock.monotonic() + SECONDS_MAX
        seconds = SECONDS_MAX
        while True:
            # One row more than the page tells whether another page follows.
            found, until = await self._read(dataclasses.replace(query, page_size=size + 1), seconds)
            looked_at = found[:size]
            waits = await self.first_waits(
                # A finished one has no tasks that wait.
                [it.key for it in looked_at if it.status is not ProcessStatus.FINISHED]
            )
            for number, process in enumerate(looked_at, start=1):
                wait = waits.get(process.key)
                if not query.causes or (wait and isinstance(wait.cause, query.causes)):
                    listed.append(Listed(process=process, first_wait=wait))
                if len(listed) == query.page_size:
                    is_last = number == len(found)
                    return ProcessPage(
                        listed=tuple(listed), next_before=until if is_last else place_of(process)
                    )
            if len(found) <= size:
                return ProcessPage(listed=tuple(listed), next_before=until)
            last, left = place_of(looked_at[-1]), left - size
            seconds = end - self._context.clock.monotonic()
            if not left or seconds <= 0:
                return ProcessPage(listed=tuple(listed), next_before=last)
            query = dataclasses.replace(query, before=last)
            size = min(CHUNK_MAX, left)

    async def first_waits(self, keys: Sequence[ProcessKey]) -> Mapping[ProcessKey, Wait]:
        """Read what the task waits for that runs, or else comes first, of each of some processes.

        Those without an unfinished task are left out. As of an instant after now.
        """
        if not keys:
            return {}
        async with self._context.connection(reads_only=True) as connection:
            found = await self._read_waits.rows(
                connection,
                now=self._context.clock.pinned(),
                starvation_timeout=self._context.starvation_timeout.total_seconds(),
                waits_max=1,
                slot=[each.slot for each in keys],
                namespace=[each.namespace for each in keys],
                process_id=[each.process_id for each in keys],
            )
        tasks = {keys[row.number - 1]: task_of(row.waits[0]) for row in found}
        # Each stands for itself: in a line they would be behind each other.
        finders = {name: await self._whys(name) for name in {key.namespace for key in tasks}}
        return {key: finders[key.namespace]([task])[0] for key, task in tasks.items()}

    async def list(self, query: ProcessQuery) -> tuple[Process, ...]:
        """Read processes, newest first, without aux_state and result, whatever they wait for.

        With a filter that no index has, only of those that are examined at once.
        """
        found, _ = await self._read(query, SECONDS_MAX)
        return found

    async def _read(
        self, query: ProcessQuery, seconds: float
    ) -> tuple[tuple[Process, ...], Place | None]:
        """Return processes, and the place up to which they are all, unless that is the end."""
        before_at, before_namespace, before_id = query.before or (None, None, None)
        async with self._context.connection(reads_only=True) as connection:
            found = await self._list_processes.rows(
                connection,
                filter=filter_document(query.filter),
                before_at=before_at,
                before_namespace=before_namespace,
                before_id=before_id,
                limit=query.page_size,
                examined_max=EXAMINED_MAX,
                seconds_max=seconds,
            )
        until = None
        if found and found[-1].process is None:
            until = (found[-1].created_at, found[-1].namespace, found[-1].process_id)
        return tuple(it.process for it in found if it.process is not None), until
