"""One attempt at a step: what is asked, what the answer means, and when it is tried again."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

import grpc

from progressor.domain.processes.policy import RetryPolicy
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
    """What is being carried out; `attempt` and the clock go on with it."""

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
    """An attempt that failed; another one may help where it is ``retryable``."""

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
    """Return what the processor is asked."""
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
    # What a handler does to the request must not reach the process.
    return pb.ProcessRequest.FromString(request.SerializeToString())


def failure_of(response: pb.ProcessResponse, task_type: TaskType) -> Failed | None:
    """Return how a step failed by its answer; None: it did not, or was refused."""
    if response.HasField("reject") and task_type in _WITHOUT_CALLER:
        words = f"reject: a {task_type} has no caller to refuse"
        error = TaskError(
            code=status_number(grpc.StatusCode.INTERNAL), reason="INVALID_ANSWER", message=words
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
    policy = config.retry_policies.get(task.type.value, config.retry_policy)
    is_last = task.attempt >= policy.attempts_max
    if not failed.retryable or is_last or failed.error.reason in policy.non_retryable_reasons:
        return None
    delay = max(_interval(policy, task.attempt), failed.retry_after)
    if policy.elapsed_max is not None and now - task.first_at + delay > policy.elapsed_max:
        return None
    return delay


def _interval(policy: RetryPolicy, attempt: int) -> dt.timedelta:
    try:
        grown = policy.initial_interval.total_seconds() * policy.coefficient ** (attempt - 1)
    except OverflowError:
        return policy.interval_max
    return min(dt.timedelta(seconds=grown), policy.interval_max)


def _in_range(
    history: Sequence[types_pb2.Event],
    asked: types_pb2.HistoryRange | None,
    last: int | None,
) -> Sequence[types_pb2.Event]:
    """Return the part of a history that was asked for, or that the namespace says."""
    if asked is None:
        return history if last is None else history[len(history) - min(last, len(history)) :]
    if asked.direction == types_pb2.DIRECTION_BACKWARD:
        found = [it for it in reversed(history) if not asked.after or it.event_id < asked.after]
    else:
        found = [it for it in history if it.event_id > asked.after]
    return found[: asked.limit] if asked.HasField("limit") else found
