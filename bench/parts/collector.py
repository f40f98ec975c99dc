"""The collector: receives what an engine pushes by OTLP, and discards it."""

from typing import Any

import grpc

from bench.parts import orders

_SERVICES = (
    "opentelemetry.proto.collector.trace.v1.TraceService",
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
)


class _Sink:
    """Counts the bytes received by each service."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(_SERVICES, 0)

    def handler(self, service: str) -> grpc.GenericRpcHandler:
        async def export(request: bytes, _context: object) -> bytes:
            self.bytes[service] += len(request)
            return b""

        method: Any = grpc.unary_unary_rpc_method_handler(export)
        return grpc.method_handlers_generic_handler(service, {"Export": method})

    async def obey(self, _order: dict[str, Any]) -> orders.Answer:
        """Return the number of received bytes of traces."""
        return {"bytes": self.bytes[_SERVICES[0]]}


async def _main() -> None:
    sink = _Sink()
    server = grpc.aio.server(options=orders.SERVER_OPTIONS)
    server.add_generic_rpc_handlers(tuple(map(sink.handler, _SERVICES)))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    orders.tell({"address": f"127.0.0.1:{port}"})
    await orders.obey(sink.obey)
    await server.stop(None)


if __name__ == "__main__":
    orders.run(_main())
