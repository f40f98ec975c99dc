"""Leases: what this replica holds, and how it lets go.

A lease is given up in two ways. *Released*, on a drain: the step stops asking, and a settlement
hands the task to others at once. *Abandoned*, when heartbeats cannot be written: others may have
the task already, so nothing is settled; should the lease still stand once heartbeats go through
again, it is a stray, and collected like a zombie.
"""

import asyncio
import dataclasses
import enum
from collections.abc import Collection

from progressor.domain.processes.task import RunningTask


class Ending(enum.Enum):
    """How a replica lets go of a lease before its step is done."""

    RELEASED = enum.auto()
    ABANDONED = enum.auto()


@dataclasses.dataclass(slots=True, eq=False)
class LeaseHandle:
    """One worker's hold on a process: the lease of the task it carries now.

    ``asking`` is the worker while it asks the processor; `Leases.let_go` cancels it. That is what
    a scope of asyncio.timeout does too, at ten times the price of each step that is not let go.
    """

    task_id: int
    token: int
    ending: Ending | None = None
    asking: asyncio.Task[object] | None = None


class Leases:
    """All leases that this replica carries."""

    def __init__(self) -> None:
        self.lost = False
        """Whether others may have the tasks: what is leased now is abandoned before it begins."""
        self._grips: set[LeaseHandle] = set()
        self._task_ids: set[int] = set()

    def take(self, task: RunningTask) -> LeaseHandle:
        """Note that a worker carries a task."""
        handle = LeaseHandle(task.task_id, task.token, Ending.ABANDONED if self.lost else None)
        self._grips.add(handle)
        self._task_ids.add(task.task_id)
        return handle

    def pass_on(self, handle: LeaseHandle, task: RunningTask) -> None:
        """Note that the worker goes on with another task, under a new lease."""
        self._task_ids.discard(handle.task_id)
        handle.task_id, handle.token = task.task_id, task.token
        self._task_ids.add(task.task_id)

    def drop(self, handle: LeaseHandle) -> None:
        """Note that the worker is done."""
        self._grips.discard(handle)
        self._task_ids.discard(handle.task_id)

    def carries(self, task_id: int) -> bool:
        """Tell whether a worker of this replica carries a task."""
        return task_id in self._task_ids

    def tokens(self) -> Collection[int]:
        """Return the tokens of all leases carried."""
        return [handle.token for handle in self._grips]

    def let_go(self, ending: Ending) -> None:
        """Stop asking processors, everywhere; settlements that are decided are still written."""
        for handle in self._grips:
            handle.ending = ending
            if handle.asking is not None:
                handle.asking.cancel()
                handle.asking = None
