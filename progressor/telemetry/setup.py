"""Sets up OpenTelemetry and the metrics of a replica; what is not configured costs nothing."""

from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

import progressor
from progressor.clock import Clock
from progressor.settings.sections import Telemetry
from progressor.telemetry.metrics.otlp import LAST_PUSH_SECONDS, Push
from progressor.telemetry.metrics.prometheus import MetricsEndpoint
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.metrics.scrape_server import NewContext
from progressor.telemetry.traces.span_queue import SpanQueue
from progressor.telemetry.traces.tracing import SILENT, Tracing

# After this time without an answer, a batch is dropped.
_EXPORT_SECONDS = 5


class ReplicaTelemetry:
    def __init__(
        self,
        settings: Telemetry,
        metrics: Metrics,
        *,
        instance: str,
        chance: Callable[[], float],
        clock: Clock,
        tls: NewContext | None = None,
    ) -> None:
        """Take what is exported; ``service.instance.id`` is `instance`, `chance` is 0 to 1.

        `tls` is for the endpoint that Prometheus reads; None: without TLS.
        """
        self.tracing = SILENT
        self._provider: TracerProvider | None = None
        self._push: Push | None = None
        self._endpoint: MetricsEndpoint | None = None
        bind, collector = settings.metrics_at(), settings.otlp_endpoint
        if bind is not None:
            self._endpoint = MetricsEndpoint(metrics, bind, clock, tls)
        if not collector:
            return
        resource = resource_of(service_name=settings.service_name, instance=instance)
        exporter = OTLPSpanExporter(
            endpoint=collector,
            insecure=not collector.startswith("https://"),
            timeout=_EXPORT_SECONDS,
        )
        queue = SpanQueue(exporter, last_seconds=LAST_PUSH_SECONDS)
        # `Tracing` decides before it begins a span.
        self._provider = TracerProvider(
            resource=resource, sampler=ALWAYS_ON, shutdown_on_exit=False
        )
        self._provider.add_span_processor(queue)
        metrics.spans.read_from(queue.counts)
        tracer = self._provider.get_tracer("progressor")
        self.tracing = Tracing(tracer, ratio=settings.sample_ratio, chance=chance)
        self._push = Push(
            metrics,
            endpoint=collector,
            interval=settings.metrics_interval,
            resource=resource,
            clock=clock,
        )

    def open(self) -> str:
        """Begin to serve and to push metrics; return the address for scrapes, "" without one.

        Raises:
            ConfigError: The endpoint cannot listen on its address.
        """
        url = "" if self._endpoint is None else self._endpoint.open()
        if self._push is not None:
            self._push.start()
        return url

    def close(self) -> None:
        """Push the remaining spans and the last values, within a few seconds, and close all."""
        if self._provider is not None:
            self._provider.shutdown()
        if self._push is not None:
            self._push.stop()
        if self._endpoint is not None:
            self._endpoint.close()


def resource_of(*, service_name: str, instance: str) -> Resource:
    """Return the attributes of all spans and metrics; ``OTEL_RESOURCE_ATTRIBUTES`` adds to them."""
    return Resource.create(
        {
            "service.name": service_name,
            "service.instance.id": instance,
            "service.version": progressor.__version__,
        }
    )
