"""Trace contexts of callers: valid ones are passed on, and nothing else is."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.span import TraceState

from progressor.api.calls.trace_context import trace_context_of
from progressor.processor.client import _trace_metadata
from progressor.telemetry.traces.spans import W3C, is_sampled
from tests.unit.api.test_calls import Context as Call

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
        ([",".join(f"k{it}=v" for it in range(100))], ",".join(f"k{it}=v" for it in range(64))),
        (["a=1,b=" + "x" * 8_188 + ",c=3"], "a=1"),
        (["a=" + "x" * 8_190], "a=" + "x" * 8_190),
        (["a=" + "x" * 8_191], None),
        (["a=" + "x" * 10_000_000], None),
    ],
)  # fmt: skip
def test_valid_baggage_members_are_kept_while_there_is_room(
    given_: list[str], kept: str | None
) -> None:
    assert carried([("baggage", it) for it in given_]).get("baggage") == kept


@pytest.mark.parametrize(("length", "told"), [(4_096, True), (4_097, False)])
def test_baggage_too_long_for_a_processors_metadata_goes_with_the_task_alone(
    length: int, told: bool
) -> None:
    parent = f"00-{'1' * 32}-{'1' * 16}-01"
    context = {"traceparent": parent, "baggage": "a=".ljust(length, "x")}

    metadata = dict(_trace_metadata(context) or ())

    assert metadata["traceparent"] == parent
    assert ("baggage" in metadata) is told
