"""Writes tasks as requests of ProcessorService, and reads its responses as outcomes.

A response is read as a whole or rejected: its first violation makes the step a failure with reason
INVALID_ANSWER that names the field.
"""

import datetime as dt
from collections.abc import Mapping, Sequence

from google.protobuf import message
from google.rpc import code_pb2

from progressor import errors
from progressor.domain.processes.event import Event, NewEvent
from progressor.domain.processes.intent import (
    NO_TIMERS,
    TIMERS_MAX,
    Action,
    Complete,
    Failed,
    Intent,
    KeepTimer,
    Rejected,
    RemoveProcess,
    SetTimer,
    Succeeded,
    TimerChange,
    UnsetTimer,
)
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.processor import failures
from progressor.v1 import processor_service_pb2
from progressor.wire import fields as wire
from progressor.wire import messages as message_wire
from progressor.wire import nodes as node_wire
from progressor.wire import processes as process_wire

StepOutcome = Succeeded | Rejected | Failed
"""The outcomes that a processor may return."""

EVENTS_MAX = 10_000
"""Events that one step may record."""

TIMER_CHANGES_MAX = 2 * TIMERS_MAX
"""Changes of named timers by one step: it may cancel all, and set as many."""

REJECT_METADATA_PAIRS_MAX = 64
REJECT_METADATA_BYTES_MAX = 2048
"""Both travel to the caller in a gRPC trailer, for which clients set aside about 8 KiB."""

_CODE_MAX = 16


def encode_request(
    task: RunningTask, history: tuple[Event, ...], deadline: dt.datetime, *, epoch: int
) -> bytes:
    """Return the serialized ProcessRequest for one attempt of a task."""
    request = processor_service_pb2.ProcessRequest()
    process_wire.fill_process(request.process, task.process)
    add_event = request.history.add
    for event in history:
        process_wire.fill_event(add_event(), event)
    return _encode_task(request, task, deadline, epoch)


def encode_following(task: RunningTask, deadline: dt.datetime, *, epoch: int) -> bytes:
    """Return the request for a task of a turn, whose process the step before it leaves."""
    return _encode_task(processor_service_pb2.ProcessRequest(), task, deadline, epoch)


def _encode_task(
    request: processor_service_pb2.ProcessRequest,
    task: RunningTask,
    deadline: dt.datetime,
    epoch: int,
) -> bytes:
    message = request.task
    message.task_id = task.task_id
    message.type = process_wire.TASK_TYPE_TO_WIRE[task.task_type]
    if task.task_type is TaskType.REPLY:
        message_wire.fill_reply(message.reply, task.args)
    else:
        message.args = task.args
    message.attempt = task.attempt
    message.token = task.token
    message.timer_name = task.timer_name
    if task.sender is not None:
        message_wire.SENDER.write(task.sender, message.sender)
    wire.fill_timestamp(message.scheduled_at, task.scheduled_at)
    if task.caller_context:
        message.caller_context.update(task.caller_context)
    if task.trace_context:
        message.trace_context.update(task.trace_context)
    add_node = message.nodes.add
    for outcome in task.nodes:
        node_wire.fill_node_outcome(add_node(), outcome)
    if task.memos:
        message.memos.update(task.memos)
    wire.fill_timestamp(request.deadline, deadline)
    request.epoch = epoch
    return request.SerializeToString()


def decode_response(
    packed: bytes, *, task_type: TaskType, namespace: str, payload_bytes_max: int
) -> StepOutcome:
    """Return the outcome in a serialized ProcessResponse; an invalid one is a failure.

    `namespace` is that of the process.
    """
    try:
        response = processor_service_pb2.ProcessResponse.FromString(packed)
    except message.DecodeError:
        return failures.invalid_answer("response: is not a ProcessResponse")
    try:
        match response.WhichOneof("action"):
            case "reject":
                return _rejected(response.reject, task_type)
            case "failure":
                return _failed(response.failure)
            case action:
                return Succeeded(_intent(response, action, namespace, payload_bytes_max))
    except errors.InvalidRequestError as error:
        return failures.invalid_answer(str(error))


def _intent(
    response: processor_service_pb2.ProcessResponse,
    action: str | None,
    namespace: str,
    payload_bytes_max: int,
) -> Intent:
    wire.check_payload(response.response, "response", payload_bytes_max)
    aux_state, metadata, state_version = None, None, response.state_version
    if response.HasField("aux_state"):
        aux_state = response.aux_state
        wire.check_payload(aux_state, "aux_state", payload_bytes_max)
    if state_version:
        process_wire.check_state_version(state_version, "state_version")
        if aux_state is None:
            wire.refuse("state_version", f"must not be set without aux_state, got {state_version}")
    if response.HasField("metadata"):
        metadata = wire.struct_to_mapping(response.metadata, "metadata")
    return Intent(
        events=_events(response, payload_bytes_max),
        aux_state=aux_state,
        metadata=metadata,
        response=response.response,
        timer=_timer(response, payload_bytes_max),
        timers=_timers(response.timers, payload_bytes_max) if response.timers else NO_TIMERS,
        action=_action(response, action, payload_bytes_max),
        state_version=state_version,
        messages=message_wire.messages_from_wire(
            response.messages, namespace=namespace, payload_bytes_max=payload_bytes_max
        )
        if response.messages
        else (),
    )


