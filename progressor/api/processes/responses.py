"""Responses of ProcessService; pages are cut to what a client can receive."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message

from progressor.api.calls import page_tokens
from progressor.api.gates import HOLDER
from progressor.domain.gates.constraint import Order, Version
from progressor.domain.jobs.roles import JobRole
from progressor.domain.processes.event import Event
from progressor.domain.processes.message import RefusedMessage
from progressor.domain.processes.process import ProcessCount
from progressor.domain.processes.task import TaskType
from progressor.domain.views import why
from progressor.domain.views.failure import NOT_BROKEN, Broken, FailedRepair, FailureGroup
from progressor.domain.views.process import (
    AwaitedReply,
    HistoryPage,
    Listed,
    ProcessPage,
    ProcessView,
    Replies,
    TaskTrace,
    Timer,
    place_of,
)
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    GatesFull,
    GateWait,
    NoReplica,
    OrderWait,
    Overrun,
    QuotaUsedUp,
    Wait,
)
from progressor.v1 import messages_pb2, types_pb2
from progressor.v1 import process_service_pb2 as pb
from progressor.wire import processes as process_wire
from progressor.wire.messages import fill_reply
from progressor.wire.nodes import CONSTRAINTS, TASK_ERROR
from progressor.wire.shapes import UNSENT, Field, Shape

M = TypeVar("M", bound=Message)
Item = TypeVar("Item")

PAGE_BYTES_MAX = 3 * 1024 * 1024
"""Bytes of items in one page: a client with gRPC's default of 4 MiB can read it."""

RESPONSE_BYTES_MAX = 4 * 1024 * 1024 - 16 * 1024
"""Bytes of one answer with events: below gRPC's default, with room for what a proxy may add."""

_ITEM_BYTES = 64  # What an event, a task or a process takes besides its payloads, about.

WAITS_MAX = 100
WAITS_BYTES_MAX = 512 * 1024
"""Bytes of waits in one Get. Those of a task with constraints name up to 80 holders of gates."""

REPLIES_BYTES_MAX = 64 * 1024
"""Of those that a process waits for in one Get, and again of those that are requested of it."""

_AWAITED_REPLY = Shape(AwaitedReply, messages_pb2.AwaitedReply)
_TIMER = Shape(Timer, types_pb2.Timer, task_type="type")
_ROLE = Shape(JobRole, pb.JobRole)


def _fill_events(message: pb.TaskTrace, events: Sequence[Event], _context: object) -> None:
    add_event = message.events.add
    for event in events:
        process_wire.fill_event(add_event(), event)


_TRACE = Shape(
    TaskTrace,
    pb.TaskTrace,
    task_type="type",
    error=TASK_ERROR,
    events=Field(write=_fill_events),
    refused_messages=Shape(RefusedMessage, messages_pb2.RefusedMessage),
    constraints=CONSTRAINTS,
)


def _fill_version(message: Any, version: Version, _context: object) -> None:  # noqa: ANN401  # of two
    message.version = str(version)


_CAUSE_TO_WIRE: Mapping[type[Cause], types_pb2.WaitCause.ValueType] = {
    cause: types_pb2.WaitCause.Value(f"WAIT_CAUSE_{cause.NAME.upper()}")
    for cause in get_args(Cause)
}
CAUSE_FROM_WIRE: Mapping[int, type[Cause]] = {
    number: cause for cause, number in _CAUSE_TO_WIRE.items()
}

_ORDER = Shape(
    OrderWait,
    types_pb2.OrderWait,
    order=Shape(Order, types_pb2.Order, version=Field(write=_fill_version)),
    version=Field(write=_fill_version),
)
_SHAPES: Mapping[type[Cause], Shape[Any, types_pb2.Wait]] = {
    **{cause: Shape(cause, types_pb2.Wait) for cause in _CAUSE_TO_WIRE},
    Overrun: Shape(Overrun, types_pb2.Wait, expired_at=UNSENT),
    QuotaUsedUp: Shape(QuotaUsedUp, types_pb2.Wait, namespace=UNSENT, quota=UNSENT, limit=UNSENT),
    NoReplica: Shape(NoReplica, types_pb2.Wait, draining_count=UNSENT, silent_count=UNSENT),
    BehindTask: Shape(
        BehindTask,
        types_pb2.Wait,
        task_id="behind_task_id",
        task_type="behind_type",
        is_running="behind_runs",
        since="behind_since",
    ),
    BehindVersion: Shape(BehindVersion, types_pb2.Wait, order=_ORDER),
    GatesFull: Shape(
        GatesFull, types_pb2.Wait, gates=Shape(GateWait, types_pb2.GateWait, holders=HOLDER)
    ),
}


def _fill_causes(message: types_pb2.Wait, causes: Iterable[Cause], _context: object) -> None:
    # What is besides has fields of its own, whatever the first cause is.
    for cause in causes:
        _SHAPES[type(cause)].write(cause, message)


_WAIT = Shape(
    Wait,
    types_pb2.Wait,
    task_type="type",
    cause=UNSENT,
    besides=UNSENT,
    causes=Field(write=_fill_causes),
    last_error=TASK_ERROR,
)


def fill_wait(message: types_pb2.Wait, wait: Wait) -> None:
    """Write a wait into an empty message, in fields and in words."""
    _WAIT.write(wait, message)
    message.cause = _CAUSE_TO_WIRE[type(wait.cause)]
    message.explanation = why.explain(wait)


