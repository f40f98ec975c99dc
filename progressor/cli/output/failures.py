"""How commands fail: the exit codes, which scripts can branch on, and the message on stderr."""

import enum
import sys
from collections.abc import Iterator, Mapping

from rich.text import Text

from progressor import errors
from progressor.cli.output.documents import render
from progressor.cli.output.output import SafeConsole, one_line
from progressor.sdk.transport.failures import EngineUnavailableError

EPILOGUE = """\
Exit codes:
  0  done
  1  failed for another reason, given in the message
  2  the command line, configuration, database or request is invalid
  3  no such namespace, process, event, task, gate, job or schedule
  4  not in this state: exists already, failed, finished, removed, key reused
  5  unavailable: engine or PostgreSQL away, overloaded, draining; try again
  6  the deadline passed; an accepted task continues
  7  the processor rejected the request
  8  the awaited job failed
  9  the awaited job was cancelled

Every command prints one JSON document with --json; errors go to stderr.
The namespace is that of -n, else PROGRESSOR_NAMESPACE, else "default"."""


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
        errors.StorageUnavailableError, EngineUnavailableError,
    ),
}  # fmt: skip
_LOCAL = frozenset({"USAGE", "CONFIGURATION", "EMBEDDED_POSTGRES"})
"""Reasons of errors that no engine sends; as text, the message is enough."""


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


def only_ours(group: ExceptionGroup[Exception]) -> errors.ProgressorError | None:
    """Return the first error of a group, or None if one of them is not ours, which is a bug."""
    ours, others = group.split(errors.ProgressorError)
    return None if ours is None or others is not None else next(_leaves(ours))


def words_of(error: errors.ProgressorError) -> dict[str, str]:
    """Return the fields of an error as text, for `report_words` in another process."""
    return {name: _in_a_line(value) for name, value in _fields(error).items()}


def _leaves(group: ExceptionGroup[errors.ProgressorError]) -> Iterator[errors.ProgressorError]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


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
            return str(value)
