"""Invariants of instruments, of repetition in the log, and of trace contexts of callers."""

import collections
import logging
import math
import threading
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.span import TraceState

from progressor.api.calls.traces import trace_context_of
from progressor.processor.client import _trace_metadata
from progressor.telemetry.instruments import (
    OVERFLOW,
    Counter,
    Distribution,
    Histogram,
    Metric,
    MetricKind,
)
from progressor.telemetry.logs.repetition import REPEATED_MAX, WINDOW_SECONDS, Repetition
from progressor.telemetry.traces.spans import W3C, is_sampled
from tests.support.runtime.timers import ManualTimers
from tests.support.telemetry.measured import counted
from tests.unit.api.test_calls import Context as Call

BOUNDS = (1.0, 10.0, 100.0)
SETS_MAX = 3
"""Near enough to be met."""

RECORDS = 50_000

values = st.floats(min_value=0, max_value=1e6, allow_nan=False)
labels = st.sampled_from("abcdef").map(lambda name: (name,))
records = st.lists(st.tuples(labels, values), max_size=50)


def histogram() -> Histogram:
    return Histogram(
        Metric(
            kind=MetricKind.HISTOGRAM, name="m", unit="ms", meaning="It is.", labels=("id",),
            bounds=BOUNDS, sets_max=SETS_MAX,
        )
    )  # fmt: skip


def distributions(of: Histogram) -> list[Distribution]:
    return [value for value in of.snapshot().values.values() if isinstance(value, Distribution)]


@given(records)
def test_every_value_is_in_one_bucket_of_one_set_of_labels(
    recorded: list[tuple[tuple[str], float]],
) -> None:
    made = histogram()
    for each, value in recorded:
        made.record(value, each)

    found = distributions(made)
    edges = [(-math.inf, BOUNDS[0]), *zip(BOUNDS, (*BOUNDS[1:], math.inf), strict=True)]
    assert [sum(counts) for counts in zip(*(one.bucket_counts for one in found), strict=True)] == (
        [sum(low < value <= high for _, value in recorded) for low, high in edges] if found else []
    )
    assert sum(one.total for one in found) == pytest.approx(sum(value for _, value in recorded))


@given(records)
def test_the_first_sets_of_labels_are_kept_apart_and_all_others_are_one(
    recorded: list[tuple[tuple[str], float]],
) -> None:
    counter = Counter(
        Metric(
            kind=MetricKind.COUNTER, name="m", unit="1", meaning="It is.", labels=("id",),
            sets_max=SETS_MAX,
        )
    )  # fmt: skip
    for each, value in recorded:
        counter.add(value, each)

    first = [*dict.fromkeys(each for each, _ in recorded)][:SETS_MAX]
    expected = {each: sum(value for other, value in recorded if other == each) for each in first}
    rest = [value for each, value in recorded if each not in first]
    if rest:
        expected[OVERFLOW,] = sum(rest)
    assert counted(counter) == pytest.approx(expected)


def test_snapshots_of_other_threads_never_go_back_and_never_fail() -> None:
    made = histogram()
    done = threading.Event()
    counts: list[int] = []

    def look() -> None:
        while not done.is_set():
            counts.append(sum(distribution.count for distribution in distributions(made)))

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(RECORDS):
        made.record(number, (f"{number % 10}",))
    done.set()
    thread.join()

    assert counts == sorted(counts)
    assert sum(distribution.count for distribution in distributions(made)) == RECORDS


LINES = st.lists(
    st.tuples(st.sampled_from(["away", "full", "lost"]), st.sampled_from([0.0, 0.1, 3.0, 12.0])),
    max_size=200,
)
"""Messages, and how long after the one before."""


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("room", logging.WARNING, "", 0, message, None, None)


def repeated(said: logging.LogRecord) -> int:
    return int(getattr(said, "repeated", 0))


@given(LINES)
def test_each_line_is_logged_or_counted(lines: list[tuple[str, float]]) -> None:
    timers = ManualTimers()
    repetition = Repetition(monotonic=timers.monotonic)
    said: list[logging.LogRecord] = []
    for message, pause in lines:
        timers.advance(pause)
        said += repetition.take(record(message))
    said += repetition.close()

    accounted = collections.Counter[str]()
    for each in said:
        accounted[each.getMessage()] += repeated(each) or 1
    assert accounted == collections.Counter(message for message, _ in lines)


