"""Turns tables of plain values into frozen dataclasses; `ConfigError` names the key that is wrong.

A dataclass is the schema: a field's name is its key, its annotation gives the type and the bounds
(``msgspec.Meta``), its metadata the sentence for the reference. A ``timedelta`` field is a key that
ends in ``_seconds``. An empty string stands for the default.
"""

import builtins
import dataclasses
import datetime as dt
import difflib
import enum
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from progressor import errors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Table = TypeVar("Table", bound=DataclassInstance)
else:
    Table = TypeVar("Table")

T = TypeVar("T")

_NO_BOUNDS = msgspec.Meta()
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WIRE_TYPES: Mapping[object, object] = {dt.timedelta: float, Path: str}
_KINDS: Mapping[object, str] = {
    int: "an integer",
    float: "a number",
    dt.timedelta: "a number of seconds",
    bool: "true or false",
    str: "a string",
    Path: "a path",
}


class SourceKind(enum.StrEnum):
    """The kinds of sources, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The source of a value: ``where`` is a path, a variable or the command line."""

    kind: SourceKind = SourceKind.DEFAULT
    where: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value for a key from some source.

    ``is_text`` is true if the source has only strings (an environment variable, a flag): then "5"
    is a number too.
    """

    value: object
    source: Source = Source()
    is_text: bool = False

    @property
    def where(self) -> str:
        """The end of a sentence about the value."""
        forms = {
            SourceKind.DEFAULT: "",
            SourceKind.FILE: " (in {})",
            SourceKind.ENVIRONMENT: " (in the environment variable {})",
            SourceKind.FLAG: " (in a flag)",
        }
        return forms[self.source.kind].format(self.source.where)


_ABSENT = Given(value="")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key that a dataclass declares, by the field that holds it."""

    name: str
    field: str
    type: object
    bounds: msgspec.Meta
    secret: bool
    meaning: str
    shown_default: str

    @property
    def range(self) -> str:
        """The bounds as in ``1 .. 100`` or ``0 .. 60 s``, empty without both."""
        if self.bounds.ge is None or self.bounds.le is None:
            return ""
        unit = " s" if self.type is dt.timedelta else ""
        return f"{self.bounds.ge:,} .. {self.bounds.le:,}{unit}"


def setting(default: T, meaning: str, *, secret: bool = False) -> T:
    """Declare a key with its default and its meaning; a secret one is not shown."""
    metadata = {"meaning": meaning, "secret": secret}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def found_setting(find: Callable[[], T], meaning: str, *, shown: str = "") -> T:
    """Declare a key whose default is computed; `shown` describes that default."""
    metadata = {"meaning": meaning, "shown": shown}
    return dataclasses.field(default_factory=find, metadata=metadata)


def keys_of(table: "type[DataclassInstance]") -> Iterator[Key]:
    """Yield the keys of a dataclass in the order in which it declares them."""
    hints = typing.get_type_hints(table, include_extras=True)
    for field in dataclasses.fields(table):
        kind, bounds = _split(hints[field.name])
        yield Key(
            name=f"{field.name}_seconds" if kind is dt.timedelta else field.name,
            field=field.name,
            type=kind,
            bounds=bounds,
            secret=field.metadata.get("secret", False),
            meaning=field.metadata["meaning"],
            shown_default=field.metadata.get("shown") or _shown(field.default),
        )


def decode(table: type[Table], given: Mapping[str, Given], *, prefix: str) -> Table:
    """Build a dataclass from the values given for its keys; the others keep their defaults."""
    keys = {key.name: key for key in keys_of(table)}
    values, faults = {}, Faults()
    for name, value in given.items():
        with faults:
            if name not in keys:
                known = [f"{prefix}.{it}" for it in keys]
                raise unknown_key(f"{prefix}.{name}", known, value)
            if value.value != "":
                values[keys[name].field] = _value(keys[name], value, f"{prefix}.{name}")
    for field in dataclasses.fields(table):
        required = field.default is field.default_factory is dataclasses.MISSING
        with faults:
            if required and given.get(field.name, _ABSENT).value == "":
                raise errors.ConfigError(f"{prefix}.{field.name}", "must be given")
    faults.raise_all()
    return table(**values)


class Faults:
    """Collects the errors of its ``with`` blocks, so that all are reported at once."""

    def __init__(self) -> None:
        self._found: list[errors.ConfigError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _traceback: object) -> bool:
        if not isinstance(error, errors.ConfigError):
            return False
        self._found.append(error)
        return True

    def raise_all(self) -> None:
        if self._found:
            first, *others = self._found
            words = "; ".join([first.description, *map(str, others)])
            raise errors.ConfigError(first.key, words) from first


