"""Shows an overview as tables, cut to the size of the screen; rows left out are counted.

On a low screen the tables lose rows evenly, and then the least important tables are left out. On a
narrow screen the least important columns are left out. Output to a pipe is not cut.
"""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from progressor.cli.output.output import instant_text, one_line, status_text
from progressor.cli.top.overview import NamespaceLine, Overview, ReplicaLine, Totals
from progressor.domain.views.activity import even_share
from progressor.sdk.values.activity import NamespaceQueue

SLOWEST_MAX = 5
"""The maximum number of rows in the table of slowest processors."""

_JOBS_MAX = 10_000
"""Jobs are counted up to this number."""

_STALE = dt.timedelta(seconds=10)
_LATE = dt.timedelta(seconds=1)
_NAME_WIDTH_MIN = 16
_GAP = 2
_AROUND_TABLE = 2
"""Lines of a table besides its rows: an empty line and the headings."""

_UNKNOWN = "…"
_UNITS = ((10, 1, ".1f", "s"), (600, 1, ".0f", "s"), (36_000, 60, ".0f", "min"))

_COUNTS = {"timers": "timer_count", "retries": "retry_count", "behind": "behind_count"}
"""Counts of waiting tasks other than due ones, by the heading of the column."""

_CONSTRAINED = {
    "run at": "run_at_count", "order": "order_count", "gate": "gate_count",
    "available": "available_count",
}  # fmt: skip
"""Counts of tasks with constraints, shown if there are any."""

_LEAST = (
    "run at", "behind", "timers", "mean ms", "order", "retries", "available", "gate", "failed/s",
    "unreachable",
)  # fmt: skip
"""Columns of namespaces, in the order in which they are left out on a narrow screen."""

Cells = tuple[str | Text, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """An unavailable engine: the reason, and for how long.

    ``since`` is the time of the last answer, by PostgreSQL's clock.
    """

    since: dt.datetime
    lasting: dt.timedelta
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The overview of the engine at an address, and whether it is unavailable now.

    If it ``is_cut``, it fits the height of the terminal.
    """

    overview: Overview
    address: str
    away: Away | None = None
    is_cut: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the tables in the available height and width."""
        del console
        head = _head(self)
        for line in head:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        listings = [it for it in _listings(self.overview) if it.count]
        # Not `options.height`, which rich removes for nested renderables.
        room = options.size.height - len(head) if self.is_cut else None
        for listing, rows in zip(listings, _rows(listings, room), strict=False):
            yield ""
            yield listing.table(rows, width=options.max_width)


@dataclasses.dataclass(frozen=True, slots=True)
class _Listing:
    """A table: its headings, those to leave out first, the number of rows, and each row."""

    heads: tuple[str, ...]
    least: tuple[str, ...]
    count: int
    row: Callable[[int], Cells]

    def table(self, rows: int, *, width: int) -> Table:
        """Return the first rows in `width`; the first column may be cut, the others are not."""
        cells = [[_text(it) for it in self.row(number)] for number in range(rows)]
        left_out = self.count - rows
        name = f"{self.heads[0]} ({left_out:,} more)" if left_out else self.heads[0]
        heads = (name, *self.heads[1:])
        widths = [
            max(cell_len(head), *(cell_len(row[place].plain) for row in cells))
            for place, head in enumerate(heads)
        ]
        places = self._fitting([max(_NAME_WIDTH_MIN, cell_len(name)), *widths[1:]], width)
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        room = width - sum(widths[place] + _GAP for place in places)
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=min(widths[0], room))
        for place in places:
            table.add_column(heads[place], justify="right", no_wrap=True, width=widths[place])
        for row in cells:
            table.add_row(row[0], *(row[place] for place in places))
        return table

    def _fitting(self, widths: Sequence[int], width: int) -> list[int]:
        """Return the columns that fit after the first one."""
        places = list(range(1, len(self.heads)))
        for head in (*self.least, *reversed(self.heads[1:])):
            if widths[0] + sum(widths[place] + _GAP for place in places) <= width:
                break
            place = self.heads.index(head)
            places = [it for it in places if it != place]
        return places


