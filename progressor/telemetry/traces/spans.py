"""Spans: what is recorded about a request or a step, and the null span if nothing is.

The attributes follow OpenTelemetry's semantic conventions for RPCs, databases and messaging where
these have one, and are ours, ``progressor.…``, where they have none.
"""

import asyncio
import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Self

import grpc
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from progressor.domain.processes.admission import Admission
from progressor.domain.processes.intent import Failed, Outcome, Rejected
from progressor.domain.processes.settlement import Retry, Settlement
from progressor.domain.processes.task import RunningTask
from progressor.telemetry import names
from progressor.telemetry.traces.progress import Progress

TraceContext = Mapping[str, str]
"""``traceparent``, ``tracestate`` and ``baggage``, as far as there are any."""

W3C = TraceContextTextMapPropagator()
"""Reads and writes a trace context, whatever the environment wants others to speak."""

POSTGRESQL: Mapping[str, AttributeValue] = {names.DB_SYSTEM: "postgresql"}
"""Attributes of every statement."""

SETTLE_TASKS: Mapping[str, AttributeValue] = {**POSTGRESQL, names.DB_PROCEDURE: "settle_tasks"}
"""Attributes of a settlement."""

NOTHING: Mapping[str, AttributeValue] = {}
"""No attributes."""

_PROCESS = f"{names.PROCESSOR_SERVICE}/Process"
_SOCKETS = frozenset({"unix", "unix-abstract"})

# The last hexadecimal digit of the flags in a W3C traceparent; its lowest bit says "sampled".
_FLAGS_AT = 54
_SAMPLED = frozenset("13579bdf")

_MILLISECOND = dt.timedelta(milliseconds=1)
_CODES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}

# What these say is at fault is the server; any other is the caller's to fix. Source: OpenTelemetry
# semantic conventions, "gRPC", server spans.
_FAULTS = frozenset({2, 4, 12, 13, 14, 15})


