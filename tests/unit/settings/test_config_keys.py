"""Every key of the configuration: each source reaches the engine's settings, or is refused."""

import dataclasses
import datetime as dt
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from progressor import errors
from progressor.cli.input.options import Settings
from progressor.cli.namespaces.namespaces import config_from
from progressor.settings import config
from progressor.settings.config import variable_of
from progressor.settings.decoding import Key, SourceKind, keys_of
from progressor.settings.namespaces import NamespaceTable, QuotaTable, RetryTable

SECTIONS = {
    field.name: getattr(config.Config(), field.name)
    for field in dataclasses.fields(config.Config)
    if dataclasses.is_dataclass(getattr(config.Config(), field.name))
}
KEYS = {f"{name}.{key.name}": key for name, it in SECTIONS.items() for key in keys_of(type(it))}
DEFAULTS = {row.key: row.value for row in config.effective(config.Config())}

WORDS = {
    "database.dsn": "host=/elsewhere",
    "server.bind": "127.0.0.1:1",
    "server.tls_client_ca_except": "127.0.0.1:7420",
    "server.connection_age_max_seconds": 600,
    "telemetry.metrics_bind": "off",
    "telemetry.otlp_endpoint": "http://localhost:4317",
    "processor_targets": "127.0.0.1:1",
    "history": "none",
    "processor_credentials": "internal",
    "cell": "north",
    "retry_policies": {"call": {"attempts_max": 3}},
}
"""Valid values where the type alone does not tell one."""

_PAIR = {"server.tls_certificate": "/elsewhere", "server.tls_key": "/elsewhere"}
TOGETHER: Mapping[str, Mapping[str, str]] = {
    "server.tls_certificate": _PAIR,
    "server.tls_key": _PAIR,
    "server.tls_client_ca": _PAIR,
    "telemetry.metrics_tls": _PAIR,
    "server.tls_client_ca_except": {**_PAIR, "server.tls_client_ca": "/elsewhere"},
}
"""Keys that are only valid with others, and these."""

TABLES = {"retry_policy": RetryTable, "quotas": QuotaTable}
NAMESPACE_KEYS = {
    **{key.name: key for key in keys_of(NamespaceTable) if key.type not in TABLES.values()},
    **{f"{name}.{key.name}": key for name, table in TABLES.items() for key in keys_of(table)},
}


SOURCES = [SourceKind.FILE, SourceKind.ENVIRONMENT, SourceKind.FLAG]


def _valid(name: str, key: Key, default: Any) -> Any:
    if name in WORDS:
        return WORDS[name]
    if typing.get_origin(key.type) is typing.Literal:
        return next(it for it in typing.get_args(key.type) if it != default)
    if key.type is bool:
        return not default
    if key.type in (int, float, dt.timedelta):
        doubled = 2 * (default or 1)
        return doubled if doubled <= (key.bounds.le or doubled) else default / 2
    return "/elsewhere"


def _invalid(key: Key) -> str:
    return "\a" if key.type in (str, Path) or typing.get_origin(key.type) is tuple else "banana"


def _load(source: SourceKind, values: Mapping[str, Any], tmp_path: Path) -> config.Config:
    file, environment, flags = tmp_path / "progressor.toml", {}, {}
    lines = ""
    for key, value in values.items():
        section, _, name = key.partition(".")
        match source:
            case SourceKind.FILE:
                lines += f"{section}.{name} = {json.dumps(value)}\n"
            case SourceKind.ENVIRONMENT:
                environment[variable_of(key)] = str(value)
            case _:
                flags[key] = str(value)
    file.write_text(lines)
    return config.load(file=file, environment=environment, flags=flags)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", KEYS)
def test_a_valid_value_from_each_source_is_in_force(
    name: str, source: SourceKind, tmp_path: Path
) -> None:
    value = _valid(name, KEYS[name], DEFAULTS[name])

    loaded = _load(source, {**TOGETHER.get(name, {}), name: value}, tmp_path)

    [row] = [it for it in config.effective(loaded) if it.key == name]
    assert row.value != DEFAULTS[name]
    assert row.value in (value, [value])
    assert row.source.kind is source


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", KEYS)
def test_an_invalid_value_from_each_source_is_refused_by_its_key(
    name: str, source: SourceKind, tmp_path: Path
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        _load(source, {name: _invalid(KEYS[name])}, tmp_path)

    assert caught.value.key == name


@pytest.mark.parametrize("name", KEYS)
def test_a_table_in_the_file_is_refused_where_a_value_is_wanted(name: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        _load(SourceKind.FILE, {name: {}}, tmp_path)

    assert caught.value.key == name


def test_the_reference_has_every_key_of_every_section() -> None:
    tables = ("namespaces.", "processor_credentials.", "access.issuers.", "cells[].")
    told = [row.key for row in config.reference() if not row.key.startswith(tables)]

    assert told == [*KEYS]


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("dsn", "database.dsn"),
        ("data_directory", "database.data_directory"),
        ("bind", "server.bind"),
        ("insecure", "server.insecure"),
        ("workers", "server.workers"),
        ("log_level", "log.level"),
        ("log_format", "log.format"),
    ],
)
def test_an_option_is_the_flag_of_its_key(field: str, key: str) -> None:
    value = _valid(key, KEYS[key], DEFAULTS[key])
    given: dict[str, Any] = {field: value}

    assert Settings(**given).flags() == {key: str(value)}


def _namespace_file(name: str, value: object) -> str:
    text = "{ call = { attempts_max = 3 } }" if isinstance(value, dict) else json.dumps(value)
    targets = "" if name == "processor_targets" else 'processor_targets = ["h:1"]\n'
    known = "[processor_credentials.internal]\n[[cells]]\nname = 'north'\n"
    return f"{known}[namespaces.orders]\n{targets}{name} = {text}\n"


def _namespace_default(name: str) -> Any:
    inner = TABLES.get(name.partition(".")[0])
    table = NamespaceTable(processor_targets=()) if inner is None else inner()
    value = getattr(table, NAMESPACE_KEYS[name].field)
    return value.total_seconds() if isinstance(value, dt.timedelta) else value


@pytest.mark.parametrize("name", NAMESPACE_KEYS)
def test_a_valid_value_changes_a_namespace_of_the_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "progressor.toml"
    file.write_text('[namespaces.orders]\nprocessor_targets = ["h:1"]\n')
    [before] = config.load(file=file, environment={}).namespaces

    file.write_text(
        _namespace_file(name, _valid(name, NAMESPACE_KEYS[name], _namespace_default(name)))
    )

    assert config.load(file=file, environment={}).namespaces != (before,)


@pytest.mark.parametrize("name", NAMESPACE_KEYS)
def test_an_invalid_value_of_a_namespace_is_refused_by_its_key(name: str, tmp_path: Path) -> None:
    file = tmp_path / "progressor.toml"
    file.write_text(_namespace_file(name, _invalid(NAMESPACE_KEYS[name])))

    with pytest.raises(errors.ConfigError) as caught:
        config.load(file=file, environment={})

    assert caught.value.key == f"namespaces.orders.{name}"


@pytest.mark.parametrize("name", [it for it in NAMESPACE_KEYS if "." in it or it not in WORDS])
def test_a_valid_option_changes_a_namespace(name: str) -> None:
    value = _valid(name, NAMESPACE_KEYS[name], _namespace_default(name))

    before, after = (
        config_from("orders", targets=["h:1"], texts=it) for it in ([], [f"{name}={value}"])
    )

    assert after != before
