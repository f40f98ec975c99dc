"""The settings of a replica: frozen, loaded once from a TOML file, the environment and flags.

Defaults give way to the TOML file, the file to the environment, the environment to flags. A key
is ``section.name``; its environment variable is ``PROGRESSOR_SECTION_NAME``. The file is the
one given, else ``PROGRESSOR_CONFIG``, else ``progressor.toml`` in the working directory.
"""

import dataclasses
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.settings.addresses import redact_dsn
from progressor.settings.cells import MAIN, CellTable, decode_cells
from progressor.settings.cells import TABLE as CELLS
from progressor.settings.cells import key_of as cell_key
from progressor.settings.credentials import ProcessorCredentials, decode_credentials
from progressor.settings.decoding import (
    Given,
    Key,
    Source,
    SourceKind,
    decode,
    given_table,
    keys_of,
    plain,
    unknown_key,
)
from progressor.settings.issuers import TABLE as ISSUERS
from progressor.settings.issuers import Issuer, decode_issuers
from progressor.settings.namespaces import NamespaceTable, RetryTable, decode_namespaces
from progressor.settings.sections import (
    AccessSettings,
    AuditSettings,
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
from progressor.wire.tls import stays_on_machine

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, each from the strongest source that gave it; the dataclasses are the sections.

    ``processor_credentials`` are by the names that namespaces give, ``issuers`` those of
    ``access.issuers`` by the names that begin their principals. ``namespaces`` are created at
    start if absent; existing ones are left unchanged, so that an update at run time survives a
    restart. ``cells`` are empty if ``database`` is the only one. ``sources`` has the keys that were
    given.
    """

    database: Database = dataclasses.field(default_factory=Database)
    server: Server = dataclasses.field(default_factory=Server)
    access: AccessSettings = dataclasses.field(default_factory=AccessSettings)
    audit: AuditSettings = dataclasses.field(default_factory=AuditSettings)
    replica: ReplicaSettings = dataclasses.field(default_factory=ReplicaSettings)
    scanner: Scanner = dataclasses.field(default_factory=Scanner)
    commit: Commit = dataclasses.field(default_factory=Commit)
    gates: GateSettings = dataclasses.field(default_factory=GateSettings)
    snapshots: Snapshots = dataclasses.field(default_factory=Snapshots)
    telemetry: Telemetry = dataclasses.field(default_factory=Telemetry)
    log: Log = dataclasses.field(default_factory=Log)
    processor_credentials: Mapping[str, ProcessorCredentials] = dataclasses.field(
        default_factory=dict
    )
    issuers: Mapping[str, Issuer] = dataclasses.field(default_factory=dict)
    cells: tuple[CellTable, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    sources: Mapping[str, Source] = dataclasses.field(default_factory=dict)

    @property
    def open_addresses(self) -> tuple[str, ...]:
        """The addresses that other machines can reach without credentials."""
        if self.access.enabled:
            return ()
        return tuple(it for it in self.server.bind if not stays_on_machine(it))

    @property
    def by_cell(self) -> "Mapping[str, Config]":
        """For each cell these settings with its database; the home cell comes first."""
        if not self.cells:
            return {MAIN: self}
        return {
            cell.name: dataclasses.replace(
                self,
                database=dataclasses.replace(self.database, dsn=cell.dsn),
                cells=(),
                namespaces=tuple(it for it in self.namespaces if it.cell == cell.name),
            )
            for cell in self.cells
        }

    def embedded_name(self, cell: str) -> str:
        """Return the database of a cell in the embedded PostgreSQL, for one without a DSN."""
        is_first = not self.cells or cell == self.cells[0].name
        return "postgres" if is_first else f"progressor_{cell}"

    def reached(self, dsns: Mapping[str, str]) -> "Config":
        """Return these settings with the connection string of each cell, by its name."""
        if not self.cells:
            [dsn] = dsns.values()
            return dataclasses.replace(self, database=dataclasses.replace(self.database, dsn=dsn))
        cells = tuple(dataclasses.replace(it, dsn=dsns[it.name]) for it in self.cells)
        return dataclasses.replace(self, cells=cells)

    def check_exposure(self) -> None:
        """Raise ConfigError if an address is open to other machines without server.insecure."""
        if self.open_addresses and not self.server.insecure:
            raise errors.ConfigError(
                "server.bind",
                f"{self.open_addresses[0]!r} would let anyone who can reach it do anything: enable "
                "access control (access.enabled = true), or accept the risk with --insecure "
                "(server.insecure = true)",
            )


_NAMESPACES = "namespaces"
_CREDENTIALS = "processor_credentials"
_FILE_NAME = "progressor.toml"
_FILE_VARIABLE = "PROGRESSOR_CONFIG"
# Kubernetes sets such variables in every container, here for a service called progressor-server.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_.+)?)")

_TWICE = re.compile(r"Cannot declare \((.*)\) twice(.*)")
_QUOTED = re.compile(r"'([^']*)'")

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
    path = _find_file(file, environment)
    tables = tables_of(_read_file(path), str(path)) if path else {}
    namespaces, credentials = tables.pop(_NAMESPACES, None), tables.pop(_CREDENTIALS, None)
    cells = tables.pop(CELLS, None)
    issuers = _inner_table(tables, ISSUERS)
    source = Source(SourceKind.FLAG, "command line")
    values = dict(_in_file(tables)) | _in_environment(environment)
    values |= {key: Given(value=it, source=source, is_text=True) for key, it in flags.items()}
    for key, given in values.items():
        if key not in _KEYS:
            raise unknown_key(key, _KEYS, given)
    by_section: dict[str, dict[str, Given]] = {section: {} for section in _SECTIONS}
    for key, given in values.items():
        section, _, name = key.partition(".")
        by_section[section][name] = given
    sections: dict[str, Any] = {
        section: decode(table, by_section[section], prefix=section)
        for section, table in _SECTIONS.items()
    }
    loaded = Config(
        **sections,
        processor_credentials=decode_credentials(credentials) if credentials else {},
        issuers=decode_issuers(issuers) if issuers else {},
        cells=decode_cells(cells) if cells else (),
        namespaces=decode_namespaces(namespaces) if namespaces else (),
        sources={name: given.source for name, given in values.items()}
        | ({_CREDENTIALS: credentials.source} if credentials else {})
        | ({ISSUERS: issuers.source} if issuers else {})
        | ({CELLS: cells.source} if cells else {}),
    )
    _check_credentials(loaded)
    _check_cells(loaded)
    if loaded.issuers and not loaded.access.enabled:
        raise errors.ConfigError("access.enabled", f"must be true if {ISSUERS} is given")
    if loaded.telemetry.metrics_tls and loaded.server.tls_certificate is None:
        words = "must be given if telemetry.metrics_tls is true"
        raise errors.ConfigError("server.tls_certificate", words)
    return loaded


def load_namespaces(content: bytes, where: str) -> tuple[Namespace, ...]:
    """Read the tables ``[namespaces.NAME]`` of a configuration file; other sections are ignored.

    Args:
        content: Of the file.
        where: What errors call it.

    Raises:
        ConfigError: The file has no such table, a key is unknown, or a value is wrong.
    """
    tables = tables_of(content, where)
    given, _ = tables.pop(_NAMESPACES, None), tables.pop(_CREDENTIALS, None)
    tables.pop(CELLS, None)
    for section, table in tables.items():
        _check_section(section, table)
    if given is None:
        raise errors.ConfigError(where, "must have a table [namespaces.NAME]")
    return decode_namespaces(given)


def reference() -> list[ReferenceRow]:
    """Return every key; its meaning includes its unit and bounds. The docs are made of it."""
    keys = {name: key for name, (_, key) in _KEYS.items()}
    for prefix, table in (
        (f"{CELLS}[]", CellTable),
        (f"{ISSUERS}.NAME", Issuer),
        (f"{_CREDENTIALS}.NAME", ProcessorCredentials),
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
        shown = _shown(key, getattr(getattr(config, section), key.field))
        source = config.sources.get(name, Source())
        rows.append(EffectiveRow(key=name, value=shown, source=source))
    cells = {cell_key(index): cell for index, cell in enumerate(config.cells)}
    rows += _effective(config, CELLS, cells)
    issuers = {f"{ISSUERS}.{name}": issuer for name, issuer in config.issuers.items()}
    rows += _effective(config, ISSUERS, issuers)
    named = config.processor_credentials.items()
    credentials = {f"{_CREDENTIALS}.{name}": table for name, table in named}
    return [*rows, *_effective(config, _CREDENTIALS, credentials)]


def _effective(
    config: Config, key: str, tables: Mapping[str, "DataclassInstance"]
) -> Iterator[EffectiveRow]:
    """Return the rows of tables by their places; `key` is the one that gave them."""
    for place, table in tables.items():
        for inner in keys_of(type(table)):
            yield EffectiveRow(
                key=f"{place}.{inner.name}",
                value=_shown(inner, getattr(table, inner.field)),
                source=config.sources.get(key, Source()),
            )


def _shown(key: Key, value: Any) -> object:  # noqa: ANN401  # of the key's type
    return redact_dsn(value) if key.secret else plain(value)


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return f"PROGRESSOR_{key.replace('.', '_').upper()}"


def _find_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    if given is not None:
        return given
    if environment.get(_FILE_VARIABLE):
        return Path(environment[_FILE_VARIABLE])
    here = Path(_FILE_NAME)
    return here if here.is_file() else None


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.ConfigError(str(path), f"cannot be read: {error.strerror}") from error


def tables_of(content: bytes, where: str) -> dict[str, Given]:
    try:
        # Editors of Windows begin files with a byte order mark.
        document = tomllib.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise errors.ConfigError(where, f"is not TOML: {_toml_fault(str(error))}") from error
    source = Source(SourceKind.FILE, where)
    return {name: Given(value=value, source=source) for name, value in document.items()}


def _toml_fault(words: str) -> str:
    """Return the words of tomllib with the name of a table as TOML has it."""
    if found := _TWICE.match(words):
        return f"table [{'.'.join(re.findall(_QUOTED, found[1]))}] is declared twice{found[2]}"
    return words.replace("Cannot overwrite a value", "a key is given twice")


def _in_file(tables: Mapping[str, Given]) -> Iterator[tuple[str, Given]]:
    for section, table in tables.items():
        _check_section(section, table)
        for name, given in given_table(table, prefix=section).items():
            yield f"{section}.{name}", given


def _inner_table(tables: dict[str, Given], name: str) -> Given | None:
    """Take a table of tables out of the section that it is in; None without one."""
    section, _, inner = name.partition(".")
    table = tables.get(section)
    if table is None or not isinstance(table.value, dict) or inner not in table.value:
        return None
    others = {key: value for key, value in table.value.items() if key != inner}
    tables[section] = dataclasses.replace(table, value=others)
    return dataclasses.replace(table, value=table.value[inner])


def _check_section(section: str, table: Given) -> None:
    if section not in _SECTIONS:
        raise unknown_key(section, [*_SECTIONS, CELLS, _CREDENTIALS, _NAMESPACES], table)


def _check_credentials(loaded: Config) -> None:
    known = loaded.processor_credentials
    for namespace in loaded.namespaces:
        name = namespace.processor_credentials
        if name and name not in known:
            key = f"{_NAMESPACES}.{namespace.name}.{_CREDENTIALS}"
            words = (
                f"must be one of {', '.join(known) or 'those that are configured'}, got {name!r}"
            )
            raise errors.ConfigError(key, words)


def _check_cells(loaded: Config) -> None:
    if loaded.cells and loaded.database.dsn:
        raise errors.ConfigError("database.dsn", f"must not be given with [[{CELLS}]]")
    names = list(loaded.by_cell)
    for namespace in loaded.namespaces:
        if namespace.cell and namespace.cell not in names:
            key = f"{_NAMESPACES}.{namespace.name}.cell"
            words = f"must be one of {', '.join(names)}, got {namespace.cell!r}"
            raise errors.ConfigError(key, words)


def _in_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    by_variable = {variable_of(key): key for key in _KEYS}
    prefixes = tuple(f"{variable_of(section)}_" for section in _SECTIONS)
    found = {}
    for variable, value in environment.items():
        given = Given(value=value, source=Source(SourceKind.ENVIRONMENT, variable), is_text=True)
        if variable in by_variable:
            if value:
                found[by_variable[variable]] = given
        elif variable.startswith(prefixes) and not _SERVICE_LINK.fullmatch(variable):
            raise unknown_key(variable, by_variable, given)
    return found