def given_table(value: Given, *, prefix: str) -> dict[str, Given]:
    """Return a given table as its given values."""
    if not isinstance(value.value, dict):
        raise errors.ConfigError(prefix, f"must be a table, got {value.value!r}{value.where}")
    return {name: dataclasses.replace(value, value=inner) for name, inner in value.value.items()}


def plain(value: object) -> object:
    """Return a setting as a document of TOML or JSON has it."""
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


def unknown_key(key: str, known: Iterable[str], given: Given) -> errors.ConfigError:
    """Return the error for an unknown key, with the nearest one that exists."""
    near = difflib.get_close_matches(key, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return errors.ConfigError(key, f"is not a known key{given.where}{hint}")


def _split(hint: object) -> tuple[object, msgspec.Meta]:
    """Split a type into its plain type, without the None of an optional key, and its bounds."""
    bounds = _NO_BOUNDS
    while True:
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) is typing.Annotated:
            hint, bounds = arguments
        elif len(arguments) == 2 and types.NoneType in arguments:  # noqa: PLR2004  T | None
            [hint] = (part for part in arguments if part is not types.NoneType)
        else:
            return hint, bounds


def _value(key: Key, given: Given, name: str) -> object:
    if dataclasses.is_dataclass(key.type) and isinstance(key.type, type):
        return decode(key.type, given_table(given, prefix=name), prefix=name)
    if typing.get_origin(key.type) is dict:
        return _tables(key, given, name)
    try:
        decoded = _converted(key, given)
    except (ValueError, RuntimeError, OverflowError) as error:
        shown = "the value given" if key.secret else repr(given.value)
        words = f"must be {_allowed(key.type, key.bounds)}, got {shown}{given.where}"
        raise errors.ConfigError(name, words) from error
    # It would reach logs, terminals and PostgreSQL.
    texts = decoded if isinstance(decoded, tuple) else (decoded,)
    if any(_CONTROL.search(str(text)) for text in texts):
        raise errors.ConfigError(name, f"must not contain a control character{given.where}")
    return decoded


def _converted(key: Key, given: Given) -> object:
    value, wire_type = given.value, _WIRE_TYPES.get(key.type, key.type)
    if typing.get_origin(key.type) is tuple and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if key.bounds is not _NO_BOUNDS:
        wire_type = typing.Annotated[wire_type, key.bounds]
    decoded: typing.Any = msgspec.convert(value, wire_type, strict=not given.is_text)
    if key.type is dt.timedelta:
        return dt.timedelta(seconds=decoded)
    return Path(decoded).expanduser() if key.type is Path else decoded


def _tables(key: Key, given: Given, name: str) -> dict[str, object]:
    """Decode a table of tables, whose names are those of a Literal."""
    names, table = typing.get_args(key.type)
    found, faults = {}, Faults()
    for inner, value in given_table(given, prefix=name).items():
        place = f"{name}.{inner}"
        with faults:
            if inner not in typing.get_args(names):
                raise errors.ConfigError(place, f"must be {_allowed(names)}, got {inner!r}")
            found[inner] = decode(table, given_table(value, prefix=place), prefix=place)
    faults.raise_all()
    return found


def _allowed(kind: object, bounds: msgspec.Meta = _NO_BOUNDS) -> str:
    """Return what a value of a type must be, as in "an integer from 1 to 10"."""
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Annotated:
            return _allowed(*arguments)
        case typing.Literal:
            return f"one of {', '.join(arguments)}"
        case types.UnionType | typing.Union:
            return " or ".join(map(_allowed, arguments))
        case builtins.tuple:
            if bounds.max_length is None:
                return "a list of strings"
            return f"a list of {bounds.min_length} to {bounds.max_length} strings"
        case _:
            is_bounded = bounds.ge is not None and bounds.le is not None
            range_ = f" from {bounds.ge:,} to {bounds.le:,}" if is_bounded else ""
            return f"{_KINDS[kind]}{range_}"


def _shown(default: object) -> str:
    match plain(default):
        case dataclasses.MISSING:
            return ""
        case bool(value):
            return str(value).lower()
        case float(value):
            return f"{value:g}"
        case list(values):
            return ", ".join(map(str, values))
        case value:
            return str(value)
