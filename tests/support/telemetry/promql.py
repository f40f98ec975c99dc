"""What a query of Prometheus asks for: names, and the labels that it goes by."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from progressor.telemetry.instruments import Distribution, Family, Metric, MetricKind
from progressor.telemetry.metrics.prometheus import exposed
from progressor.telemetry.metrics.registry import METRICS

OTHERS: Mapping[str, frozenset[str]] = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "namespace"}),
    "process_cpu_seconds_total": frozenset(),
    "process_resident_memory_bytes": frozenset(),
}
"""Series that others make, with their labels."""

ADDED = frozenset({"job", "instance"})
"""Labels that Prometheus adds to what it reads."""

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"\b([a-zA-Z_][\w:]*)\s*\{([^}]*)\}")
_LABEL = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w.$:])[a-zA-Z_][\w:]*+(?!\s*\()")
_WORDS = frozenset({"or", "and", "unless", "offset", "by"})


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """The series that are asked for, the labels of their matchers, and of each group as written."""

    names: frozenset[str]
    matched: Mapping[str, frozenset[str]]
    groups: tuple[frozenset[str], ...]

    @property
    def grouped(self) -> frozenset[str]:
        return frozenset[str]().union(*self.groups)

    def faults(self, known: Mapping[str, frozenset[str]]) -> Iterator[str]:
        """Yield what is asked for and not among `known`, which are labels by series."""
        for name in sorted(self.names):
            if name not in known:
                yield f"unknown metric {name}"
                continue
            labels = known[name] | ADDED
            for label in sorted(self.matched.get(name, frozenset()) - labels):
                yield f"{name} has no label {label} to match"
            for label in sorted(self.grouped - labels):
                yield f"{name} has no label {label} to group by"


def query(expression: str) -> Query:
    bare = _STRING.sub('""', expression)
    matched: dict[str, frozenset[str]] = {}
    for name, matchers in _SELECTOR.findall(bare):
        matched[name] = matched.get(name, frozenset()) | frozenset(_LABEL.findall(matchers))
    groups = tuple(
        frozenset(label.strip() for label in labels.split(",")) for labels in _GROUPED.findall(bare)
    )
    rest = _RANGE.sub("", _GROUPED.sub("", _SELECTOR.sub(r"\1", bare)))
    return Query(frozenset(_NAME.findall(rest)) - _WORDS, matched, groups)


def series() -> dict[str, frozenset[str]]:
    """Return the labels of each series that Prometheus can read from an engine, and of others."""
    found = dict(OTHERS)
    for metric in METRICS.values():
        for sample in exposed(_family(metric)).samples:
            found[sample.name] = frozenset(sample.labels)
    return found


def metric_of(name: str) -> str:
    """Return the name of the metric that a series belongs to."""
    names = {metric.name for metric in METRICS.values()}
    return name if name in names else re.sub(r"_(total|bucket|sum|count)$", "", name)


def _family(metric: Metric) -> Family:
    value: float | Distribution = 1.0
    if metric.kind is MetricKind.HISTOGRAM:
        value = Distribution((1,) * (len(metric.bounds) + 1), 1.0)
    return Family(metric, {metric.labels: value})
