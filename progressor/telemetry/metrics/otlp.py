"""Pushes the metrics to a collector by OTLP over gRPC.

The SDK's exporter encodes, splits, sends and retries; ours is the thread that turns a snapshot of
the fast instruments into its data classes. The SDK (1.45) has no metric producers, and its periodic
reader takes data from its own instruments only. All values are cumulative since this process
started. While the collector is unavailable, there is one warning a minute.
"""

import datetime as dt
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

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
from progressor.telemetry.instruments import Distribution, Family, MetricKind
from progressor.telemetry.metrics.registry import Metrics

EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.grpc.exporter"
"""Where OpenTelemetry's exporters, of spans too, report their errors."""

LAST_PUSH_SECONDS = 3.0
"""Timeout of the last push, so that an unavailable collector does not hold up the drain."""

_log = logging.getLogger(__name__)

_SCOPE = InstrumentationScope("progressor", progressor.__version__)
_WARN_SECONDS = 60.0
_PUSH_SECONDS_MAX = 10.0
# Per message; a histogram takes about 300 bytes, and collectors accept messages up to 4 MiB.
_POINTS_MAX = 5_000


class Push:
    def __init__(
        self,
        metrics: Metrics,
        *,
        endpoint: str,
        interval: dt.timedelta,
        resource: Resource,
        clock: Clock,
    ) -> None:
        """Take what is pushed, and where: ``http://localhost:4317``, gRPC; TLS if it is https."""
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
        self._once_a_minute = OnceAMinute()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        logging.getLogger(EXPORTER_LOGGER).addFilter(self._once_a_minute)
        self._thread.start()

    def stop(self) -> None:
        """Push the last values, within LAST_PUSH_SECONDS, and end; once, after `start`."""
        self._stopped.set()
        self._thread.join(LAST_PUSH_SECONDS)
        self._exporter.shutdown()
        self._thread.join(_PUSH_SECONDS_MAX)
        logging.getLogger(EXPORTER_LOGGER).removeFilter(self._once_a_minute)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.wait(self._interval)
            data = metrics_data(
                self._metrics.families(),
                resource=self._resource,
                started_at=self._started_at,
                now=self._clock.now(),
            )
            try:
                self._exporter.export(data)
            except ValueError:
                # `stop` closes the channel under a push that takes too long.
                pass
            except Exception:  # noqa: BLE001  # a value that it cannot encode must not end all pushes
                _log.exception("metrics not pushed")


class OnceAMinute(logging.Filter):
    """Passes one record a minute, as a warning: the engine itself works."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created < self._quiet_until:
            return False
        self._quiet_until = record.created + _WARN_SECONDS
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def metrics_data(
    families: Iterable[Family], *, resource: Resource, started_at: dt.datetime, now: dt.datetime
) -> MetricsData:
    """Return families as OpenTelemetry's exporters take them; those without values are left out.

    Counters and histograms count since `started_at`, and were read `now`.
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
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _data(family: Family, since: int, until: int) -> DataT:
    points: Any = [*_points(family, since, until)]
    match family.metric.kind:
        case MetricKind.COUNTER:
            return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        case MetricKind.GAUGE:
            return Gauge(points)
        case MetricKind.HISTOGRAM:
            return Histogram(points, AggregationTemporality.CUMULATIVE)


def _points(
    family: Family, since: int, until: int
) -> Iterator[NumberDataPoint | HistogramDataPoint]:
    for labels, value in family.values.items():
        attributes = dict(zip(family.metric.labels, labels, strict=True))
        if not isinstance(value, Distribution):
            yield NumberDataPoint(attributes, since, until, value)
            continue
        yield HistogramDataPoint(
            attributes,
            start_time_unix_nano=since,
            time_unix_nano=until,
            count=value.count,
            sum=value.total,
            bucket_counts=value.bucket_counts,
            explicit_bounds=family.metric.bounds,
            # Optional on the wire; where given, they are those since the last push.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )


def _nanoseconds(instant: dt.datetime) -> int:
    return int(instant.timestamp() * 1_000_000) * 1_000
