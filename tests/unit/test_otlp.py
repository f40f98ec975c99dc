"""The metrics as OTLP: each value as it was recorded, cumulative since the process started."""

import datetime as dt
import logging
from collections.abc import Iterable

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    ResourceMetrics,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Told

from progressor.telemetry.instruments import Metric, MetricKind
from progressor.telemetry.metrics.otlp import OnceAMinute, metrics_data
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.names import METRICS
from progressor.telemetry.resource import resource_of
from tests.support.telemetry.metrics import RECORDED, filled_metrics, labels_of

STARTED_AT = dt.datetime(2026, 11, 20, 12, 0, tzinfo=dt.UTC)
NOW = STARTED_AT + dt.timedelta(minutes=1, microseconds=1)
STARTED_NANOSECONDS = 1_795_176_000_000_000_000
NOW_NANOSECONDS = STARTED_NANOSECONDS + 60_000_001_000


def pushed(metrics: Metrics) -> ResourceMetrics:
    """Return what goes over the wire."""
    data = metrics_data(
        metrics.families(),
        resource=resource_of(service_name="service", instance="replica:1"),
        started_at=STARTED_AT,
        now=NOW,
    )
    (resource,) = encode_metrics(data).resource_metrics
    return resource


def told(metrics: Metrics) -> dict[str, Told]:
    (scope,) = pushed(metrics).scope_metrics
    return {it.name: it for it in scope.metrics}


def attributes(pairs: Iterable[KeyValue]) -> dict[str, str]:
    return {it.key: it.value.string_value for it in pairs}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda it: it.name)
def test_a_metric_is_told_with_its_kind_its_meaning_and_its_unit(metric: Metric) -> None:
    found = told(filled_metrics())[metric.name]

    kinds = {
        MetricKind.COUNTER: "sum",
        MetricKind.GAUGE: "gauge",
        MetricKind.HISTOGRAM: "histogram",
    }
    assert found.WhichOneof("data") == kinds[metric.kind]
    assert (found.description, found.unit) == (metric.meaning, metric.unit)


@pytest.mark.parametrize(("number", "name"), [*enumerate(METRICS)])
def test_every_value_is_as_it_was_recorded(number: int, name: str) -> None:
    metric, found = METRICS[name], told(filled_metrics())[METRICS[name].name]

    labels = [dict(zip(metric.labels, each, strict=True)) for each in labels_of(name)]
    match metric.kind:
        case MetricKind.COUNTER:
            points = found.sum.data_points
            assert [it.as_double for it in points] == [number + 0.5] * len(labels)
            assert [attributes(it.attributes) for it in points] == labels
        case MetricKind.GAUGE:
            gauge = found.gauge.data_points
            assert [it.as_double for it in gauge] == [number] * len(labels)
            assert [attributes(it.attributes) for it in gauge] == labels
        case MetricKind.HISTOGRAM:
            distributions = found.histogram.data_points
            assert [attributes(it.attributes) for it in distributions] == labels
            for point in distributions:
                assert (point.count, point.sum) == (2 * len(RECORDED), 2 * sum(RECORDED))
                assert tuple(point.explicit_bounds) == metric.bounds
                assert list(point.bucket_counts) == in_buckets(metric.bounds)
                assert not point.HasField("min")


def in_buckets(bounds: tuple[float, ...]) -> list[int]:
    """Return how many of RECORDED, twice each, lie above a bound and up to the next."""
    lower, upper = (float("-inf"), *bounds), (*bounds, float("inf"))
    return [
        sum(2 for it in RECORDED if below < it <= to)
        for below, to in zip(lower, upper, strict=True)
    ]


def test_what_is_counted_is_cumulative_since_the_start_of_the_process() -> None:
    found = told(filled_metrics())

    counter, histogram = found["progressor_requests"].sum, found["progressor_batch_items"].histogram
    assert counter.is_monotonic
    assert counter.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    times = [
        *((it.start_time_unix_nano, it.time_unix_nano) for it in counter.data_points),
        *((it.start_time_unix_nano, it.time_unix_nano) for it in histogram.data_points),
    ]
    assert set(times) == {(STARTED_NANOSECONDS, NOW_NANOSECONDS)}


def test_a_number_that_is_counted_in_ones_stays_a_whole_number() -> None:
    metrics = Metrics()
    metrics.notifications_lost.add()

    (point,) = told(metrics)["progressor_notifications_lost"].sum.data_points
    assert point.WhichOneof("value") == "as_int"
    assert point.as_int == 1


def test_what_has_no_value_is_not_told() -> None:
    without_labels = {
        it.name for it in METRICS.values() if not it.labels and it.kind is not MetricKind.GAUGE
    }

    assert told(Metrics()).keys() == without_labels


def test_the_resource_says_who_it_is() -> None:
    told_attributes = attributes(pushed(filled_metrics()).resource.attributes)

    assert told_attributes["service.name"] == "service"
    assert told_attributes["service.instance.id"] == "replica:1"


def test_a_collector_that_is_away_is_a_warning_a_minute() -> None:
    seldom, passed = OnceAMinute(), []
    for second in range(150):
        record = logging.makeLogRecord(
            {"created": 1e9 + second, "levelno": logging.ERROR, "levelname": "ERROR"}
        )
        if seldom.filter(record):
            passed.append((second, record.levelname))

    assert passed == [(0, "WARNING"), (60, "WARNING"), (120, "WARNING")]
