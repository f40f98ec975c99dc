"""One attempt of a task: the request, the meaning of its answer, and when it is retried."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

import grpc

from progressor.domain.processes.retry import next_delay
from progressor.sdk.codec.codecs import Codec
from progressor.sdk.codec.wire import duration_from_wire, instant_to_wire
from progressor.sdk.processor.verdicts import status_number
from progressor.sdk.values.jobs import NodeOutcome, outcome_to_wire
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.processes import TaskError, TaskType
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2

_RETRYABLE = frozenset(
    status_number(it)
    for it in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    )
)
_CODE_NAMES = {status_number(it): it.name for it in grpc.StatusCode}
_WITHOUT_CALLER = frozenset({TaskType.TIMEOUT, TaskType.JOIN})


@dataclasses.dataclass(slots=True, kw_only=True)
class Task:
    """A running task; `attempt` counts up."""

    task_id: int
    type: TaskType
    args: bytes
    scheduled_at: dt.datetime
    first_at: dt.datetime
    context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes: Sequence[NodeOutcome] = ()
    history_range: types_pb2.HistoryRange | None = None
    attempt: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failed attempt; one that is ``retryable`` may be followed by another."""

    error: TaskError
    retryable: bool
    retry_after: dt.timedelta


def request_for(
    task: Task,
    process: types_pb2.Process,
    history: Sequence[types_pb2.Event],
    *,
    config: NamespaceConfig,
    codec: Codec,
    now: dt.datetime,
) -> pb.ProcessRequest:
    """Return the request to the processor."""
    request = pb.ProcessRequest(
        process=process,
        history=_in_range(history, task.history_range, config.history_last),
        task=pb.ProcessorTask(
            task_id=task.task_id,
            type=types_pb2.TaskType.ValueType(task.type.number),
            args=task.args,
            attempt=task.attempt,
            token=task.task_id * 1_000 + task.attempt,
            scheduled_at=instant_to_wire(task.scheduled_at),
            caller_context=task.context,
            nodes=[outcome_to_wire(it, codec) for it in task.nodes],
        ),
        deadline=instant_to_wire(now + config.step_timeout),
    )
    # A copy, so that a handler cannot change the process through the request.
    return pb.ProcessRequest.FromString(request.SerializeToString())


def failure_of(response: pb.ProcessResponse, task_type: TaskType) -> Failed | None:
    """Return how a step failed, by its answer; None: it succeeded or was rejected."""
    if response.HasField("reject") and task_type in _WITHOUT_CALLER:
        text = f"reject: a {task_type} has no caller to refuse"
        error = TaskError(
            code=status_number(grpc.StatusCode.INTERNAL), reason="INVALID_ANSWER", message=text
        )
        return Failed(error=error, retryable=False, retry_after=dt.timedelta())
    if not response.HasField("failure"):
        return None
    failure = response.failure
    code = failure.code or status_number(grpc.StatusCode.UNKNOWN)
    return Failed(
        error=TaskError(
            code=code, reason=failure.reason or _CODE_NAMES[code], message=failure.message
        ),
        retryable=code in _RETRYABLE,
        retry_after=duration_from_wire(failure.retry_after),
    )


def delay_after(
    failed: Failed, task: Task, config: NamespaceConfig, now: dt.datetime
) -> dt.timedelta | None:
    """Return how long the next attempt waits, without jitter; None: there is none."""
    if not failed.retryable:
        return None
    return next_delay(
        config.policy_for(task.type.value),
        attempt=task.attempt,
        reason=failed.error.reason,
        elapsed=now - task.first_at,
        spread=0,
        retry_after=failed.retry_after,
    )


def _in_range(
    history: Sequence[types_pb2.Event],
    requested: types_pb2.HistoryRange | None,
    last: int | None,
) -> Sequence[types_pb2.Event]:
    """Return the part of a history that was requested, or else the namespace's default."""
    if requested is None:
        return history if last is None else history[len(history) - min(last, len(history)) :]
    after = requested.after
    if requested.direction == types_pb2.DIRECTION_BACKWARD:
        found = [it for it in reversed(history) if not after or it.event_id < after]
    else:
        found = [it for it in history if it.event_id > after]
    return found[: requested.limit] if requested.HasField("limit") else found
