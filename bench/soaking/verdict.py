"""Judges a soak: the rate is kept, and memory and what is stored are flat."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.soaking.samples import Sample, slope

RATE_KEPT_MIN = 0.95
FIRST_SECONDS = 300.0
GROWTH_MAX = 0.05
"""By how much a table or its indexes may grow over the judged part of a run, as a share."""
LAG_GROWTH_SECONDS_MAX = 30.0
_SETTLING_SHARE = 0.3
"""The start of a run, in which caches and tables fill; not part of the slopes."""
_NOT_SMALL_MB = 8.0
"""Of less, a share says nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a run.

    ``rate_kept`` is the later rate as a share of that of the first five minutes, or of the first
    half of a shorter run. ``growth`` is that of each table and of its indexes over the judged part
    of the run, fitted, as a share of their mean; ``lag_growth_seconds`` that of the age of the
    oldest finished process.
    """

    lives_per_s: float
    failed: int
    rate_kept: float
    p99_ms_first: float
    p99_ms_last: float
    engine_mb_last: float
    memory_mb_per_hour: float
    stored_mb_last: float
    stored_bytes_per_life: float
    memory_mb_per_hour_max: float
    growth: Mapping[str, float]
    oldest_seconds_max: float
    lag_growth_seconds: float
    cores: Mapping[str, float]

    @property
    def complaints(self) -> list[str]:
        found = []
        if self.failed:
            found.append(f"{self.failed} lives were cut short by an error")
        if self.rate_kept < RATE_KEPT_MIN:
            found.append(f"the rate fell to {self.rate_kept:.2f} of what it was")
        if self.memory_mb_per_hour > self.memory_mb_per_hour_max:
            found.append(f"the engine grows by {self.memory_mb_per_hour:.0f} MB an hour")
        found += [
            f"{name} grew by {share:.0%}"
            for name, share in self.growth.items()
            if share > GROWTH_MAX
        ]
        if self.lag_growth_seconds > LAG_GROWTH_SECONDS_MAX:
            found.append(f"retention fell behind by {self.lag_growth_seconds:.0f} s")
        return found


def judge(samples: Sequence[Sample], *, memory_mb_per_hour_max: float) -> Verdict:
    """Return the verdict on a run, from at least two samples."""
    seconds = samples[-1].at
    border = min(FIRST_SECONDS, seconds / 2)
    first = [each for each in samples if each.at <= border] or list(samples[:1])
    rest = [each for each in samples if each.at > border]
    settled = [each for each in samples if each.at >= _SETTLING_SHARE * seconds]
    rates = [each.lives_per_s for each in samples]
    kept = _mean(each.lives_per_s for each in rest) / max(
        1e-9, _mean(each.lives_per_s for each in first)
    )
    per_s = sum(rates) / len(rates)
    return Verdict(
        lives_per_s=round(per_s, 1),
        failed=samples[-1].failed,
        rate_kept=round(kept, 3),
        p99_ms_first=round(_mean(each.p99_ms for each in first), 2),
        p99_ms_last=round(_mean(each.p99_ms for each in rest), 2),
        engine_mb_last=samples[-1].engine_mb,
        memory_mb_per_hour=round(3600 * slope([(each.at, each.engine_mb) for each in settled]), 2),
        stored_mb_last=round(samples[-1].stored_mb, 1),
        stored_bytes_per_life=round(
            2**20 * slope([(each.lives, each.stored_mb) for each in settled]), 1
        ),
        memory_mb_per_hour_max=memory_mb_per_hour_max,
        growth={
            name: round(_grown(points) / statistics.fmean(mb for _, mb in points), 3)
            for name, points in _relations(settled).items()
            if points[-1][1] >= _NOT_SMALL_MB
        },
        oldest_seconds_max=max(each.oldest_seconds for each in settled),
        lag_growth_seconds=round(_grown([(each.at, each.oldest_seconds) for each in settled]), 1),
        cores={
            name: round(_mean(each.cores.get(name, 0.0) for each in settled), 4)
            for name in sorted(settled[-1].cores)
        },
    )


def _relations(samples: Sequence[Sample]) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [(each.at, each.relation_mb[name]) for each in samples]
        for name in samples[-1].relation_mb
    }


def _grown(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much y grows over the points, by their fit."""
    return slope(points) * (points[-1][0] - points[0][0])


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
