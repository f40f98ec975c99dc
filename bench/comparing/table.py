"""Shows comparisons: a table for people, and a line of JSON for each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bench.comparing.questions import Comparison
from bench.measurement import Measurement
from bench.report import fields_of

_SIDE = ("a second", "±", "p50, ms", "p99, ms")


def line_of(comparison: Comparison, around: Mapping[str, Any]) -> str:
    """Return one comparison as JSON; `around` has the fields of the whole run."""
    fields = {
        "what": comparison.text,
        "ratio": round(comparison.ratio, 3),
        "progressor": fields_of(comparison.ours),
        "restate": fields_of(comparison.theirs),
        **around,
    }
    return json.dumps(fields)


def table_of(comparisons: Sequence[Comparison], title: str) -> Table:
    """Return the table; a ratio above 1 says that progressor is faster."""
    table = Table(title=title)
    table.add_column("what", no_wrap=True)
    for side in ("progressor", "Restate"):
        table.add_column(side, no_wrap=True)
        for column in _SIDE:
            table.add_column(column, justify="right")
    table.add_column("ratio", justify="right")
    for each in comparisons:
        table.add_row(
            each.text, *_cells(each.ours), *_cells(each.theirs), f"{each.ratio:.2f}"
        )  # fmt: skip
    return table


def _cells(measured: Measurement) -> tuple[str, ...]:
    return (
        measured.name, f"{measured.ops_per_s:,.0f}", f"{50 * measured.spread:.0f} %",
        f"{measured.at(0.5):.2f}", f"{measured.at(0.99):.2f}",
    )  # fmt: skip