class Span:
    """What a span hears; this one, UNTRACED, forgets it.

    As a context manager it ends with its block: whatever is logged in there has its trace id, and
    an error that leaves the block is its status.
    """

    __slots__ = ()

    on_sent: Callable[[], None] | None = None
    """To be called when the batch with this write is sent; None if not needed."""

    def __enter__(self) -> Self:
        """Return the span."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""

    def context(self, otherwise: TraceContext) -> TraceContext:
        """Return the context for what follows from this span, which began under `otherwise`.

        That of an untraced one is `otherwise`, and its baggage is that of any.
        """
        return otherwise

    def handed(self, task: RunningTask) -> RunningTask:
        """Return the task as the processor is to get it: with this span's context."""
        return task

    def tell(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Note attributes, by the names of `names.ATTRIBUTES`."""

    def call(self) -> "Span":
        """Begin to ask the processor."""
        return self

    def settle(self) -> "Span":
        """Begin to write the outcome."""
        return self

    def answered(self, outcome: Outcome) -> None:
        """Note what came of the attempt."""

    def settled(self, settlement: Settlement, following: RunningTask | None) -> None:
        """Note what was written, and which task the worker goes on with."""

    def admitted(self, admission: Admission) -> None:
        """Note what became of the request."""

    def fired(
        self, verdict: str, *, late: dt.timedelta | None, task_id: int | None, reason: str | None
    ) -> None:
        """Note what became of a firing; `late` where that says something, `reason` of a refusal."""

    def ended(self, code: int, *, reason: str = "", is_rejected: bool = False) -> None:
        """Note how a request was answered: a gRPC code, and the reason of an error."""

    def fail(self, reason: str) -> None:
        """Note that what it stands for failed, and with it the step that it is part of."""

    def end(self) -> None:
        """End it where there is no block."""

    def drop(self) -> None:
        """Never tell of it."""


UNTRACED = Span()
"""The span of what is not traced. Where it counts, `is UNTRACED` spares even telling it."""


class Recorded(Span):
    """A span that is exported once it has ended."""

    __slots__ = (
        "_began_at", "_is_dropped", "_is_rpc", "_progress", "_span", "_step", "_subject", "_token",
        "_tracer",
    )  # fmt: skip

    def __init__(
        self,
        tracer: trace.Tracer,
        span: trace.Span,
        *,
        is_rpc: bool = False,
        step: "Recorded | None" = None,
        subject: Mapping[str, AttributeValue] = NOTHING,
        progress: Progress | None = None,
    ) -> None:
        """Take a span that has begun; `step` is what it is part of, `subject` what that is about.

        Its parts have the attributes of `subject` too: whoever searches for a process finds them.
        What follows from it, or from its parts, is told of the `progress` of their trace.
        """
        self._tracer = tracer
        self._span = span
        self._is_rpc = is_rpc
        self._step = step
        self._subject = subject
        self._progress = progress
        self._is_dropped = False
        # The event loop's own clock may count in milliseconds.
        self._began_at = time.perf_counter()
        self._token: Token[contexts.Context] | None = None

    def __enter__(self) -> Self:
        """Make it the current span."""
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it; a cancellation was requested and does not count as a failure."""
        assert self._token is not None, "it is left after it was entered"
        contexts.detach(self._token)
        if isinstance(error, asyncio.CancelledError):
            self._span.set_attribute(names.ERROR_TYPE, "CANCELLED")
            if self._is_rpc:
                self._span.set_attribute(names.RPC_STATUS_CODE, _CODES[1])
        elif error is not None:
            self.fail(type(error).__name__)
        self.end()

    def context(self, otherwise: TraceContext) -> TraceContext:
        """Return its own, with the baggage of `otherwise`."""
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(self._span))
        if self._progress is not None:
            carrier["tracestate"] = self._progress.noted(carrier.get("tracestate", ""))
        baggage = otherwise.get("baggage")
        if baggage is not None:
            carrier["baggage"] = baggage
        return carrier

    def handed(self, task: RunningTask) -> RunningTask:
        """Return the task with its context."""
        return dataclasses.replace(task, trace_context=self.context(task.trace_context))

    def tell(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set attributes."""
        self._span.set_attributes(attributes)

    def call(self) -> Span:
        """Begin the span of the RPC, or of its like in a frame of a stream."""
        return self._child(_PROCESS, trace.SpanKind.CLIENT, rpc(_PROCESS), is_rpc=True)

    def settle(self) -> Span:
        """Begin the span of the settlement."""
        return self._child(names.SETTLE, trace.SpanKind.CLIENT, SETTLE_TASKS)

    def answered(self, outcome: Outcome) -> None:
        """Set the status: a fault of the caller that the processor reports is not a failure."""
        code = 0
        if isinstance(outcome, Rejected):
            self._span.set_attribute(names.REJECTED, value=True)
        elif isinstance(outcome, Failed):
            code = outcome.code
            self.fail(outcome.reason)
        if self._is_rpc:
            self._span.set_attribute(names.RPC_STATUS_CODE, _code_name(code))

    def settled(self, settlement: Settlement, following: RunningTask | None) -> None:
        """Set the attributes of a settlement."""
        self._span.set_attribute(names.SETTLEMENT, type(settlement).__name__.lower())
        if isinstance(settlement, Retry):
            self._span.set_attribute(names.RETRY_DELAY, settlement.delay / _MILLISECOND)
        if following is not None:
            self._span.set_attribute(names.NEXT_TASK_ID, following.task_id)

    def admitted(self, admission: Admission) -> None:
        """Set the attributes of an admission."""
        self._span.set_attribute(names.VERDICT, str(admission.verdict))
        if admission.task_id is not None:
            self._span.set_attribute(names.TASK_ID, admission.task_id)

    def fired(
        self, verdict: str, *, late: dt.timedelta | None, task_id: int | None, reason: str | None
    ) -> None:
        """Set the attributes of a firing; one that started nothing for a reason has failed."""
        self._span.set_attribute(names.VERDICT, verdict)
        if late is not None:
            self._span.set_attribute(names.LATENESS, late / _MILLISECOND)
        if task_id is not None:
            self._span.set_attribute(names.TASK_ID, task_id)
        if reason is not None:
            self.fail(reason)

    def ended(self, code: int, *, reason: str = "", is_rejected: bool = False) -> None:
        """Set the status of an RPC."""
        self._span.set_attribute(names.RPC_STATUS_CODE, _code_name(code))
        if is_rejected:
            self._span.set_attribute(names.REJECTED, value=True)
        elif code in _FAULTS:
            self.fail(reason)
        elif reason:
            self._span.set_attribute(names.ERROR_TYPE, reason)

    def fail(self, reason: str) -> None:
        """Set the status to an error, and that of its step."""
        self._span.set_attribute(names.ERROR_TYPE, reason)
        self._span.set_status(trace.StatusCode.ERROR, reason)
        if self._step is not None:
            self._step.fail(reason)

    def end(self) -> None:
        """End it, once, unless it was dropped."""
        if not self._is_dropped:
            self._span.end()

    def drop(self) -> None:
        """Let it be forgotten: what never ends is never exported."""
        self._is_dropped = True

    def on_sent(self) -> None:
        """Set how long the write was queued; it may be sent after its caller is gone."""
        if self._span.is_recording():
            waited = time.perf_counter() - self._began_at
            self._span.set_attribute(names.BATCH_WAIT, waited * 1e3)

    def _child(
        self,
        name: str,
        kind: trace.SpanKind,
        attributes: Mapping[str, AttributeValue],
        *,
        is_rpc: bool = False,
    ) -> Span:
        context = trace.set_span_in_context(self._span)
        span = self._tracer.start_span(name, context, kind, {**self._subject, **attributes})
        return Recorded(self._tracer, span, is_rpc=is_rpc, step=self, progress=self._progress)


def is_sampled(context: TraceContext) -> bool:
    """Tell whether a context says that what belongs to it is traced; looks at one character."""
    parent = context.get("traceparent")
    return parent is not None and parent[_FLAGS_AT : _FLAGS_AT + 1] in _SAMPLED


def tell_server(context: TraceContext, target: str) -> None:
    """Note in the current span which server is asked, unless its `context` is not traced.

    Args:
        context: What a task was handed on with.
        target: As gRPC names it: ``host:port``, ``dns:///host:port``, ``unix:/path``.
    """
    if is_sampled(context):
        trace.get_current_span().set_attributes(_server(target))


def rpc(method: str) -> dict[str, AttributeValue]:
    """Return the attributes of an RPC by the full name of its method."""
    return {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: method}


def _server(target: str) -> dict[str, AttributeValue]:
    scheme, colon, path = target.partition(":")
    if colon and scheme in _SOCKETS:
        return {names.SERVER_ADDRESS: path.removeprefix("//")}
    address = target.rpartition("/")[2]
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        return {names.SERVER_ADDRESS: host.strip("[]"), names.SERVER_PORT: int(port)}
    return {names.SERVER_ADDRESS: address}


def _code_name(code: int) -> str:
    return _CODES.get(code, str(code))
