"""The input and the answer of a question."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.parts.percentiles import SHARES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much to measure: turns of `seconds` each, after `warm_up` seconds.

    ``long_turns`` is the number of turns for questions whose turn takes many seconds. ``scale``
    multiplies what is counted in processes and calls instead of seconds. ``names`` selects the
    answers; empty for all.
    """

    seconds: float = 1.5
    warm_up: float = 0.7
    turns: int = 3
    long_turns: int = 3
    scale: float = 1.0
    names: frozenset[str] = frozenset()

    def count(self, wanted: int, *, least: int = 1) -> int:
        """Return the number to take at this pace, at least `least`."""
        return max(least, round(self.scale * wanted))

    def wants(self, name: str) -> bool:
        return not self.names or name in self.names


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measured period: the client's view, the cost, and the cores that other programs used.

    ``curve`` has the milliseconds of each of `SHARES`.
    """

    ops_per_s: float
    curve: Sequence[float]
    cpu_ms_per_op: Mapping[str, float]
    others: float

    def at(self, share: float) -> float:
        return self.curve[SHARES.index(share)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The answer to one question."""

    name: str
    ops_per_s: float
    curve: Sequence[float]
    ratio_to_relay: float | None
    spread: float
    others: float
    cpu_ms_per_op: Mapping[str, float]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def at(self, share: float) -> float:
        return self.curve[SHARES.index(share)]


def summed_up(
    name: str, turns: Sequence[Turn], relay: Sequence[Turn] = (), **facts: object
) -> Measurement:
    """Return the medians of turns; the ratio is the median over pairs of turns.

    ``spread`` is the range of ops_per_s over the turns as a share of the median.
    """
    rates = [turn.ops_per_s for turn in turns]
    rate = statistics.median(rates)
    components = sorted({component for turn in turns for component in turn.cpu_ms_per_op})
    return Measurement(
        name=name,
        ops_per_s=rate,
        curve=[
            statistics.median(times) for times in zip(*(turn.curve for turn in turns), strict=True)
        ],
        ratio_to_relay=ratio(turns, relay) if relay else None,
        spread=(max(rates) - min(rates)) / rate if rate else 0.0,
        others=statistics.median(turn.others for turn in turns),
        cpu_ms_per_op={
            component: statistics.median(turn.cpu_ms_per_op.get(component, 0.0) for turn in turns)
            for component in components
        },
        facts=facts if not relay else {**facts, **_beside(relay)},
    )


def ratio(turns: Sequence[Turn], others: Sequence[Turn]) -> float:
    """Return the median, over pairs of turns, of the ratio of two rates."""
    pairs = zip(turns, others, strict=True)
    return statistics.median(
        own.ops_per_s / other.ops_per_s if other.ops_per_s else 0.0 for own, other in pairs
    )


def median_p50(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.at(0.5) for turn in turns)


def _beside(relay: Sequence[Turn]) -> dict[str, float]:
    return {
        "relay_ops_per_s": round(statistics.median(turn.ops_per_s for turn in relay), 1),
        "relay_p50_ms": round(median_p50(relay), 3),
        "relay_p99_ms": round(statistics.median(turn.at(0.99) for turn in relay), 3),
    }
