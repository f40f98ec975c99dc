"""Tending: jobs in which something is left to do that no settlement does.

Who hears of one here tends it at once; the scan finds those whose replica died before.
"""

import asyncio

from progressor.domain.processes import reply
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskError
from progressor.runtime.core.due_queue import DueQueue
from progressor.runtime.core.effects import Aftermath
from progressor.storage.processes.settlements import Due
from progressor.storage.rows.cancelled import Cancelled
from progressor.storage.rows.job_effects import JobNews

SIZE_MAX = 10_000
"""Jobs that are kept; what does not fit is left to the scan."""

_FAILED_PRECONDITION = 9
_STOPPED = TaskError(
    code=_FAILED_PRECONDITION, reason=reply.PROCESS_FAILED, message="its job has ended"
)


class UpkeepQueue:
    """What this replica has heard of jobs."""

    def __init__(self, due_queue: DueQueue, aftermath: Aftermath) -> None:
        self._due_queue = due_queue
        self._aftermath = aftermath
        self._untended: dict[ProcessKey, None] = {}
        self.changed = asyncio.Event()
        """Set when there are jobs to tend."""

    def heard(self, news: JobNews) -> None:
        """Take note of what a settlement has told."""
        for key, task_id in news.due:
            self._due_queue.add(Due(key=key, task_id=task_id, due_at=news.at), told_at=news.at)
        for key, task in news.cancelled:
            self.stopped(key, task, _STOPPED)
        self.add(*news.untended)

    def stopped(self, key: ProcessKey, task: Cancelled, error: TaskError) -> None:
        """Tell the callers of a task that was cancelled, since the job of its process has ended."""
        self._aftermath.cancelled(task, namespace=key.namespace, error=error, removed=False)

    def add(self, *keys: ProcessKey) -> None:
        """Note jobs that want tending."""
        for key in keys:
            if len(self._untended) < SIZE_MAX:
                self._untended[key] = None
        if self._untended:
            self.changed.set()

    def take(self) -> tuple[ProcessKey, ...]:
        """Take all that are noted, the oldest first."""
        taken = tuple(self._untended)
        self._untended.clear()
        self.changed.clear()
        return taken
