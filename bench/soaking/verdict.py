"""Judges a soak: the rate is kept, and memory is flat."""

import dataclasses
from collections.abc import Iterable, Sequence

from bench.soaking.lives import STEPS
from bench.soaking.samples import Sample, slope

RATE_KEPT_MIN = 0.95
FIRST_SECONDS = 300.0
_SETTLING_SHARE = 0.2
"""The start of a run, in which caches fill; not part of the slopes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a run.

    ``rate_kept`` is the later rate as a share of that of the first five minutes, or of the first
    half of a shorter run.
    """

    lives_per_s: float
    steps_per_s: float
    failed: int
    rate_kept: float
    p99_ms_first: float
    p99_ms_last: float
    engine_mb_last: float
    memory_mb_per_hour: float
    stored_mb_last: float
    stored_bytes_per_life: float
    memory_mb_per_hour_max: float

    @property
    def complaints(self) -> list[str]:
        found = []
        if self.failed:
            found.append(f"{self.failed} lives were cut short by an error")
        if self.rate_kept < RATE_KEPT_MIN:
            found.append(f"the rate fell to {self.rate_kept:.2f} of what it was")
        if self.memory_mb_per_hour > self.memory_mb_per_hour_max:
            found.append(f"the engine grows by {self.memory_mb_per_hour:.0f} MB an hour")
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
        steps_per_s=round(STEPS * per_s, 1),
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
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
