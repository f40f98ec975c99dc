"""Aftermath: who has to hear of a settlement once it is durable."""

from collections.abc import Callable
from typing import assert_never

from progressor.domain.processes import reply
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import BROKEN_BY, TaskError, TaskResult, TaskStatus, TaskType
from progressor.runtime.core import changes
from progressor.runtime.core.due_queue import DueQueue
from progressor.runtime.core.replies import Replies
from progressor.storage.processes.settlements import Entry, Written
from progressor.storage.rows.cancelled import Cancelled

_REQUESTS = frozenset({TaskType.INIT, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR})
"""Tasks that somebody waits for as a rule; for a timer somebody does whom `reply_to` names."""

_FAILED_PRECONDITION = 9


class Aftermath:
    """Tells callers, here and in other replicas, the due queue, and the log."""

    def __init__(
        self, *, replies: Replies, due_queue: DueQueue, replica_id: Callable[[], int]
    ) -> None:
        self._replies = replies
        self._due_queue = due_queue
        self._replica_id = replica_id

    def of(self, entry: Entry, written: Written) -> None:
        """Tell everybody concerned by a settlement, at once and without waiting."""
        own = self._replica_id()
        result = _result(entry)
        if result is not None and (entry.task_type in _REQUESTS or written.reply_to):
            self._replies.deliver(
                result, reply_to=written.reply_to, own=own, namespace=entry.key.namespace
            )
        removed = isinstance(entry.settlement, Remove)
        error = _cancellation(entry)
        for task in written.cancelled:
            self.cancelled(task, namespace=entry.key.namespace, error=error, removed=removed)
        if written.due is not None:
            self._due_queue.add(written.due, told_at=written.settled_at)
        changes.settled(entry)

    def cancelled(
        self, task: Cancelled, *, namespace: str, error: TaskError | None, removed: bool
    ) -> None:
        """Tell those who wait for a task that it will never run."""
        if task.task_type not in _REQUESTS and not task.reply_to:
            return
        result = TaskResult(
            task_id=task.task_id,
            task_type=task.task_type,
            status=TaskStatus.CANCELLED,
            error=error,
            removed=removed,
        )
        self._replies.deliver(
            result, reply_to=task.reply_to, own=self._replica_id(), namespace=namespace
        )


def _result(entry: Entry) -> TaskResult | None:
    """Return how the task has ended; None for one that waits for another attempt."""
    settlement: Settlement = entry.settlement
    match settlement:
        case Finish(intent):
            response, error = intent.response, None
        case Fail(error) | Break(error):
            response = b""
        case Remove():
            response, error = settlement.response, settlement.error
        case Retry():
            return None
        case _:
            assert_never(settlement)
    return TaskResult(
        task_id=entry.task_id,
        task_type=entry.task_type,
        status=TaskStatus.FINISHED if error is None else TaskStatus.ERROR,
        response=response,
        error=error,
    )


def _cancellation(entry: Entry) -> TaskError | None:
    """Return the error of the waiting tasks, in the same words as settle_waits.sql stores."""
    match entry.settlement:
        case Break(error):
            return TaskError(
                code=_FAILED_PRECONDITION,
                reason=reply.PROCESS_FAILED,
                message=error.message,
                metadata={
                    BROKEN_BY: str(entry.task_id),
                    reply.FAILURE_CODE: str(error.code),
                    reply.FAILURE_REASON: error.reason,
                },
            )
        case Finish(intent):
            completes = isinstance(intent.action, Complete)
            reason = reply.PROCESS_FINISHED if completes else reply.PROCESS_IS_RUNNING
            return TaskError(code=_FAILED_PRECONDITION, reason=reason, message="")
        case Fail() | Retry() | Remove():
            return None
        case _:
            assert_never(entry.settlement)
