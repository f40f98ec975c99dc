"""Summaries of all turns of a measurement: medians, and complaints."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.disturbing import resuming, zombies
from bench.disturbing.cells import Cell, Turn
from bench.disturbing.pace import Pace
from bench.disturbing.resuming import Resumed
from bench.disturbing.zombies import Killed
from bench.parts.percentiles import curve

Line = Mapping[str, Any]
"""One measurement; ``complaints`` lists what is wrong with it."""


def of_cell(name: str, cell: Cell, turns: Sequence[Turn]) -> Line:
    """Return the summary of a cell: the medians of rates, the longest of the waits."""
    kept = statistics.median(turn.kept_at_one_speed for turn in turns)
    held = statistics.median(turn.held_at_one_speed for turn in turns)
    complaints = _findings(turns)
    if kept < cell.kept_min:
        complaints.append(f"after it the rate is {kept:.2f} of what it was, at one speed")
    if cell.during_min is not None and held < cell.during_min:
        complaints.append(f"while it lasts the rate is {held:.2f} of what it was, at one speed")
    return {
        "name": name,
        "text": cell.text,
        **{
            field: round(statistics.median(getattr(turn, field) for turn in turns), 1)
            for field in ("before", "during", "during_last", "after", "lasted")
        },
        "kept": round(statistics.median(turn.kept for turn in turns), 3),
        "kept_at_one_speed": round(kept, 3),
        "kept_by_turn": [round(turn.kept, 3) for turn in turns],
        "cpu_ms_before": _medians([turn.cpu_ms_before for turn in turns]),
        "cpu_ms_after": _medians([turn.cpu_ms_after for turn in turns]),
        "kept_while": round(
            statistics.median(turn.during / max(turn.before, 1e-9) for turn in turns), 3
        ),
        "kept_while_at_one_speed": round(held, 3),
        "first_seconds": _longest(turn.first for turn in turns),
        "slowest_seconds": _longest(turn.slowest for turn in turns),
        "back_seconds": _longest(turn.back for turn in turns),
        "complaints": complaints,
        "turns": [{**dataclasses.asdict(turn), "kept": round(turn.kept, 3)} for turn in turns],
    }


def of_kills(pace: Pace, turns: Sequence[Killed]) -> Line:
    asked = [seconds for turn in turns for seconds in turn.asked]
    settled = [seconds for turn in turns for seconds in turn.settled]
    answered = [seconds for turn in turns for seconds in turn.answered]
    bar = pace.lease_seconds + zombies.RESUMED_SECONDS_MAX
    complaints = _findings(turns)
    wanted = 0 if pace.fails else pace.processes * len(turns)
    if len(asked) != wanted:
        complaints.append(f"{len(asked)} steps were asked again, not {wanted}")
    p99 = _percentiles(settled if pace.fails else asked)["p99"]
    if p99 > bar:
        complaints.append(f"p99 is {p99:.2f} s, more than {bar:g} s")
    return {
        "name": "kills_p99",
        "text": f"{pace.processes} steps in flight on a killed replica",
        "policy": "fail" if pace.fails else "retry",
        "lease_seconds": pace.lease_seconds,
        "asked_again": None if pace.fails else _percentiles(asked),
        "settled": _percentiles(settled),
        "answered": _percentiles(answered),
        "complaints": complaints,
        "turns": [dataclasses.asdict(turn) for turn in turns],
    }


def of_resuming(way: str, turns: Sequence[Resumed]) -> Line:
    """Return how soon callers got answers after PostgreSQL was back."""
    each = [seconds for turn in turns for seconds in turn.each]
    answered = [seconds for seconds in each if seconds is not None]
    told = _percentiles(answered)
    complaints = _findings(turns)
    if len(answered) < len(each):
        complaints.append(f"{len(each) - len(answered)} callers had no answer while it was watched")
    if told["max"] > resuming.RESUMED_SECONDS_MAX:
        late = sum(seconds > resuming.RESUMED_SECONDS_MAX for seconds in answered)
        complaints.append(f"{late} of {len(each)} callers waited up to {told['max']:.1f} s")
    return {
        "name": f"postgres_resume_{way}",
        "text": "PostgreSQL is back: answers to callers",
        "away_seconds": round(statistics.median(turn.away for turn in turns), 2),
        "first_seconds": _longest(turn.first for turn in turns),
        "each": told,
        "complaints": complaints,
        "turns": [dataclasses.asdict(turn) for turn in turns],
    }


def _medians(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(cost[name] for cost in costs), 4) for name in costs[0]}


def _findings(turns: Sequence[Turn | Killed | Resumed]) -> list[str]:
    return [finding for turn in turns for finding in turn.findings]


def _longest(values: Iterable[float | None]) -> float | None:
    """Return the longest; None if one never came."""
    found = list(values)
    return None if None in found else round(max(filter(None, found), default=0.0), 2)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    p50, p99, longest = curve(seconds, (0.5, 0.99, 1.0))
    return {
        "p50": round(p50 / 1000, 3),
        "p99": round(p99 / 1000, 3),
        "max": round(longest / 1000, 3),
    }
