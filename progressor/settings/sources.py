"""Where values come from: a TOML file, the environment, flags; the last of them wins."""

import dataclasses
import enum
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from progressor import errors
from progressor.settings.decoding import Given, given_table, unknown_key

FILE_NAME = "progressor.toml"
FILE_VARIABLE = "PROGRESSOR_CONFIG"
NAMESPACES = "namespaces"

# Kubernetes gives every container such variables for a service called, say, progressor-server.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_.+)?)")


class SourceKind(enum.StrEnum):
    """Where a value comes from, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a value comes from: a path, a variable or a flag."""

    kind: SourceKind
    where: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The strongest value for each key that was given, and its source."""

    values: Mapping[str, Given]
    sources: Mapping[str, Source]
    namespaces: Given | None


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return f"PROGRESSOR_{key.replace('.', '_').upper()}"


def find_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file to read: the one given, the environment's, or the working directory's."""
    if given is not None:
        return given
    if environment.get(FILE_VARIABLE):
        return Path(environment[FILE_VARIABLE])
    here = Path(FILE_NAME)
    return here if here.is_file() else None


def read_layers(
    keys: Collection[str],
    *,
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
) -> Layers:
    """Collect the values of all sources; nothing is decoded yet.

    Args:
        keys: Every key, as in ``server.bind``.
        file: A TOML file that must exist; None: no file.
        environment: Empty variables count as absent.
        flags: By key.

    Raises:
        ConfigError: The file cannot be read, or a source names a key that does not exist.
    """
    values: dict[str, Given] = {}
    sources: dict[str, Source] = {}
    from_file = _read_file(file) if file else {}
    namespaces = from_file.pop(NAMESPACES, None)
    for layer, kind in (
        (_flattened(from_file, keys), SourceKind.FILE),
        (_from_environment(environment, keys), SourceKind.ENVIRONMENT),
        (_from_flags(flags, keys), SourceKind.FLAG),
    ):
        for key, (given, where) in layer.items():
            values[key] = given
            sources[key] = Source(kind=kind, where=where or str(file))
    return Layers(values=values, sources=sources, namespaces=namespaces)


def _read_file(path: Path) -> dict[str, Given]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise errors.ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise errors.ConfigError(str(path), f"is not TOML: {error}") from error
    return {name: Given(value=value, where=f" (in {path})") for name, value in document.items()}


def _flattened(
    document: Mapping[str, Given], keys: Collection[str]
) -> dict[str, tuple[Given, str]]:
    sections = {key.partition(".")[0] for key in keys}
    flat = {}
    for section, table in document.items():
        if section not in sections:
            raise unknown_key(section, [*sections, NAMESPACES], table)
        for name, given in given_table(table, prefix=section).items():
            flat[_checked(f"{section}.{name}", keys, given)] = given, ""
    return flat


def _from_environment(
    environment: Mapping[str, str], keys: Collection[str]
) -> dict[str, tuple[Given, str]]:
    by_variable = {variable_of(key): key for key in keys}
    prefixes = tuple({f"{variable_of(key.partition('.')[0])}_" for key in keys})
    found = {}
    for variable, value in environment.items():
        given = Given(value=value, is_text=True, where=f" (in the environment variable {variable})")
        if variable in by_variable:
            if value:
                found[by_variable[variable]] = given, variable
        elif variable.startswith(prefixes) and not _SERVICE_LINK.fullmatch(variable):
            raise unknown_key(variable, by_variable, given)
    return found


def _from_flags(flags: Mapping[str, str], keys: Collection[str]) -> dict[str, tuple[Given, str]]:
    found = {}
    for key, value in flags.items():
        given = Given(value=value, is_text=True, where=" (in a flag)")
        found[_checked(key, keys, given)] = given, "command line"
    return found


def _checked(key: str, keys: Collection[str], given: Given) -> str:
    if key not in keys:
        raise unknown_key(key, keys, given)
    return key
