"""Instruments: what is recorded is what is read, within the bounds of their labels."""

import dataclasses
import functools

from progressor.telemetry.instruments import (
    LABEL_SETS_MAX,
    OVERFLOW,
    Counter,
    Gauge,
    Histogram,
    Labels,
    Metric,
    MetricKind,
)
from progressor.telemetry.metrics.registry import Metrics
from tests.support.telemetry.measured import counted, recorded

BOUNDS = (1.0, 10.0)


def metric(kind: MetricKind, *labels: str) -> Metric:
    bounds = BOUNDS if kind is MetricKind.HISTOGRAM else ()
    return Metric(kind=kind, name="m", unit="1", meaning="It is.", labels=labels, bounds=bounds)


def test_a_counter_grows_by_what_is_added_to_its_labels() -> None:
    counter = Counter(metric(MetricKind.COUNTER, "way"))

    counter.add(2, ("here",))
    counter.add(labels=("here",))
    counter.add(0.5, ("there",))

    assert counted(counter) == {("here",): 3, ("there",): 0.5}
    assert counter.value(("here",)) == 3
    assert counter.value(("nowhere",)) == 0


def test_a_counter_tells_what_others_count_beside_its_own() -> None:
    counter = Counter(metric(MetricKind.COUNTER, "pool"))
    counts: dict[Labels, float] = {("front",): 1}
    counter.read_from(counts.items)
    counter.add(7, ("ours",))

    before = counted(counter)
    counts["front",] = 5

    assert before == {("ours",): 7, ("front",): 1}
    assert counted(counter) == {("ours",): 7, ("front",): 5}


def test_a_gauge_asks_all_its_sources_each_time() -> None:
    gauge = Gauge(metric(MetricKind.GAUGE, "side"))
    values = [1.0]
    gauge.read_from(lambda: [(("client",), values[0])])
    gauge.read_from(lambda: [(("processor",), 7.0)])

    values[0] = 2

    assert counted(gauge) == {("client",): 2, ("processor",): 7}


def test_label_sets_beyond_the_bound_of_a_histogram_are_one() -> None:
    histogram = Histogram(metric(MetricKind.HISTOGRAM, "id"))
    for number in range(LABEL_SETS_MAX + 3):
        histogram.record(1, (str(number),))

    found = recorded(histogram)
    assert (len(found), found[OVERFLOW,]) == (LABEL_SETS_MAX + 1, (3, 3))


def test_the_metrics_of_cells_are_apart_by_a_label() -> None:
    metrics = Metrics()
    metrics.requests.add(3, ("orders", "Call", "ok", ""))
    for number, cell in enumerate(("main", "b"), start=1):
        own = metrics.of_cell(cell)
        own.callers_waiting.read_from(functools.partial(list, [((), number)]))
        own.admitted.add(number, ("orders", "call"))

    found = {family.metric.name: family for family in metrics.families()}
    waiting, admitted = found["progressor_callers_waiting"], found["progressor_requests_admitted"]
    requests = found["progressor_requests"]
    assert waiting.metric.labels == ("cell",)
    assert waiting.values == {("main",): 1, ("b",): 2}
    assert admitted.metric.labels == ("cell", "namespace", "task_type")
    assert admitted.values == {("main", "orders", "call"): 1, ("b", "orders", "call"): 2}
    assert requests.values == {("", "orders", "Call", "ok", ""): 3}


def test_a_metric_may_have_a_bound_of_its_own() -> None:
    wide = dataclasses.replace(metric(MetricKind.GAUGE, "id"), sets_max=LABEL_SETS_MAX + 7)
    gauge, counter = Gauge(wide), Counter(dataclasses.replace(wide, kind=MetricKind.COUNTER))
    gauge.read_from(lambda: (((str(number),), 1.0) for number in range(100_000)))
    for number in range(LABEL_SETS_MAX + 9):
        counter.add(1, (str(number),))

    assert len(counted(gauge)) == LABEL_SETS_MAX + 7
    assert counter.value((OVERFLOW,)) == 2


def test_a_histogram_without_labels_is_there_before_its_first_value() -> None:
    assert recorded(Histogram(metric(MetricKind.HISTOGRAM))) == {(): (0, 0)}
