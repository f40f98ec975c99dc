"""Leases: what this replica holds, and how it lets go.

A lease is given up in two ways. *Released*, on a drain: the step stops asking, and a settlement
hands the task to others at once. *Abandoned*, when heartbeats cannot be written: others may have
the task already, so nothing is settled. If the lease is still valid once heartbeats go through
again, it is collected like a zombie.
"""

import asyncio
import dataclasses
import enum
from collections.abc import Collection

from progressor.domain.processes.task import RunningTask


class Ending(enum.Enum):
    """How a replica gives up a lease before its step is done."""

    RELEASED = enum.auto()
    ABANDONED = enum.auto()


@dataclasses.dataclass(slots=True, eq=False)
class LeaseHandle:
    """A worker's lease of the task that it runs now.

    ``asking`` is the worker while it asks the processor; `Leases.let_go` cancels it. A scope of
    asyncio.timeout would do the same at ten times the cost for each step that is not let go.
    """

    task_id: int
    token: int
    ending: Ending | None = None
    asking: asyncio.Task[object] | None = None


class Leases:
    def __init__(self) -> None:
        self.lost = False
        """Whether others may have the tasks: what is leased now is abandoned before it begins."""
        self._handles: set[LeaseHandle] = set()
        self._task_ids: set[int] = set()

    def take(self, task: RunningTask) -> LeaseHandle:
        handle = LeaseHandle(task.task_id, task.token, Ending.ABANDONED if self.lost else None)
        self._handles.add(handle)
        self._task_ids.add(task.task_id)
        return handle

    def pass_on(self, handle: LeaseHandle, task: RunningTask) -> None:
        """Record that the worker continues with another task, under a new lease."""
        self._task_ids.discard(handle.task_id)
        handle.task_id, handle.token = task.task_id, task.token
        self._task_ids.add(task.task_id)

    def drop(self, handle: LeaseHandle) -> None:
        self._handles.discard(handle)
        self._task_ids.discard(handle.task_id)

    def holds(self, task_id: int) -> bool:
        return task_id in self._task_ids

    def tokens(self) -> Collection[int]:
        return [handle.token for handle in self._handles]

    def let_go(self, ending: Ending) -> None:
        """Stop asking processors; settlements that are decided are still written."""
        for handle in self._handles:
            handle.ending = ending
            if handle.asking is not None:
                handle.asking.cancel()
                handle.asking = None