def _rows(listings: Sequence[_Listing], room: int | None) -> list[int]:
    """Return the number of rows of each listing; the last ones are left out if they do not fit."""
    lengths = [it.count for it in listings]
    if room is None:
        return lengths
    while lengths and room < (_AROUND_TABLE + 1) * len(lengths):
        lengths.pop()
    share = even_share(lengths, room - _AROUND_TABLE * len(lengths)) if lengths else 0
    return [min(it, share) for it in lengths]


def _listings(overview: Overview) -> tuple[_Listing, ...]:
    namespaces, replicas = overview.namespaces, overview.replicas
    slowest = overview.slowest[:SLOWEST_MAX]
    counts = {**_COUNTS, **(_CONSTRAINED if overview.totals.has_constraints else {})}
    heads = (
        "namespace", "steps/s", "failed/s", "busy", "due", "oldest", *counts, "mean ms",
        "unreachable",
    )  # fmt: skip
    return (
        _Listing(
            heads,
            tuple(head for head in _LEAST if head in heads),
            len(namespaces),
            lambda number: _namespace(namespaces[number], counts, overview.exact_below),
        ),
        _Listing(
            ("replica", "id", "state", "heartbeat", "steps/s", "steps", "callers", "version"),
            ("version", "id", "callers", "steps"),
            len(replicas),
            lambda number: _replica(replicas[number]),
        ),
        _Listing(
            ("slowest processor", "mean ms", "asked/s", "failed/s", "unreachable"),
            (),
            len(slowest),
            lambda number: _processor(slowest[number]),
        ),
    )  # fmt: skip


def _namespace(line: NamespaceLine, counts: Mapping[str, str], exact_below: int) -> Cells:
    pace, queue = line.pace, line.queue
    return (
        line.namespace,
        _rate(pace.settled_per_second),
        _failed(line),
        f"{line.busy_count:,} of {line.worker_count:,}",
        *(_queue(queue, counts, exact_below) if queue else (_UNKNOWN,) * (2 + len(counts))),
        _milliseconds(pace.mean_processor_time),
        _unreachable(line),
    )


def _queue(queue: NamespaceQueue, counts: Mapping[str, str], exact_below: int) -> Cells:
    due, *others = (
        _count(number, is_exact=number < exact_below)
        for number in (getattr(queue, name) for name in ("due_count", *counts.values()))
    )
    oldest = queue.worker_age
    late = oldest is not None and oldest >= _LATE
    age = "" if oldest is None else age_text(oldest)
    return (due, Text(age, style="bold red" if late else ""), *others)


def _processor(line: NamespaceLine) -> Cells:
    mean, asked = line.pace.mean_processor_time, _rate(line.pace.attempts_per_second)
    return (line.namespace, _milliseconds(mean), asked, _failed(line), _unreachable(line))


def _replica(line: ReplicaLine) -> Cells:
    return (
        one_line(line.name),
        str(line.replica_id),
        status_text(line.state),
        f"{age_text(line.heartbeat_age)} ago",
        _rate(line.pace.settled_per_second),
        "" if line.step_count is None else f"{line.step_count:,}",
        "" if line.caller_count is None else f"{line.caller_count:,}",
        one_line(line.version),
    )


def _head(screen: Screen) -> list[Text]:
    overview, totals = screen.overview, screen.overview.totals
    named = (
        (totals.serving_count, "serving"),
        (totals.draining_count, "draining"),
        (totals.silent_count, "silent"),
    )
    working = _facts(
        ("steps", f"{_rate(totals.pace.settled_per_second)}/s"),
        ("failed", f"{_rate(totals.pace.failed_per_second)}/s"),
        ("busy", f"{totals.busy_count:,} of {totals.worker_count:,}"),
        ("callers", f"{totals.caller_count:,}"),
        ("replicas", ", ".join(f"{count:,} {name}" for count, name in named if count)),
    )
    title = Text.assemble(("progressor", "bold"), f" at {screen.address}  ")
    title.append(instant_text(overview.read_at), style="dim")
    away = [] if screen.away is None else [Text(away_text(screen.away), style="bold red")]
    return [
        title, *away, working, _waiting(overview), *_constrained(overview), *_jobs(totals),
        *_schedules(overview),
    ]  # fmt: skip


