"""Traces: the caller's W3C context and baggage, and the span of a request.

What is not syntactically valid is left out rather than refused: a broken tracer must not break an
order. Source: https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from progressor.api.calls.status import PROCESSOR_DOMAIN, RichStatus
from progressor.api.guard.guard import ANYBODY, Caller
from progressor.telemetry import names
from progressor.telemetry.traces.spans import UNTRACED, Span
from progressor.telemetry.traces.tracing import Tracing

_OTHERS = ("tracestate", "baggage")
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_TRACEPARENT_LENGTH = 55
_TRACESTATE_LENGTH_MAX = 512
_MEMBERS_MAX = 32
_BAGGAGE_MEMBER = re.compile(
    r"[!#-'*+.^_`|~0-9A-Za-z-]+ *= *[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
    r"(?: *;[\x20-\x2b\x2d-\x7e]*)?"
)
_BAGGAGE_LENGTH_MAX = 8_192
_BAGGAGE_MEMBERS_MAX = 64
# Of a tracestate before its spaces and empty members are removed.
_STATES_LENGTH_MAX = 2_048

_NONE: Mapping[str, str] = {}

_SUBJECT = (
    ("namespace", names.NAMESPACE),
    ("process_id", names.PROCESS_ID),
    ("job_id", names.PROCESS_ID),
    ("schedule_id", names.SCHEDULE_ID),
    ("gate", names.GATE),
    ("task_id", names.TASK_ID),
)
_TEXT_MAX = 256


class CallContext(Protocol):
    """What a servicer asks of gRPC about the call that it serves."""

    def time_remaining(self) -> float | None:
        """Return seconds to the caller's deadline, 0 when past; None: it has none."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the caller's metadata, keys in lower case."""


# Each method has a message type of its own.
Serve = Callable[[Any, CallContext], Awaitable[Message | RichStatus]]


class Known:
    """The context of a call whose trace context has been parsed or replaced, or caller found."""

    __slots__ = ("caller", "inner", "trace")

    def __init__(
        self, context: CallContext, trace: Mapping[str, str], caller: Caller = ANYBODY
    ) -> None:
        self.inner = context
        self.trace = trace
        self.caller = caller

    def time_remaining(self) -> float | None:
        return self.inner.time_remaining()

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return self.inner.invocation_metadata() or ()


def grpc_context_of(context: object) -> object:
    """Return the context of a call as gRPC, or its session, gave it."""
    while isinstance(context, Known):
        context = context.inner
    return context


def caller_of(context: CallContext) -> Caller:
    """Return who sent a request, and what it may do."""
    return context.caller if isinstance(context, Known) else ANYBODY


def traced(serve: Serve, method: MethodDescriptor, tracing: Tracing) -> Serve:
    """Return a method that is traced where its caller, or chance, has it; itself if none is.

    The span, from the arrival of a request to its response, is a child of the caller's. Its context
    replaces the caller's, so that the span of the task links to the request.
    """
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


def trace_context_of(context: CallContext) -> Mapping[str, str]:
    """Return ``traceparent``, ``tracestate`` and ``baggage`` of a call, if they are valid."""
    if isinstance(context, Known):
        return context.trace
    parents: list[str] = []
    others: list[tuple[str, str]] = []
    for name, value in context.invocation_metadata() or ():
        if name == "traceparent" and isinstance(value, str):
            parents.append(value)
        elif name in _OTHERS and isinstance(value, str):
            others.append((name, value))
    found: Mapping[str, str] = _NONE
    if len(parents) == 1 and _is_traceparent(parents[0]):
        found = {"traceparent": parents[0]}
    return _with_others(found, others) if others else found


def _with_others(found: Mapping[str, str], others: list[tuple[str, str]]) -> Mapping[str, str]:
    state, baggage = (",".join(value for key, value in others if key == name) for name in _OTHERS)
    more: dict[str, str] = {}
    # A tracestate is meaningless without its traceparent.
    if found and (state := _tracestate(state)):
        more["tracestate"] = state
    if baggage := _baggage(baggage):
        more["baggage"] = baggage
    return {**found, **more}


def _is_traceparent(value: str) -> bool:
    if len(value) > _TRACESTATE_LENGTH_MAX or _TRACEPARENT.fullmatch(value) is None:
        return False
    # Later versions may append fields; version 00 has none.
    return len(value) == _TRACEPARENT_LENGTH or not value.startswith("00")


def _tracestate(value: str) -> str:
    """Return a list of members without the spaces and the empty ones; "" if it is none."""
    if len(value) > _STATES_LENGTH_MAX:
        return ""
    members = [member for part in value.split(",") if (member := part.strip(" \t"))]
    state = ",".join(members)
    is_valid = (
        len(state) <= _TRACESTATE_LENGTH_MAX
        and len(members) <= _MEMBERS_MAX
        and all(map(_MEMBER.fullmatch, members))
    )
    return state if is_valid else ""


def _baggage(value: str) -> str:
    """Return the valid members of a list, as many as there is room for, without spaces around."""
    kept: list[str] = []
    length = -1
    # The rest of a far too long one is not parsed.
    for part in value[: 2 * _BAGGAGE_LENGTH_MAX].split(","):
        member = part.strip(" \t")
        if not _BAGGAGE_MEMBER.fullmatch(member):
            continue
        length += 1 + len(member)
        if length > _BAGGAGE_LENGTH_MAX or len(kept) >= _BAGGAGE_MEMBERS_MAX:
            break
        kept.append(member)
    return ",".join(kept)


async def _serve_within(
    span: Span,
    serve: Serve,
    request: Any,  # noqa: ANN401 - as of the method
    context: CallContext,
) -> Message | RichStatus:
    with span:
        span.set(_subject_of(request))
        end = await serve(request, context)
        if isinstance(end, RichStatus):
            info = error_details_pb2.ErrorInfo()
            any(detail.Unpack(info) for detail in status_pb2.Status.FromString(end.details).details)
            is_rejected = info.domain == PROCESSOR_DOMAIN
            span.ended(end.code.value[0], reason=info.reason, is_rejected=is_rejected)
        else:
            if task_id := getattr(end, "task_id", 0):
                span.set({names.TASK_ID: task_id})
            span.ended(0)
        return end


def _subject_of(request: object) -> dict[str, str | int]:
    subject: dict[str, str | int] = {}
    for field, name in _SUBJECT:
        value = getattr(request, field, None)
        if value is None and field == "namespace":
            value = getattr(getattr(request, "filter", None), field, None)
        if isinstance(value, str) and value:
            subject[name] = value[:_TEXT_MAX]
        elif isinstance(value, int) and value:
            subject[name] = value
    return subject
