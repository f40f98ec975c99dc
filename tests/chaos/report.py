"""The report: throughput around each fault, how long it hurt, totals, and the verdict.

What rate remains after a fault is measured by `python -m bench.disturbed`.

`python -m tests.chaos.report FILE...` prints the tables of several runs, which --json has written.
"""

import argparse
import bisect
import collections
import dataclasses
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.judges import Judgement
from tests.chaos.load.connections import Notes
from tests.chaos.plan import Fault

Document = dict[str, Any]

_WINDOW_SECONDS = 5.0
"""Before and after a fault, at most."""

_FINDINGS_MAX = 20
_RUNS = (
    ("| Seed | Minutes | Faults | Operations | Processes | Found | Undecided |"),
    "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)
_KINDS = (
    (
        "| Fault | Times | Lasted | Writes/s before, during, after "
        "| Longest silence: median, worst | All replicas again: median, worst |"
    ),
    "| :--- | ---: | ---: | ---: | ---: | ---: |",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A fault as it was, on the clock of the notes; `ended_at` when it was fixed."""

    fault: Fault
    began_at: float
    ended_at: float


def effects(
    committed: Sequence[Committed], notes: Notes, *, begun_at: float, ended_at: float
) -> Iterator[Document]:
    """Yield what each fault did, in the order in which they began.

    Rates are acknowledged writes a second. ``silence`` is the longest time without one until the
    next fault, or a few seconds after its end, ``whole`` the time from its end until every replica
    has acknowledged one; None: that never came.
    """
    instants = [instant for instant, _ in notes.acknowledged]
    by_replica: dict[int, list[float]] = collections.defaultdict(list)
    for instant, replica in notes.acknowledged:
        by_replica[replica].append(instant)
    in_order = sorted(committed, key=lambda each: each.began_at)
    ends = [begun_at, *(each.ended_at for each in in_order)]
    begins = [*(each.began_at for each in in_order), ended_at]
    for index, each in enumerate(in_order):
        calm_from = max(*ends[: index + 1], each.began_at - _WINDOW_SECONDS)
        calm_to = max(min(begins[index + 1], each.ended_at + _WINDOW_SECONDS), each.ended_at + 1.0)
        whole = [_next(times, each.ended_at) for times in by_replica.values()]
        yield {
            "number": each.fault.number,
            "kind": str(each.fault.kind),
            "lasted": round(each.ended_at - each.began_at, 3),
            "before": _rate(instants, min(calm_from, each.began_at - 1.0), each.began_at),
            "during": _rate(instants, each.began_at, max(each.ended_at, each.began_at + 1.0)),
            "after": _rate(instants, each.ended_at, calm_to),
            "silence": _silence(instants, each.began_at, calm_to),
            "whole": None if None in whole else max(filter(None, whole), default=None),
        }


def summary(
    committed: Sequence[Committed],
    notes: Notes,
    judgement: Judgement,
    *,
    begun_at: float,
    ended_at: float,
    done_after: float,
) -> Document:
    """Return everything as one document."""
    totals: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for (kind, word), count in sorted(notes.totals.items()):
        totals[kind][word] = count
    return {
        "seconds": round(ended_at - begun_at, 1),
        "passed": not judgement.findings,
        **dataclasses.asdict(judgement),
        "all_done_seconds": round(done_after, 2),
        "totals": totals,
        "faults": list(effects(committed, notes, begun_at=begun_at, ended_at=ended_at)),
    }


def lines(document: Document) -> Iterable[str]:
    """Yield the report for people."""
    yield ""
    yield from table([document])
    yield "\nrequest          outcomes"
    for kind, outcomes in document["totals"].items():
        counts = ", ".join(f"{count:,} {word}" for word, count in outcomes.items())
        yield f"{kind:<16} {counts}"
    yield (
        f"\n{document['event_count']:,} events kept; {document['gated_count']:,} tasks had "
        f"constraints; {document['job_count']:,} jobs of {document['node_count']:,} nodes; "
        f"judged in {document['seconds_judging']} s; all due done in "
        f"{document['all_done_seconds']} s"
    )
    for title in ("messages", "actors", "bulks"):
        numbers = sorted(document[title].items())
        yield f"{title}: {', '.join(f'{number:,} {what}' for what, number in numbers)}"
    yield f"messages and replies in all: {sum(document['messages'].values()):,}"
    findings = document["findings"]
    for finding in findings[:_FINDINGS_MAX]:
        yield f"FOUND: {finding}"
    if len(findings) > _FINDINGS_MAX:
        yield f"... and {len(findings) - _FINDINGS_MAX} more"
    yield f"verdict: {'passed' if document['passed'] else 'FAILED'}"


def table(documents: Sequence[Document]) -> Iterator[str]:
    """Yield the lines of two tables: of the runs, and of the kinds of faults in all of them."""
    yield from _RUNS
    for each in documents:
        yield _row(
            f"{each['seed']}",
            f"{each['minutes']:g}",
            f"{len(each['faults'])}",
            f"{each['operation_count']:,}",
            f"{each['process_count']:,}",
            f"{len(each['findings'])}",
            f"{each['undecided']}",
        )
    yield ""
    yield from _KINDS
    faults = [fault for document in documents for fault in document["faults"]]
    for kind in sorted({fault["kind"] for fault in faults}):
        of_kind = [fault for fault in faults if fault["kind"] == kind]
        medians = {
            name: statistics.median(fault[name] for fault in of_kind)
            for name in ("lasted", "before", "during", "after")
        }
        yield _row(
            kind,
            f"{len(of_kind)}",
            f"{medians['lasted']:.1f} s",
            ", ".join(f"{medians[when]:.0f}" for when in ("before", "during", "after")),
            _median_and_worst([fault["silence"] for fault in of_kind]),
            _median_and_worst([fault["whole"] for fault in of_kind]),
        )


def _rate(instants: Sequence[float], begun_at: float, ended_at: float) -> float:
    """Return how many of the instants, in order, lie in a second between two others."""
    count = bisect.bisect(instants, ended_at) - bisect.bisect(instants, begun_at)
    return round(count / max(ended_at - begun_at, 1e-9), 1)


def _next(instants: Sequence[float], begun_at: float) -> float | None:
    index = bisect.bisect_right(instants, begun_at)
    return round(instants[index] - begun_at, 3) if index < len(instants) else None


def _silence(instants: Sequence[float], begun_at: float, ended_at: float) -> float:
    inside = instants[bisect.bisect(instants, begun_at) : bisect.bisect(instants, ended_at)]
    pairs = itertools.pairwise([begun_at, *inside, ended_at])
    return round(max(later - earlier for earlier, later in pairs), 3)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _median_and_worst(figures: Sequence[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return "never"
    never = f", {len(figures) - len(known)} never" if len(known) < len(figures) else ""
    return f"{statistics.median(known):.2f}, {max(known):.2f} s{never}"


def main() -> None:
    """Print the tables of all runs in the files."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files = parser.parse_args().files
    runs = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    sys.stdout.writelines(f"{line}\n" for line in table([json.loads(run) for run in runs]))


if __name__ == "__main__":
    main()
