"""The settings of a replica: frozen, loaded once.

Defaults give way to the TOML file, the file to the environment, the environment to flags. A key
is ``section.name``; its environment variable is ``PROGRESSOR_SECTION_NAME``. The file is the
one given, else ``PROGRESSOR_CONFIG``, else ``progressor.toml`` in the working directory.
"""

import dataclasses
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from progressor.domain.processes.namespace import Namespace
from progressor.settings.addresses import redact_dsn
from progressor.settings.decoding import Given, Key, Source, decode, keys_of, plain
from progressor.settings.namespaces import NamespaceTable, RetryTable, decode_namespaces
from progressor.settings.sections import (
    Commit,
    Database,
    GateSettings,
    Log,
    ReplicaSettings,
    Scanner,
    Server,
    Snapshots,
    Telemetry,
)
from progressor.settings.sources import find_file, read_sources, variable_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, each from the strongest source that gave it.

    The fields that are dataclasses are the table of sections, from which loading, the reference and
    the view of the settings in force follow.

    ``namespaces`` are created at start if absent; existing ones are left unchanged, so that an
    update at run time survives a restart. ``sources`` has the keys that were given.
    """

    database: Database = dataclasses.field(default_factory=Database)
    server: Server = dataclasses.field(default_factory=Server)
    replica: ReplicaSettings = dataclasses.field(default_factory=ReplicaSettings)
    scanner: Scanner = dataclasses.field(default_factory=Scanner)
    commit: Commit = dataclasses.field(default_factory=Commit)
    gates: GateSettings = dataclasses.field(default_factory=GateSettings)
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
_KEYS: Mapping[str, tuple[str, Key]] = MappingProxyType(
    {
        f"{section}.{key.name}": (section, key)
        for section, table in _SECTIONS.items()
        for key in keys_of(table)
    }
)
"""Each key by its full name, with its section."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """One key of the reference table; keys of namespaces have no variable."""

    key: str
    variable: str
    default: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRow:
    """One key with its value in force, without secrets, and its source."""

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
        flags: Values as strings, by key.

    Raises:
        ConfigError: A key is unknown, or its value is wrong; it is named.
    """
    if environment is None:
        environment = os.environ
    values, namespaces = read_sources(
        _KEYS, file=find_file(file, environment), environment=environment, flags=flags
    )
    by_section: dict[str, dict[str, Given]] = {section: {} for section in _SECTIONS}
    for name, given in values.items():
        section, key = _KEYS[name]
        by_section[section][key.name] = given
    sections: dict[str, Any] = {
        section: decode(table, by_section[section], prefix=section)
        for section, table in _SECTIONS.items()
    }
    return Config(
        **sections,
        namespaces=decode_namespaces(namespaces) if namespaces else (),
        sources={name: given.source for name, given in values.items()},
    )


def reference() -> list[ReferenceRow]:
    """Return every key; its meaning includes its unit and bounds. The docs are made of it."""
    keys = {name: key for name, (_, key) in _KEYS.items()}
    for prefix, table in (
        ("namespaces.NAME", NamespaceTable),
        ("namespaces.NAME.retry_policy", RetryTable),
    ):
        keys |= {f"{prefix}.{key.name}": key for key in keys_of(table)}
    return [
        ReferenceRow(
            key=name,
            variable=variable_of(name) if name in _KEYS else "",
            default=key.shown_default,
            meaning=f"{key.meaning} ({key.range})" if key.range else key.meaning,
        )
        for name, key in keys.items()
    ]


def effective(config: Config) -> list[EffectiveRow]:
    """Return the value in force for every key, without the password of a DSN."""
    rows = []
    for name, (section, key) in _KEYS.items():
        value = getattr(getattr(config, section), key.field)
        shown = redact_dsn(value) if key.secret else plain(value)
        source = config.sources.get(name, Source())
        rows.append(EffectiveRow(key=name, value=shown, source=source))
    return rows
