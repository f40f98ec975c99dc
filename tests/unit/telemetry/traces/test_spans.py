"""Traces: what is recorded is decided once, and each span names what it stands for."""

import asyncio
import datetime as dt
import gc

import pytest
from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes, rpc_attributes
from opentelemetry.semconv.attributes import db_attributes, error_attributes, server_attributes

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.intent import Failed, Outcome, Rejected, Released
from progressor.domain.processes.settlement import Finish, Retry
from progressor.domain.processes.task import Claim, TaskType
from progressor.telemetry import names
from progressor.telemetry.traces.progress import AGE_MAX, STEPS_MAX, TraceProgress
from progressor.telemetry.traces.spans import UNTRACED, Span, record_server
from progressor.telemetry.traces.tracing import SILENT
from tests.support.builders import make_request, make_success, make_task, make_zombie, seconds
from tests.support.clock import START
from tests.support.telemetry.spans import (
    NOT_TRACED,
    SPAN_ID,
    TRACE_ID,
    TRACED,
    Spans,
    attributes_of,
    id_of,
    is_error,
    parent_of,
    seconds_of,
    trace_of,
)

SERVICE = "progressor.v1.ProcessService"
CALL = f"{names.PROCESSOR_SERVICE}/Process"
AWAY = Failed(code=14, reason="PROCESSOR_UNAVAILABLE", message="away", retryable=True)
NO = Rejected(code=9, message="no", reason="TOO_LATE")


@pytest.mark.parametrize(
    ("caller", "chance", "traced"),
    [
        (TRACED, 0.9, True),
        (NOT_TRACED, 0.1, False),
        ({"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-03"}, 0.9, True),
        ({"traceparent": f"01-{TRACE_ID}-{SPAN_ID}-01-more"}, 0.9, True),
        ({}, 0.49, True),
        ({}, 0.5, False),
    ],
)
def test_a_caller_who_has_decided_is_followed_and_the_ratio_decides_for_others(
    caller: dict[str, str], chance: float, traced: bool
) -> None:
    span = Spans(chance=chance).tracing.request(SERVICE, "Call", caller)

    assert (span is not UNTRACED) is traced


@pytest.mark.parametrize(
    ("stored", "followed"),
    [(TRACED, True), (NOT_TRACED, False), ({}, False), ({"traceparent": "cut"}, False)],
)
def test_nothing_is_decided_again_of_what_is_stored(stored: dict[str, str], followed: bool) -> None:
    tracing = Spans(ratio=1.0).tracing
    task, request = make_task(trace_context=stored), make_request(trace_context=stored)
    spans = [
        tracing.step(task),
        tracing.admission(request),
        tracing.collection(make_zombie(trace_context=stored), cause="silent"),
    ]

    assert [span is not UNTRACED for span in spans] == [followed] * 3


def test_without_an_exporter_nothing_is_traced() -> None:
    assert not SILENT.is_on
    assert not SILENT.follows(TRACED)
    assert SILENT.request(SERVICE, "Call", TRACED) is UNTRACED
    assert SILENT.step(make_task(trace_context=TRACED)) is UNTRACED


def test_what_is_not_traced_passes_on_the_context_that_it_came_with() -> None:
    task = make_task(trace_context=NOT_TRACED)

    with SILENT.step(task) as span, span.call() as call, span.settle() as settling:
        assert span.context(task.trace_context) is NOT_TRACED
        assert call.with_context(task) is task
        assert settling.on_sent is None


def test_attributes_outside_our_namespace_are_those_of_opentelemetry() -> None:
    theirs = {
        value
        for module in (
            db_attributes, error_attributes, server_attributes, messaging_attributes,
            rpc_attributes,
        )
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_")
    }  # fmt: skip

    assert {name for name in names.ATTRIBUTES if not name.startswith("progressor.")} <= theirs


def test_a_request_is_a_child_of_its_caller_and_hands_itself_on() -> None:
    spans = Spans()

    with spans.tracing.request(SERVICE, "Call", TRACED) as span:
        handed_on = span.context({})["traceparent"]
        span.ended(0)

    ended = spans.one(f"{SERVICE}/Call")
    assert (trace_of(ended), parent_of(ended)) == (TRACE_ID, SPAN_ID)
    assert handed_on == f"00-{TRACE_ID}-{id_of(ended)}-01"
    assert ended.kind is trace.SpanKind.SERVER
    assert attributes_of(ended) == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/Call",
        "rpc.response.status_code": "OK",
    }


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyError()], ids=repr)
def test_a_bug_that_leaves_a_span_is_its_status_and_a_caller_that_hangs_up_is_not(
    error: BaseException,
) -> None:
    spans = Spans()

    with pytest.raises(type(error)), spans.tracing.request(SERVICE, "Call", TRACED):
        raise error

    ended, is_bug = spans.one(f"{SERVICE}/Call"), isinstance(error, KeyError)
    assert is_error(ended) is is_bug
    assert attributes_of(ended)["error.type"] == ("KeyError" if is_bug else "CANCELLED")
    code = attributes_of(ended).get("rpc.response.status_code")
    assert code == (None if is_bug else "CANCELLED")


