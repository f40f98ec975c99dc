"""Where commands print: a document for programs, or tables and sentences for people.

Nothing else writes to a terminal: consoles are `SafeConsole`, lines go through `print_line`, and
documents through `render` and `render_line`. So no text from outside reaches it unescaped.
"""

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from progressor.cli.output.documents import escaped, is_json, render
from progressor.telemetry.logs.printable import printable

_PAYLOAD_SHOWN = 2000
PIPE_COLUMNS = 240
"""How wide tables are where nobody tells."""
_NEVER_WRAPPED = frozenset(
    {
        "at", "created", "status since", "held since", "waits since", "updated", "status", "type",
        "task", "event", "events",
    }
)  # fmt: skip


class SafeConsole(Console):
    """A console that prints any text as one line without terminal control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as usual, but with text made printable, also inside tables."""
        if isinstance(renderable, str | Text):
            renderable = _printable_text(renderable)
        return super().render(renderable, options)


class Output:
    """One command's standard output, in the form that was asked for."""

    def __init__(self, *, as_json: bool, console: Console | None = None) -> None:
        self._as_json = as_json
        # A pipe has no width; what reads it wants whole lines.
        width = None if sys.stdout.isatty() else PIPE_COLUMNS
        self._console = console or SafeConsole(highlight=False, width=width)

    def show(self, document: object, *people: RenderableType) -> None:
        """Print `document` as JSON, or what is meant for `people` in its place."""
        if self._as_json:
            # Not through rich, which would wrap it.
            sys.stdout.write(render(document) + "\n")
            return
        # Whoever reads a pipe line by line gets each sentence whole.
        is_piped = not self._console.is_terminal
        for renderable in people:
            self._console.print(renderable, soft_wrap=is_piped and isinstance(renderable, Text))


def print_line(text: str) -> None:
    """Print one line to standard output at once.

    Raises:
        BrokenPipeError: Whoever read it has read enough.
    """
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Return rows under headings; text is taken as it is, without markup."""
    found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        found.add_column(column, overflow="fold", no_wrap=column in _NEVER_WRAPPED)
    for row in rows:
        # Before the table is laid out by their lengths.
        found.add_row(*map(_printable_text, row))
    return found


def facts(pairs: Mapping[str, str | Text]) -> Table:
    """Return names with values, one a line, leaving out those without."""
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
    """Return a payload for people: JSON or text, or the number of bytes; long ones are cut."""
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
    """Return text from outside as one printable line, with white space collapsed."""
    return " ".join(printable(words).split())


def instant_text(instant: dt.datetime | None) -> str:
    """Return an instant for people, UTC, to the millisecond."""
    if instant is None:
        return ""
    return f"{instant.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1000:03d}Z"


STATUS_STYLES: Mapping[str, str] = {
    "init": "cyan",
    "waiting": "cyan",
    "available": "bold cyan",
    "blocked": "cyan",
    "running": "green",
    "finished": "blue",
    "error": "bold red",
    "cancelled": "dim",
    "serving": "green",
    "draining": "cyan",
    "silent": "bold red",
}


def status_text(status: str) -> Text:
    """Return a status of a process, a task or a replica in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))
