"""What commands print, JSON documents, text or errors, all of it escaped; and their exit codes."""

import base64
import dataclasses
import datetime as dt
import enum
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import grpc
import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from progressor import errors
from progressor.domain.processes.policy import Pause
from progressor.sdk.codec.revealed import Sealed
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.telemetry.logs.printable import printable

Item = TypeVar("Item")
Column: TypeAlias = Callable[[Item], str | Text]
"""Returns the cell of a column for an item."""

PIPE_COLUMNS = 240
"""The width of drawings in a pipe."""

_UNBOUNDED = 1_000_000

_PAYLOAD_SHOWN = 2000
_DURATION_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))
_GAP = 2
_TEXT_MIN = 16
_FOLDED = frozenset({"meaning"})
_TEXTS = _FOLDED | {
    "why", "what", "detail", "note", "payload", "reason", "does", "times", "processor", "paused",
    "runs", "nodes", "for all of", "processes", "value", "default", "by",
}  # fmt: skip
"""Columns that are shortened; others are copied, or of no use without their end."""

_LEFT_OUT_FIRST = (
    "variable", "revision", "updated", "created", "events", "release", "first seen", "in all", "by",
    "status since", "last seen", "skipped", "applied", "kind",
)  # fmt: skip
_STATUS_STYLES: Mapping[str, str] = {
    "init": "cyan", "waiting": "cyan", "available": "bold cyan", "blocked": "cyan",
    "running": "green", "finished": "blue", "error": "bold red", "cancelled": "dim",
    "serving": "green", "draining": "cyan", "silent": "bold red",
}  # fmt: skip

EPILOGUE = """\
Exit codes:
  0  done
  1  failed for another reason, given in the message
  2  the command line, configuration, database or request is invalid
  3  no such namespace, process, event, task, gate, job, schedule or operation
  4  not in this state: exists already, failed, finished, removed, key reused
  5  unavailable: engine or PostgreSQL not reachable, overloaded, draining; try again
  6  the deadline passed; an accepted task continues
  7  the processor rejected the request
  8  the awaited job failed
  9  the awaited job was cancelled

Every command prints one JSON document with --json; errors go to stderr.
The namespace is that of -n, else PROGRESSOR_NAMESPACE, else "default"."""

_LOCAL = frozenset({"USAGE", "CONFIGURATION", "EMBEDDED_POSTGRES"})
"""Reasons of errors that no engine sends; as text, the message is enough."""


def render(document: object, *, indent: int = 2) -> str:
    """Return a value as a JSON document without terminal control characters; indent -1: one line.

    Keys are the names of the fields. A payload is embedded if it is JSON, else encoded as base64
    under ``<key>_base64``; an empty payload is null. A duration is in seconds under
    ``<key>_seconds``.
    """
    encoded = msgspec.json.encode(plain(document))
    return escaped(msgspec.json.format(encoded, indent=indent).decode())


def escaped(document: str) -> str:
    """Return the same JSON document with an escape for each character that is not printable.

    JSON itself requires that for C0 controls only. Line ends between its parts stay.
    """
    if document.isprintable():
        return document
    lines = document.split("\n")
    return "\n".join(it if it.isprintable() else "".join(map(_escape, it)) for it in lines)