def test_a_span_is_free_without_a_garbage_collection() -> None:
    spans = Spans()
    gc.collect()
    gc.disable()
    # What failed tests have kept in their tracebacks is not this one's.
    before = sum(type(it) is Span for it in gc.get_objects())
    try:
        with spans.tracing.step(make_task(trace_context=TRACED)) as step, step.settle() as settling:
            assert settling.on_sent is not None
        del step, settling
        assert sum(type(it) is Span for it in gc.get_objects()) == before
    finally:
        gc.enable()


def test_a_step_is_a_child_of_what_is_stored_and_the_parent_of_its_parts() -> None:
    spans = Spans()
    task = make_task(trace_context=TRACED, attempt=2)

    with spans.tracing.step(task) as span:
        with span.call() as call:
            handed = call.with_context(task)
            call.answered(make_success())
        with span.settle() as settling:
            assert settling.on_sent is not None
            settling.on_sent()
            settling.settled(Finish(make_success().intent), make_task(task_id=8))

    step, called, settled = (
        spans.one(name) for name in ("progressor.step", CALL, "progressor.settle")
    )
    assert (trace_of(step), parent_of(step)) == (TRACE_ID, SPAN_ID)
    assert [parent_of(called), parent_of(settled)] == [id_of(step)] * 2
    subject = {
        "progressor.namespace": task.key.namespace,
        "progressor.process_id": task.key.process_id,
        "progressor.task_id": 7,
        "progressor.task_type": "call",
        "progressor.attempt": 2,
    }
    assert attributes_of(step) == subject | {
        "messaging.system": "progressor",
        "messaging.operation.name": "step",
        "messaging.operation.type": "process",
        "messaging.destination.name": task.key.namespace,
        "messaging.message.id": "7",
    }
    assert handed.trace_context["traceparent"] == f"00-{TRACE_ID}-{id_of(called)}-01"
    assert attributes_of(called) == subject | {
        "rpc.system.name": "grpc",
        "rpc.method": "progressor.v1.ProcessorService/Process",
        "rpc.response.status_code": "OK",
    }
    attributes = dict(attributes_of(settled))
    waited = attributes.pop("progressor.batch_wait_ms")
    assert isinstance(waited, float)
    assert 0 <= waited <= seconds_of(settled) * 1e3 + 1
    assert attributes == subject | {
        "db.system.name": "postgresql",
        "db.stored_procedure.name": "settle_tasks",
        "progressor.settlement": "finish",
        "progressor.next_task_id": 8,
    }


@pytest.mark.parametrize(
    ("target", "server"),
    [
        ("127.0.0.1:7421", ("127.0.0.1", 7421)),
        ("dns:///shop.internal:443", ("shop.internal", 443)),
        ("dns://8.8.8.8/shop:443", ("shop", 443)),
        ("[::1]:80", ("::1", 80)),
        ("shop", ("shop", None)),
        ("unix:/run/shop.sock", ("/run/shop.sock", None)),
        ("unix:///run/shop.sock", ("/run/shop.sock", None)),
    ],
)
def test_a_call_says_which_processor_was_asked(target: str, server: tuple[str, int | None]) -> None:
    spans = Spans()
    task = make_task(trace_context=TRACED)

    with spans.tracing.step(task) as span, span.call() as call:
        record_server(call.with_context(task).trace_context, target)

    told = attributes_of(spans.one(CALL))
    assert (told["server.address"], told.get("server.port")) == server
    assert "server.address" not in attributes_of(spans.one("progressor.step"))


def test_a_retry_says_when_it_comes_and_a_settlement_too_late_fails_its_step() -> None:
    spans = Spans()
    retry = Retry(delay=seconds(1.5), attempt_count=1, error=None)

    with spans.tracing.step(make_task(trace_context=TRACED)) as span, span.settle() as settling:
        settling.settled(retry, None)
        settling.fail("LEASE_LOST")

    settled = spans.one("progressor.settle")
    assert attributes_of(settled).items() >= {
        "progressor.settlement": "retry", "progressor.retry_delay_ms": 1500.0,
    }.items()  # fmt: skip
    assert is_error(settled)
    assert spans.one("progressor.step").status.description == "LEASE_LOST"


