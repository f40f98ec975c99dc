"""Metrics with a value in each of them, and what a scrape says read back."""

import asyncio
import urllib.request
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.parser import text_string_to_metric_families

from progressor.telemetry.instruments import Counter, Gauge, Histogram, Labels
from progressor.telemetry.metrics.prometheus import Families
from progressor.telemetry.metrics.registry import METRICS, Metrics

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels with their values, sorted."""

RECORDED = (0.0, 1.0, 2.5, 1e9)
"""What every histogram of `filled_metrics` has recorded, twice each."""

_SCRAPE_SECONDS = 30.0


def filled_metrics() -> Metrics:
    """Return metrics of which each has two sets of labels, where it has labels."""
    metrics = Metrics()
    for number, name in enumerate(METRICS):
        for labels in labels_of(name):
            fill(getattr(metrics, name), float(number), labels)
    return metrics


def labels_of(name: str) -> list[Labels]:
    """Return the sets of labels that `filled_metrics` gives to a metric."""
    labels = METRICS[name].labels
    if not labels:
        return [()]
    return [tuple(f'{each} "1"\\\n' for each in labels), tuple(f"{each} ä" for each in labels)]


def fill(instrument: Counter | Gauge | Histogram, number: float, labels: Labels) -> None:
    """Give an instrument a value of its own for these labels."""
    match instrument:
        case Counter():
            instrument.add(number, labels)
            instrument.add(0.5, labels)
        case Gauge():
            instrument.read_from(lambda: [(labels, number)])
        case Histogram():
            for value in RECORDED * 2:
                instrument.record(value, labels)


def series(names: tuple[str, ...], values: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(zip(names, values, strict=True)))


def registry_of(metrics: Metrics) -> CollectorRegistry:
    """Return what prometheus-client writes a scrape of."""
    registry = CollectorRegistry()
    registry.register(Families(metrics))
    return registry


def families(text: str) -> dict[str, Exposed]:
    """Return what a scrape says, by the name of the family, without ``_total``."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def read(text: str) -> dict[Series, float]:
    return dict(_samples(families(text)))


async def scraped(url: str) -> str:
    return await asyncio.to_thread(scrape, url)


def scrape(url: str, headers: Mapping[str, str] = {}) -> str:
    """Return what is to be read at an address, while this thread waits."""
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310  it is http
    # Straight there, whatever proxy the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_SCRAPE_SECONDS) as answer:
        return str(answer.read().decode("utf-8"))


def _samples(found: Mapping[str, Exposed]) -> Iterator[tuple[Series, float]]:
    for family in found.values():
        for sample in family.samples:
            yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value
