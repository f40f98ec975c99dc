"""Reads the values of all sources: a TOML file, the environment, flags; the last one wins."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from progressor import errors
from progressor.settings.decoding import Given, Source, SourceKind, given_table, unknown_key

NAMESPACES = "namespaces"

_FILE_NAME = "progressor.toml"
_FILE_VARIABLE = "PROGRESSOR_CONFIG"
# Kubernetes sets such variables in every container, here for a service called progressor-server.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_.+)?)")


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return f"PROGRESSOR_{key.replace('.', '_').upper()}"


def find_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file to read: the given one, the environment's, or the working directory's."""
    if given is not None:
        return given
    if environment.get(_FILE_VARIABLE):
        return Path(environment[_FILE_VARIABLE])
    here = Path(_FILE_NAME)
    return here if here.is_file() else None


def read_sources(
    keys: Collection[str],
    *,
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
) -> tuple[dict[str, Given], Given | None]:
    """Return the strongest value of each given key, not decoded, and the table of namespaces.

    Args:
        keys: Every key, as in ``server.bind``.
        file: A TOML file that must exist; None: no file.
        environment: Empty variables count as absent.
        flags: By key.

    Raises:
        ConfigError: The file cannot be read, or a source names an unknown key.
    """
    tables = _read_file(file) if file else {}
    namespaces = tables.pop(NAMESPACES, None)
    values = dict(_in_file(tables, keys)) | _in_environment(environment, keys) | _in_flags(flags)
    for key, given in values.items():
        if key not in keys:
            raise unknown_key(key, keys, given)
    return values, namespaces


def _read_file(path: Path) -> dict[str, Given]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise errors.ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise errors.ConfigError(str(path), f"is not TOML: {error}") from error
    source = Source(SourceKind.FILE, str(path))
    return {name: Given(value=value, source=source) for name, value in document.items()}


def _in_file(tables: Mapping[str, Given], keys: Collection[str]) -> Iterator[tuple[str, Given]]:
    sections = {key.partition(".")[0] for key in keys}
    for section, table in tables.items():
        if section not in sections:
            raise unknown_key(section, [*sections, NAMESPACES], table)
        for name, given in given_table(table, prefix=section).items():
            yield f"{section}.{name}", given


def _in_environment(environment: Mapping[str, str], keys: Collection[str]) -> dict[str, Given]:
    by_variable = {variable_of(key): key for key in keys}
    prefixes = tuple({f"{variable_of(key.partition('.')[0])}_" for key in keys})
    found = {}
    for variable, value in environment.items():
        given = Given(value=value, source=Source(SourceKind.ENVIRONMENT, variable), is_text=True)
        if variable in by_variable:
            if value:
                found[by_variable[variable]] = given
        elif variable.startswith(prefixes) and not _SERVICE_LINK.fullmatch(variable):
            raise unknown_key(variable, by_variable, given)
    return found


def _in_flags(flags: Mapping[str, str]) -> dict[str, Given]:
    source = Source(SourceKind.FLAG, "command line")
    return {key: Given(value=it, source=source, is_text=True) for key, it in flags.items()}
