"""A collector of what engines, clients and processors push by OTLP: spans, and counters.

A replica that drains pushes its last values before it leaves.
"""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from grpc import aio
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span as it came; instants in nanoseconds, ``parent_id`` "" for a root."""

    service: str
    instance: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    started_at: int
    ended_at: int
    attributes: Mapping[str, object]
    failed: bool

    @property
    def nanoseconds(self) -> int:
        """How long it took."""
        return self.ended_at - self.started_at


class Collector:
    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[ReceivedSpan] = []
        self.pushes: list[metrics_service_pb2.ExportMetricsServiceRequest] = []
        """Of metrics."""
        self._counts: collections.Counter[str] = collections.Counter()
        self._news = asyncio.Condition()

    @property
    def names(self) -> set[str]:
        return set(self._counts)

    def count(self, name: str) -> int:
        """Return the last value of a counter, over all its attributes; for one replica."""
        return self._counts[name]

    async def pushed(self, count: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: len(self.pushes) >= count)

    def named(self, name: str) -> list[ReceivedSpan]:
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.started_at)

    @contextlib.asynccontextmanager
    async def tracing(self, service: str) -> AsyncIterator[TracerProvider]:
        """Trace as a user's service would; all spans are exported when the context is left."""
        provider = TracerProvider(resource=Resource({"service.name": service}))
        exporter = OTLPSpanExporter(endpoint=self.endpoint, insecure=True)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        try:
            yield provider
        finally:
            await asyncio.to_thread(provider.shutdown)

    async def take_metrics(
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, _context: object
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.sum.data_points
                    self._counts[metric.name] = int(
                        sum(point.as_int + point.as_double for point in points)
                    )
        async with self._news:
            self.pushes.append(request)
            self._news.notify_all()
        return metrics_service_pb2.ExportMetricsServiceResponse()

    async def take_spans(
        self, request: trace_service_pb2.ExportTraceServiceRequest, _context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for part in request.resource_spans:
            resource = _values(part.resource.attributes)
            for scope in part.scope_spans:
                self.spans.extend(_received(span, resource) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@contextlib.asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    server = aio.server()
    server.add_generic_rpc_handlers(
        (
            _service(
                "opentelemetry.proto.collector.trace.v1.TraceService",
                collector.take_spans,
                trace_service_pb2.ExportTraceServiceRequest,
            ),
            _service(
                "opentelemetry.proto.collector.metrics.v1.MetricsService",
                collector.take_metrics,
                metrics_service_pb2.ExportMetricsServiceRequest,
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await server.stop(grace=0)


def within(inner: ReceivedSpan, outer: ReceivedSpan) -> bool:
    return outer.started_at <= inner.started_at <= inner.ended_at <= outer.ended_at


def children_of(parent: ReceivedSpan, spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """Return the children of a span, in the order in which they began."""
    found = [span for span in spans if span.parent_id == parent.span_id]
    return sorted(found, key=lambda span: span.started_at)


def _service(
    name: str, take: Callable[[Any, object], Awaitable[Any]], request: Any
) -> grpc.GenericRpcHandler:
    method: Any = grpc.unary_unary_rpc_method_handler(
        take,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
    return grpc.method_handlers_generic_handler(name, {"Export": method})


def _received(span: trace_pb2.Span, resource: Mapping[str, object]) -> ReceivedSpan:
    return ReceivedSpan(
        service=str(resource.get("service.name", "")),
        instance=str(resource.get("service.instance.id", "")),
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        started_at=span.start_time_unix_nano,
        ended_at=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
    )


def _values(pairs: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value") or "string_value"
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
