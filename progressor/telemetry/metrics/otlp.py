"""The metrics as OTLP: pushed over gRPC to a collector, now and then, from a thread of its own.

What is pushed is cumulative since the start of this process, so that a push which got lost costs
nothing but its own instant. A collector that is away, or refuses, costs a warning a minute.
"""

import contextlib
import datetime as dt
import logging
import threading
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import progressor
from progressor.clock import Clock
from progressor.telemetry.instruments import Distribution, Family, Kind, Labels
from progressor.telemetry.metrics.registry import Metrics

EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.grpc.exporter"
"""Where OpenTelemetry's exporters, of spans too, say what went wrong."""

LAST_PUSH_SECONDS = 3.0
"""For what is pushed at the end: a collector that is away does not hold up the drain."""

_SCOPE = InstrumentationScope("progressor", progressor.__version__)
_WARN_SECONDS = 60.0
_PUSH_SECONDS_MAX = 10.0
# Of one message; a histogram takes some 300 bytes, and collectors take messages up to 4 MiB.
_POINTS_MAX = 5_000


class Push:
    """Pushes all metrics each interval between `start` and `stop`, and once more at the end."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        endpoint: str,
        interval: dt.timedelta,
        resource: Resource,
        clock: Clock,
    ) -> None:
        """Start nothing yet.

        Args:
            metrics: What is pushed.
            endpoint: As in ``http://localhost:4317``, gRPC; with TLS where it is https.
            interval: Between two pushes.
            resource: Who pushes.
            clock: For the start of this process, which is now, and the instant of each push.
        """
        self._metrics = metrics
        self._interval = interval.total_seconds()
        self._resource = resource
        self._clock = clock
        self._started_at = clock.now()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics push", daemon=True)
        self._exporter = OTLPMetricExporter(
            endpoint=endpoint,
            insecure=not endpoint.startswith("https://"),
            timeout=min(self._interval, _PUSH_SECONDS_MAX),
            max_export_batch_size=_POINTS_MAX,
        )
        self._seldom = OnceAMinute()

    @property
    def is_running(self) -> bool:
        """Whether there may be more pushes."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to push."""
        logging.getLogger(EXPORTER_LOGGER).addFilter(self._seldom)
        self._thread.start()

    def stop(self) -> None:
        """Push the last values, within LAST_PUSH_SECONDS, and end; once, after `start`."""
        self._stopped.set()
        self._thread.join(LAST_PUSH_SECONDS)
        self._exporter.shutdown()
        self._thread.join(_PUSH_SECONDS_MAX)
        logging.getLogger(EXPORTER_LOGGER).removeFilter(self._seldom)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._push()
        self._push()

    def _push(self) -> None:
        data = metrics_data(
            self._metrics.families(),
            resource=self._resource,
            started_at=self._started_at,
            now=self._clock.now(),
        )
        # The channel was closed under a push that took too long.
        with contextlib.suppress(ValueError):
            self._exporter.export(data)


class OnceAMinute(logging.Filter):
    """Lets one record of a logger pass each minute, as a warning: the engine itself is well."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record may pass."""
        if record.created < self._quiet_until:
            return False
        self._quiet_until = record.created + _WARN_SECONDS
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def metrics_data(
    families: Iterable[Family], *, resource: Resource, started_at: dt.datetime, now: dt.datetime
) -> MetricsData:
    """Return families as an exporter of OpenTelemetry takes them, but for those without values.

    Args:
        families: What is exported.
        resource: Who tells it.
        started_at: Since when counters and histograms count.
        now: When they were read.
    """
    since, until = _nanoseconds(started_at), _nanoseconds(now)
    metrics = [
        Metric(
            name=family.metric.name,
            description=family.metric.meaning,
            unit=family.metric.unit,
            data=_data(family, since, until),
        )
        for family in families
        if family.values
    ]
    scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url="")
    told = ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")
    return MetricsData(resource_metrics=[told])


def _data(family: Family, since: int, until: int) -> DataT:
    match family.metric.kind:
        case Kind.COUNTER:
            return Sum(
                data_points=_numbers(family, since, until),
                aggregation_temporality=AggregationTemporality.CUMULATIVE,
                is_monotonic=True,
            )
        case Kind.GAUGE:
            return Gauge(data_points=_numbers(family, since, until))
        case Kind.HISTOGRAM:
            return Histogram(
                data_points=_distributions(family, since, until),
                aggregation_temporality=AggregationTemporality.CUMULATIVE,
            )


def _numbers(family: Family, since: int, until: int) -> list[NumberDataPoint]:
    points = []
    for labels, value in family.values.items():
        assert not isinstance(value, Distribution), f"{family.metric.name} is not a histogram"
        points.append(
            NumberDataPoint(
                attributes=_attributes(family, labels),
                start_time_unix_nano=since,
                time_unix_nano=until,
                value=value,
            )
        )
    return points


def _distributions(family: Family, since: int, until: int) -> list[HistogramDataPoint]:
    points = []
    for labels, value in family.values.items():
        assert isinstance(value, Distribution), f"{family.metric.name} is a histogram"
        points.append(
            HistogramDataPoint(
                attributes=_attributes(family, labels),
                start_time_unix_nano=since,
                time_unix_nano=until,
                count=value.count,
                sum=value.total,
                bucket_counts=value.bucket_counts,
                explicit_bounds=family.metric.bounds,
                # Optional on the wire, and told only since the last push where they are told.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
        )
    return points


def _attributes(family: Family, labels: Labels) -> dict[str, str]:
    return dict(zip(family.metric.labels, labels, strict=True))


def _nanoseconds(instant: dt.datetime) -> int:
    return int(instant.timestamp() * 1_000_000) * 1_000
