"""The commands namespace apply and namespace export: namespaces kept in a file.

A file describes its namespaces completely: a key that it leaves out has its default. Namespaces
that it does not name are left alone, so that several files may describe an engine, and a namespace
is only deleted by name.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from progressor import errors
from progressor.cli.input.options import (
    PAGE_MAX,
    EngineOptions,
    bad_input,
    client_of,
    file_bytes,
    option,
)
from progressor.cli.input.question import confirmed
from progressor.cli.input.toml import toml_value
from progressor.cli.namespaces.files import (
    Change,
    changed_fields,
    changes,
    short_table,
    toml_of,
)
from progressor.cli.namespaces.namespaces import config_of, table_of
from progressor.cli.output import ExitCode, print_line, show
from progressor.domain.views.bulk import OPERATIONS
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.settings.cells import MAIN
from progressor.settings.config import load_namespaces

if TYPE_CHECKING:
    from progressor.sdk.client.client import Client

_STYLES = {"create": "green", "change": "yellow", "keep": "dim"}
_DONE = {"create": "created", "change": "changed", "keep": "unchanged"}


@dataclasses.dataclass(slots=True, kw_only=True)
class _Plan:
    """What one namespace of the file needs, and what became of it."""

    wanted: NamespaceConfig
    found: NamespaceConfig | None
    action: Literal["create", "change", "keep"]
    changes: tuple[Change, ...]
    state: Literal["planned", "applied", "failed"] = "planned"
    revision: int = 0

    async def apply(self, client: "Client") -> None:
        """Carry the plan out, if the namespace is still as it was found."""
        self.state = "failed"
        if self.found is None:
            stored = await client.namespaces.create(self.wanted)
        else:
            stored = await client.namespaces.update(
                self.wanted,
                fields=changed_fields(self.found, self.wanted),
                expected_revision=self.found.revision,
            )
        self.state, self.revision = "applied", stored.revision

    @property
    def document(self) -> Mapping[str, object]:
        return {
            "name": self.wanted.name,
            "action": self.action,
            "state": self.state,
            "revision": self.revision,
            "changes": self.changes,
        }


async def apply(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    dry_run: Annotated[bool, option("Print the differences, and change nothing.")] = False,
    yes: Annotated[bool, option("Do not ask before changing anything.")] = False,
    engine: EngineOptions = EngineOptions(),
) -> ExitCode:
    """Create and change namespaces as a file describes them.

    The file has tables [namespaces.NAME] as in the configuration of a server, and may be that
    configuration; its other sections are ignored. A key that is left out has its default. The file
    - is standard input.

    Prints the differences from the engine, and asks before it applies them. Deletes nothing:
    namespaces that the file does not name stay as they are. Repeating it changes nothing more.

    Namespaces are applied one after the other, each only if it has not changed since the
    differences were printed. After an error it prints which ones were applied.
    """
    where = "standard input" if file == "-" else file
    wanted = [config_of(it) for it in load_namespaces(file_bytes("FILE", file), where)]
    async with client_of(engine) as client:
        stored = {it.name: it for it in await _list(client)}
        plans = [_plan(it, stored.get(it.name)) for it in wanted]
        others = sorted(stored.keys() - {it.name for it in wanted})
        pending = [it for it in plans if it.action != "keep"]
        if not engine.json:
            show(None, *_people(where, plans, others), as_json=False)
        try:
            if pending and not dry_run:
                if engine.json and not yes:
                    raise bad_input("--yes", "must be given with --json, or --dry-run")
                if not (yes or await confirmed("Apply these changes?")):
                    return ExitCode.FAILED
                await _apply_all(client, pending, engine)
        finally:
            if engine.json:
                show(_document(plans, others), as_json=True)
    return ExitCode.DONE


async def export(*names: str, engine: EngineOptions = EngineOptions()) -> None:
    """Print namespaces as a file for `namespace apply`: the named ones, else all.

    Keys that have their defaults are left out.
    """
    async with client_of(engine) as client:
        if names:
            found = [await client.namespaces.get(name) for name in dict.fromkeys(names)]
        else:
            found = await _list(client)
    if engine.json:
        show({"namespaces": {it.name: short_table(it) for it in found}}, as_json=True)
        return
    for line in toml_of(found).split("\n"):
        print_line(line)


async def _list(client: "Client") -> list[NamespaceConfig]:
    """Return the namespaces that a file can have: all but the engine's own."""
    return [it async for it in client.namespaces.list(page_size=PAGE_MAX) if it.name != OPERATIONS]


def _plan(wanted: NamespaceConfig, found: NamespaceConfig | None) -> _Plan:
    if found is not None:
        wanted = _in_its_cell(wanted, found)
    if found is None:
        added = tuple(changes({}, short_table(wanted)))
        return _Plan(wanted=wanted, found=None, action="create", changes=added)
    differences = tuple(changes(table_of(found), table_of(wanted)))
    action: Literal["change", "keep"] = "change" if differences else "keep"
    return _Plan(
        wanted=wanted, found=found, action=action, changes=differences, revision=found.revision
    )


def _in_its_cell(wanted: NamespaceConfig, found: NamespaceConfig) -> NamespaceConfig:
    """Return the namespace as it is wanted where it lives, which a file cannot change."""
    if wanted.cell not in {"", found.cell or MAIN}:
        words = f"[namespaces.{wanted.name}] cell: it lives in cell {found.cell or MAIN}"
        raise bad_input("FILE", f"{words}, and cannot be moved, got {wanted.cell!r}")
    return dataclasses.replace(wanted, cell=found.cell)


async def _apply_all(client: "Client", pending: Sequence[_Plan], engine: EngineOptions) -> None:
    for plan in pending:
        try:
            await plan.apply(client)
        except errors.ProgressorError:
            if not engine.json:
                _report(pending)
            raise
        if not engine.json:
            print_line(f"{_DONE[plan.action]} {plan.wanted.name} (revision {plan.revision})")


def _report(pending: Sequence[_Plan]) -> None:
    """Print to stderr how far an apply came that failed."""
    states = {"applied": "applied", "failed": "failed", "planned": "not tried"}
    parts = (
        f"{word}: {', '.join(it.wanted.name for it in pending if it.state == state) or 'none'}"
        for state, word in states.items()
    )
    sys.stderr.write(f"{'; '.join(parts)}\n")


def _document(plans: Sequence[_Plan], others: Sequence[str]) -> Mapping[str, object]:
    return {"namespaces": [plan.document for plan in plans], "not_in_file": others}


def _people(file: str, plans: Sequence[_Plan], others: Sequence[str]) -> Iterator[RenderableType]:
    for plan in plans:
        style = _STYLES[plan.action]
        word = plan.action if plan.changes else "unchanged"
        yield Text.assemble((plan.wanted.name, "bold"), ": ", (word, style))
        for change in plan.changes:
            before = "" if plan.found is None else f"{_shown(change.before)} → "
            line = f"{change.key}: {before}{_shown(change.after)}"
            yield Padding(Text(line), (0, 0, 0, 2), expand=False)
    if others:
        yield Text(f"not in {file}, left as they are: {', '.join(others)}", style="dim")


def _shown(value: object) -> str:
    return "not set" if value is None else toml_value(value)