def _waiting(overview: Overview) -> Text:
    if overview.queues_age is None:
        return Text("the queues could not be counted", style="yellow")
    found = _facts(
        ("due", _total(overview, "due_count") + _oldest(overview.totals.due_age)),
        *((head, _total(overview, name)) for head, name in _COUNTS.items()),
    )
    if overview.queues_age > _STALE:
        found.append(f"  counted {age_text(overview.queues_age)} ago", style="yellow")
    if overview.uncounted_namespace_count:
        words = f"  {overview.uncounted_namespace_count:,} more namespaces were not counted"
        found.append(words, style="yellow")
    return found


def _constrained(overview: Overview) -> list[Text]:
    totals = overview.totals
    if not totals.has_constraints:
        return []
    line = _total(overview, "gate_count") + _oldest(totals.gate_age)
    if totals.full_gate_count:
        line += f", at {_total(overview, 'full_gate_count')} full"
    counted = {head: _total(overview, name) for head, name in _CONSTRAINED.items()} | {"gate": line}
    return [_facts(*counted.items(), ("held", _total(overview, "held_count")))]


def _jobs(totals: Totals) -> list[Text]:
    if not totals.job_count:
        return []
    counts = {
        "waiting": totals.waiting_node_count,
        "ready": totals.ready_node_count,
        "running": totals.running_node_count,
        "failed": totals.failed_node_count,
    }
    # Jobs are counted over all namespaces, with a limit of their own.
    jobs = _count(totals.job_count, is_exact=totals.job_count < _JOBS_MAX)
    nodes = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return [_facts(("jobs", jobs), ("nodes", nodes or "0"))]


def _schedules(overview: Overview) -> list[Text]:
    totals = overview.totals
    if not (totals.schedule_count or totals.paused_schedule_count):
        return []
    found = _facts(
        ("schedules", _total(overview, "schedule_count")),
        ("paused", _total(overview, "paused_schedule_count")),
    )
    if totals.late_schedule_count:
        found.append(f"   late {_total(overview, 'late_schedule_count')}", style="bold red")
    return [found]


def _total(overview: Overview, name: str) -> str:
    queues = [line.queue for line in overview.namespaces if line.queue is not None]
    is_exact = all(getattr(queue, name) < overview.exact_below for queue in queues)
    return _count(getattr(overview.totals, name), is_exact=is_exact)


def _oldest(age: dt.timedelta | None) -> str:
    return "" if age is None else f", the oldest for {age_text(age)}"


def away_text(away: Away) -> str:
    """Return a sentence about an unavailable engine."""
    since = f"engine unavailable since {instant_text(away.since)}, for {age_text(away.lasting)}"
    return f"{since}: {one_line(away.message)}"


def age_text(age: dt.timedelta) -> str:
    """Return a rounded duration as text."""
    seconds = age.total_seconds()
    for below, length, form, unit in _UNITS:
        if seconds < below:
            return f"{seconds / length:{form}} {unit}"
    return f"{seconds / 3600:,.0f} h"


def _facts(*pairs: tuple[str, str]) -> Text:
    return Text("   ").join(Text.assemble((f"{name} ", "dim"), value) for name, value in pairs)


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _rate(rate: float | None) -> str:
    if rate is None:
        return _UNKNOWN
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"  # noqa: PLR2004  two digits do


def _failed(line: NamespaceLine) -> Text:
    rate = line.pace.failed_per_second
    return Text(_rate(rate), style="yellow" if rate else "")


def _milliseconds(mean: dt.timedelta | None) -> str:
    return "" if mean is None else f"{mean.total_seconds() * 1000:,.1f}"


def _unreachable(line: NamespaceLine) -> Text:
    lasting = line.unreachable_for
    return Text("" if lasting is None else age_text(lasting), style="bold red")


def _count(number: int | None, *, is_exact: bool) -> str:
    if number is None:
        return _UNKNOWN
    return f"{number:,}" if is_exact else f"{number:,}+"