def _events(
    response: processor_service_pb2.ProcessResponse, payload_bytes_max: int
) -> tuple[NewEvent, ...]:
    events = response.events
    if not events:
        return ()
    if len(events) > EVENTS_MAX:
        wire.refuse("events", wire.too_many(len(events), EVENTS_MAX))
    for index, event in enumerate(events):
        if event.HasField("occurred_at"):
            wire.refuse(
                f"events[{index}].occurred_at", "is for Put only; the engine tells the time"
            )
    return tuple(
        process_wire.new_event_from_wire(event, f"events[{index}]", payload_bytes_max)
        for index, event in enumerate(events)
    )


def _timer(response: processor_service_pb2.ProcessResponse, payload_bytes_max: int) -> TimerChange:
    match response.WhichOneof("timer"):
        case "set_timer":
            return process_wire.set_timer_from_wire(
                response.set_timer, "set_timer", payload_bytes_max
            )
        case "unset_timer":
            return UnsetTimer()
        case _:
            return KeepTimer()


def _timers(
    changes: Sequence[processor_service_pb2.TimerChange], payload_bytes_max: int
) -> dict[str, SetTimer | UnsetTimer]:
    if len(changes) > TIMER_CHANGES_MAX:
        wire.refuse("timers", wire.too_many(len(changes), TIMER_CHANGES_MAX))
    timers: dict[str, SetTimer | UnsetTimer] = {}
    for index, change in enumerate(changes):
        field, name = f"timers[{index}]", change.name
        process_wire.check_timer_name(name, f"{field}.name")
        if name in timers:
            wire.refuse(f"{field}.name", f"timer {name!r} is listed twice")
        match change.WhichOneof("change"):
            case "set":
                timers[name] = process_wire.set_timer_from_wire(
                    change.set, f"{field}.set", payload_bytes_max
                )
            case "unset":
                timers[name] = UnsetTimer()
            case _:
                wire.refuse(field, "must have set or unset")
    if sum(isinstance(it, SetTimer) for it in timers.values()) > TIMERS_MAX:
        wire.refuse("timers", f"a process can have at most {TIMERS_MAX} timers")
    return timers


def _action(
    response: processor_service_pb2.ProcessResponse, action: str | None, payload_bytes_max: int
) -> Action | None:
    match action:
        case None:
            return None
        case "remove":
            return RemoveProcess()
        case "complete":
            result = response.complete.result
            wire.check_payload(result, "complete.result", payload_bytes_max)
            return Complete(result)
        case "start_nodes":
            return node_wire.start_nodes_from_wire(
                response.start_nodes, "start_nodes", payload_bytes_max
            )
        case _:
            message_of_a_bug = f"unknown action {action!r} of ProcessResponse"
            raise AssertionError(message_of_a_bug)


def _rejected(reject: processor_service_pb2.Reject, task_type: TaskType) -> Rejected:
    if task_type in {TaskType.TIMEOUT, TaskType.JOIN, TaskType.REPLY}:
        wire.refuse("reject", f"a {task_type} has no caller to refuse")
    return Rejected(
        code=_code(reject.code, "reject.code"),
        message=failures.clean_text(reject.message),
        reason=failures.clean_reason(reject.reason),
        metadata=_reject_metadata(reject.metadata) if reject.metadata else {},
    )


def _code(code: int, field: str) -> int:
    """Return the status code of a reject or a failure; 0 means UNKNOWN."""
    if not 0 <= code <= _CODE_MAX:
        wire.refuse(field, f"must be in 1 .. {_CODE_MAX}, or 0 for UNKNOWN, got {code}")
    return code or code_pb2.UNKNOWN


def _reject_metadata(pairs: Mapping[str, str]) -> dict[str, str]:
    if len(pairs) > REJECT_METADATA_PAIRS_MAX:
        wire.refuse("reject.metadata", wire.too_many(len(pairs), REJECT_METADATA_PAIRS_MAX))
    size = sum(len(key.encode()) + len(value.encode()) for key, value in pairs.items())
    if size > REJECT_METADATA_BYTES_MAX:
        wire.refuse("reject.metadata", wire.too_large(size, REJECT_METADATA_BYTES_MAX))
    return {failures.clean_text(key): failures.clean_text(value) for key, value in pairs.items()}


def _failed(failure: processor_service_pb2.Failure) -> Failed:
    code = _code(failure.code, "failure.code")
    retry_after = None
    if failure.HasField("retry_after"):
        retry_after = wire.duration_to_timedelta(failure.retry_after, "failure.retry_after")
        if not dt.timedelta(0) <= retry_after <= failures.RETRY_AFTER_MAX:
            days = failures.RETRY_AFTER_MAX.days
            wire.refuse("failure.retry_after", f"{retry_after} is not in 0 .. {days} days")
    if code in failures.MISCONFIGURED_CODES:
        return failures.misconfigured(code, failure.reason, failure.message, retry_after)
    reason = failures.clean_reason(failure.reason) or failures.code_name(code)
    # It will be as large next time.
    too_large = reason == failures.MESSAGE_TOO_LARGE
    return Failed(
        code=code,
        reason=reason,
        message=failures.clean_text(failure.message),
        retryable=code in failures.RETRYABLE_CODES and not too_large,
        retry_after=retry_after,
        unreachable=code in failures.UNREACHABLE_CODES and not too_large,
        release=failures.clean_text(failure.release, failures.RELEASE_BYTES_MAX),
    )
