"""The commands access apply and access export: bindings kept in a file. Tokens are not touched."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from progressor import errors
from progressor.cli.engine.access import RoleName
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
from progressor.cli.output import ExitCode, one_line, print_line, show
from progressor.domain.access.rights import EVERYTHING, Binding, Role, matches, principal_fault
from progressor.domain.processes.namespace import is_namespace_name
from progressor.settings.config import tables_of
from progressor.settings.decoding import Faults, Given, decode, given_table, setting

if TYPE_CHECKING:
    from progressor.sdk.client.client import Client

BindingKey = tuple[str, Role, str]
"""What makes a binding: principal, role, namespaces."""

_BINDINGS = "bindings"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindingTable:
    """One ``[[bindings]]`` of a file: a role for a principal in some namespaces."""

    principal: str = setting("", "a name, the beginning of one followed by *, or * alone")
    role: RoleName | None = setting(None, "the role")  # noqa: RUF009  # a key
    namespaces: tuple[str, ...] = setting((), "names, beginnings of them followed by *, or *")


@dataclasses.dataclass(slots=True, kw_only=True)
class _Plan:
    """What the file needs, and how far it is carried out."""

    added: Sequence[BindingKey]
    removed: Sequence[BindingKey]
    left: Sequence[BindingKey]
    done_count: int = 0

    async def apply(self, client: "Client") -> None:
        """Add first, so that the caller does not lose the right to go on."""
        for binding in self.added:
            await client.access.add_binding(*binding)
            self.done_count += 1
        for binding in self.removed:
            await client.access.remove_binding(*binding)
            self.done_count += 1

    @property
    def size(self) -> int:
        return len(self.added) + len(self.removed)

    @property
    def document(self) -> Mapping[str, object]:
        parts = {"added": self.added, "removed": self.removed, "not_in_file": self.left}
        tables = {key: [*map(_table, bindings)] for key, bindings in parts.items()}
        return {**tables, "applied_count": self.done_count}

    def people(self) -> Iterator[RenderableType]:
        for sign, style, bindings in (("+", "green", self.added), ("-", "red", self.removed)):
            yield from (Text(f"{sign} {_words(it)}", style=style) for it in bindings)
        if not self.size:
            yield Text("unchanged", style="dim")
        if self.left:
            yield Text("not in the file, left as they are:", style="dim")
            yield from (Text(f"  {_words(it)}", style="dim") for it in self.left)


async def apply(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    prune: Annotated[bool, option("Also remove the bindings that the file does not have.")] = False,
    check: Annotated[
        bool, option("Change nothing; exit code 1 if the engine differs from the file.")
    ] = False,
    dry_run: Annotated[bool, option("Print the differences, and change nothing.")] = False,
    yes: Annotated[bool, option("Do not ask before changing anything.")] = False,
    engine: EngineOptions = EngineOptions(),
) -> ExitCode:
    """Give the roles that a file describes.

    The file has tables [[bindings]], each with a principal, a role and a list of namespaces. The
    file - is standard input.

    Prints the differences from the engine, and asks before it applies them. Bindings that the file
    does not have stay, unless --prune is given. Repeating it changes nothing more. Tokens are not
    touched.
    """
    where = "standard input" if file == "-" else file
    wanted = read_bindings(file_bytes("FILE", file), where)
    async with client_of(engine) as client:
        plan = _plan(wanted, await _stored(client), prune=prune)
        if plan.removed:
            await _check_own_right(client, wanted)
        if not engine.json:
            show(None, *plan.people(), as_json=False)
        try:
            if plan.size and not (check or dry_run):
                if engine.json and not yes:
                    raise bad_input("--yes", "must be given with --json, or --check or --dry-run")
                if not (yes or await confirmed("Apply these changes?")):
                    return ExitCode.FAILED
                await _apply(client, plan, engine)
        finally:
            if engine.json:
                show(plan.document, as_json=True)
    return ExitCode.FAILED if check and plan.size else ExitCode.DONE


async def export(*, engine: EngineOptions = EngineOptions()) -> None:
    """Print the bindings as a file for `access apply`."""
    async with client_of(engine) as client:
        stored = await _stored(client)
    namespaces: dict[tuple[str, Role], list[str]] = {}
    for principal, role, namespace in stored:
        namespaces.setdefault((principal, role), []).append(namespace)
    tables = [
        {"principal": principal, "role": role.value, "namespaces": places}
        for (principal, role), places in namespaces.items()
    ]
    if engine.json:
        show({_BINDINGS: tables}, as_json=True)
        return
    for table in tables:
        print_line(f"[[{_BINDINGS}]]")
        for key, value in table.items():
            print_line(f"{key} = {toml_value(value)}")
        print_line("")


def read_bindings(content: bytes, where: str) -> list[BindingKey]:
    """Read the tables ``[[bindings]]`` of a file.

    Raises:
        ConfigError: A key is unknown or missing, or a value is wrong; all of them are named.
    """
    tables = tables_of(content, where)
    given = tables.pop(_BINDINGS, None)
    if tables:
        raise errors.ConfigError(where, f"must have nothing but [[bindings]], got {min(tables)}")
    if given is None or not isinstance(given.value, list):
        raise errors.ConfigError(where, "must have tables [[bindings]]")
    found: dict[BindingKey, None] = {}
    faults = Faults()
    for number, each in enumerate(given.value, start=1):
        with faults:
            table = dataclasses.replace(given, value=each)
            found |= dict.fromkeys(_read(table, f"{_BINDINGS}[{number}]"))
    faults.raise_all()
    return [*found]


def _read(given: Given, prefix: str) -> Iterator[BindingKey]:
    table = decode(BindingTable, given_table(given, prefix=prefix), prefix=prefix)
    faults = Faults()
    for key in ("principal", "role", "namespaces"):
        with faults:
            if not getattr(table, key):
                raise errors.ConfigError(f"{prefix}.{key}", "must be given")
    with faults:
        if table.principal and (fault := principal_fault(table.principal)):
            raise errors.ConfigError(f"{prefix}.principal", f"{fault}, got {table.principal!r}")
    for namespace in table.namespaces:
        with faults:
            if namespace != EVERYTHING and not is_namespace_name(namespace.removesuffix("*")):
                words = f"must be names, beginnings of them followed by *, or *, got {namespace!r}"
                raise errors.ConfigError(f"{prefix}.namespaces", words)
    faults.raise_all()
    assert table.role is not None, "checked above"
    for namespace in table.namespaces:
        yield table.principal, Role(table.role), namespace


async def _stored(client: "Client") -> list[BindingKey]:
    return [_parts(it) async for it in client.access.bindings(page_size=PAGE_MAX)]


def _plan(wanted: Sequence[BindingKey], stored: Sequence[BindingKey], *, prune: bool) -> _Plan:
    others = [it for it in stored if it not in {*wanted}]
    return _Plan(
        added=[it for it in wanted if it not in {*stored}],
        removed=others if prune else (),
        left=() if prune else others,
    )


async def _check_own_right(client: "Client", wanted: Sequence[BindingKey]) -> None:
    """Refuse to take away the right by which bindings are given, which few could give back."""
    caller = await client.access.who_am_i()
    names = (caller.principal, *caller.groups)
    keeps = any(
        role is Role.ADMIN and namespace == EVERYTHING and matches(principal, name)
        for principal, role, namespace in wanted
        for name in names
    )
    if caller.is_access_controlled and not keeps:
        words = f"would take the role admin in * from you, {caller.principal}; name it in the file"
        raise bad_input("--prune", words)


async def _apply(client: "Client", plan: _Plan, engine: EngineOptions) -> None:
    try:
        await plan.apply(client)
    except errors.ProgressorError:
        if not engine.json:
            sys.stderr.write(f"applied: {plan.done_count} of {plan.size}\n")
        raise
    if not engine.json:
        print_line(f"added {len(plan.added)}, removed {len(plan.removed)}")


def _parts(binding: Binding) -> BindingKey:
    return binding.principal, binding.role, binding.namespace


def _words(binding: BindingKey) -> str:
    principal, role, namespace = binding
    return f"{one_line(principal)} is {role.value} in {namespace}"


def _table(binding: BindingKey) -> Mapping[str, str]:
    principal, role, namespace = binding
    return {"principal": principal, "role": role.value, "namespace": namespace}
