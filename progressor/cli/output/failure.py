"""Prints errors to stderr: one sentence, the reason and the fields."""

import sys
from collections.abc import Iterator, Mapping

from rich.text import Text

from progressor import errors
from progressor.cli.output.documents import render
from progressor.cli.output.exit_codes import ExitCode, exit_code_for
from progressor.cli.output.output import SafeConsole, one_line

_LOCAL = frozenset({"USAGE", "CONFIGURATION", "EMBEDDED_POSTGRES"})
"""Reasons of errors that no engine sends; as text, the message is enough."""


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
    if ours is None or others is not None:
        return None
    return next(_leaves(ours))


def words_of(error: errors.ProgressorError) -> Mapping[str, str]:
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