def get_to_wire(
    view: ProcessView,
    page: HistoryPage,
    broken: Broken = NOT_BROKEN,
    *,
    without_state: bool = False,
) -> pb.GetResponse:
    """Return what Get answers: as much of the page as fits, but one event at least.

    A state and an event of the size of a payload's limit do not fit into one message: a client
    that reads a history page by page can have the state left out.
    """
    response = pb.GetResponse()
    process_wire.fill_process(response.process, view.process)
    add_event = response.history.add
    for event in page.events:
        process_wire.fill_event(add_event(), event)
    parts: Sequence[tuple[Shape[Any, Any], object, Message]] = (
        (_TIMER, view.timer, response.timer),
        (_ROLE, view.role, response.job_role),
        (_FAILURE, broken.failure, response.failure),
        (_FAILED_REPAIR, broken.failed_repair, response.failed_repair),
    )
    for shape, part, message in parts:
        if part is not None:
            shape.write(part, message)
    for timer in view.later_timers:
        _TIMER.write(timer, response.later_timers.add())
    _fill_some(response.waits, view.waits[:WAITS_MAX], fill_wait, WAITS_BYTES_MAX)
    response.explanation = why.explain_process(
        view.process, view.waits, view.role, view.replies.awaited, broken.failed_repair
    )
    _fill_replies(response, view.replies)
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


def _fill_replies(response: pb.GetResponse, replies: Replies) -> None:
    for messages, found, explain in (
        (response.awaited_replies, replies.awaited, why.explain_awaited),
        (response.requested_replies, replies.requested, why.explain_requested),
    ):

        def fill(
            message: messages_pb2.AwaitedReply,
            reply: AwaitedReply,
            explain: Callable[[AwaitedReply], str] = explain,
        ) -> None:
            _AWAITED_REPLY.write(reply, message)
            message.explanation = explain(reply)

        _fill_some(messages, found, fill, REPLIES_BYTES_MAX)


def _fitting(events: Sequence[types_pb2.Event], excess: int) -> int:
    """Return how many events, at least one, remain without the last `excess` bytes."""
    kept = len(events)
    while excess > 0 and kept > 1:
        kept -= 1
        excess -= events[kept].ByteSize()
    return kept


def size_of_get(view: ProcessView, page: HistoryPage) -> int:
    """Estimate the size in bytes of what `get_to_wire` makes of this."""
    process = view.process
    return _ITEM_BYTES + len(process.aux_state) + len(process.result or b"") + _size_of(page.events)


def size_of_trace(trace: TaskTrace) -> int:
    """Estimate the size in bytes of a task in the response to Trace."""
    return _ITEM_BYTES + len(trace.args) + len(trace.response) + _size_of(trace.events)


def _size_of(events: Sequence[Event]) -> int:
    return sum(_ITEM_BYTES + len(event.payload) for event in events)


def trace_to_wire(traces: Sequence[TaskTrace], *, page_size: int) -> pb.TraceResponse:
    """Return a page of at most `page_size` tasks; one more of them says that there is a next."""
    response = pb.TraceResponse()
    count = _fill_some(response.tasks, traces[:page_size], _fill_trace, PAGE_BYTES_MAX)
    if count < len(traces):
        response.next_page_token = page_tokens.TASKS.write(traces[count - 1].task_id)
    return response


def _fill_trace(message: pb.TaskTrace, trace: TaskTrace) -> None:
    _TRACE.write(trace, message)
    if trace.task_type is TaskType.REPLY and trace.args:
        fill_reply(message.reply, trace.args)
        message.ClearField("args")
    # Only of a task that has a page for itself: others are left out when they have as much.
    del message.events[_fitting(message.events, message.ByteSize() - RESPONSE_BYTES_MAX) :]


def list_to_wire(page: ProcessPage) -> pb.ListResponse:
    response, next_before = pb.ListResponse(), page.next_before
    count = _fill_some(response.processes, page.listed, _fill_listed, PAGE_BYTES_MAX)
    if count < len(page.listed):
        next_before = place_of(page.listed[count - 1].process)
    if next_before is not None:
        response.next_page_token = page_tokens.PROCESSES.write(next_before)
    return response


count_to_wire = Shape(ProcessCount, pb.CountResponse).message
_FAILURE = Shape(FailureGroup, pb.FailureGroup)
_FAILED_REPAIR = Shape(FailedRepair, pb.FailedRepair)


def failures_to_wire(groups: Sequence[FailureGroup], *, page_size: int) -> pb.ListFailuresResponse:
    page, token = page_tokens.FAILURES.page(groups, page_size, lambda it: it.place)
    return pb.ListFailuresResponse(failures=map(_FAILURE.message, page), next_page_token=token)


def _fill_listed(message: types_pb2.Process, listed: Listed) -> None:
    process_wire.fill_process(message, listed.process)
    message.ClearField("aux_state")
    message.ClearField("result")
    if listed.first_wait is not None:
        fill_wait(message.first_wait, listed.first_wait)


def _fill_some(
    messages: RepeatedCompositeFieldContainer[M],
    items: Sequence[Item],
    fill: Callable[[M, Item], None],
    room: int,
) -> int:
    """Write as many items as there is room for, in bytes, one at least; return their count."""
    for count, item in enumerate(items):
        message = messages.add()
        fill(message, item)
        room -= message.ByteSize()
        if count and room < 0:
            del messages[-1]
            return count
    return len(items)
