"""Traces: one sampling decision per request, and the spans of all that follows from it.

Whether a request is traced is decided once, when it arrives: by its caller's ``traceparent``, or by
a ratio if it has none. The decision is part of the context that is stored with its task, and with
each timer that its steps set. Later, in any replica and after any number of days, it is read from
one character of that context, so an untraced process costs almost nothing. Without a context no
spans are recorded. A process that never ends is recorded in several traces, each linked to the
previous one (``progress``).

    progressor.v1.ProcessService/Call           its context is stored with the task
      progressor.admit
      progressor.step, attempt 1                its context is stored with a timer that it sets
        progressor.claim                        where the task had waited
        progressor.v1.ProcessorService/Process  its context is sent to the processor
        progressor.settle
        progressor.step                         the timer's: a child, and linked as well
      progressor.collect                        attempt 2 was lost with its replica
      progressor.step, attempt 3

    progressor.v1.ScheduleService/TriggerSchedule
      progressor.schedule_run                   a trace of its own unless it was triggered
"""

import datetime as dt
from collections.abc import Callable, Mapping

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from progressor.domain.gates.constraint import GatedState
from progressor.domain.processes.admission import Request
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TIMER_TYPES, LeasedTask, RunningTask, TaskType
from progressor.telemetry import names
from progressor.telemetry.traces import progress
from progressor.telemetry.traces.progress import TraceProgress
from progressor.telemetry.traces.spans import (
    NOTHING,
    POSTGRESQL,
    SETTLE_TASKS,
    UNTRACED,
    W3C,
    Span,
    TraceContext,
    is_sampled,
    rpc,
)

_ADMIT_STARTS = {**POSTGRESQL, names.DB_PROCEDURE: "admit_starts"}
_ADMIT_REQUESTS = {**POSTGRESQL, names.DB_PROCEDURE: "admit_requests"}
_RUN_SCHEDULES = {**POSTGRESQL, names.DB_PROCEDURE: "run_schedules"}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_MILLISECOND = dt.timedelta(milliseconds=1)


class Tracing:
    """Decides what is traced, and begins the spans that have no parent here."""

    def __init__(
        self, tracer: trace.Tracer | None, *, ratio: float, chance: Callable[[], float]
    ) -> None:
        """Trace with `tracer`, or nothing if it is None; it records all: sampling is decided here.

        A share of `ratio` of the traces started here is sampled; `chance` returns 0 to 1.
        """
        self._tracer = tracer
        self._ratio = ratio
        self._chance = chance

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def follows(self, context: TraceContext) -> bool:
        """Return whether work stored with this context is traced."""
        return self._tracer is not None and is_sampled(context)

    def request(self, service: str, method: str, caller: TraceContext) -> Span:
        """Begin the span of a request, if its caller or the ratio decided to trace it."""
        if self._tracer is None:
            return UNTRACED
        has_decided = "traceparent" in caller
        if not (is_sampled(caller) if has_decided else self._chance() < self._ratio):
            return UNTRACED
        name = f"{service}/{method}"
        span = self._tracer.start_span(name, _parent(caller), trace.SpanKind.SERVER, rpc(name))
        return Span(self._tracer, span, is_rpc=True)

    def admission(self, request: Request) -> Span:
        context = request.trace_context
        if not context or self._tracer is None or not is_sampled(context):
            return UNTRACED
        attributes = {
            names.NAMESPACE: request.key.namespace,
            names.PROCESS_ID: request.key.process_id,
            names.TASK_TYPE: str(request.task_type),
            **(_ADMIT_STARTS if request.task_type is TaskType.INIT else _ADMIT_REQUESTS),
        }
        if request.constraints is not None and request.constraints.gates:
            attributes[names.GATES] = tuple(request.constraints.gates)
        parent = _parent(request.trace_context)
        span = self._tracer.start_span(names.ADMIT, parent, trace.SpanKind.CLIENT, attributes)
        return Span(self._tracer, span)

    def step(self, task: RunningTask, *, behind: int | None = None) -> Span:
        """Begin the span of an attempt, at its claim if the task had waited.

        `behind` is the task of the same process whose settlement leased it, if one did.
        """
        context = task.trace_context
        if not context or self._tracer is None or not is_sampled(context):
            return UNTRACED
        claim, subject = task.claim, _subject_of(task)
        spent = _spent(task)
        attributes = {**subject, **_consumed(task), **spent, **_waited(task, behind)}
        parent = _parent(progress.without(context))
        links: tuple[trace.Link, ...] = ()
        before = TraceProgress.before(task)
        is_over = before.is_over(task.started_at)
        if claim is not None or task.task_type in TIMER_TYPES:
            due_at = task.scheduled_at if claim is None else claim.due_at
            attributes[names.LATENESS] = (task.started_at - due_at) / _MILLISECOND
        if is_over or task.task_type in TIMER_TYPES:
            links = (trace.Link(trace.get_current_span(parent).get_span_context()),)
        if is_over:
            parent, before = contexts.Context(), TraceProgress.none(task.started_at)
        begun_at = None if claim is None else _nanoseconds(claim.sent_at)
        span = self._tracer.start_span(
            names.STEP, parent, trace.SpanKind.CONSUMER, attributes, links, begun_at
        )
        if claim is not None:
            within = trace.set_span_in_context(span)
            self._tracer.start_span(
                names.CLAIM, within, trace.SpanKind.CLIENT, {**subject, **spent, **POSTGRESQL},
                start_time=begun_at,
            ).end(_nanoseconds(claim.answered_at))  # fmt: skip
        return Span(self._tracer, span, subject=subject, progress=before.one_more())

    def collection(self, zombie: LeasedTask, *, cause: str, replica_id: int | None = None) -> Span:
        if self._tracer is None or not self.follows(zombie.trace_context):
            return UNTRACED
        attributes = {**_subject_of(zombie), names.CAUSE: cause, **SETTLE_TASKS}
        if replica_id is not None:
            attributes[names.LOST_REPLICA_ID] = replica_id
        parent = _parent(zombie.trace_context)
        span = self._tracer.start_span(names.COLLECT, parent, trace.SpanKind.CLIENT, attributes)
        return Span(self._tracer, span)

    def schedule_run(
        self,
        process: ProcessKey,
        schedule_id: str,
        instant: dt.datetime,
        *,
        cause: str,
        by_request: bool,
    ) -> Span:
        """Begin the span of a schedule run, traced as its request is, or by the ratio without one.

        `process` is the one that it starts or calls; `by_request`: the current request triggers it.
        """
        if self._tracer is None:
            return UNTRACED
        if by_request:
            request = trace.get_current_span()
            if not request.is_recording():
                return UNTRACED
            parent = trace.set_span_in_context(request, contexts.Context())
        elif self._chance() < self._ratio:
            parent = contexts.Context()
        else:
            return UNTRACED
        attributes = {
            names.NAMESPACE: process.namespace,
            names.PROCESS_ID: process.process_id,
            names.SCHEDULE_ID: schedule_id,
            names.INSTANT: instant.isoformat(),
            names.CAUSE: cause,
            **_RUN_SCHEDULES,
        }
        span = self._tracer.start_span(
            names.SCHEDULE_RUN, parent, trace.SpanKind.CLIENT, attributes
        )
        return Span(self._tracer, span)


