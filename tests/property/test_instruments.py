"""Invariants of instruments: nothing recorded is lost, and a snapshot may come at any time."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.telemetry.instruments import (
    OVERFLOW,
    Counter,
    Distribution,
    Histogram,
    Metric,
    MetricKind,
    quantile,
)
from tests.support.telemetry.measured import counted

BOUNDS = (1.0, 10.0, 100.0)
SETS_MAX = 3
"""Near enough to be met."""

RECORDS = 50_000

values = st.floats(min_value=0, max_value=1e6, allow_nan=False)
labels = st.sampled_from("abcdef").map(lambda name: (name,))
records = st.lists(st.tuples(labels, values), max_size=50)


def histogram() -> Histogram:
    return Histogram(
        Metric(
            kind=MetricKind.HISTOGRAM, name="m", unit="ms", meaning="It is.", labels=("id",),
            bounds=BOUNDS, sets_max=SETS_MAX,
        )
    )  # fmt: skip


def distributions(of: Histogram) -> list[Distribution]:
    return [it for it in of.snapshot().values.values() if isinstance(it, Distribution)]


@given(records)
def test_every_value_is_in_one_bucket_of_one_set_of_labels(
    recorded: list[tuple[tuple[str], float]],
) -> None:
    made = histogram()
    for each, value in recorded:
        made.record(value, each)

    found = distributions(made)
    edges = [(-math.inf, BOUNDS[0]), *zip(BOUNDS, (*BOUNDS[1:], math.inf), strict=True)]
    assert [sum(counts) for counts in zip(*(it.bucket_counts for it in found), strict=True)] == (
        [sum(low < value <= high for _, value in recorded) for low, high in edges] if found else []
    )
    assert sum(it.total for it in found) == pytest.approx(sum(value for _, value in recorded))


@given(records)
def test_the_first_sets_of_labels_are_kept_apart_and_all_others_are_one(
    recorded: list[tuple[tuple[str], float]],
) -> None:
    counter = Counter(
        Metric(
            kind=MetricKind.COUNTER, name="m", unit="1", meaning="It is.", labels=("id",),
            sets_max=SETS_MAX,
        )
    )  # fmt: skip
    for each, value in recorded:
        counter.add(value, each)

    first = [*dict.fromkeys(each for each, _ in recorded)][:SETS_MAX]
    expected = {each: sum(value for other, value in recorded if other == each) for each in first}
    rest = [value for each, value in recorded if each not in first]
    if rest:
        expected[OVERFLOW,] = sum(rest)
    assert counted(counter) == pytest.approx(expected)


@given(records.filter(bool), st.floats(min_value=0, max_value=1))
def test_a_quantile_is_in_the_bucket_of_the_value_that_is_the_quantile(
    recorded: list[tuple[tuple[str], float]], share: float
) -> None:
    made = histogram()
    for _, value in recorded:
        made.record(value, ("a",))
    [distribution] = distributions(made)
    ordered = sorted(value for _, value in recorded)
    real = ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    found = quantile(distribution, BOUNDS, share)

    edges = (0.0, *BOUNDS, BOUNDS[-1])
    place = next((n for n, bound in enumerate(BOUNDS) if real <= bound), len(BOUNDS))
    assert found is not None
    assert edges[place] <= found <= edges[place + 1]


def test_snapshots_of_other_threads_never_go_back_and_never_fail() -> None:
    made = histogram()
    done = threading.Event()
    counts: list[int] = []

    def look() -> None:
        while not done.is_set():
            counts.append(sum(it.count for it in distributions(made)))

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(RECORDS):
        made.record(number, (f"{number % 10}",))
    done.set()
    thread.join()

    assert counts == sorted(counts)
    assert sum(it.count for it in distributions(made)) == RECORDS
