"""A collector of the counters that a replica in a process of its own pushes by OTLP.

A replica that drains pushes the last values before it leaves.
"""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

import grpc
from grpc import aio
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


class Collector:
    """What counters have been heard of; `running_collector` opens one. For one replica."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.names: set[str] = set()
        """Of all metrics that were ever heard of."""
        self._counts: collections.Counter[str] = collections.Counter()
        self._pushes = 0
        self._news = asyncio.Condition()

    def count(self, name: str) -> int:
        """Return the last value of a counter, over all its attributes."""
        return self._counts[name]

    async def pushed(self, count: int) -> None:
        """Wait until there were so many pushes in all."""
        async with self._news:
            await self._news.wait_for(lambda: self._pushes >= count)

    async def export(
        self,
        request: metrics_service_pb2.ExportMetricsServiceRequest,
        _context: aio.ServicerContext[
            metrics_service_pb2.ExportMetricsServiceRequest,
            metrics_service_pb2.ExportMetricsServiceResponse,
        ],
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        """Take a push; called by the gRPC server."""
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self.names.add(metric.name)
                    self._counts[metric.name] = _total(metric)
        async with self._news:
            self._pushes += 1
            self._news.notify_all()
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextlib.asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    """Collect until the context is left."""
    collector = Collector()
    server = aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        collector.export,
        request_deserializer=metrics_service_pb2.ExportMetricsServiceRequest.FromString,
        response_serializer=metrics_service_pb2.ExportMetricsServiceResponse.SerializeToString,
    )
    service, name = _EXPORT[1:].split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await server.stop(grace=0)


def _total(metric: Metric) -> int:
    return int(sum(point.as_int + point.as_double for point in metric.sum.data_points))
