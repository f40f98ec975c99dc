"""Turns tables of plain values into frozen dataclasses, with errors that name the key.

A dataclass is the schema: a field's name is its key, its annotation the type and the bounds
(``msgspec.Meta``), its metadata the sentence for the reference. A ``timedelta`` field is a
key that ends in ``_seconds``. An empty text stands for the default.
"""

import dataclasses
import datetime as dt
import difflib
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value somebody gave for a key.

    ``is_text`` is true where the source knows only texts (an environment variable, a flag):
    then "5" is a number too. ``where`` ends a sentence about the value.
    """

    value: object
    is_text: bool = False
    where: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key that a dataclass declares."""

    name: str
    field: str
    type: object
    bounds: msgspec.Meta
    secret: bool
    meaning: str
    shown_default: str


def setting(default: T, meaning: str, *, secret: bool = False) -> T:
    """Declare a key with its default and what it means."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "secret": secret})


def found_setting(find: Callable[[], T], meaning: str, *, shown: str) -> T:
    """Declare a key whose default depends on the machine; `shown` describes that default."""
    metadata = {"meaning": meaning, "shown": shown}
    return dataclasses.field(default_factory=find, metadata=metadata)


def keys_of(table: "type[DataclassInstance]") -> Iterator[Key]:
    """Yield the keys of a dataclass in the order in which it declares them."""
    hints = typing.get_type_hints(table, include_extras=True)
    for field in dataclasses.fields(table):
        kind, bounds = _plain(hints[field.name])
        yield Key(
            name=f"{field.name}_seconds" if kind is dt.timedelta else field.name,
            field=field.name,
            type=kind,
            bounds=bounds,
            secret=field.metadata.get("secret", False),
            meaning=field.metadata.get("meaning", ""),
            shown_default=field.metadata.get("shown") or _shown(field.default),
        )


def decode(table: type[Table], given: Mapping[str, Given], *, prefix: str) -> Table:
    """Build a dataclass from what is given for its keys; the others keep their defaults.

    Raises:
        ConfigError: A key is unknown, missing or its value wrong; it is named after `prefix`.
    """
    keys = {key.name: key for key in keys_of(table)}
    values = {}
    for name, value in given.items():
        if name not in keys:
            raise unknown_key(f"{prefix}.{name}", [f"{prefix}.{known}" for known in keys], value)
        if value.value != "":
            values[keys[name].field] = _value(keys[name], value, f"{prefix}.{name}")
    for field in dataclasses.fields(table):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise errors.ConfigError(f"{prefix}.{field.name}", "must be given")
    return table(**values)


def given_table(value: Given, *, prefix: str) -> dict[str, Given]:
    """Return a given table as its given values.

    Raises:
        ConfigError: It is not a table.
    """
    if not isinstance(value.value, dict):
        raise errors.ConfigError(prefix, f"must be a table, not {value.value!r}{value.where}")
    return {name: dataclasses.replace(value, value=inner) for name, inner in value.value.items()}


def unknown_key(key: str, known: Iterable[str], given: Given) -> errors.ConfigError:
    """Return the error for a key that nobody declares, with the nearest one that exists."""
    near = difflib.get_close_matches(key, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return errors.ConfigError(key, f"is not a known key{given.where}{hint}")


def _plain(hint: object) -> tuple[object, msgspec.Meta]:
    """Take the bounds, and the None of an optional key, off a type."""
    bounds = _NO_BOUNDS
    if typing.get_origin(hint) is typing.Annotated:
        hint, bounds = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(hint) if part is not types.NoneType]
        if len(inner) == 1:
            plain, inner_bounds = _plain(inner[0])
            return plain, inner_bounds if bounds is _NO_BOUNDS else bounds
    return hint, bounds


def _value(key: Key, given: Given, name: str) -> object:
    value = given.value
    if dataclasses.is_dataclass(key.type) and isinstance(key.type, type):
        return decode(key.type, given_table(given, prefix=name), prefix=name)
    if typing.get_origin(key.type) is tuple and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    wire_type = {dt.timedelta: float, Path: str}.get(typing.cast("type", key.type), key.type)
    if key.bounds is not _NO_BOUNDS:
        wire_type = typing.Annotated[wire_type, key.bounds]
    try:
        decoded = msgspec.convert(value, wire_type, strict=not given.is_text)
        _check_text(decoded)
        if key.type is dt.timedelta:
            return dt.timedelta(seconds=typing.cast("float", decoded))
        return Path(decoded).expanduser() if key.type is Path else decoded
    except (ValueError, RuntimeError, OverflowError) as error:
        shown = "the value given" if key.secret else repr(value)
        raise errors.ConfigError(name, f"{shown} cannot be: {_why(error)}{given.where}") from error


def _check_text(decoded: object) -> None:
    """Refuse a control character: it would reach logs, terminals and PostgreSQL."""
    for text in decoded if isinstance(decoded, tuple) else (decoded,):
        if isinstance(text, str) and _CONTROL.search(text):
            message = "contains a control character"
            raise ValueError(message)


def _why(error: Exception) -> str:
    text = str(error).replace("`", "")
    return text[:1].lower() + text[1:]


def _shown(default: object) -> str:
    match default:
        case None | "":
            return ""
        case bool():
            return str(default).lower()
        case dt.timedelta():
            return f"{default.total_seconds():g}"
        case tuple():
            return ", ".join(map(str, default))
        case dataclasses.MISSING | dict():
            return ""
        case _:
            return str(default)
