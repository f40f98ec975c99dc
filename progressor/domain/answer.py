"""Answers: how the end of a task is told to the caller who waits for it."""

import dataclasses

from progressor import errors
from progressor.domain.process import ProcessKey
from progressor.domain.task import TaskError, TaskResult, TaskStatus, TaskType

PROCESS_FAILED = errors.ProcessFailedError.reason
PROCESS_FINISHED = errors.ProcessFinishedError.reason
PROCESS_IS_RUNNING = errors.ProcessIsRunningError.reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The processor's response to a request; ``deduplicated``: an earlier equal request did it."""

    task_id: int
    task_type: TaskType
    response: bytes
    deduplicated: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A request that is durable: its task goes on whatever becomes of the caller."""

    task_id: int
    deduplicated: bool = False


def response_of(key: ProcessKey, result: TaskResult) -> bytes:
    """Return the response of an ended task.

    Raises:
        RequestError: The task did not finish; the class says how it ended.
    """
    if result.removed:
        raise errors.ProcessRemovedError(key.process_id)
    if result.status is TaskStatus.FINISHED:
        return result.response
    error = result.error
    if error is None:
        raise errors.TaskCancelledError(key.process_id, result.task_id)
    if error.rejected:
        raise errors.RejectedError(
            error.message, code=error.code, processor_reason=error.reason, metadata=error.metadata
        )
    if result.status is TaskStatus.CANCELLED:
        raise _cancelled(key, result.task_id, error)
    raise _failed(key, result, error)


def _cancelled(key: ProcessKey, task_id: int, error: TaskError) -> errors.RequestError:
    if error.reason == PROCESS_FAILED:
        broken_by = error.metadata.get("task_id")
        return errors.ProcessFailedError(
            key.process_id, error.message, None if broken_by is None else int(broken_by)
        )
    if error.reason == PROCESS_FINISHED:
        return errors.ProcessFinishedError(key.process_id)
    if error.reason == PROCESS_IS_RUNNING:
        return errors.ProcessIsRunningError(key.process_id)
    return errors.TaskCancelledError(key.process_id, task_id)


def _failed(key: ProcessKey, result: TaskResult, error: TaskError) -> errors.RequestError:
    if result.task_type is TaskType.REPAIR:
        return errors.RepairFailedError(key.process_id, error.message, result.task_id)
    if error.metadata.get("alone"):
        return errors.TaskFailedError(key.process_id, error.message, result.task_id)
    return errors.ProcessFailedError(key.process_id, error.message, result.task_id)