@given(LINES)
def test_the_first_line_of_a_window_is_logged_at_once_and_a_flood_is_held_back(
    lines: list[tuple[str, float]],
) -> None:
    timers = ManualTimers()
    repetition = Repetition(monotonic=timers.monotonic)
    said_at: dict[str, list[float]] = collections.defaultdict(list)
    for message, pause in lines:
        timers.advance(pause)
        quiet = all(timers.now - at >= WINDOW_SECONDS for at in said_at[message])
        own = record(message)
        told = repetition.take(own)
        assert own in told or not quiet
        if own in told:
            said_at[message].append(timers.now)

    for times in said_at.values():
        for first in times:
            within = [at for at in times if first <= at < first + WINDOW_SECONDS]
            assert len(within) <= 2 * REPEATED_MAX


NAMES = st.sampled_from(["traceparent", "tracestate", "baggage", "user-agent"])
HEX = "0123456789abcdef"
LIKELY = st.builds(
    "-".join,
    st.tuples(
        st.sampled_from(["00", "01", "cc", "ff", "0"]),
        st.text(HEX + "G", min_size=31, max_size=33),
        st.text(HEX + "A", min_size=16, max_size=16),
        st.text(HEX, min_size=2, max_size=2),
    ),
)
METADATA = st.lists(st.tuples(NAMES, LIKELY | st.text() | st.binary()), max_size=4)

SPANS = st.builds(
    trace.SpanContext,
    trace_id=st.integers(1, 2**128 - 1),
    span_id=st.integers(1, 2**64 - 1),
    is_remote=st.just(value=True),
    trace_flags=st.integers(0, 255).map(trace.TraceFlags),
    trace_state=st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_*/-]{0,9}", fullmatch=True),
        st.from_regex(r"[!-+\--<>-~]{1,9}", fullmatch=True),
        max_size=3,
    ).map(lambda found: TraceState(list(found.items()))),
)


def read(context: Mapping[str, str]) -> trace.SpanContext:
    """Return a context as OpenTelemetry reads it."""
    return trace.get_current_span(W3C.extract(context, Context())).get_span_context()


def carried(metadata: Sequence[tuple[str, str | bytes]]) -> Mapping[str, str]:
    return trace_context_of(Call(metadata=metadata))


@given(METADATA)
def test_what_is_kept_of_a_caller_is_a_context_and_can_be_told_to_a_processor(
    metadata: list[tuple[str, str | bytes]],
) -> None:
    context = carried(metadata)

    assert read(context).is_valid is ("traceparent" in context)
    assert is_sampled(context) is read(context).trace_flags.sampled
    assert dict(_trace_metadata(context) or ()) == context


@given(SPANS)
def test_a_context_survives_a_round_trip(span: trace.SpanContext) -> None:
    carrier: dict[str, str] = {}
    W3C.inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(span), Context()))

    context = carried([*carrier.items()])

    assert context == carrier
    assert read(context) == span


KEYS = st.from_regex(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,20}", fullmatch=True)
VALUES = st.text(max_size=20)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=20))
def test_baggage_survives_a_round_trip(pairs: dict[str, str]) -> None:
    context = Context()
    for key, value in pairs.items():
        context = baggage.set_baggage(key, value, context)
    carrier: dict[str, str] = {}
    W3CBaggagePropagator().inject(carrier, context)

    assert carried([*carrier.items()]) == carrier


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (["a=1", "b=2"], "a=1,b=2"),
        ([" a = 1 ;p=x ,, b=2\t"], "a = 1 ;p=x,b=2"),
        (["a,=1,b=2"], "b=2"),
        (["a=\u00e4,b=\x1b,c=3"], "c=3"),
        ([""], None),
        ([",".join(f"k{n}=v" for n in range(100))], ",".join(f"k{n}=v" for n in range(64))),
        (["a=1,b=" + "x" * 8_188 + ",c=3"], "a=1"),
        (["a=" + "x" * 8_190], "a=" + "x" * 8_190),
        (["a=" + "x" * 8_191], None),
        (["a=" + "x" * 10_000_000], None),
    ],
)  # fmt: skip
def test_valid_baggage_members_are_kept_while_there_is_room(
    given_: list[str], kept: str | None
) -> None:
    assert carried([("baggage", each) for each in given_]).get("baggage") == kept


@pytest.mark.parametrize(("length", "told"), [(4_096, True), (4_097, False)])
def test_baggage_too_long_for_a_processors_metadata_goes_with_the_task_alone(
    length: int, told: bool
) -> None:
    parent = f"00-{'1' * 32}-{'1' * 16}-01"
    context = {"traceparent": parent, "baggage": "a=".ljust(length, "x")}

    metadata = dict(_trace_metadata(context) or ())

    assert metadata["traceparent"] == parent
    assert ("baggage" in metadata) is told