@pytest.mark.parametrize(
    ("outcome", "code", "failed"),
    [
        (make_success(), "OK", False),
        (AWAY, "UNAVAILABLE", True),
        (NO, "OK", False),
        (Released(), "OK", False),
    ],
)
def test_what_the_processor_says_of_its_caller_is_no_failure(
    outcome: Outcome, code: str, failed: bool
) -> None:
    spans = Spans()

    with spans.tracing.step(make_task(trace_context=TRACED)) as span:
        with span.call() as call:
            call.answered(outcome)
        span.answered(outcome)

    ended = [spans.one(CALL), spans.one("progressor.step")]
    assert [is_error(it) for it in ended] == [failed] * 2
    assert attributes_of(ended[0])["rpc.response.status_code"] == code
    assert attributes_of(ended[1]).get("error.type") == (AWAY.reason if failed else None)


@pytest.mark.parametrize("task_type", [TaskType.TIMEOUT, TaskType.REMOVE])
def test_a_timer_is_linked_to_the_step_that_set_it_and_says_how_late_it_is(
    task_type: TaskType,
) -> None:
    spans = Spans()
    timer = make_task(task_type=task_type, trace_context=TRACED, started_at=START + seconds(0.25))

    with spans.tracing.step(timer):
        pass

    step = spans.one("progressor.step")
    assert [trace.format_span_id(link.context.span_id) for link in step.links] == [SPAN_ID]
    assert parent_of(step) == SPAN_ID
    assert attributes_of(step)["progressor.lateness_ms"] == 250.0


def test_a_claim_is_told_as_the_beginning_of_its_step() -> None:
    spans = Spans()
    sent_at = dt.datetime.fromisoformat("2026-01-01T00:00:00.000001Z")
    due_at = START - seconds(1)
    claim = Claim(due_at, sent_at, sent_at + seconds(0.5))
    task = make_task(task_type=TaskType.TIMEOUT, attempt=2, trace_context=TRACED, claim=claim)

    with spans.tracing.step(task):
        pass

    step, claimed = spans.one("progressor.step"), spans.one("progressor.claim")
    assert parent_of(claimed) == id_of(step)
    assert claimed.start_time == step.start_time == int(sent_at.timestamp()) * 10**9 + 1000
    assert seconds_of(claimed) == 0.5
    assert attributes_of(step)["progressor.lateness_ms"] == 1000.0
    assert attributes_of(claimed).items() >= {
        "db.system.name": "postgresql", "progressor.task_id": 7, "progressor.attempt": 2,
    }.items()  # fmt: skip


WAITED = ("progressor.waited_for", "progressor.behind_task_id")
LATER = START + seconds(1)


@pytest.mark.parametrize(
    ("fields", "behind", "waited"),
    [
        # Leased by its admission.
        ({}, None, (None, None)),
        ({"claim": Claim(START, LATER, LATER), "started_at": LATER}, None, (("available",), None)),
        ({}, 6, (("process",), 6)),
        ({"attempt": 2, "claim": Claim(START, START, START)}, None, (("time",), None)),
        ({"task_type": TaskType.TIMEOUT, "claim": Claim(START, START, START)}, None,
         (("time",), None)),
        # Set by that task, and due at once.
        ({"task_type": TaskType.TIMEOUT}, 6, (None, None)),
        # Due while that task ran.
        ({"task_type": TaskType.TIMEOUT, "started_at": LATER}, 6, (("time", "process"), 6)),
        ({"spent": (0, 0, 3, 4, 5, 6)}, None, (("process", "gates", "available"), None)),
        ({"spent": (0, 0, 3, 0, 0, 0)}, 6, (("process",), 6)),
        ({"spent": (0, 0, 0, 0, 0, 0)}, None, (None, None)),
    ],
)  # fmt: skip
def test_a_step_says_what_its_task_waited_for(
    fields: dict[str, object], behind: int | None, waited: tuple[object, object]
) -> None:
    spans = Spans()

    with spans.tracing.step(make_task(trace_context=TRACED, **fields), behind=behind):
        pass

    told = attributes_of(spans.one("progressor.step"))
    assert tuple(told.get(name) for name in WAITED) == waited


def test_an_admission_names_the_gates_that_are_to_be_passed() -> None:
    spans = Spans()
    request = make_request(
        trace_context=TRACED, constraints=Constraints(gates={"stock": 1, "bank": None})
    )

    spans.tracing.admission(request).end()

    assert attributes_of(spans.one("progressor.admit"))["progressor.gates"] == ("stock", "bank")


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


def test_successive_timers_are_recorded_in_traces_of_bounded_length_each_linked_to_the_last() -> (
    None
):
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
