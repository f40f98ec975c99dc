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
    return process_service_pb2.GetResponse(
        process=wire.process_to_wire(view.process),
        history=map(wire.event_to_wire, page.events),
        timer=None if view.timer is None else _timer_to_wire(view.timer),
        waits=map(_wait_to_wire, view.waits[:WAITS_MAX]),
        next_after=page.next_after,
    )


def trace_to_wire(
    traces: Sequence[TaskTrace], *, page_size: int
) -> process_service_pb2.TraceResponse:
    """Return a page of at most `page_size` tasks; one more of them says that there is a next."""
    response = process_service_pb2.TraceResponse()
    room = PAGE_BYTES_MAX
    for count, trace in enumerate(traces):
        message = _trace_to_wire(trace)
        room -= message.ByteSize()
        if count == page_size or (count and room < 0):
            response.next_page_token = page_tokens.token_of_task(traces[count - 1].task_id)
            break
        response.tasks.append(message)
    return response


def list_to_wire(
    processes: Sequence[Process], *, page_size: int
) -> process_service_pb2.ListResponse:
    """Return a page of at most `page_size` processes; one more says that there is a next."""
    response = process_service_pb2.ListResponse()
    room = PAGE_BYTES_MAX
    for count, process in enumerate(processes):
        message = wire.process_to_wire(process)
        message.ClearField("aux_state")
        message.ClearField("result")
        room -= message.ByteSize()
        if count == page_size or (count and room < 0):
            response.next_page_token = page_tokens.token_of_process(processes[count - 1])
            break
        response.processes.append(message)
    return response


def _timer_to_wire(timer: Timer) -> types_pb2.Timer:
    return types_pb2.Timer(
        task_id=timer.task_id,
        type=wire.TASK_TYPE_TO_WIRE[timer.task_type],
        status=wire.TASK_STATUS_TO_WIRE[timer.status],
        due_at=wire.datetime_to_timestamp(timer.due_at),
    )


def _wait_to_wire(wait: Wait) -> types_pb2.Wait:
    return types_pb2.Wait(
        task_id=wait.task_id,
        type=wire.TASK_TYPE_TO_WIRE[wait.task_type],
        status=wire.TASK_STATUS_TO_WIRE[wait.status],
        cause=_WAIT_CAUSE_TO_WIRE[wait.cause],
        until=_instant_to_wire(wait.until),
        behind_task_id=wait.behind_task_id,
        attempt=wait.attempt,
        last_error=_error_to_wire(wait.last_error),
        replica_id=wait.replica_id,
    )


def _trace_to_wire(trace: TaskTrace) -> process_service_pb2.TaskTrace:
    return process_service_pb2.TaskTrace(
        task_id=trace.task_id,
        type=wire.TASK_TYPE_TO_WIRE[trace.task_type],
        status=wire.TASK_STATUS_TO_WIRE[trace.status],
        created_at=wire.datetime_to_timestamp(trace.created_at),
        scheduled_at=_instant_to_wire(trace.scheduled_at),
        started_at=_instant_to_wire(trace.started_at),
        finished_at=_instant_to_wire(trace.finished_at),
        attempt_count=trace.attempt_count,
        args=trace.args,
        caller_context=trace.caller_context,
        idempotency_key=trace.idempotency_key or "",
        response=trace.response,
        error=_error_to_wire(trace.error),
        events=map(wire.event_to_wire, trace.events),
    )


def _instant_to_wire(value: dt.datetime | None) -> timestamp_pb2.Timestamp | None:
    return None if value is None else wire.datetime_to_timestamp(value)


def _error_to_wire(error: TaskError | None) -> types_pb2.TaskError | None:
    if error is None:
        return None
    return types_pb2.TaskError(code=error.code, reason=error.reason, message=error.message)
