"""The soak's verdict: what counts as a rate that fell, and as memory that grows."""

import pytest

from bench.soaking.samples import Sample, slope
from bench.soaking.verdict import judge


def make_samples(*rates: float, memory_mb_per_sample: float = 0.0, failed: int = 0) -> list[Sample]:
    """Return samples a minute apart, in which a life leaves a megabyte."""
    return [
        Sample(
            at=60.0 * number,
            lives=100 * number,
            lives_per_s=rate,
            failed=failed,
            p50_ms=5.0,
            p99_ms=10.0,
            engine_mb=80.0 + memory_mb_per_sample * number,
            table_mb={"tasks": 90.0 * number},
            index_mb={"tasks": 10.0 * number},
            dead_rows={},
        )
        for number, rate in enumerate(rates, start=1)
    ]


def test_a_steady_run_gives_no_cause_for_complaint() -> None:
    verdict = judge(make_samples(*[50.0] * 10), memory_mb_per_hour_max=1.0)

    assert verdict.complaints == []
    assert (verdict.lives_per_s, verdict.rate_kept) == (50.0, 1.0)
    assert verdict.stored_bytes_per_life == 2**20


def test_a_rate_that_falls_after_five_minutes_is_told() -> None:
    verdict = judge(make_samples(*[50.0] * 5, *[45.0] * 5), memory_mb_per_hour_max=1.0)

    assert verdict.complaints == ["the rate fell to 0.90 of what it was"]


def test_memory_that_grows_is_told() -> None:
    samples = make_samples(*[50.0] * 10, memory_mb_per_sample=0.5)

    verdict = judge(samples, memory_mb_per_hour_max=20.0)

    assert verdict.memory_mb_per_hour == pytest.approx(30.0)
    assert verdict.complaints == ["the engine grows by 30 MB an hour"]


def test_a_life_cut_short_is_told() -> None:
    verdict = judge(make_samples(50.0, 50.0, failed=2), memory_mb_per_hour_max=1.0)

    assert verdict.complaints == ["2 lives were cut short by an error"]


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]])
def test_too_few_points_have_no_slope(points: list[tuple[float, float]]) -> None:
    assert slope(points) == 0.0
