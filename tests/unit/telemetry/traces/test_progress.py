"""Processes without an end: traces of bounded length, each linked to the last."""

import datetime as dt

import pytest

from progressor.domain.processes.task import TaskType
from progressor.telemetry.traces.progress import AGE_MAX, STEPS_MAX, TraceProgress
from tests.support.builders import make_task
from tests.support.clock import START
from tests.support.telemetry.spans import TRACE_ID, TRACED, Spans, id_of, parent_of, trace_of

STEP = "progressor.step"


def chain(spans: Spans, count: int, *, apart: dt.timedelta = AGE_MAX / 100) -> None:
    """Tell of so many steps, each but the first the timer of the one before."""
    context, now = TRACED, START
    for number in range(count):
        task_type = TaskType.TIMEOUT if number else TaskType.CALL
        task = make_task(
            task_type=task_type, trace_context=context,
            scheduled_at=now, started_at=now, first_started_at=now,
        )  # fmt: skip
        with spans.tracing.step(task) as span:
            context = span.context({})
        now += apart


def test_a_chain_of_timers_is_told_in_traces_of_bounded_length_each_linked_to_the_last() -> None:
    spans = Spans()

    chain(spans, 3 * STEPS_MAX + 2)

    steps = spans.ended()
    traces = [trace_of(it) for it in steps]
    lengths = [traces.count(it) for it in dict.fromkeys(traces)]
    assert lengths == [STEPS_MAX, STEPS_MAX, STEPS_MAX, 2]
    assert traces[0] == TRACE_ID
    assert traces == sorted(traces, key=traces.index)
    *_, last, first, second = steps
    [link] = first.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (
        trace_of(last),
        id_of(last),
    )
    assert (parent_of(first), parent_of(second)) == (None, id_of(first))


def test_after_a_day_a_new_trace_begins() -> None:
    spans = Spans()

    chain(spans, 4, apart=AGE_MAX * 0.6)

    first, second, third, fourth = map(trace_of, spans.ended())
    assert first == second
    assert third == fourth != first


def test_an_attempt_after_a_day_begins_a_new_trace() -> None:
    spans = Spans()
    task = make_task(trace_context=TRACED, attempt=2, started_at=START + AGE_MAX)

    with spans.tracing.step(task):
        pass

    assert parent_of(spans.one(STEP)) is None
    [link] = spans.one(STEP).links
    assert f"{link.context.trace_id:032x}" == TRACE_ID


def test_what_the_processor_calls_from_a_step_goes_on_counting() -> None:
    spans = Spans()
    context = TRACED
    for _ in range(STEPS_MAX + 1):
        with spans.tracing.request("progressor.v1.ProcessService", "Call", context) as request:
            stored = request.context({})
        task = make_task(trace_context=stored)
        with spans.tracing.step(task) as step, step.call() as call:
            context = call.with_context(task).trace_context

    traces = [trace_of(it) for it in spans.ended() if it.name == STEP]
    assert traces.count(TRACE_ID) == STEPS_MAX


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        ("", "progressor=3:1763910000"),
        ("a=1", "progressor=3:1763910000,a=1"),
        ("a=1,progressor=2:1,b=2", "progressor=3:1763910000,a=1,b=2"),
        (",".join(f"v{it}=1" for it in range(32)), None),
        ("a=" + "x" * 200 + ",b=" + "x" * 200 + ",c=" + "x" * 100, None),
    ],
)
def test_what_vendors_say_is_kept_as_far_as_there_is_room(given: str, noted: str | None) -> None:
    found = TraceProgress(3, 1763910000).written_into(given)

    assert len(found) <= 512
    assert len(found.split(",")) <= 32
    assert found.startswith("progressor=3:1763910000")
    if noted is not None:
        assert found == noted
