"""The command doctor."""

import collections
import datetime as dt
import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

import progressor
from progressor import errors
from progressor.cli.input.options import (
    TIMEOUT_MIN,
    Json,
    OneCell,
    Settings,
    cells_of,
    check_range,
    option,
)
from progressor.cli.output import ExitCode, note, report, show
from progressor.storage.doctor.doctor import examine
from progressor.storage.doctor.findings import Finding, State
from progressor.storage.embedded.server import running_conninfo

_TIMEOUT_MAX = 86_400
_RUNBOOK = "docs/how-to/operate/runbook/index.md"
_SIGNS = {
    State.OK: ("✓", "green", "ok"),
    State.WARNING: ("!", "yellow", "warning"),
    State.FAILED: ("✗", "bold red", "failed"),
    State.NOT_DONE: ("?", "cyan", "not done"),
}
"""The sign, style and name of each state."""


def doctor(
    *,
    deep: Annotated[
        bool,
        option("Also check invariants that need to read whole tables; may take minutes."),
    ] = False,
    timeout: Annotated[float, option("Timeout of one query to PostgreSQL, in seconds.")] = 30.0,
    cell: OneCell = None,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),
) -> ExitCode:
    """Check the database of an engine, and advise on what is wrong.

    Checks the invariants of its rows, and its environment: server, schema, replicas, waiting tasks,
    other sessions; with cells, those of each. Changes nothing; works with or without running
    replicas, and with a read-only role. The exit code is 1 if a check fails, 5 if PostgreSQL is
    unavailable.
    """
    check_range("--timeout", timeout, TIMEOUT_MIN, _TIMEOUT_MAX)
    config = settings.load()
    code = ExitCode.DONE
    documents: list[dict[str, object]] = []
    for name, own in cells_of(config, cell).items():
        dsn = own.database.dsn or running_conninfo(
            own.database.data_directory, config.embedded_name(name)
        )
        try:
            found = examine(own, dsn, deep=deep, timeout=dt.timedelta(seconds=timeout))
        except errors.StorageUnavailableError as error:
            if not config.cells:
                raise
            # The others may need it all the more.
            note(f"cell {name}", as_json=json)
            code = report(error, as_json=json)
            continue
        counts = collections.Counter(finding.state for finding in found)
        document: dict[str, object] = {
            "database": own.database.description,
            "version": progressor.__version__,
            "deep": deep,
            "counts": {state.value: counts[state] for state in State},
            "findings": found,
        }
        if config.cells:
            document["cell"] = name
        documents.append(document)
        if not json:
            where = f"cell {name}: " if config.cells else ""
            title = f"{where}{own.database.description}"
            show(None, *_people(title, found, deep=deep), as_json=False)
        if counts[State.FAILED]:
            code = code or ExitCode.FAILED
    if json:
        show({"cells": documents} if config.cells else documents[0], as_json=True)
    return code


def _people(where: str, found: Sequence[Finding], *, deep: bool) -> Iterable[RenderableType]:
    yield Text(where, style="dim")
    for group, findings in itertools.groupby(found, key=lambda finding: finding.group):
        yield ""
        yield Text(group, style="bold")
        for finding in findings:
            yield from _lines(finding)
    yield Text()
    yield _summary(found, deep=deep)
    if any(finding.state is not State.OK for finding in found):
        yield Text(f"{_RUNBOOK} has a section for each of these.", style="dim")


def _lines(finding: Finding) -> Iterable[RenderableType]:
    sign, style, _ = _SIGNS[finding.state]
    name = finding.check.replace("_", " ")
    yield Text.assemble((f"{sign} ", style), (f"{name}: ", style), finding.words)
    for offender in finding.offenders:
        yield Padding(Text(f"· {offender}"), (0, 0, 0, 4), expand=False)
    if finding.advice:
        yield Padding(Text.assemble(("→ ", style), finding.advice), (0, 0, 0, 2), expand=False)


def _summary(found: Sequence[Finding], *, deep: bool) -> Text:
    counts = collections.Counter(finding.state for finding in found)
    text = Text(", ").join(
        Text(f"{counts[state]} {name}", style)
        for state, (_, style, name) in _SIGNS.items()
        if counts[state]
    )
    return text if deep else text.append("; --deep also checks invariants of whole tables", "dim")
