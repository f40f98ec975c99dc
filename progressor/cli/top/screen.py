"""Shows an overview as tables, cut to the size of the screen; rows left out are counted.

On a low screen the tables lose rows evenly, and then the least important tables are left out. On a
narrow screen the least important columns are left out. Output to a pipe is not cut.
"""

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from progressor.cli.output import Column, instant_text, one_line, status_text
from progressor.domain.views.activity import NamespaceQueue, even_share
from progressor.sdk.client.overview import NamespaceLine, Overview, ReplicaLine

SLOWEST_MAX = 5
"""The maximum number of rows in the table of slowest processors."""

_JOBS_MAX = 10_000
"""Jobs are counted up to this number, over all namespaces."""

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

_BROKEN = {"process failed": "process_failed_count"}
"""Counts of tasks that are held until their process comes back, shown if there are any."""

_CONSTRAINED = {
    "run at": "run_at_count", "order": "order_count", "gate": "gate_count",
    "available": "available_count",
}  # fmt: skip
"""Counts of tasks with constraints, shown if there are any."""

_STATUSES = {"init": "init", "running": "running", "error": "broken", "finished": "finished"}
"""The words for the counts of processes, by status."""

_LEAST = (
    "run at", "behind", "timers", "mean ms", "order", "retries", "available", "gate", "failed/s",
    "process failed", "paused", "broken", "unreachable", "version", "id", "callers", "steps",
)  # fmt: skip
"""Columns in the order in which they are left out on a narrow screen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """An unavailable engine: the time of its last answer by PostgreSQL's clock, and why."""

    since: dt.datetime
    lasting: dt.timedelta
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The overview of an engine; if it ``is_cut``, it fits the height of the terminal."""

    overview: Overview
    address: str
    away: Away | None = None
    is_cut: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        head = [*_head(self)]
        for line in head:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        listings = [it for it in _listings(self.overview) if it.items]
        # Not `options.height`, which rich removes for nested renderables.
        room = options.size.height - len(head) if self.is_cut else None
        for listing, rows in zip(listings, _rows(listings, room), strict=False):
            yield ""
            yield listing.table(rows, width=options.max_width)


@dataclasses.dataclass(frozen=True, slots=True)
class _Listing:
    """A table: the cells of each column by its heading, and what its rows are about."""

    columns: Mapping[str, Column[Any]]
    items: Sequence[object]

    def table(self, rows: int, *, width: int) -> Table:
        """Return the first rows in `width`; the first column may be cut, the others are not."""
        first, *others = self.columns
        left_out = len(self.items) - rows
        heads = [f"{first} ({left_out:,} more)" if left_out else first, *others]
        cells = [
            [Text().append(column(it)) for column in self.columns.values()]
            for it in self.items[:rows]
        ]
        widths = [
            max(cell_len(head), *(cell_len(row[place].plain) for row in cells))
            for place, head in enumerate(heads)
        ]
        name_width = max(_NAME_WIDTH_MIN, cell_len(heads[0]))
        shown = [*range(1, len(heads))]
        for head in (*(it for it in _LEAST if it in others), *reversed(others)):
            if name_width + sum(widths[place] + _GAP for place in shown) <= width:
                break
            shown = [place for place in shown if heads[place] != head]
        room = width - sum(widths[place] + _GAP for place in shown)
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column(heads[0], no_wrap=True, overflow="ellipsis", width=min(widths[0], room))
        for place in shown:
            table.add_column(heads[place], justify="right", no_wrap=True, width=widths[place])
        for row in cells:
            table.add_row(row[0], *(row[place] for place in shown))
        return table


def _rows(listings: Sequence[_Listing], room: int | None) -> list[int]:
    """Return the number of rows of each listing; the last ones are left out if they do not fit."""
    lengths = [len(it.items) for it in listings]
    if room is None:
        return lengths
    while lengths and room < (_AROUND_TABLE + 1) * len(lengths):
        lengths.pop()
    share = even_share(lengths, room - _AROUND_TABLE * len(lengths)) if lengths else 0
    return [min(it, share) for it in lengths]


def _listings(overview: Overview) -> tuple[_Listing, ...]:
    queue = overview.totals.queue
    counts = {
        **_COUNTS,
        **(_BROKEN if queue is not None and queue.process_failed_count else {}),
        **(_CONSTRAINED if _has_constraints(queue) else {}),
    }
    broken: dict[str, Column[NamespaceLine]] = (
        {"broken": _broken} if queue is not None and queue.error_process_count else {}
    )
    waiting: dict[str, Column[NamespaceLine]] = {
        head: functools.partial(_waiting_in, name=name, exact_below=overview.exact_below)
        for head, name in ({"due": "due_count"} | counts).items()
    }
    namespaces: Mapping[str, Column[NamespaceLine]] = {
        "namespace": lambda it: it.namespace,
        "steps/s": lambda it: _rate(it.pace.settled_per_second),
        "failed/s": _failed,
        "busy": lambda it: f"{it.busy_count:,} of {it.worker_count:,}",
        "due": waiting.pop("due"),
        "oldest": _oldest_in,
        **waiting,
        **({"paused": _paused} if queue is not None and queue.paused_age is not None else {}),
        **broken,
        "mean ms": _mean,
        "unreachable": _unreachable,
    }
    replicas: Mapping[str, Column[ReplicaLine]] = {
        "replica": lambda it: one_line(it.name),
        "id": lambda it: str(it.replica_id),
        "state": lambda it: status_text(it.state),
        "heartbeat": lambda it: f"{age_text(it.heartbeat_age)} ago",
        "steps/s": lambda it: _rate(it.pace.settled_per_second),
        "steps": lambda it: "" if it.step_count is None else f"{it.step_count:,}",
        "callers": lambda it: "" if it.caller_count is None else f"{it.caller_count:,}",
        "version": lambda it: one_line(it.version),
    }
    slowest: Mapping[str, Column[NamespaceLine]] = {
        "slowest processor": lambda it: it.namespace,
        "mean ms": _mean,
        "asked/s": lambda it: _rate(it.pace.attempts_per_second),
        "failed/s": _failed,
        "unreachable": _unreachable,
    }
    return (
        _Listing(namespaces, overview.namespaces),
        _Listing(replicas, overview.replicas),
        _Listing(slowest, overview.slowest[:SLOWEST_MAX]),
    )


def _head(screen: Screen) -> Iterator[Text]:
    overview, totals = screen.overview, screen.overview.totals
    title = Text.assemble(("progressor", "bold"), f" at {screen.address}  ")
    yield title.append(instant_text(overview.read_at), style="dim")
    if screen.away is not None:
        away, lasting = screen.away, age_text(screen.away.lasting)
        words = f"engine unavailable since {instant_text(away.since)}, for {lasting}"
        yield Text(f"{words}: {one_line(away.message)}", style="bold red")
    states = {
        "serving": totals.serving_count,
        "draining": totals.draining_count,
        "silent": totals.silent_count,
    }
    yield _facts(
        {
            "steps": f"{_rate(totals.pace.settled_per_second)}/s",
            "failed": f"{_rate(totals.pace.failed_per_second)}/s",
            "busy": f"{totals.busy_count:,} of {totals.worker_count:,}",
            "callers": f"{totals.caller_count:,}",
            "replicas": _nonzero(states),
        }
    )
    if overview.unavailable_cells:
        words = f"cells that are away are missing: {', '.join(overview.unavailable_cells)}"
        yield Text(words, style="yellow")
    if totals.queue is None or overview.queues_age is None:
        yield Text("the queues could not be counted", style="yellow")
    else:
        yield from _waiting(overview, totals.queue, overview.queues_age)


def _waiting(overview: Overview, queue: NamespaceQueue, age: dt.timedelta) -> Iterator[Text]:
    total = functools.partial(_total, overview)
    found = _facts(
        {"due": total("due_count") + _oldest(queue.worker_age)}
        | {head: total(name) for head, name in _COUNTS.items()}
    )
    if age > _STALE:
        found.append(f"  counted {age_text(age)} ago", style="yellow")
    if overview.uncounted_namespace_count:
        words = f"  {overview.uncounted_namespace_count:,} more namespaces were not counted"
        found.append(words, style="yellow")
    yield found
    if queue.paused_age is not None:
        yield _facts({"paused": _paused_namespaces(overview, queue.paused_age)})
    yield from _processes(queue)
    if queue.process_failed_count:
        held = total("process_failed_count") + _oldest(queue.process_failed_age)
        yield _facts({"process failed": held})
    if _has_constraints(queue):
        yield _constrained(queue, total)
    if queue.job_count:
        nodes = {
            state: getattr(queue, f"{state}_node_count")
            for state in ("waiting", "ready", "running", "failed")
        }
        jobs = _count(queue.job_count, is_exact=queue.job_count < _JOBS_MAX)
        yield _facts({"jobs": jobs, "nodes": _nonzero(nodes) or "0"})
    if queue.schedule_count or queue.paused_schedule_count:
        yield _schedules(queue, total)


def _schedules(queue: NamespaceQueue, total: Callable[[str], str]) -> Text:
    paused = total("paused_schedule_count")
    found = _facts({"schedules": total("schedule_count"), "paused": paused})
    if queue.late_schedule_count:
        found.append(f"   late {total('late_schedule_count')}", style="bold red")
    return found


def _paused_namespaces(overview: Overview, longest: dt.timedelta) -> str:
    count = sum(
        it.queue is not None and it.queue.paused_age is not None for it in overview.namespaces
    )
    what = "namespace" if count == 1 else "namespaces"
    return f"{count:,} {what}, the longest for {age_text(longest)}"


def _processes(queue: NamespaceQueue) -> Iterator[Text]:
    counts = {word: getattr(queue, f"{status}_process_count") for status, word in _STATUSES.items()}
    if any(counts.values()):
        about = "~" if queue.process_count_is_estimate else ""
        total = f"{about}{sum(counts.values()):,}"
        yield _facts({"processes": total} | {word: f"{it:,}" for word, it in counts.items()})


def _broken(line: NamespaceLine) -> Text:
    count = 0 if line.queue is None else line.queue.error_process_count
    return Text(f"{count:,}" if count else "", style="red")


def _constrained(queue: NamespaceQueue, total: Callable[[str], str]) -> Text:
    counted = {head: total(name) for head, name in _CONSTRAINED.items()}
    counted["gate"] += _oldest(queue.gate_age)
    if queue.full_gate_count:
        counted["gate"] += f", at {total('full_gate_count')} full"
    return _facts(counted | {"held": total("held_count")})


def age_text(age: dt.timedelta) -> str:
    """Return a rounded duration as text."""
    seconds = age.total_seconds()
    for below, length, form, unit in _UNITS:
        if seconds < below:
            return f"{seconds / length:{form}} {unit}"
    return f"{seconds / 3600:,.0f} h"


def _has_constraints(queue: NamespaceQueue | None) -> bool:
    """Return whether a task waits for its constraints, is available, or holds a gate."""
    names = (*_CONSTRAINED.values(), "held_count")
    return queue is not None and any(getattr(queue, name) for name in names)


def _total(overview: Overview, name: str) -> str:
    queues = [line.queue for line in overview.namespaces if line.queue is not None]
    is_exact = all(getattr(queue, name) < overview.exact_below for queue in queues)
    return _count(getattr(overview.totals.queue, name), is_exact=is_exact)


def _waiting_in(line: NamespaceLine, *, name: str, exact_below: int) -> str:
    if line.queue is None:
        return _UNKNOWN
    number = getattr(line.queue, name)
    return _count(number, is_exact=number < exact_below)


def _oldest_in(line: NamespaceLine) -> Text:
    if line.queue is None:
        return Text(_UNKNOWN)
    age = line.queue.worker_age
    if age is None:
        return Text()
    is_late = age >= _LATE and line.queue.paused_age is None
    return Text(age_text(age), style="bold red" if is_late else "")


def _oldest(age: dt.timedelta | None) -> str:
    return "" if age is None else f", the oldest for {age_text(age)}"


def _facts(pairs: Mapping[str, str]) -> Text:
    parts = (Text.assemble((f"{name} ", "dim"), it) for name, it in pairs.items())
    return Text("   ").join(parts)


def _nonzero(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _rate(rate: float | None) -> str:
    if rate is None:
        return _UNKNOWN
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"  # noqa: PLR2004  two digits do


def _failed(line: NamespaceLine) -> Text:
    rate = line.pace.failed_per_second
    return Text(_rate(rate), style="yellow" if rate else "")


def _mean(line: NamespaceLine) -> str:
    mean = line.pace.mean_processor_time
    return "" if mean is None else f"{mean.total_seconds() * 1000:,.1f}"


def _paused(line: NamespaceLine) -> Text:
    age = None if line.queue is None else line.queue.paused_age
    return Text("" if age is None else age_text(age), style="yellow")


def _unreachable(line: NamespaceLine) -> Text:
    lasting = line.unreachable_for
    return Text("" if lasting is None else age_text(lasting), style="bold red")


def _count(number: int, *, is_exact: bool) -> str:
    return f"{number:,}" if is_exact else f"{number:,}+"
