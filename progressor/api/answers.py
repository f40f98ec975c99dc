"""Answers of ProcessService, from domain to protobuf; pages cut to what a client can receive."""

import datetime as dt
from collections.abc import Mapping, Sequence

from google.protobuf import timestamp_pb2

from progressor import wire
from progressor.api import page_tokens
from progressor.domain.process import Process
from progressor.domain.task import TaskError
from progressor.domain.view import (
    HistoryPage,
    ProcessView,
    TaskTrace,
    Timer,
    Wait,
    WaitCause,
)
from progressor.v1 import process_service_pb2, types_pb2

PAGE_BYTES_MAX = 3 * 1024 * 1024
"""Bytes of items in one page: a client with gRPC's default of 4 MiB can read it."""

WAITS_MAX = 100

_WAIT_CAUSE_TO_WIRE: Mapping[WaitCause, types_pb2.WaitCause.ValueType] = {
    WaitCause.RUNNING: types_pb2.WAIT_CAUSE_RUNNING,
    WaitCause.TIMER: types_pb2.WAIT_CAUSE_TIMER,
    WaitCause.BEHIND_TASK: types_pb2.WAIT_CAUSE_BEHIND_TASK,
    WaitCause.NO_FREE_WORKER: types_pb2.WAIT_CAUSE_NO_FREE_WORKER,
    WaitCause.RETRY: types_pb2.WAIT_CAUSE_RETRY,
}


def get_to_wire(view: ProcessView, page: HistoryPage) -> process_service_pb2.GetResponse:
    """Return what Get answers."""
    response = process_service_pb2.GetResponse()
    wire.fill_process(response.process, view.process)
    add_event = response.history.add
    for event in page.events:
        wire.fill_event(add_event(), event)
    if view.timer is not None:
        _fill_timer(response.timer, view.timer)
    if view.waits:
        response.waits.extend(map(_wait_to_wire, view.waits[:WAITS_MAX]))
    if page.next_after is not None:
        response.next_after = page.next_after
    return response


def trace_to_wire(
    traces: Sequence[TaskTrace], *, page_size: int
) -> process_service_pb2.TraceResponse:
    """Return a page of at most `page_size` tasks; one more of them says that there is a next."""
    response = process_service_pb2.TraceResponse()
    room = PAGE_BYTES_MAX
    for count, trace in enumerate(traces):
        message = response.tasks.add()
        _fill_trace(message, trace)
        room -= message.ByteSize()
        if count == page_size or (count and room < 0):
            del response.tasks[-1]
            response.next_page_token = page_tokens.token_of_task(traces[count - 1].task_id)
            break
    return response


def list_to_wire(
    processes: Sequence[Process], *, page_size: int
) -> process_service_pb2.ListResponse:
    """Return a page of at most `page_size` processes; one more says that there is a next."""
    response = process_service_pb2.ListResponse()
    room = PAGE_BYTES_MAX
    for count, process in enumerate(processes):
        message = response.processes.add()
        wire.fill_process(message, process)
        message.ClearField("aux_state")
        message.ClearField("result")
        room -= message.ByteSize()
        if count == page_size or (count and room < 0):
            del response.processes[-1]
            response.next_page_token = page_tokens.token_of_process(processes[count - 1])
            break
    return response


def _fill_timer(message: types_pb2.Timer, timer: Timer) -> None:
    message.task_id = timer.task_id
    message.type = wire.TASK_TYPE_TO_WIRE[timer.task_type]
    message.status = wire.TASK_STATUS_TO_WIRE[timer.status]
    wire.fill_timestamp(message.due_at, timer.due_at)


def _wait_to_wire(wait: Wait) -> types_pb2.Wait:
    return types_pb2.Wait(
        task_id=wait.task_id,
        type=wire.TASK_TYPE_TO_WIRE[wait.task_type],
        status=wire.TASK_STATUS_TO_WIRE[wait.status],
        cause=_WAIT_CAUSE_TO_WIRE[wait.cause],
        until=_instant_to_wire(wait.until),
        behind_task_id=wait.behind_task_id,
        attempt=wait.attempt,
        last_error=None if wait.last_error is None else _error_to_wire(wait.last_error),
        replica_id=wait.replica_id,
    )


def _fill_trace(message: process_service_pb2.TaskTrace, trace: TaskTrace) -> None:
    message.task_id = trace.task_id
    message.type = wire.TASK_TYPE_TO_WIRE[trace.task_type]
    message.status = wire.TASK_STATUS_TO_WIRE[trace.status]
    wire.fill_timestamp(message.created_at, trace.created_at)
    if trace.scheduled_at is not None:
        wire.fill_timestamp(message.scheduled_at, trace.scheduled_at)
    if trace.started_at is not None:
        wire.fill_timestamp(message.started_at, trace.started_at)
    if trace.finished_at is not None:
        wire.fill_timestamp(message.finished_at, trace.finished_at)
    message.attempt_count = trace.attempt_count
    message.args = trace.args
    if trace.caller_context:
        message.caller_context.update(trace.caller_context)
    message.idempotency_key = trace.idempotency_key or ""
    message.response = trace.response
    if trace.error is not None:
        message.error.CopyFrom(_error_to_wire(trace.error))
    add_event = message.events.add
    for event in trace.events:
        wire.fill_event(add_event(), event)


def _instant_to_wire(value: dt.datetime | None) -> timestamp_pb2.Timestamp | None:
    return None if value is None else wire.datetime_to_timestamp(value)


def _error_to_wire(error: TaskError) -> types_pb2.TaskError:
    return types_pb2.TaskError(code=error.code, reason=error.reason, message=error.message)