SILENT = Tracing(None, ratio=0.0, chance=lambda: 1.0)
"""Traces nothing."""


def _subject_of(task: LeasedTask) -> dict[str, AttributeValue]:
    return {
        names.NAMESPACE: task.key.namespace,
        names.PROCESS_ID: task.key.process_id,
        names.TASK_ID: task.task_id,
        names.TASK_TYPE: str(task.task_type),
        names.ATTEMPT: task.attempt,
    }


def _consumed(task: LeasedTask) -> dict[str, AttributeValue]:
    # In messaging terms, a step is the processing of a message.
    return {
        names.MESSAGING_SYSTEM: "progressor",
        names.MESSAGING_OPERATION: "step",
        names.MESSAGING_OPERATION_TYPE: "process",
        names.MESSAGING_DESTINATION: task.key.namespace,
        names.MESSAGE_ID: str(task.task_id),
    }


def _spent(task: RunningTask) -> Mapping[str, AttributeValue]:
    # The time between the admission and the claim of a task has no span: nothing happens in it.
    if task.spent is None:
        return NOTHING
    return dict(zip(names.SPENT, task.spent, strict=True))


def _waited(task: RunningTask, behind: int | None) -> dict[str, AttributeValue]:
    """Return what a task waited for, in the order of `GatedState`."""
    causes: list[str] = []
    if task.spent is not None:
        causes = [
            cause for cause, spent in zip(GatedState, task.spent[:-1], strict=True) if spent > 0
        ]
    else:
        is_timer = task.task_type in TIMER_TYPES
        # A timer that is due when the step that set it ends has not waited.
        waited = task.claim is not None or task.started_at > task.scheduled_at
        if waited and (is_timer or task.attempt > 1):
            causes.append(GatedState.TIME)
        if behind is not None and (waited or not is_timer):
            causes.append(GatedState.PROCESS)
        if task.claim is not None and task.started_at > task.claim.due_at:
            causes.append(GatedState.AVAILABLE)
    attributes: dict[str, AttributeValue] = {}
    if causes:
        attributes[names.WAITED_FOR] = tuple(map(str, causes))
    if behind is not None and GatedState.PROCESS in causes:
        attributes[names.BEHIND_TASK_ID] = behind
    return attributes


def _parent(context: TraceContext) -> contexts.Context:
    # In an empty context: the current span is unrelated.
    return W3C.extract(context, contexts.Context())


def _nanoseconds(instant: dt.datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND * 1000
