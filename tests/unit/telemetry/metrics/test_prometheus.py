"""Metrics in the Prometheus format: nothing is lost, added or renamed."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families

from progressor.telemetry.instruments import (
    Metric,
    MetricKind,
)
from progressor.telemetry.metrics.registry import METRICS, Metrics
from tests.support.telemetry.metrics import (
    RECORDED,
    Series,
    families,
    filled_metrics,
    labels_of,
    read,
    registry_of,
    series,
)


def text_of(metrics: Metrics) -> str:
    return generate_latest(registry_of(metrics)).decode()


def expected(name: str, number: float) -> dict[Series, float]:
    """Return the samples of a metric as `filled_metrics` filled it, by the rules of the format."""
    metric = METRICS[name]
    found: dict[Series, float] = {}
    for values in labels_of(name):
        labels = series(metric.labels, values)
        match metric.kind:
            case MetricKind.COUNTER:
                found[f"{metric.name}_total", labels] = number + 0.5
            case MetricKind.GAUGE:
                found[metric.name, labels] = number
            case MetricKind.HISTOGRAM:
                found[f"{metric.name}_count", labels] = 2 * len(RECORDED)
                found[f"{metric.name}_sum", labels] = 2 * sum(RECORDED)
                for bound in (*metric.bounds, float("inf")):
                    told = "+Inf" if bound == float("inf") else str(float(bound))
                    with_bound = tuple(sorted((*labels, ("le", told))))
                    below = sum(2 for it in RECORDED if it <= bound)
                    found[f"{metric.name}_bucket", with_bound] = below
    return found


def test_every_value_reads_back_as_it_was_recorded() -> None:
    told = read(text_of(filled_metrics()))

    wanted: dict[Series, float] = {}
    for number, name in enumerate(METRICS):
        wanted |= expected(name, number)
    assert told == wanted


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda it: it.name)
def test_a_metric_is_told_with_its_kind_its_meaning_and_its_unit(metric: Metric) -> None:
    family = families(text_of(filled_metrics()))[metric.name]

    assert family.type == str(metric.kind)
    assert family.documentation.startswith(metric.meaning)
    assert family.documentation.endswith(f" Unit: {metric.unit.strip('{}')}.")


def test_openmetrics_takes_them_too_with_the_units_that_it_knows() -> None:
    text = open_metrics(registry_of(filled_metrics())).decode()  # type: ignore[no-untyped-call]

    found = open_families(text)  # type: ignore[no-untyped-call]
    told = {it.name: it.unit for it in found}
    assert told.keys() == {it.name for it in METRICS.values()}
    assert told["progressor_task_processing_duration_ms"] == "ms"
    assert told["progressor_heartbeat_age_seconds"] == "seconds"
    assert told["progressor_writes_waiting_bytes"] == "bytes"
    assert told["progressor_bytes_written"] == ""


def test_no_metric_has_a_label_that_names_a_process_or_a_task() -> None:
    labels = {label for it in METRICS.values() for label in it.labels}

    assert [it for it in labels if it.endswith("_id") or it in {"key", "process", "task"}] == []
