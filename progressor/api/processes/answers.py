"""Answers of ProcessService, from domain to protobuf; pages cut to what a client can receive."""

from collections.abc import Sequence

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from progressor.api.calls import page_tokens
from progressor.api.processes.wait_codec import fill_spent, fill_wait
from progressor.domain.processes.event import Event
from progressor.domain.views import why
from progressor.domain.views.process import (
    HistoryPage,
    JobRole,
    ProcessPage,
    ProcessView,
    TaskTrace,
    Timer,
)
from progressor.domain.views.wait import Wait
from progressor.v1 import process_service_pb2, types_pb2
from progressor.wire import fields as wire
from progressor.wire.nodes import fill_constraints, fill_error

PAGE_BYTES_MAX = 3 * 1024 * 1024
"""Bytes of items in one page: a client with gRPC's default of 4 MiB can read it."""

ANSWER_BYTES_MAX = 4 * 1024 * 1024 - 16 * 1024
"""Bytes of one answer with events: below gRPC's default, with room for what a proxy may add."""

_ITEM_BYTES = 64  # What an event, a task or a process takes besides its payloads, about.

WAITS_MAX = 100
WAITS_BYTES_MAX = 512 * 1024
"""Bytes of waits in one Get. Those of a task with constraints name up to 80 holders of gates."""


def get_to_wire(
    view: ProcessView, page: HistoryPage, *, without_state: bool = False
) -> process_service_pb2.GetResponse:
    """Return what Get answers: as much of the page as fits, but one event at least.

    A state and an event of the size of a payload's limit do not fit together: whoever reads a
    history page by page can have the state left out.
    """
    response = process_service_pb2.GetResponse()
    wire.fill_process(response.process, view.process)
    add_event = response.history.add
    for event in page.events:
        wire.fill_event(add_event(), event)
    if view.timer is not None:
        _fill_timer(response.timer, view.timer)
    _fill_waits(response.waits, view.waits)
    response.explanation = why.explain_process(view.process, view.waits, view.role)
    if view.role is not None:
        _fill_role(response.job_role, view.role)
    if page.next_after is not None:
        response.next_after = page.next_after
    if without_state:
        response.process.ClearField("aux_state")
        response.process.ClearField("result")
    kept = _fitting(response.history, response.ByteSize() - ANSWER_BYTES_MAX)
    if kept < len(response.history):
        del response.history[kept:]
        response.next_after = response.history[-1].event_id
    return response


def _fitting(events: Sequence[types_pb2.Event], excess: int) -> int:
    """Return how many of the events are left, one at least, if `excess` bytes are to go."""
    kept = len(events)
    while excess > 0 and kept > 1:
        kept -= 1
        excess -= events[kept].ByteSize()
    return kept


def size_of_get(view: ProcessView, page: HistoryPage) -> int:
    """Return about how many bytes `get_to_wire` makes of this, without making them."""
    process = view.process
    return _ITEM_BYTES + len(process.aux_state) + len(process.result or b"") + _size_of(page.events)


def size_of_trace(trace: TaskTrace) -> int:
    """Return about how many bytes a task takes in the answer to Trace."""
    return _ITEM_BYTES + len(trace.args) + len(trace.response) + _size_of(trace.events)


def _size_of(events: Sequence[Event]) -> int:
    return sum(_ITEM_BYTES + len(event.payload) for event in events)


def _fill_role(message: process_service_pb2.JobRole, role: JobRole) -> None:
    if role.led is not None:
        message.led.unfinished_count = role.led.unfinished_count
        message.led.node_count = role.led.node_count
    if role.followed is not None:
        message.followed.namespace = role.followed.namespace
        message.followed.job_id = role.followed.job_id
        message.followed.node = role.followed.node


def trace_to_wire(
    traces: Sequence[TaskTrace], *, page_size: int
) -> process_service_pb2.TraceResponse:
    """Return a page of at most `page_size` tasks; one more of them says that there is a next."""
    response = process_service_pb2.TraceResponse()
    room = PAGE_BYTES_MAX
    for count, trace in enumerate(traces):
        message = response.tasks.add()
        _fill_trace(message, trace)
        if not count and message.events:
            # The one task of which a page has at least as much as it can hold.
            del message.events[_fitting(message.events, message.ByteSize() - ANSWER_BYTES_MAX) :]
        room -= message.ByteSize()
        if count == page_size or (count and room < 0):
            del response.tasks[-1]
            response.next_page_token = page_tokens.token_of_task(traces[count - 1].task_id)
            break
    return response


def list_to_wire(page: ProcessPage) -> process_service_pb2.ListResponse:
    """Return a page, as much of it as a client can receive."""
    response = process_service_pb2.ListResponse()
    room = PAGE_BYTES_MAX
    next_before = page.next_before
    for count, listed in enumerate(page.listed):
        message = response.processes.add()
        wire.fill_process(message, listed.process)
        message.ClearField("aux_state")
        message.ClearField("result")
        if listed.first_wait is not None:
            fill_wait(message.first_wait, listed.first_wait)
        room -= message.ByteSize()
        if count and room < 0:
            del response.processes[-1]
            next_before = page.listed[count - 1].process
            break
    if next_before is not None:
        response.next_page_token = page_tokens.token_of_process(next_before)
    return response


def _fill_waits(
    messages: RepeatedCompositeFieldContainer[types_pb2.Wait], waits: Sequence[Wait]
) -> None:
    room = WAITS_BYTES_MAX
    for wait in waits[:WAITS_MAX]:
        message = messages.add()
        fill_wait(message, wait)
        room -= message.ByteSize()
        if room < 0 and len(messages) > 1:
            del messages[-1]
            return


def _fill_timer(message: types_pb2.Timer, timer: Timer) -> None:
    message.task_id = timer.task_id
    message.type = wire.TASK_TYPE_TO_WIRE[timer.task_type]
    message.status = wire.TASK_STATUS_TO_WIRE[timer.status]
    wire.fill_timestamp(message.due_at, timer.due_at)


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
        fill_error(message.error, trace.error)
    _fill_gated(message, trace)
    add_event = message.events.add
    for event in trace.events:
        wire.fill_event(add_event(), event)


def _fill_gated(message: process_service_pb2.TaskTrace, trace: TaskTrace) -> None:
    if trace.constraints is not None:
        fill_constraints(message.constraints, trace.constraints)
    if trace.replica_id is not None:
        message.replica_id = trace.replica_id
    if trace.spent is not None:
        fill_spent(message.spent, trace.spent)
