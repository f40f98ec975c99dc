"""The table of several runs, as Markdown: python -m tests.chaos.report.table FILE..., of --json."""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Document = dict[str, Any]

_RUNS = (
    (
        "| Seed | Minutes | Faults | Operations | Processes | Found | Undecided | Doctor "
        "| Writes/s before, after | Kept | Kept, at one speed of the machine |"
    ),
    "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- | ---: | ---: | ---: |",
)
_KINDS = (
    (
        "| Fault | Times | Lasted | Writes/s before, during, after "
        "| Longest silence: median, worst | All replicas again: median, worst |"
    ),
    "| :--- | ---: | ---: | ---: | ---: | ---: |",
)


def table(documents: Sequence[Document]) -> Iterator[str]:
    """Yield the lines of two tables: of the runs, and of the kinds of faults in all of them."""
    yield from _RUNS
    yield from map(_run, documents)
    yield ""
    yield from _KINDS
    faults = [fault for document in documents for fault in document["faults"]]
    for kind in sorted({fault["kind"] for fault in faults}):
        yield _kind(kind, [fault for fault in faults if fault["kind"] == kind])


def _run(document: Document) -> str:
    cells = (
        str(document["seed"]),
        f"{document['minutes']:g}",
        str(len(document["faults"])),
        f"{document['operations']:,}",
        f"{document['processes']:,}",
        str(len(document["findings"])),
        str(document["undecided"]),
        document["doctor"],
        f"{document['rate_first']:.0f}, {document['rate_last']:.0f}",
        _share(document["rate_kept"]),
        _share(document["rate_kept_adjusted"]),
    )
    return _row(cells)


def _kind(kind: str, faults: Sequence[Document]) -> str:
    rates = (_median(fault[when] for fault in faults) for when in ("before", "during", "after"))
    cells = (
        kind,
        str(len(faults)),
        f"{_median(fault['lasted'] for fault in faults):.1f} s",
        ", ".join(f"{rate:.0f}" for rate in rates),
        _median_and_worst(fault["silence"] for fault in faults),
        _median_and_worst(fault["whole"] for fault in faults),
    )
    return _row(cells)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _median(figures: Iterable[float]) -> float:
    return statistics.median(figures)


def _median_and_worst(figures: Iterable[float | None]) -> str:
    told = list(figures)
    known = [figure for figure in told if figure is not None]
    if not known:
        return "never"
    never = f", {len(told) - len(known)} never" if len(known) < len(told) else ""
    return f"{statistics.median(known):.2f}, {max(known):.2f} s{never}"


def _share(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:.0%}"


def main() -> None:
    """Print the table of all runs in the files."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.report.table", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files = parser.parse_args().files
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    sys.stdout.writelines(f"{line}\n" for line in table([json.loads(line) for line in lines]))


if __name__ == "__main__":
    main()
