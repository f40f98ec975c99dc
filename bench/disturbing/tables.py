"""The tables of results."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from bench.disturbing.judging import Line


def tables_of(lines: Sequence[Line]) -> Iterator[Table]:
    """Yield a table of the cells, and one of the measurements that follow single processes."""
    cells = [line for line in lines if "kept" in line]
    if cells:
        yield _cells(cells)
    waits = [row for line in lines for row in _waits(line)]
    if waits:
        yield _table("seconds", ("name", "until", "first", "p50", "p99", "max"), waits)


def _cells(lines: Iterable[Line]) -> Table:
    heads = (
        "name", "lasted s", "before /s", "during /s", "after /s", "during", "after", "at one speed",
        "first s", "slowest s", "back s",
    )  # fmt: skip
    rows = [
        (
            line["name"], f"{line['lasted']:.1f}", f"{line['before']:,.0f}",
            f"{line['during']:,.0f}", f"{line['after']:,.0f}", f"{line['kept_while']:.2f}",
            f"{line['kept']:.2f}",
            f"{line['kept_while_at_one_speed']:.2f}, {line['kept_at_one_speed']:.2f}",
            _seconds(line["first_seconds"]), _seconds(line["slowest_seconds"]),
            _seconds(line["back_seconds"]),
        )
        for line in lines
    ]  # fmt: skip
    return _table("answers a second, and seconds from the end of the fault", heads, rows)


def _waits(line: Line) -> Iterator[tuple[str, ...]]:
    for until, field in (
        ("answered", "each"), ("asked again", "asked_again"), ("settled", "settled"),
        ("answered", "answered"),
    ):  # fmt: skip
        times = line.get(field)
        if times is not None:
            first = _seconds(line["first_seconds"]) if field == "each" else ""
            yield (
                line["name"],
                until,
                first,
                *(f"{times[each]:.2f}" for each in ("p50", "p99", "max")),
            )


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
