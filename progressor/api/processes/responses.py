"""Responses of ProcessService, from domain to protobuf; pages cut to what a client can receive."""

from collections.abc import Sequence

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from progressor.api.calls import page_tokens
from progressor.api.processes.wait_codec import fill_wait
from progressor.domain.processes.event import Event
from progressor.domain.views import why
from progressor.domain.views.process import (
    HistoryPage,
    JobRole,
    ProcessPage,
    ProcessView,
    TaskTrace,
    Timer,
    place_of,
)
from progressor.domain.views.wait import Wait
from progressor.v1 import process_service_pb2, types_pb2
from progressor.wire import processes as process_wire
from progressor.wire.nodes import CONSTRAINTS, TASK_ERROR
from progressor.wire.shapes import Field, Shape

PAGE_BYTES_MAX = 3 * 1024 * 1024
"""Bytes of items in one page: a client with gRPC's default of 4 MiB can read it."""

RESPONSE_BYTES_MAX = 4 * 1024 * 1024 - 16 * 1024
"""Bytes of one answer with events: below gRPC's default, with room for what a proxy may add."""

_ITEM_BYTES = 64  # What an event, a task or a process takes besides its payloads, about.

WAITS_MAX = 100
WAITS_BYTES_MAX = 512 * 1024
"""Bytes of waits in one Get. Those of a task with constraints name up to 80 holders of gates."""

_TIMER = Shape(Timer, types_pb2.Timer, task_type="type")
_ROLE = Shape(JobRole, process_service_pb2.JobRole)


def _fill_events(
    message: process_service_pb2.TaskTrace, events: Sequence[Event], _context: object
) -> None:
    add_event = message.events.add
    for event in events:
        process_wire.fill_event(add_event(), event)


_TRACE = Shape(
    TaskTrace,
    process_service_pb2.TaskTrace,
    task_type="type",
    error=TASK_ERROR,
    events=Field(write=_fill_events),
    constraints=CONSTRAINTS,
)


def get_to_wire(
    view: ProcessView, page: HistoryPage, *, without_state: bool = False
) -> process_service_pb2.GetResponse:
    """Return what Get answers: as much of the page as fits, but one event at least.

    A state and an event of the size of a payload's limit do not fit into one message: a client
    that reads a history page by page can have the state left out.
    """
    response = process_service_pb2.GetResponse()
    process_wire.fill_process(response.process, view.process)
    add_event = response.history.add
    for event in page.events:
        process_wire.fill_event(add_event(), event)
    if view.timer is not None:
        _TIMER.write(view.timer, response.timer)
    _fill_waits(response.waits, view.waits)
    response.explanation = why.explain_process(view.process, view.waits, view.role)
    if view.role is not None:
        _ROLE.write(view.role, response.job_role)
    if page.next_after is not None:
        response.next_after = page.next_after
    if without_state:
        response.process.ClearField("aux_state")
        response.process.ClearField("result")
    kept = _fitting(response.history, response.ByteSize() - RESPONSE_BYTES_MAX)
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


def trace_to_wire(
    traces: Sequence[TaskTrace], *, page_size: int
) -> process_service_pb2.TraceResponse:
    """Return a page of at most `page_size` tasks; one more of them says that there is a next."""
    response = process_service_pb2.TraceResponse()
    room = PAGE_BYTES_MAX
    for count, trace in enumerate(traces):
        message = response.tasks.add()
        _TRACE.write(trace, message)
        if not count and message.events:
            # The one task of which a page has at least as much as it can hold.
            del message.events[_fitting(message.events, message.ByteSize() - RESPONSE_BYTES_MAX) :]
        room -= message.ByteSize()
        if count == page_size or (count and room < 0):
            del response.tasks[-1]
            response.next_page_token = page_tokens.TASKS.write(traces[count - 1].task_id)
            break
    return response


def list_to_wire(page: ProcessPage) -> process_service_pb2.ListResponse:
    """Return a page, as much of it as a client can receive."""
    response = process_service_pb2.ListResponse()
    room = PAGE_BYTES_MAX
    next_before = page.next_before
    for count, listed in enumerate(page.listed):
        message = response.processes.add()
        process_wire.fill_process(message, listed.process)
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
        response.next_page_token = page_tokens.PROCESSES.write(place_of(next_before))
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
