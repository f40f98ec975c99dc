"""Commands about namespaces: create, update, get, list, delete."""

from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter
from rich.console import RenderableType

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import PAGE_MAX, bad_input, option
from progressor.cli.input.options import DEFAULT_ENGINE, EngineOptions
from progressor.cli.namespaces.settings import changed_fields, config_from
from progressor.cli.output.documents import plain
from progressor.cli.output.output import Column, facts, instant_text, show, table
from progressor.sdk.values.namespaces import NamespaceConfig

Targets = Annotated[
    tuple[str, ...],
    option("Where the processor listens: host:port or unix:/path; may be repeated."),
]
Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        help="KEY=VALUE, for example retry_policy.attempts_max=3; `progressor config --explain` "
        "prints the keys.",
    ),
]

_COLUMNS: Mapping[str, Column[NamespaceConfig]] = {
    "namespace": lambda it: it.name,
    "processor": lambda it: ", ".join(it.processor_targets),
    "revision": lambda it: str(it.revision),
    "updated": lambda it: instant_text(it.updated_at),
}


async def create(
    name: str, /, *, target: Targets, settings: Set = (), engine: EngineOptions = DEFAULT_ENGINE
) -> None:
    """Create a namespace: processes that share a processor, policies and limits."""
    config = config_from(name, targets=target, texts=settings)
    async with client_of(engine) as client:
        created = await client.namespaces.create(config)
    show(created, _people(created), as_json=engine.json)


async def update(
    name: str,
    /,
    *,
    target: Targets = (),
    settings: Set = (),
    engine: EngineOptions = DEFAULT_ENGINE,
) -> None:
    """Change the given settings of a namespace; replicas apply them within two seconds.

    Fails without a change if another update comes in between.
    """
    if not (target or settings):
        raise bad_input("--set", "--set or --target must be given")
    async with client_of(engine) as client:
        before = await client.namespaces.get(name)
        after = config_from(name, targets=target, texts=settings, base=before)
        fields = changed_fields(before, after)
        if fields:
            before = await client.namespaces.update(
                after, fields=fields, expected_revision=before.revision
            )
    show(before, _people(before), as_json=engine.json)


async def get(name: str, /, *, engine: EngineOptions = DEFAULT_ENGINE) -> None:
    """Print a namespace."""
    async with client_of(engine) as client:
        found = await client.namespaces.get(name)
    show(found, _people(found), as_json=engine.json)


async def list_namespaces(*, engine: EngineOptions = DEFAULT_ENGINE) -> None:
    """Print all namespaces in the order of their names."""
    async with client_of(engine) as client:
        found = [it async for it in client.namespaces.list(page_size=PAGE_MAX)]
    show({"namespaces": found}, table(_COLUMNS, found), as_json=engine.json)


async def delete(name: str, /, *, engine: EngineOptions = DEFAULT_ENGINE) -> None:
    """Delete a namespace that has no processes."""
    async with client_of(engine) as client:
        await client.namespaces.delete(name)
    show({"deleted": name}, f"deleted namespace {name}", as_json=engine.json)


def _people(config: NamespaceConfig) -> RenderableType:
    document = plain(config)
    assert isinstance(document, dict), "a dataclass is a table"
    return facts({key: _text(value) for key, value in document.items()})


def _text(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items() if inner)
        case list():
            return ", ".join(map(str, value))
        case None:
            return ""
        case _:
            return str(value)