def _escape(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def plain(value: object) -> object:
    """Return a value as JSON types."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case Mapping():
            return dict(pair for key, it in value.items() for pair in _pairs(str(key), it))
        case tuple() | list():
            return [plain(inner) for inner in value]
        case _:
            return _scalar(value)


def _scalar(value: object) -> object:
    match value:
        case grpc.StatusCode():
            return value.name
        case enum.Enum():
            return value.value
        case dt.datetime():
            return value.isoformat()
        case Path():
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise AssertionError(f"cannot print a {type(value)}")


def is_json(payload: bytes) -> bool:
    """Return whether a payload is one JSON text."""
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
        payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _pairs(key: str, value: object) -> Iterator[tuple[str, object]]:
    match value:
        case b"":
            yield key, None
        case Sealed() if (plain_value := value.revealed) is not None:
            yield from _pairs(key, plain_value)
        case bytes() if is_json(value):
            # Raw: numbers keep all their digits.
            yield key, msgspec.Raw(value)
        case bytes():
            yield f"{key}_base64", base64.b64encode(value).decode("ascii")
        case dt.timedelta():
            yield f"{key}_seconds", value.total_seconds()
        case _:
            yield key, plain(value)


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
    if console is None and not sys.stdout.isatty():
        _print_to_pipe(people)
        return
    console = console or SafeConsole(highlight=False)
    for each in people:
        renderable = Text(each) if isinstance(each, str) else each
        is_whole = isinstance(renderable, Text) and (renderable.no_wrap or not console.is_terminal)
        console.print(renderable, soft_wrap=is_whole)


def command_text(words: str) -> Text:
    """Return a command to be copied, which only the terminal itself breaks into lines."""
    return Text(words, no_wrap=True)


def _print_to_pipe(people: Iterable[RenderableType]) -> None:
    """Print whole lines: a pipe has no width."""
    file = io.StringIO()
    console = SafeConsole(file=file, width=_UNBOUNDED, highlight=False)
    show(None, *people, as_json=False, console=console)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in file.getvalue().split("\n")[:-1])


def print_line(text: str) -> None:
    """Print one line to standard output at once.

    Raises:
        BrokenPipeError: The reader of the pipe has exited.
    """
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def table(columns: Mapping[str, Column[Item]], items: Iterable[Item]) -> RenderableType:
    """Return a table with a row for each item; `columns` by their headings."""
    # Printable before the cells are measured.
    rows = [[_printable_text(cell(item)) for cell in columns.values()] for item in items]
    return _Table(tuple(columns), rows)


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Rows under headings; on a narrow terminal texts are shortened, then columns left out."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = {
            it: max(cell_len(self.headings[it]), *(row[it].cell_len for row in self.rows), 0)
            for it in range(len(self.headings))
        }
        if console.is_terminal:
            self._fit(widths, options.max_width)
        found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        for it, width in widths.items():
            is_folded = it == 0 or self.headings[it] in _FOLDED
            overflow: Literal["fold", "ellipsis"] = "fold" if is_folded else "ellipsis"
            found.add_column(
                self.headings[it], width=width, no_wrap=not is_folded, overflow=overflow
            )
        for row in self.rows:
            found.add_row(*(row[it] for it in widths))
        yield found
        if not self.rows and console.is_terminal:
            yield Text("none", style="dim")
        left_out = [
            name for it, name in enumerate(self.headings) if it not in widths and self._is_used(it)
        ]
        if left_out:
            yield Text(f"… not shown here: {', '.join(left_out)}", style="dim")

    def _is_used(self, number: int) -> bool:
        return any(row[number].cell_len for row in self.rows)

    def _fit(self, widths: dict[int, int], room: int) -> None:
        """Make the columns as narrow as need be, and leave out the least important ones."""
        numbers = range(1, len(self.headings))
        texts = [it for it in numbers if self.headings[it] in _TEXTS]
        rank = {name: it for it, name in enumerate(_LEFT_OUT_FIRST)}
        # Those without a single value before all others.
        leaving = sorted(
            numbers,
            key=lambda it: (self._is_used(it), rank.get(self.headings[it], len(rank)), -it),
        )
        while leaving:
            excess, slack = self._excess(widths, texts, room)
            if excess <= (slack if self._is_used(leaving[0]) else 0):
                break
            del widths[leaving.pop(0)]
        for _ in range(min(self._excess(widths, texts, room))):
            widths[max((it for it in texts if it in widths), key=lambda it: widths[it])] -= 1

    @staticmethod
    def _excess(widths: Mapping[int, int], texts: Iterable[int], room: int) -> tuple[int, int]:
        """Return by how much columns are too wide, and by how much texts can be shortened."""
        excess = sum(widths.values()) + _GAP * (len(widths) - 1) - room
        return excess, sum(max(widths[it] - _TEXT_MIN, 0) for it in texts if it in widths)


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
    """Return a payload as JSON or text, cut if it is long, or its number of bytes.

    One that stays encrypted is shown by the id of its key.
    """
    if isinstance(payload, Sealed):
        plain_payload = payload.revealed
        if plain_payload is None:
            return f"encrypted with key {payload.key_id} ({len(payload):,} bytes)"
        payload = plain_payload
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


def pause_text(pause: Pause) -> str:
    by = f"{pause.author}, " if pause.author else ""
    refusing = ", refuses requests" if pause.refuses_requests else ""
    return one_line(f"{pause.reason} ({by}since {instant_text(pause.paused_at)}{refusing})")


def status_text(status: str) -> Text:
    """Return the status of a process, task or replica in its colour."""
    return Text(status, style=_STATUS_STYLES.get(status, ""))


class ExitCode(enum.IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    STATE = 4
    UNAVAILABLE = 5
    DEADLINE = 6
    REJECTED = 7
    JOB_FAILED = 8
    JOB_CANCELLED = 9
    INTERRUPTED = 130
    """By Ctrl-C, as in shells."""


_CLASSES: Mapping[ExitCode, tuple[type[errors.ProgressorError], ...]] = {
    ExitCode.USAGE: (
        errors.ConfigError, errors.EmbeddedPostgresError, errors.InvalidRequestError,
    ),
    ExitCode.NOT_FOUND: (errors.NotFoundError,),
    ExitCode.STATE: (errors.StateError,),
    ExitCode.REJECTED: (errors.RejectedError,),
    ExitCode.DEADLINE: (errors.DeadlineExceededError,),
    ExitCode.UNAVAILABLE: (
        errors.OverloadedError, errors.ShuttingDownError, errors.ReplicaStoppedError,
        errors.QuotaExceededError,
        errors.StorageUnavailableError, EngineUnavailableError,
    ),
}  # fmt: skip


def exit_code_for(error: errors.ProgressorError) -> ExitCode:
    """Return the exit code of a command that ends with `error`."""
    found = (code for code, classes in _CLASSES.items() if isinstance(error, classes))
    return next(found, ExitCode.FAILED)


def report(error: errors.ProgressorError, *, as_json: bool) -> ExitCode:
    """Print `error` to stderr, as a JSON object or text, and return the exit code."""
    code = exit_code_for(error)
    report_words(str(error), error.reason, _fields(error), code=code, as_json=as_json)
    return code


def report_words(
    message: str, reason: str, fields: Mapping[str, object], *, code: ExitCode, as_json: bool
) -> None:
    """Print an error by its message, reason and fields."""
    if as_json:
        error = {"message": message, "reason": reason, "exit_code": code, "fields": fields}
        sys.stderr.write(render({"error": error}) + "\n")
        return
    console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
    message = one_line(message)
    console.print(Text.assemble(("error: ", "bold red"), message))
    if reason not in _LOCAL:
        console.print(Text(f"  reason: {reason}", style="dim"))
    for name, value in fields.items():
        text = one_line(_in_a_line(value))
        if text and text not in message:
            console.print(Text(f"  {name}: {text}", style="dim"))


def note(words: str, *, as_json: bool) -> None:
    """Print a note to standard error, in one line."""
    line = render({"note": words}, indent=-1) if as_json else f"note: {one_line(words)}"
    sys.stderr.write(f"{line}\n")


def only_ours(
    error: errors.ProgressorError | ExceptionGroup[Exception],
) -> errors.ProgressorError:
    """Return an error, or the first one of a group.

    Raises:
        ExceptionGroup: One of the group is not ours, which is a bug.
    """
    if isinstance(error, ExceptionGroup) and error.split(errors.ProgressorError)[1] is not None:
        raise error
    first: Exception = error
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, errors.ProgressorError), "the group has no others"
    return first


def words_of(error: errors.ProgressorError) -> dict[str, str]:
    """Return the fields of an error as text, for `report_words` in another process."""
    return {name: _in_a_line(value) for name, value in _fields(error).items()}


def _fields(error: errors.ProgressorError) -> Mapping[str, object]:
    return {name: it for name, it in vars(error).items() if name[0] != "_" and it is not None}


def _in_a_line(value: object) -> str:
    match value:
        case tuple():
            return "; ".join(map(_in_a_line, value))
        case errors.FieldViolation():
            return f"{value.field}: {value.description}"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{key}={inner}" for key, inner in value.items())
        case _:
            return value.name if isinstance(value, grpc.StatusCode) else str(value)
