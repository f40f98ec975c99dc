"""The settings of a replica: frozen, loaded once.

Defaults give way to the TOML file, the file to the environment, the environment to flags. A key
is ``section.name``; its environment variable is ``PROGRESSOR_SECTION_NAME``. The file is the
one given, else ``PROGRESSOR_CONFIG``, else ``progressor.toml`` in the working directory.
"""

import dataclasses
import datetime as dt
import os
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from progressor.domain.processes.namespace import Namespace
from progressor.settings.addresses import redact_dsn
from progressor.settings.decoding import Given, Key, decode, keys_of
from progressor.settings.namespaces import NamespaceTable, RetryTable, decode_namespaces
from progressor.settings.sections import (
    Commit,
    Database,
    Gates,
    Log,
    Replica,
    Scanner,
    Server,
    Snapshots,
    Telemetry,
)
from progressor.settings.sources import Source, SourceKind, find_file, read_layers, variable_of

_DEFAULT = Source(kind=SourceKind.DEFAULT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, each from the strongest source that gave it.

    The fields that are dataclasses are the table of sections: loading, the reference and the view
    of what is in force all go by it.

    ``namespaces`` are created at start where absent; those that exist are left as they are,
    so that an update at run time outlives a restart. ``sources`` has the keys that were given.
    """

    database: Database = dataclasses.field(default_factory=Database)
    server: Server = dataclasses.field(default_factory=Server)
    replica: Replica = dataclasses.field(default_factory=Replica)
    scanner: Scanner = dataclasses.field(default_factory=Scanner)
    commit: Commit = dataclasses.field(default_factory=Commit)
    gates: Gates = dataclasses.field(default_factory=Gates)
    snapshots: Snapshots = dataclasses.field(default_factory=Snapshots)
    telemetry: Telemetry = dataclasses.field(default_factory=Telemetry)
    log: Log = dataclasses.field(default_factory=Log)
    namespaces: tuple[Namespace, ...] = ()
    sources: Mapping[str, Source] = dataclasses.field(default_factory=dict)


_SECTIONS: Mapping[str, Any] = MappingProxyType(
    {
        name: table
        for name, table in typing.get_type_hints(Config).items()
        if dataclasses.is_dataclass(table)
    }
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """One key as the reference table tells it; keys of namespaces have no variable."""

    key: str
    variable: str
    default: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRow:
    """One key with the value that is in force, fit to be shown, and who gave it."""

    key: str
    value: object
    source: Source


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] = MappingProxyType({}),
) -> Config:
    """Load the settings from all sources.

    Args:
        file: The TOML file to read instead of the one that would be found.
        environment: Instead of this process's.
        flags: Values as texts, by key.

    Raises:
        ConfigError: A key is unknown, or its value cannot be; it is named.
    """
    if environment is None:
        environment = os.environ
    layers = read_layers(
        [f"{section}.{key.name}" for section, key in _keys()],
        file=find_file(file, environment),
        environment=environment,
        flags=flags,
    )
    by_section: dict[str, dict[str, Given]] = {section: {} for section in _SECTIONS}
    for key, given in layers.values.items():
        section, _, name = key.partition(".")
        by_section[section][name] = given
    sections: dict[str, Any] = {
        section: decode(table, by_section[section], prefix=section)
        for section, table in _SECTIONS.items()
    }
    namespaces = decode_namespaces(layers.namespaces) if layers.namespaces else ()
    return Config(**sections, namespaces=namespaces, sources=layers.sources)


def reference() -> list[ReferenceRow]:
    """Return every key there is, with its unit and bounds in its meaning, for the README too."""
    rows = [
        _reference_row(f"{section}.{key.name}", key, variable_of(f"{section}.{key.name}"))
        for section, key in _keys()
    ]
    for prefix, table in (
        ("namespaces.NAME", NamespaceTable),
        ("namespaces.NAME.retry_policy", RetryTable),
    ):
        rows += [_reference_row(f"{prefix}.{key.name}", key, "") for key in keys_of(table)]
    return rows


def effective(config: Config) -> list[EffectiveRow]:
    """Return the value in force for every key; a DSN's password is not in it."""
    rows = []
    for section, key in _keys():
        name = f"{section}.{key.name}"
        value = getattr(getattr(config, section), key.field)
        rows.append(
            EffectiveRow(
                key=name,
                value=redact_dsn(value) if key.secret else _plain(value),
                source=config.sources.get(name, _DEFAULT),
            )
        )
    return rows


def _keys() -> Iterator[tuple[str, Key]]:
    for section, table in _SECTIONS.items():
        for key in keys_of(table):
            yield section, key


def _reference_row(name: str, key: Key, variable: str) -> ReferenceRow:
    bounds = ""
    if key.bounds.ge is not None and key.bounds.le is not None:
        unit = " s" if key.type is dt.timedelta else ""
        bounds = f" ({key.bounds.ge:,g} .. {key.bounds.le:,}{unit})"
    return ReferenceRow(
        key=name, variable=variable, default=key.shown_default, meaning=key.meaning + bounds
    )


def _plain(value: object) -> object:
    match value:
        case None:
            return ""
        case Path():
            return str(value)
        case dt.timedelta():
            return value.total_seconds()
        case tuple():
            return list(value)
        case _:
            return value
