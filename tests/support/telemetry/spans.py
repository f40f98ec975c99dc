"""Spans that stay in memory, and what they say of each other."""

from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from progressor.telemetry import names
from progressor.telemetry.traces.tracing import Tracing

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TRACED: Mapping[str, str] = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
"""The context of a caller who traces."""

NOT_TRACED: Mapping[str, str] = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}
"""The context of a caller who does not."""


class Spans:
    """A tracing whose spans are looked at once they have ended."""

    def __init__(self, *, ratio: float = 0.5, chance: float = 0.0) -> None:
        """Begin with none; `chance` is what every draw gives."""
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracer = provider.get_tracer("test")
        self.tracing = Tracing(tracer, ratio=ratio, chance=lambda: chance)

    def ended(self) -> Sequence[ReadableSpan]:
        """Return all that have ended; nothing in them goes by a name that is not listed."""
        ended = self._exporter.get_finished_spans()
        for span in ended:
            assert set(attributes_of(span)) <= set(names.ATTRIBUTES)
            assert span.name in names.SPANS or span.kind is trace.SpanKind.SERVER
        return ended

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.ended() if span.name == name]
        return found


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return trace.format_span_id(span.context.span_id)


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else trace.format_span_id(span.parent.span_id)


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return trace.format_trace_id(span.context.trace_id)


def is_error(span: ReadableSpan) -> bool:
    return span.status.status_code is trace.StatusCode.ERROR


def seconds_of(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9
