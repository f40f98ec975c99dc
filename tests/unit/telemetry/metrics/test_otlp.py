"""The metrics that a replica pushes by OTLP, as they arrive at a collector.

``python -m tests.unit.telemetry.metrics.test_otlp`` rewrites the golden file.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from progressor.telemetry.instruments import MetricKind
from progressor.telemetry.metrics.otlp import OnceAMinute, Push
from progressor.telemetry.metrics.registry import METRICS, Metrics
from progressor.telemetry.setup import resource_of
from tests.support.clock import START, ManualClock
from tests.support.telemetry.collector import running_collector
from tests.support.telemetry.metrics import filled_metrics

GOLDEN = Path(__file__).parents[3] / "golden/telemetry/otlp.txt"
AGE = dt.timedelta(minutes=1, microseconds=1)


async def pushed(metrics: Metrics) -> ExportMetricsServiceRequest:
    """Push to a collector over gRPC, a minute after the start, and return what arrives."""
    clock = ManualClock()
    async with running_collector() as collector:
        push = Push(
            metrics,
            endpoint=collector.endpoint,
            interval=dt.timedelta(hours=1),
            resource=resource_of(service_name="service", instance="replica:1"),
            clock=clock,
        )
        clock.advance(AGE)
        push.start()
        await asyncio.to_thread(push.stop)
    [request] = collector.pushes
    return request


def metrics_of(request: ExportMetricsServiceRequest) -> list[Metric]:
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    return list(scope.metrics)


def attributes(pairs: Iterable[KeyValue]) -> dict[str, str]:
    return {it.key: it.value.string_value for it in pairs}


def lines_of(request: ExportMetricsServiceRequest) -> Iterator[str]:
    """Yield a line for each metric and for each of its points."""
    for metric in metrics_of(request):
        kind = metric.WhichOneof("data")
        assert kind is not None
        data = getattr(metric, kind)
        words = [metric.name, metric.unit, kind]
        if kind != "gauge":
            words.append(AggregationTemporality.Name(data.aggregation_temporality))
        if kind == "sum":
            words.append("monotonic" if data.is_monotonic else "not monotonic")
        yield " ".join(words)
        yield from (f"  {_point(point)}" for point in data.data_points)


def _point(point: Any) -> str:
    started, now = (
        (it - int(START.timestamp()) * 10**9) / 1e9
        for it in (point.start_time_unix_nano, point.time_unix_nano)
    )
    if hasattr(point, "bucket_counts"):
        buckets = zip(point.bucket_counts, (*point.explicit_bounds, "more"), strict=True)
        filled = " ".join(f"{count}<={bound}" for count, bound in buckets if count)
        value = f"count={point.count} sum={point.sum} min={point.HasField('min')} {filled}"
    else:
        field = point.WhichOneof("value")
        value = f"{field}={getattr(point, field)}"
    return f"{attributes(point.attributes)} {started}..{now} {value}"


async def golden() -> str:
    return "\n".join(lines_of(await pushed(filled_metrics()))) + "\n"


async def test_the_pushed_metrics_equal_the_golden_file() -> None:
    assert (await golden()).splitlines() == GOLDEN.read_text("utf-8").splitlines(), (
        "if that is meant: python -m tests.unit.telemetry.metrics.test_otlp"
    )


async def test_a_metric_without_values_is_not_pushed() -> None:
    always = {
        it.name for it in METRICS.values() if not it.labels and it.kind is not MetricKind.GAUGE
    }

    assert {it.name for it in metrics_of(await pushed(Metrics()))} == always


def test_an_unavailable_collector_is_a_warning_a_minute() -> None:
    once_a_minute, passed = OnceAMinute(), []
    for second in range(150):
        record = logging.makeLogRecord(
            {"created": 1e9 + second, "levelno": logging.ERROR, "levelname": "ERROR"}
        )
        if once_a_minute.filter(record):
            passed.append((second, record.levelname))

    assert passed == [(0, "WARNING"), (60, "WARNING"), (120, "WARNING")]


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(asyncio.run(golden()), "utf-8")
