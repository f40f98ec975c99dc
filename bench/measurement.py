"""What a question is given, and what it answers."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much to measure: turns of `seconds` each after `warm_up` seconds.

    ``scale`` (0 .. 1) shrinks what is counted in processes and calls instead of seconds.
    """

    seconds: float = 5.0
    warm_up: float = 2.0
    turns: int = 3
    scale: float = 1.0

    def count(self, wanted: int) -> int:
        """Return how many of a wanted number to take at this pace, one at least."""
        return max(1, round(self.scale * wanted))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measured stretch: what the client saw, what it cost, and how many cores others used."""

    ops_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_op: Mapping[str, float]
    others: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The answer to one question."""

    name: str
    ops_per_s: float
    p50_ms: float
    p99_ms: float
    ratio_to_relay: float | None
    spread: float
    others: float
    cpu_ms_per_op: Mapping[str, float]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def summed_up(
    name: str, turns: Sequence[Turn], relay: Sequence[Turn] = (), **facts: object
) -> Measurement:
    """Return the medians of turns; the ratio is the median of the pairs of turns.

    ``spread`` is the range of ops_per_s over the turns as a share of the median.
    """
    rates = [turn.ops_per_s for turn in turns]
    pairs = zip(turns, relay, strict=True) if relay else ()
    ratios = [own.ops_per_s / other.ops_per_s for own, other in pairs]
    rate = statistics.median(rates)
    return Measurement(
        name=name,
        ops_per_s=rate,
        p50_ms=statistics.median(turn.p50_ms for turn in turns),
        p99_ms=statistics.median(turn.p99_ms for turn in turns),
        ratio_to_relay=statistics.median(ratios) if ratios else None,
        spread=(max(rates) - min(rates)) / rate if rate else 0.0,
        others=statistics.median(turn.others for turn in turns),
        cpu_ms_per_op={
            component: statistics.median(turn.cpu_ms_per_op[component] for turn in turns)
            for component in turns[0].cpu_ms_per_op
        },
        facts=facts if not relay else {**facts, **_beside(relay)},
    )


def _beside(relay: Sequence[Turn]) -> dict[str, float]:
    return {
        "relay_ops_per_s": round(statistics.median(turn.ops_per_s for turn in relay), 1),
        "relay_p50_ms": round(statistics.median(turn.p50_ms for turn in relay), 3),
        "relay_p99_ms": round(statistics.median(turn.p99_ms for turn in relay), 3),
    }
