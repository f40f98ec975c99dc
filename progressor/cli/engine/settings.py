"""The commands config and version: the settings in force, their reference, and this release."""

import platform
from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

import progressor
from progressor.cli.input.options import Json, Settings, option
from progressor.cli.output import Column, show, table
from progressor.settings import config
from progressor.settings.decoding import Source, SourceKind

_REFERENCE: Mapping[str, Column[config.ReferenceRow]] = {
    "key": lambda it: it.key,
    "environment variable": lambda it: it.variable,
    "default": lambda it: it.default,
    "meaning": lambda it: it.meaning,
}
_EFFECTIVE: Mapping[str, Column[tuple[str, str, str]]] = {
    "key": lambda it: it[0],
    "value": lambda it: it[1],
    "from": lambda it: it[2],
}


def show_config(
    *,
    explain: Annotated[
        bool, option("Print every key with its default and meaning instead.")
    ] = False,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),
) -> None:
    """Print the configuration in force, and the source of each value.

    Sources from weakest to strongest: defaults, the TOML file, the environment, flags. Passwords
    are not shown.
    """
    if explain:
        rows = config.reference()
        show({"keys": rows}, table(_REFERENCE, rows), as_json=json)
        return
    loaded = settings.load()
    effective = config.effective(loaded)
    document = {"settings": effective, "namespaces": loaded.namespaces}
    cells = [(it.key, _text(it.value), _source(it.source)) for it in effective]
    cells += [(f"namespaces.{it.name}", "created if absent", "file") for it in loaded.namespaces]
    show(document, table(_EFFECTIVE, cells), as_json=json)


def version(*, json: Json = False) -> None:
    """Print the version."""
    document = {"progressor": progressor.__version__, "python": platform.python_version()}
    show(document, f"progressor {progressor.__version__}", as_json=json)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _source(source: Source) -> str:
    return source.kind if source.kind is SourceKind.DEFAULT else f"{source.kind} {source.where}"
