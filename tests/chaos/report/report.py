"""The report: throughput around each fault, how long it hurt, totals, and the verdict."""

import bisect
import collections
import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from tests.chaos.judges import Judgement
from tests.chaos.load.notes import Notes
from tests.chaos.plan import Fault
from tests.chaos.report.pace import pace, rate
from tests.chaos.report.reference import Reference

_WINDOW_SECONDS = 5.0
"""Before and after a fault, at most."""

_FINDINGS_MAX = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A fault as it was, on the clock of the notes; `ended_at` when it was fixed."""

    fault: Fault
    began_at: float
    ended_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a fault did. Rates are acknowledged writes a second.

    ``first`` is the time from its beginning to the next acknowledgement by anybody, ``silence``
    the longest time without one until the next fault, or a few seconds after its end, ``whole``
    the time from its end until every replica has acknowledged one; None: that never came.
    """

    fault: Fault
    lasted: float
    before: float
    during: float
    after: float
    first: float | None
    silence: float
    whole: float | None


def effects(
    committed: Sequence[Committed], notes: Notes, *, begun_at: float, ended_at: float
) -> list[Effect]:
    """Return the effect of each fault, in the order in which they began."""
    instants = [instant for instant, _ in notes.acknowledged]
    by_replica: dict[int, list[float]] = collections.defaultdict(list)
    for instant, replica in notes.acknowledged:
        by_replica[replica].append(instant)
    in_order = sorted(committed, key=lambda it: it.began_at)
    ends = [begun_at, *(it.ended_at for it in in_order)]
    begins = [*(it.began_at for it in in_order), ended_at]
    found = []
    for index, it in enumerate(in_order):
        calm_from = max(*ends[: index + 1], it.began_at - _WINDOW_SECONDS)
        calm_to = min(begins[index + 1], it.ended_at + _WINDOW_SECONDS)
        whole = [_next(times, it.ended_at) for times in by_replica.values()]
        found.append(
            Effect(
                fault=it.fault,
                lasted=it.ended_at - it.began_at,
                before=rate(instants, min(calm_from, it.began_at - 1.0), it.began_at),
                during=rate(instants, it.began_at, max(it.ended_at, it.began_at + 1.0)),
                after=rate(instants, it.ended_at, max(calm_to, it.ended_at + 1.0)),
                first=_next(instants, it.began_at),
                silence=_silence(instants, it.began_at, max(calm_to, it.ended_at + 1.0)),
                whole=None if None in whole else max(filter(None, whole), default=None),
            )
        )
    return found


def summary(
    committed: Sequence[Committed],
    notes: Notes,
    judgement: Judgement,
    reference: Reference,
    *,
    begun_at: float,
    ended_at: float,
    done_after: float,
) -> dict[str, Any]:
    """Return everything as one document."""
    effects_of = effects(committed, notes, begun_at=begun_at, ended_at=ended_at)
    return {
        "seconds": round(ended_at - begun_at, 1),
        "passed": not judgement.findings,
        "findings": list(judgement.findings),
        "processes": judgement.process_count,
        "operations": judgement.operation_count,
        "events": judgement.event_count,
        "gated": judgement.gated_count,
        "jobs": judgement.job_count,
        "nodes": judgement.node_count,
        "undecided": judgement.undecided,
        "doctor": judgement.doctor,
        "all_done_seconds": round(done_after, 2),
        "judging_seconds": round(judgement.seconds, 1),
        **pace(
            [instant for instant, _ in notes.acknowledged],
            [(it.began_at, it.ended_at) for it in committed],
            reference,
            begun_at=begun_at,
            ended_at=ended_at,
        ),
        "totals": _totals(notes),
        "faults": [_document(effect) for effect in effects_of],
        "kinds": _kinds(effects_of),
    }


