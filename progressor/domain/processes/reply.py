"""Replies: what a caller who waits for a task, or for a process, gets when that has ended."""

import dataclasses
import datetime as dt
import enum
from typing import assert_never

from progressor import errors, job_errors
from progressor.domain import values
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import BROKEN_BY, TaskError, TaskResult, TaskStatus, TaskType

FAILURE_CODE = "failure_code"
FAILURE_REASON = "failure_reason"
"""In the metadata of a task cancelled because its process broke, beside `BROKEN_BY`."""

PROCESS_FAILED = errors.ProcessFailedError.reason
PROCESS_FINISHED = errors.ProcessFinishedError.reason
PROCESS_IS_RUNNING = errors.ProcessIsRunningError.reason
PROCESS_REMOVED = errors.ProcessRemovedError.reason

_LED_BY_ENGINE = (job_errors.LedByEngineError.reason, job_errors.LED_BY_ENGINE)
"""How the engine rejects requests to a leader that it runs itself."""


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The processor's response to a request; ``deduplicated``: an earlier equal request did it."""

    task_id: int
    task_type: TaskType
    response: bytes
    deduplicated: bool = False


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A durable request: its task runs whether or not the caller stays."""

    task_id: int
    deduplicated: bool = False


class End(enum.StrEnum):
    """How a process has ended; REMOVED: it is gone."""

    FINISHED = "finished"
    TERMINATED = "terminated"
    FAILED = "failed"
    REMOVED = "removed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How a process has ended, if it has; see priv/functions/queries/find_end.sql.

    The init task and the instant of creation tell the process from others of its id.
    """

    init_task_id: int
    created_at: dt.datetime
    verdict: End | None = None
    result: bytes = b""
    detail: str = ""
    broken_by: int | None = None
    error_code: int | None = None
    error_reason: str | None = None

    def ends_wait(self, *, until_finished: bool) -> bool:
        """Return whether a caller who waits for the end gets it now.

        One who waits until the process is finished goes on waiting while it is in error.
        """
        return self.verdict is not None and not (until_finished and self.verdict is End.FAILED)


def result_of(key: ProcessKey, end: ProcessEnd) -> bytes:
    """Return the result of an ended process.

    Raises:
        StateError: It did not complete; the class says how it ended.
    """
    match end.verdict:
        case End.FINISHED:
            return end.result
        case End.TERMINATED:
            raise errors.ProcessTerminatedError(key.process_id, end.detail)
        case End.FAILED:
            failure = errors.StepFailure(
                broken_by=end.broken_by, code=end.error_code, reason=end.error_reason
            )
            raise errors.ProcessFailedError(key.process_id, end.detail, failure=failure)
        case End.REMOVED:
            raise errors.ProcessRemovedError(key.process_id)
        case None:
            raise AssertionError("the process has not ended")  # a bug of the caller
        case _:
            assert_never(end.verdict)


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
    if error.rejected and (error.reason, error.message) == _LED_BY_ENGINE:
        raise job_errors.LedByEngineError(key.namespace, key.process_id)
    if error.rejected:
        raise errors.RejectedError(
            error.message, code=error.code, processor_reason=error.reason, metadata=error.metadata
        )
    if result.status is TaskStatus.CANCELLED:
        raise _cancelled(key, result.task_id, error)
    raise _failed(key, result, error)


def _cancelled(key: ProcessKey, task_id: int, error: TaskError) -> errors.RequestError:
    if error.reason == PROCESS_FAILED:
        failure = errors.StepFailure(
            broken_by=_number(error, BROKEN_BY),
            code=_number(error, FAILURE_CODE),
            reason=error.metadata.get(FAILURE_REASON),
        )
        return errors.ProcessFailedError(
            key.process_id, error.message, task_id=task_id, failure=failure
        )
    if error.reason == PROCESS_FINISHED:
        return errors.ProcessFinishedError(key.process_id)
    if error.reason == PROCESS_REMOVED:
        return errors.ProcessRemovedError(key.process_id)
    if error.reason == PROCESS_IS_RUNNING:
        return errors.ProcessIsRunningError(key.process_id)
    return errors.TaskCancelledError(key.process_id, task_id)


def _failed(key: ProcessKey, result: TaskResult, error: TaskError) -> errors.RequestError:
    task_id = result.task_id
    failure = errors.StepFailure(
        broken_by=_number(error, BROKEN_BY), code=error.code, reason=error.reason
    )
    if result.task_type is TaskType.REPAIR:
        return errors.RepairFailedError(key.process_id, error.message, task_id, failure)
    if error.metadata.get("alone"):
        return errors.TaskFailedError(key.process_id, error.message, task_id, failure)
    failure = dataclasses.replace(failure, broken_by=task_id)
    return errors.ProcessFailedError(
        key.process_id, error.message, own=True, task_id=task_id, failure=failure
    )


def _number(error: TaskError, key: str) -> int | None:
    text = error.metadata.get(key)
    return None if text is None else int(text)
