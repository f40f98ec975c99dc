"""Spans: what is recorded about a request or a step, and the null span if nothing is."""

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
from progressor.telemetry.traces.progress import TraceProgress

TraceContext = Mapping[str, str]
"""``traceparent``, ``tracestate`` and ``baggage``, as far as there are any."""

W3C = TraceContextTextMapPropagator()
"""Reads and writes a trace context, whatever propagators the environment configures."""

POSTGRESQL: Mapping[str, AttributeValue] = {names.DB_SYSTEM: "postgresql"}
SETTLE_TASKS: Mapping[str, AttributeValue] = {**POSTGRESQL, names.DB_PROCEDURE: "settle_tasks"}
NOTHING: Mapping[str, AttributeValue] = {}
_PROCESS = f"{names.PROCESSOR_SERVICE}/Process"
_SOCKETS = frozenset({"unix", "unix-abstract"})

# The last hexadecimal digit of the flags in a W3C traceparent; its lowest bit says "sampled".
_FLAGS_AT = 54
_SAMPLED = frozenset("13579bdf")

_MILLISECOND = dt.timedelta(milliseconds=1)
_CODES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}

# Codes of server errors; any other is an error of the caller. Source: OpenTelemetry semantic
# conventions, "gRPC", server spans.
_FAULTS = frozenset({2, 4, 12, 13, 14, 15})


class Span:
    """What is recorded about a request or a step, exported when it ends.

    As a context manager a span ends with its block: lines logged in the block have its trace id,
    and an error that leaves the block is its status.
    """

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
        step: "Span | None" = None,
        subject: Mapping[str, AttributeValue] = NOTHING,
        progress: TraceProgress | None = None,
    ) -> None:
        """Take a span that has begun, and the `step` that it is part of.

        Its parts also have the attributes of `subject`, so that a search for a process finds them.
        Contexts that follow from it, or from its parts, carry the `progress` of their trace.
        """
        self._tracer = tracer
        self._span = span
        self._is_rpc = is_rpc
        self._step = step
        self._subject = subject
        self._progress = progress
        self._is_dropped = False
        # The clock of uvloop has a resolution of milliseconds.
        self._began_at = time.perf_counter()
        self._token: Token[contexts.Context] | None = None

    @property
    def on_sent(self) -> Callable[[], None] | None:
        """Called when the batch with this write is sent, perhaps after its caller is gone.

        Not kept in the span: that would be a cycle, free only after a garbage collection.
        """
        return self._sent

    def __enter__(self) -> Self:
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
        """Return the context for what follows from this span, which began under `otherwise`.

        For an untraced span it is `otherwise`, whose baggage is always kept.
        """
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(self._span))
        if self._progress is not None:
            carrier["tracestate"] = self._progress.written_into(carrier.get("tracestate", ""))
        baggage = otherwise.get("baggage")
        if baggage is not None:
            carrier["baggage"] = baggage
        return carrier

    def with_context(self, task: RunningTask) -> RunningTask:
        return dataclasses.replace(task, trace_context=self.context(task.trace_context))

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._span.set_attributes(attributes)

    def call(self) -> "Span":
        return self._child(_PROCESS, trace.SpanKind.CLIENT, rpc(_PROCESS), is_rpc=True)

    def settle(self) -> "Span":
        return self._child(names.SETTLE, trace.SpanKind.CLIENT, SETTLE_TASKS)

    def answered(self, outcome: Outcome) -> None:
        """Record the outcome of the attempt; a rejection by the processor is not a failure."""
        code = 0
        if isinstance(outcome, Rejected):
            self._span.set_attribute(names.REJECTED, value=True)
        elif isinstance(outcome, Failed):
            code = outcome.code
            self.fail(outcome.reason)
        if self._is_rpc:
            self._span.set_attribute(names.RPC_STATUS_CODE, _code_name(code))

    def settled(self, settlement: Settlement, following: RunningTask | None) -> None:
        """Record what was written, and the task that the worker continues with."""
        self._span.set_attribute(names.SETTLEMENT, type(settlement).__name__.lower())
        if isinstance(settlement, Retry):
            self._span.set_attribute(names.RETRY_DELAY, settlement.delay / _MILLISECOND)
        if following is not None:
            self._span.set_attribute(names.NEXT_TASK_ID, following.task_id)

    def admitted(self, admission: Admission) -> None:
        self._span.set_attribute(names.VERDICT, str(admission.verdict))
        if admission.task_id is not None:
            self._span.set_attribute(names.TASK_ID, admission.task_id)

    def ran(
        self, verdict: str, *, late: dt.timedelta | None, task_id: int | None, reason: str | None
    ) -> None:
        """Record the outcome of a schedule run: `late` if meaningful, `reason` of a refusal."""
        self._span.set_attribute(names.VERDICT, verdict)
        if late is not None:
            self._span.set_attribute(names.LATENESS, late / _MILLISECOND)
        if task_id is not None:
            self._span.set_attribute(names.TASK_ID, task_id)
        if reason is not None:
            self.fail(reason)

    def ended(self, code: int, *, reason: str = "", is_rejected: bool = False) -> None:
        """Record how a request was answered: a gRPC code, and the reason of an error."""
        self._span.set_attribute(names.RPC_STATUS_CODE, _code_name(code))
        if is_rejected:
            self._span.set_attribute(names.REJECTED, value=True)
        elif code in _FAULTS:
            self.fail(reason)
        elif reason:
            self._span.set_attribute(names.ERROR_TYPE, reason)

    def fail(self, reason: str) -> None:
        """Record a failure, also in the step that the span is part of."""
        self._span.set_attribute(names.ERROR_TYPE, reason)
        self._span.set_status(trace.StatusCode.ERROR, reason)
        if self._step is not None:
            self._step.fail(reason)

    def end(self) -> None:
        """End it without a block, unless it was dropped."""
        if not self._is_dropped:
            self._span.end()

    def drop(self) -> None:
        """Drop it: a span that never ends is never exported."""
        self._is_dropped = True

    def _sent(self) -> None:
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
    ) -> "Span":
        context = trace.set_span_in_context(self._span)
        span = self._tracer.start_span(name, context, kind, {**self._subject, **attributes})
        return Span(self._tracer, span, is_rpc=is_rpc, step=self, progress=self._progress)


class _Untraced(Span):
    """Records nothing: it wraps OpenTelemetry's invalid span, and is never put into a context."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(trace.NoOpTracer(), trace.INVALID_SPAN)

    @property
    def on_sent(self) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def context(self, otherwise: TraceContext) -> TraceContext:
        return otherwise

    def with_context(self, task: RunningTask) -> RunningTask:
        return task

    def call(self) -> Span:
        return self

    def settle(self) -> Span:
        return self


UNTRACED: Span = _Untraced()
"""The span of what is not traced. On the hot path, check `is UNTRACED` to skip even the call."""


def is_sampled(context: TraceContext) -> bool:
    """Return whether a context is sampled; reads one character."""
    parent = context.get("traceparent")
    return parent is not None and parent[_FLAGS_AT : _FLAGS_AT + 1] in _SAMPLED


def record_server(context: TraceContext, target: str) -> None:
    """Record the address of a target of gRPC in the current span, if `context` is sampled."""
    if is_sampled(context):
        trace.get_current_span().set_attributes(_server(target))


def rpc(method: str) -> dict[str, AttributeValue]:
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
