"""Reads what a processor answers, and the history: what is recorded, what goes with a task."""

import datetime as dt
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import grpc

from progressor import errors
from progressor.domain.processes import task as domain
from progressor.domain.processes.intent import TIMERS_MAX, Failed, Rejected
from progressor.sdk.codec.wire import duration_from_wire, instant_to_wire
from progressor.sdk.processor.verdicts import status_number
from progressor.sdk.testing.link import RehearsedLink
from progressor.sdk.testing.timers import timer_changes
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.wire import fields, messages, processes

_CODES = {status_number(it): it for it in grpc.StatusCode}
_WITHOUT_CALLER = {domain.TaskType.TIMEOUT, domain.TaskType.JOIN, domain.TaskType.REPLY}
_RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN")


def refusal_of(
    response: pb.ProcessResponse, task_type: domain.TaskType
) -> Failed | Rejected | None:
    """Return how a step failed or was rejected, by its answer; None: it succeeded."""
    match response.WhichOneof("action"):
        case "reject" if task_type in _WITHOUT_CALLER:
            return Failed(
                code=status_number(grpc.StatusCode.INTERNAL),
                reason="INVALID_ANSWER",
                message=f"reject: a {task_type} has no caller to refuse",
                retryable=False,
            )
        case "reject":
            reject = response.reject
            return Rejected(
                code=reject.code,
                reason=reject.reason,
                message=reject.message,
                metadata=dict(reject.metadata),
            )
        case "failure":
            failure = response.failure
            code = _CODES[failure.code or status_number(grpc.StatusCode.UNKNOWN)]
            return Failed(
                code=status_number(code),
                reason=failure.reason or code.name,
                message=failure.message,
                retryable=code.name in _RETRYABLE,
                retry_after=duration_from_wire(failure.retry_after),
            )
        case _:
            return None


def invalid_answer(
    response: pb.ProcessResponse, config: NamespaceConfig, timers: Sequence[str]
) -> Failed | None:
    """Return how the engine refuses an answer of a process with these timers; None: it accepts it.

    Graphs are checked where they are started.
    """
    try:
        _check_answer(response, config.name, config.payload_bytes_max)
        _check_timers(response, timers)
    except errors.InvalidRequestError as error:
        return Failed(
            code=status_number(grpc.StatusCode.INTERNAL),
            reason="INVALID_ANSWER",
            message=str(error),
            retryable=False,
        )
    return None


def _check_answer(response: pb.ProcessResponse, namespace: str, bytes_max: int) -> None:
    fields.check_payload(response.response, "response", bytes_max)
    fields.check_payload(response.aux_state, "aux_state", bytes_max)
    fields.check_payload(response.complete.result, "complete.result", bytes_max)
    fields.struct_to_mapping(response.metadata, "metadata")
    for index, event in enumerate(response.events):
        processes.new_event_from_wire(event, f"events[{index}]", bytes_max)
    if response.HasField("set_timer"):
        processes.set_timer_from_wire(response.set_timer, "set_timer", bytes_max)
    for index, change in enumerate(response.timers):
        if change.HasField("set"):
            processes.set_timer_from_wire(change.set, f"timers[{index}].set", bytes_max)
    messages.messages_from_wire(response.messages, namespace=namespace, payload_bytes_max=bytes_max)


def _check_timers(response: pb.ProcessResponse, timers: Sequence[str]) -> None:
    changes = timer_changes(response)
    is_over = response.WhichOneof("action") in {"remove", "complete"}
    count = len({*timers} - changes.keys()) + sum(it is not None for it in changes.values())
    if response.timers and not is_over and count > TIMERS_MAX:
        fields.refuse("timers", f"the process would have more than {TIMERS_MAX} timers")


def in_range(
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


def recorded(
    event: types_pb2.NewEvent, event_id: int, *, task_id: int, at: dt.datetime
) -> types_pb2.Event:
    """Return an event as it stands in the history."""
    found = types_pb2.Event(
        event_id=event_id,
        payload=event.payload,
        format_version=event.format_version,
        task_id=task_id,
        occurred_at=instant_to_wire(at),
    )
    if event.HasField("metadata"):
        found.metadata.CopyFrom(event.metadata)
    return found


class InlineExecutor(Executor):
    """Runs plain handlers in the thread of the test."""

    def __init__(self, link: RehearsedLink) -> None:
        self._link = link

    def submit(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,  # noqa: ANN401  # as of an Executor
        **kwargs: Any,  # noqa: ANN401  # as of an Executor
    ) -> "Future[Any]":
        """Run a function, and return a future with its result; raise what the function raises."""
        future: Future[Any] = Future()
        with self._link.plain_handler():
            future.set_result(function(*args, **kwargs))
        return future
