"""What metrics have counted, as a test wants to compare it."""

from progressor.telemetry.instruments import Counter, Distribution, Gauge, Histogram, Labels


def counted(instrument: Counter | Gauge) -> dict[Labels, float]:
    found = instrument.snapshot().values
    assert not any(isinstance(value, Distribution) for value in found.values())
    return {labels: value for labels, value in found.items() if not isinstance(value, Distribution)}


def recorded(histogram: Histogram) -> dict[Labels, tuple[int, float]]:
    """Return how many values a histogram has, and their sum to a millionth, by their labels."""
    return {
        labels: (value.count, round(value.total, 6))
        for labels, value in histogram.snapshot().values.items()
        if isinstance(value, Distribution)
    }
