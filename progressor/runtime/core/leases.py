"""Leases: what this replica holds, and how it lets go.

A lease is given up in two ways. *Released*, on a drain: the step stops asking, and a settlement
hands the task to others at once. *Abandoned*, when heartbeats cannot be written: others may have
the task already, so nothing is settled. If the lease is still valid once heartbeats go through
again, it is collected like a zombie.

A lease is *revoked* by a request that ended the task while it ran: the step stops asking, so that
the processor learns of it, and nothing is settled.
"""

import asyncio
import collections
import dataclasses
import enum
from collections.abc import Collection

from progressor.domain.processes.task import RunningTask

REVOKED_MAX = 10_000
"""Revoked leases that this replica may have yet to learn of."""


class Ending(enum.Enum):
    """How a replica gives up a lease, or loses it, before its step is done."""

    RELEASED = enum.auto()
    ABANDONED = enum.auto()
    REVOKED = enum.auto()


@dataclasses.dataclass(slots=True, eq=False)
class LeaseHandle:
    """A worker's lease of the task that it runs now.

    ``asking`` is the worker while it asks the processor; `stop` cancels it. A scope of
    asyncio.timeout would do the same at ten times the cost for each step that is not let go.
    """

    task_id: int
    token: int
    ending: Ending | None = None
    asking: asyncio.Task[object] | None = None

    def stop(self, ending: Ending) -> None:
        """Stop asking the processor; a settlement that is decided is still written."""
        self.ending = ending
        if self.asking is not None:
            self.asking.cancel()
            self.asking = None


class Leases:
    def __init__(self) -> None:
        self.lost = False
        """Whether others may have the tasks: what is leased now is abandoned before it begins."""
        self._handles: set[LeaseHandle] = set()
        self._task_ids: set[int] = set()
        # The answer that brings a lease may arrive after the news that it was revoked.
        self._revoked: collections.OrderedDict[int, None] = collections.OrderedDict()

    def take(self, task: RunningTask) -> LeaseHandle:
        handle = LeaseHandle(task.task_id, task.token, Ending.ABANDONED if self.lost else None)
        self._end_revoked(handle)
        self._handles.add(handle)
        self._task_ids.add(task.task_id)
        return handle

    def pass_on(self, handle: LeaseHandle, task: RunningTask) -> None:
        """Record that the worker continues with another task, under a new lease."""
        self._task_ids.discard(handle.task_id)
        handle.task_id, handle.token = task.task_id, task.token
        self._end_revoked(handle)
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
            handle.stop(ending)

    def revoke(self, token: int) -> None:
        """Stop the step of a lease that is no longer valid, now or once it arrives here."""
        for handle in self._handles:
            if handle.token == token:
                handle.stop(Ending.REVOKED)
                return
        self._revoked[token] = None
        if len(self._revoked) > REVOKED_MAX:
            self._revoked.popitem(last=False)

    def _end_revoked(self, handle: LeaseHandle) -> None:
        if self._revoked and handle.token in self._revoked:
            del self._revoked[handle.token]
            handle.ending = Ending.REVOKED
