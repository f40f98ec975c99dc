"""The span of a request, from its arrival to its response: a child of the caller's span.

Its context replaces the caller's, so that the span of the task links to the request.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from progressor.api.calls.ports import CallContext
from progressor.api.calls.status import PROCESSOR_DOMAIN, RichStatus
from progressor.api.calls.trace_context import Known, trace_context_of
from progressor.telemetry import names
from progressor.telemetry.traces.spans import UNTRACED, Span
from progressor.telemetry.traces.tracing import Tracing

_SUBJECT = (
    ("namespace", names.NAMESPACE),
    ("process_id", names.PROCESS_ID),
    ("job_id", names.PROCESS_ID),
    ("schedule_id", names.SCHEDULE_ID),
    ("gate", names.GATE),
    ("task_id", names.TASK_ID),
)
_TEXT_MAX = 256

# Each method has a message type of its own.
Serve = Callable[[Any, CallContext], Awaitable[Message | RichStatus]]


def traced(serve: Serve, method: MethodDescriptor, tracing: Tracing) -> Serve:
    """Return a method that is traced where its caller, or chance, has it; itself if none is."""
    if not tracing.is_on:
        return serve
    service, name = method.containing_service.full_name, method.name

    # No coroutine: what is not traced is not awaited through another one, which costs 1 µs.
    def serve_traced(request: Any, context: CallContext) -> Awaitable[Message | RichStatus]:  # noqa: ANN401 - as of the method
        caller = trace_context_of(context)
        span = tracing.request(service, name, caller)
        if span is UNTRACED:
            return serve(request, Known(context, caller) if caller else context)
        return _serve_within(span, serve, request, Known(context, span.context(caller)))

    return serve_traced


async def _serve_within(
    span: Span,
    serve: Serve,
    request: Any,  # noqa: ANN401 - as of the method
    context: CallContext,
) -> Message | RichStatus:
    with span:
        span.set(_subject_of(request))
        end = await serve(request, context)
        _record_end(span, end)
        return end


def _subject_of(request: object) -> dict[str, str | int]:
    subject: dict[str, str | int] = {}
    for field, name in _SUBJECT:
        value = getattr(request, field, None)
        if isinstance(value, str) and value:
            subject[name] = value[:_TEXT_MAX]
        elif isinstance(value, int) and value:
            subject[name] = value
    return subject


def _record_end(span: Span, end: Message | RichStatus) -> None:
    if isinstance(end, RichStatus):
        info = _info_of(end)
        is_rejected = info.domain == PROCESSOR_DOMAIN
        span.ended(end.code.value[0], reason=info.reason, is_rejected=is_rejected)
        return
    task_id = getattr(end, "task_id", 0)
    if task_id:
        span.set({names.TASK_ID: task_id})
    span.ended(0)


def _info_of(end: RichStatus) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(end.details).details:
        if detail.Unpack(info):
            break
    return info
