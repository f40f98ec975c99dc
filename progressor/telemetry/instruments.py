"""Instruments: counters, histograms and gauges in memory, read on demand.

The hot path records into plain dictionaries. Recording one duration costs 0.2 us, and 8 us with an
instrument of the OpenTelemetry SDK (2026-11, Python 3.11, version 1.45): at 10,000 steps a second
and three durations each, that would be a quarter of a core. Values are recorded on the event loop;
other threads read a `snapshot`, in which the numbers of a histogram may differ by one record.
"""

import bisect
import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

Labels = tuple[str, ...]
"""Values of the labels, in the order of `Metric.labels`."""

Read = Callable[[], Iterable[tuple[Labels, float]]]
"""Returns the current values by their labels; called from any thread."""

LABEL_SETS_MAX = 1_000
"""Sets of labels per metric by default; beyond that, new ones are counted as OVERFLOW, and values
that are read are omitted."""

OVERFLOW = "_other_"


Value = TypeVar("Value")


class MetricKind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by its name.

    ``unit`` as in UCUM: ``ms``, ``s``, ``By``, ``1``, or what is counted in braces. At most
    ``sets_max`` sets of labels are exported. ``bounds`` are the upper bounds of buckets, ascending.
    """

    kind: MetricKind
    name: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    sets_max: int = LABEL_SETS_MAX


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """The values of a histogram: the count of each bucket, the last one unbounded, and the sum."""

    bucket_counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.bucket_counts)


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    metric: Metric
    values: Mapping[Labels, float | Distribution]


class Counter:
    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        # Without labels it begins at zero: for an alert, a series that appears with one has not
        # grown.
        self._values: dict[Labels, float] = {} if metric.labels else {(): 0}
        self.sources: list[Read] = []

    def add(self, amount: float = 1, labels: Labels = ()) -> None:
        try:
            self._values[labels] += amount
        except KeyError:
            labels = _within_bounds(labels, self._values, self.metric.sets_max)
            self._values[labels] = self._values.get(labels, 0) + amount

    def value(self, labels: Labels = ()) -> float:
        return self._values.get(labels, 0)

    def read_from(self, source: Read) -> None:
        """Also export the values of `source` from now on."""
        self.sources.append(source)

    def snapshot(self) -> Family:
        read = _read(self.sources, self.metric.sets_max)
        return Family(self.metric, _exported(self._values) | read)


class Histogram:
    def __init__(self, metric: Metric) -> None:
        assert metric.bounds, f"{metric.name} has no buckets"
        self.metric = metric
        self._bounds = metric.bounds
        self._values: dict[Labels, list[float]] = {}
        if not metric.labels:
            self._values[()] = self._nothing()

    def record(self, value: float, labels: Labels = ()) -> None:
        buckets = self._values.get(labels)
        if buckets is None:
            labels = _within_bounds(labels, self._values, self.metric.sets_max)
            buckets = self._values.setdefault(labels, self._nothing())
        buckets[bisect.bisect_left(self._bounds, value)] += 1
        buckets[-1] += value

    def snapshot(self) -> Family:
        return Family(
            self.metric,
            {
                labels: Distribution(tuple(map(int, buckets[:-1])), buckets[-1])
                for labels, buckets in _exported(self._values).items()
            },
        )

    def _nothing(self) -> list[float]:
        # A count per bucket, the last one unbounded, and the sum.
        return [0.0] * (len(self._bounds) + 2)


class Gauge:
    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.sources: list[Read] = []

    def read_from(self, source: Read) -> None:
        self.sources.append(source)

    def snapshot(self) -> Family:
        return Family(self.metric, _read(self.sources, self.metric.sets_max))


Instrument = Counter | Histogram | Gauge


def _exported(values: Mapping[Labels, Value]) -> dict[Labels, Value]:
    """Return a copy with labels as strings; recording uses members of enums, which is faster."""
    return {tuple(map(str, labels)): value for labels, value in dict(values).items()}


def _read(sources: Iterable[Read], sets_max: int) -> dict[Labels, float]:
    found = itertools.chain.from_iterable(source() for source in sources)
    return dict(itertools.islice(found, sets_max))


def _within_bounds(labels: Labels, known: Mapping[Labels, object], sets_max: int) -> Labels:
    if len(known) < sets_max or labels in known:
        return labels
    return (OVERFLOW,) * len(labels)
