"""What commands print: a JSON document for programs, or tables and sentences for people.

All output goes through `SafeConsole`, `print_line` or `render`, so that no external
text reaches a terminal unescaped.
"""

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from progressor.cli.output.documents import escaped, is_json, render
from progressor.telemetry.logs.printable import printable

Item = TypeVar("Item")
Column: TypeAlias = Callable[[Item], str | Text]
"""Returns the cell of a column for an item."""

PIPE_COLUMNS = 240
"""The width of tables in a pipe."""

_PAYLOAD_SHOWN = 2000
_DURATION_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))
_NEVER_WRAPPED = (
    "at", "created", "status since", "held since", "waits since", "updated", "status", "type",
    "task", "event", "events",
)  # fmt: skip


class SafeConsole(Console):
    """A console that prints any text as one line without terminal control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Make text printable, also within tables."""
        if isinstance(renderable, str | Text):
            renderable = _printable_text(renderable)
        return super().render(renderable, options)


def show(
    document: object, *people: RenderableType, as_json: bool, console: Console | None = None
) -> None:
    """Print `document` as JSON, or `people` as text; a str has no markup."""
    if as_json:
        # Not with rich, which would wrap it.
        sys.stdout.write(render(document) + "\n")
        return
    # A pipe has no width, and its readers expect whole lines.
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    console = console or SafeConsole(highlight=False, width=width)
    for each in people:
        renderable = Text(each) if isinstance(each, str) else each
        is_sentence = isinstance(renderable, Text)
        console.print(renderable, soft_wrap=is_sentence and not console.is_terminal)


def print_line(text: str) -> None:
    """Print one line to standard output at once.

    Raises:
        BrokenPipeError: The reader of the pipe has exited.
    """
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def table(columns: Mapping[str, Column[Item]], items: Iterable[Item]) -> Table:
    """Return a table with a row for each item; `columns` by their headings."""
    found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in columns:
        found.add_column(heading, overflow="fold", no_wrap=heading in _NEVER_WRAPPED)
    for item in items:
        # Printable before rich measures the cells.
        found.add_row(*(_printable_text(cell(item)) for cell in columns.values()))
    return found


def more_note(limit: int, *, more: bool) -> list[Text]:
    """Return a note that the output was cut at `limit`, if it was."""
    return [Text(f"… more after the first {limit:,}", style="dim")] if more else []


def facts(pairs: Mapping[str, str | Text]) -> Table:
    """Return names and values, one per line; those without a value are left out."""
    found = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    found.add_column(style="dim", no_wrap=True)
    found.add_column(overflow="fold")
    for name, value in pairs.items():
        if value:
            found.add_row(name, _printable_text(value))
    return found


def _printable_text(text: str | Text) -> Text:
    if isinstance(text, str):
        return Text(printable(text))
    if text.plain.isprintable():
        return text
    changed = text.copy()
    changed.plain = printable(text.plain)
    return changed


def payload_text(payload: object) -> str:
    """Return a payload as JSON or text, cut if it is long, or its number of bytes."""
    if not payload:
        return ""
    assert isinstance(payload, bytes), "the command line reads payloads as bytes"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"<{len(payload):,} bytes>"
    if not text.isprintable():
        text = escaped(text) if is_json(payload) else repr(text)
    return text if len(text) <= _PAYLOAD_SHOWN else f"{text[:_PAYLOAD_SHOWN]} … ({len(text):,})"


def one_line(words: str) -> str:
    """Return external text as one printable line, with white space collapsed."""
    return " ".join(printable(words).split())


def instant_text(instant: dt.datetime | None) -> str:
    """Return an instant in UTC, to the millisecond; "" for None."""
    if instant is None:
        return ""
    return f"{instant.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1000:03d}Z"


def duration_text(duration: dt.timedelta) -> str:
    """Return 1d, 1h30m, 1.5s or 20ms, to the millisecond; options accept these forms too."""
    if duration < dt.timedelta():
        return f"-{duration_text(-duration)}"
    seconds, milliseconds = divmod(round(duration.total_seconds() * 1000), 1000)
    if not seconds:
        return f"{milliseconds}ms" if milliseconds else "0s"
    found = ""
    for unit, length in _DURATION_UNITS:
        count, seconds = divmod(seconds, length)
        found += f"{count}{unit}" if count else ""
    left = f"{seconds}.{milliseconds:03d}".rstrip("0").rstrip(".")
    return found if left == "0" else f"{found}{left}s"


_STATUS_STYLES: Mapping[str, str] = {
    "init": "cyan", "waiting": "cyan", "available": "bold cyan", "blocked": "cyan",
    "running": "green", "finished": "blue", "error": "bold red", "cancelled": "dim",
    "serving": "green", "draining": "cyan", "silent": "bold red",
}  # fmt: skip


def status_text(status: str) -> Text:
    """Return the status of a process, task or replica in its colour."""
    return Text(status, style=_STATUS_STYLES.get(status, ""))
