"""Whether the engine is as fast after the faults as before them, on a machine whose speed drifts.

``first`` and ``last`` are the acknowledged writes a second in the calm between warm-up and first
fault, and after the last, when no step is slow by design. Beside each stands the machine's speed
in the same window, by the reference's piece of work. ``kept`` is last / first as it was;
``kept_adjusted`` the same with both rates at one speed of the machine: (last / its speed) / (first
/ its speed). Rates follow the CPU's speed nearly one to one, since that is what a request waits
for. How busy the CPUs were, with whatever else ran on them, and what the disk took, is reported and
not adjusted for.

``calm`` are the rates in the calm between faults, and their medians in each third of the run:
whether the rate sinks while it goes on. Those windows are seconds long: single ones say little.
"""

import bisect
import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.plan import calm_seconds, warm_up_seconds
from tests.chaos.report.reference import Reference, Speed

_SETTLING_SECONDS = 2.0
"""Left out of every window: who starts, and who has just been fixed, is slow."""

_WINDOW_SECONDS_MIN = 1.0
_THIRDS = 3

Span = tuple[float, float]
"""From one instant to another."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A span of calm: its rate, and the machine's speed meanwhile, where that is known."""

    rate: float
    speed: Speed | None


def rate(instants: Sequence[float], begun_at: float, ended_at: float) -> float:
    """Return how many of the instants, in order, lie in a second between two others."""
    count = bisect.bisect(instants, ended_at) - bisect.bisect(instants, begun_at)
    return count / max(ended_at - begun_at, 1e-9)


def pace(
    instants: Sequence[float],
    faults: Sequence[Span],
    reference: Reference,
    *,
    begun_at: float,
    ended_at: float,
) -> dict[str, Any]:
    """Return the rates before, between and after the faults, raw and adjusted.

    Args:
        instants: Of acknowledged writes, in order.
        faults: From when to when each was, in any order.
        reference: What the machine could do meanwhile.
        begun_at: When the load began.
        ended_at: When it ended.
    """
    free = calm_seconds(ended_at - begun_at)
    warm_at = begun_at + warm_up_seconds(ended_at - begun_at)
    first = _window(instants, reference, (warm_at + _SETTLING_SECONDS, warm_at + free))
    last = _window(instants, reference, (ended_at - free + _SETTLING_SECONDS, ended_at))
    calm = {
        span: _window(instants, reference, span) for span in calm_spans(faults, begun_at, ended_at)
    }
    kept = last.rate / first.rate if first.rate else None
    return {
        "rate_first": round(first.rate, 1),
        "rate_last": round(last.rate, 1),
        "speed_first": _told(first.speed),
        "speed_last": _told(last.speed),
        "rate_kept": _rounded(kept),
        "rate_kept_adjusted": _rounded(_adjusted(kept, first.speed, last.speed)),
        "rate_calm": _medians(calm, begun_at, ended_at),
        "calm": [
            {
                "at": round(begin - begun_at, 1),
                "seconds": round(end - begin, 1),
                "rate": round(window.rate, 1),
                "speed": _told(window.speed),
            }
            for (begin, end), window in calm.items()
        ],
    }


def calm_spans(faults: Sequence[Span], begun_at: float, ended_at: float) -> Iterator[Span]:
    """Yield the spans in which no fault was, without the time to settle, those that are long."""
    fixed_at = begun_at
    for fault_at, over_at in [*sorted(faults), (ended_at, ended_at)]:
        if fault_at - fixed_at >= _SETTLING_SECONDS + _WINDOW_SECONDS_MIN:
            yield fixed_at + _SETTLING_SECONDS, fault_at
        fixed_at = max(fixed_at, over_at)


def _window(instants: Sequence[float], reference: Reference, span: Span) -> Window:
    return Window(rate(instants, *span), reference.speed(*span))


def _adjusted(kept: float | None, first: Speed | None, last: Speed | None) -> float | None:
    if kept is None or first is None or last is None:
        return None
    return kept * first.pieces / last.pieces


def _medians(calm: Mapping[Span, Window], begun_at: float, ended_at: float) -> list[float | None]:
    thirds = [begun_at + (ended_at - begun_at) * part / _THIRDS for part in range(_THIRDS + 1)]
    medians: list[float | None] = []
    for begin, end in itertools.pairwise(thirds):
        rates = [window.rate for span, window in calm.items() if begin <= span[0] < end]
        medians.append(round(statistics.median(rates), 1) if rates else None)
    return medians


def _told(speed: Speed | None) -> dict[str, float] | None:
    if speed is None:
        return None
    return {
        "pieces_per_ms": round(speed.pieces, 3),
        "busy": round(speed.busy, 2),
        "sync_ms": round(speed.sync_ms, 2),
    }


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)
