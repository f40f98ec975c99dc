"""OpenTelemetry, set up once from the configuration; without an endpoint it costs nothing."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Counter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from progressor.domain.task import RunningTask
from progressor.telemetry import names

_SCOPE = "progressor"

# The last hexadecimal digit of the flags in a W3C traceparent; its lowest bit says "sampled".
_FLAGS_AT = 54
_SAMPLED = frozenset("13579bdf")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Where spans and metrics go."""

    tracer: trace.Tracer | None
    counters: Mapping[str, Counter]
    shutdown: Callable[[], None]
    chance: Callable[[], float]
    """Returns a number, 0 .. 1, for a trace that nobody has decided about."""
    sample_ratio: float

    def samples(self, context: Mapping[str, str]) -> bool:
        """Tell whether the step of a task with this trace context is to be recorded.

        Asked before anything is made, so that what is not recorded costs next to nothing: a caller
        who traces has decided, for all others it is `sample_ratio`.
        """
        if self.tracer is None:
            return False
        parent = context.get("traceparent")
        if parent is None:
            return self.chance() < self.sample_ratio
        return parent[_FLAGS_AT:][:1] in _SAMPLED

    @contextlib.contextmanager
    def step(self, task: RunningTask) -> Iterator[RunningTask]:
        """Trace one attempt of a task; yields the task with the context for its processor.

        Only for a task whose context `samples`.
        """
        assert self.tracer is not None, "a step is traced where nothing is"
        # The caller's span may have ended long ago, or be of another day: the step is its child
        # all the same, so that one trace tells the whole story.
        parent = propagate.extract(task.trace_context)
        attributes: dict[str, str | int] = {
            "progressor.namespace": task.key.namespace,
            "progressor.process_id": task.key.process_id,
            "progressor.task_id": task.task_id,
            "progressor.task_type": str(task.task_type),
            "progressor.attempt": task.attempt,
        }
        with self.tracer.start_as_current_span(
            names.STEP_SPAN, context=parent, kind=trace.SpanKind.CLIENT, attributes=attributes
        ):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            yield dataclasses.replace(task, trace_context=carrier)

    def observe(self, point: str, facts: Mapping[str, object]) -> None:
        """Count a point that the engine has passed."""
        counter = self.counters.get(point)
        if counter is not None:
            wanted = names.COUNTERS[point].facts
            counter.add(1, {name: str(facts[name]) for name in wanted})


SILENT = Telemetry(
    tracer=None, counters={}, shutdown=lambda: None, chance=lambda: 1.0, sample_ratio=0.0
)
"""Telemetry that goes nowhere."""


def set_up(
    *,
    otlp_endpoint: str,
    service_name: str,
    sample_ratio: float,
    chance: Callable[[], float],
    instance: str = "",
) -> Telemetry:
    """Return telemetry that is pushed to an OTLP endpoint; an empty one: nowhere.

    Args:
        otlp_endpoint: As in ``http://localhost:4317``, gRPC.
        service_name: ``service.name`` of every span and metric.
        sample_ratio: Share of traces that is recorded where the caller has not decided, 0 .. 1.
        chance: Returns a random number, 0 .. 1.
        instance: ``service.instance.id``, which tells the counters of one replica from another's.
    """
    if not otlp_endpoint:
        return SILENT
    attributes = {"service.name": service_name}
    if instance:
        attributes["service.instance.id"] = instance
    resource = Resource.create(attributes)
    insecure = not otlp_endpoint.startswith("https://")
    # `Telemetry.samples` has decided before a span is begun.
    spans = TracerProvider(resource=resource, sampler=ALWAYS_ON)
    spans.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=insecure))
    )
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=otlp_endpoint, insecure=insecure)
    )
    metrics = MeterProvider(resource=resource, metric_readers=[reader])
    meter = metrics.get_meter(_SCOPE)

    def shutdown() -> None:
        spans.shutdown()
        metrics.shutdown()

    return Telemetry(
        tracer=spans.get_tracer(_SCOPE),
        counters={
            point: meter.create_counter(each.name, unit=each.unit, description=each.meaning)
            for point, each in names.COUNTERS.items()
        },
        shutdown=shutdown,
        chance=chance,
        sample_ratio=sample_ratio,
    )
