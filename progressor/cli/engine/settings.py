"""The command config: what is in force, and what there is to set."""

from typing import Annotated

from cyclopts import Parameter

from progressor.cli.input.inputs import option
from progressor.cli.input.options import DEFAULT_SETTINGS, Json, Settings
from progressor.cli.output.output import Output, table
from progressor.settings import config
from progressor.settings.sources import Source, SourceKind


def show_config(
    *,
    explain: Annotated[
        bool, option("Print every key with its default and meaning instead.")
    ] = False,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = DEFAULT_SETTINGS,
) -> None:
    """Print the configuration in force and who gave each value: a file, the environment, a flag.

    Weakest first: defaults, the TOML file, the environment, flags. Passwords are not shown.
    """
    output = Output(as_json=json)
    if explain:
        rows = config.reference()
        cells = [[it.key, it.variable, it.default, it.meaning] for it in rows]
        people = table(("key", "environment variable", "default", "meaning"), cells)
        output.show({"keys": rows}, people)
        return
    loaded = settings.load()
    effective = config.effective(loaded)
    document = {"settings": effective, "namespaces": loaded.namespaces}
    cells = [[it.key, _text(it.value), _source(it.source)] for it in effective]
    cells += [[f"namespaces.{it.name}", "created if absent", "file"] for it in loaded.namespaces]
    output.show(document, table(("key", "value", "from"), cells))


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _source(source: Source) -> str:
    return source.kind if source.kind is SourceKind.DEFAULT else f"{source.kind} {source.where}"
