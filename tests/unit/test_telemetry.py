"""What is traced: decided by the caller who traces, else by the ratio, before anything is made."""

import dataclasses

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from progressor.telemetry.setup import SILENT, Telemetry
from tests.support.builders import make_task

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-00"}


def tracing(exporter: InMemorySpanExporter, *, ratio: float = 0.5, chance: float = 0) -> Telemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Telemetry(
        tracer=provider.get_tracer("test"),
        counters={},
        shutdown=provider.shutdown,
        chance=lambda: chance,
        sample_ratio=ratio,
    )


@pytest.mark.parametrize(
    ("context", "chance", "sampled"),
    [
        (SAMPLED, 0.9, True),
        (NOT_SAMPLED, 0.1, False),
        ({"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-03"}, 0.9, True),
        ({"traceparent": f"01-{TRACE_ID}-b7ad6b7169203331-01-more"}, 0.9, True),
        ({"traceparent": "cut"}, 0.1, False),
        ({}, 0.49, True),
        ({}, 0.5, False),
    ],
)
def test_a_caller_who_traces_has_decided_and_the_ratio_does_for_others(
    context: dict[str, str], chance: float, sampled: bool
) -> None:
    assert tracing(InMemorySpanExporter(), chance=chance).samples(context) is sampled


def test_nothing_is_sampled_where_nothing_is_traced() -> None:
    assert not SILENT.samples(SAMPLED)


def test_a_step_is_a_child_of_its_caller_and_the_parent_of_its_processor() -> None:
    exporter = InMemorySpanExporter()
    task = dataclasses.replace(make_task(), trace_context=SAMPLED)

    with tracing(exporter).step(task) as traced:
        handed_on = traced.trace_context["traceparent"]

    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACE_ID
    assert handed_on.split("-")[1:3] == [TRACE_ID, f"{span.context.span_id:016x}"]