def lines(document: dict[str, Any]) -> Iterable[str]:
    """Yield the report for people."""
    yield "\nfault                  lasted   before   during    after  first s  silence   all s"
    for it in document["faults"]:
        yield (
            f"{it['kind']:<20} {it['lasted']:>8.2f} {it['before']:>8.0f} {it['during']:>8.0f} "
            f"{it['after']:>8.0f} {_seconds(it['first'])} {_seconds(it['silence'])} "
            f"{_seconds(it['whole'])}"
        )
    yield "\nkind                  times   first s (median, worst)   all replicas (median, worst)"
    for kind, it in document["kinds"].items():
        yield f"{kind:<20} {it['times']:>6}   {_pair(it['first'])}   {_pair(it['whole'])}"
    yield "\nrequest          outcomes"
    for kind, outcomes in document["totals"].items():
        told = ", ".join(f"{count:,} {word}" for word, count in outcomes.items())
        yield f"{kind:<16} {told}"
    yield (
        f"\n{document['operations']:,} operations on {document['processes']:,} processes; "
        f"{document['events']:,} events kept; {document['gated']:,} tasks had constraints; "
        f"{document.get('jobs', 0):,} jobs of {document.get('nodes', 0):,} nodes; "
        f"{document['undecided']} histories undecided; "
        f"judged in {document['judging_seconds']} s; doctor: {document['doctor']}"
    )
    yield from _pace_lines(document)
    findings = document["findings"]
    for finding in findings[:_FINDINGS_MAX]:
        yield f"FOUND: {finding}"
    if len(findings) > _FINDINGS_MAX:
        yield f"... and {len(findings) - _FINDINGS_MAX} more"
    yield f"verdict: {'passed' if document['passed'] else 'FAILED'}"


def _pace_lines(document: dict[str, Any]) -> Iterable[str]:
    yield (
        f"acknowledged writes: {document['rate_first']}/s before the first fault, "
        f"{document['rate_last']}/s after the last: {_share(document['rate_kept'])}, "
        f"at one speed of the machine {_share(document['rate_kept_adjusted'])}; "
        f"all due done in {document['all_done_seconds']} s"
    )
    yield (
        f"machine: {document['speed_first']} before, {document['speed_last']} after; "
        f"writes/s in the calm of each third of the run: {document['rate_calm']}"
    )


def _share(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:.0%}"


def _next(instants: Sequence[float], begun_at: float) -> float | None:
    index = bisect.bisect_right(instants, begun_at)
    return instants[index] - begun_at if index < len(instants) else None


def _silence(instants: Sequence[float], begun_at: float, ended_at: float) -> float:
    inside = instants[bisect.bisect(instants, begun_at) : bisect.bisect(instants, ended_at)]
    return max(
        (later - earlier for earlier, later in itertools.pairwise([begun_at, *inside, ended_at])),
        default=0.0,
    )


def _totals(notes: Notes) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for (kind, word), count in sorted(notes.totals.items()):
        totals.setdefault(kind, {})[word] = count
    return totals


def _document(effect: Effect) -> dict[str, Any]:
    figures = dataclasses.asdict(effect)
    fault = figures.pop("fault")
    rounded = {name: None if it is None else round(it, 3) for name, it in figures.items()}
    return {"number": fault["number"], "kind": str(fault["kind"]), **rounded}


def _kinds(effects_of: Sequence[Effect]) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for kind in sorted({effect.fault.kind for effect in effects_of}):
        of_kind = [effect for effect in effects_of if effect.fault.kind is kind]
        kinds[str(kind)] = {
            "times": len(of_kind),
            "first": _median_and_worst(effect.first for effect in of_kind),
            "whole": _median_and_worst(effect.whole for effect in of_kind),
        }
    return kinds


def _median_and_worst(figures: Iterable[float | None]) -> list[float] | None:
    known = [figure for figure in figures if figure is not None]
    return [round(statistics.median(known), 3), round(max(known), 3)] if known else None


def _seconds(figure: float | None) -> str:
    return "   never" if figure is None else f"{figure:>8.2f}"


def _pair(figures: Sequence[float] | None) -> str:
    return "never" if figures is None else f"{figures[0]:>8.3f} {figures[1]:>8.3f}"
