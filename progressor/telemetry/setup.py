"""Sets up OpenTelemetry from the configuration; without an endpoint it costs nothing."""

import dataclasses
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from progressor.telemetry.instruments import Read
from progressor.telemetry.metrics.otlp import LAST_PUSH_SECONDS
from progressor.telemetry.resource import resource_of
from progressor.telemetry.traces import tracing
from progressor.telemetry.traces.span_queue import SpanQueue
from progressor.telemetry.traces.tracing import Tracing

_SCOPE = "progressor"

# After this time without an answer, a batch is dropped.
_EXPORT_SECONDS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTracing:
    """The tracing of a replica."""

    tracing: Tracing
    counts: Read
    """Returns the counts of spans by fate; see `Metrics.spans`."""
    shutdown: Callable[[], None]
    """Pushes the remaining spans, within a few seconds."""


SILENT = ReplicaTracing(tracing=tracing.SILENT, counts=tuple, shutdown=lambda: None)
"""Without a collector."""


def set_up(
    *,
    otlp_endpoint: str,
    service_name: str,
    sample_ratio: float,
    chance: Callable[[], float],
    instance: str,
) -> ReplicaTracing:
    """Return telemetry that is pushed to an OTLP endpoint, or SILENT if that is empty.

    Args:
        otlp_endpoint: As in ``http://localhost:4317``, gRPC.
        service_name: ``service.name`` of every span.
        sample_ratio: Share of traces recorded if the caller has not decided, 0 to 1.
        chance: Returns a random number from 0 to 1.
        instance: ``service.instance.id``, unique to this process.
    """
    if not otlp_endpoint:
        return SILENT
    exporter = OTLPSpanExporter(
        endpoint=otlp_endpoint,
        insecure=not otlp_endpoint.startswith("https://"),
        timeout=_EXPORT_SECONDS,
    )
    queue = SpanQueue(exporter, last_seconds=LAST_PUSH_SECONDS)
    provider = TracerProvider(
        resource=resource_of(service_name=service_name, instance=instance),
        # `Tracing` decides before it begins a span.
        sampler=ALWAYS_ON,
        shutdown_on_exit=False,
    )
    provider.add_span_processor(queue)
    return ReplicaTracing(
        tracing=Tracing(provider.get_tracer(_SCOPE), ratio=sample_ratio, chance=chance),
        counts=queue.counts,
        shutdown=provider.shutdown,
    )
