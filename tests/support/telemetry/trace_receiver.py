"""A receiver of traces that engines, clients and processors push by OTLP, as a collector would be.

Metrics that come to the same address are taken, and forgotten.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
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

_TRACES = "opentelemetry.proto.collector.trace.v1.TraceService"
_METRICS = "opentelemetry.proto.collector.metrics.v1.MetricsService"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Told:
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


class TraceReceiver:
    """What was told so far; `running_receiver` opens one."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Told] = []
        self._came = asyncio.Condition()

    def named(self, name: str) -> list[Told]:
        """Return the spans of a name, in the order in which they began."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.started_at)

    async def received(self, name: str, count: int = 1, *, seconds: float = 30.0) -> list[Told]:
        """Wait until so many spans of a name have come, and return them.

        Raises:
            TimeoutError: They have not come.
        """
        async with asyncio.timeout(seconds), self._came:
            await self._came.wait_for(lambda: len(self.named(name)) >= count)
        return self.named(name)

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

    async def export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, _context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Take a push; called by the gRPC server."""
        async with self._came:
            for part in request.resource_spans:
                resource = _values(part.resource.attributes)
                for scope in part.scope_spans:
                    self.spans.extend(_told(span, resource) for span in scope.spans)
            self._came.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()


@contextlib.asynccontextmanager
async def running_receiver() -> AsyncIterator[TraceReceiver]:
    """Receive until the context is left."""
    receiver = TraceReceiver()

    async def forget(_request: object, _context: object) -> Any:
        return metrics_service_pb2.ExportMetricsServiceResponse()

    server = aio.server()
    traces: Any = grpc.unary_unary_rpc_method_handler(
        receiver.export,
        request_deserializer=trace_service_pb2.ExportTraceServiceRequest.FromString,
        response_serializer=trace_service_pb2.ExportTraceServiceResponse.SerializeToString,
    )
    metrics: Any = grpc.unary_unary_rpc_method_handler(
        forget,
        request_deserializer=metrics_service_pb2.ExportMetricsServiceRequest.FromString,
        response_serializer=metrics_service_pb2.ExportMetricsServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(_TRACES, {"Export": traces}),
            grpc.method_handlers_generic_handler(_METRICS, {"Export": metrics}),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    receiver.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        await server.stop(grace=0)


def within(inner: Told, outer: Told) -> bool:
    """Tell whether a span lies inside of another."""
    return outer.started_at <= inner.started_at <= inner.ended_at <= outer.ended_at


def children_of(parent: Told, spans: Sequence[Told]) -> list[Told]:
    """Return the children of a span, in the order in which they began."""
    found = [span for span in spans if span.parent_id == parent.span_id]
    return sorted(found, key=lambda span: span.started_at)


def _told(span: trace_pb2.Span, resource: Mapping[str, object]) -> Told:
    return Told(
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
        return [_value(it) for it in value.array_value.values]
    return getattr(value, kind)
