"""Rows become values: each column by its name, as the type hints of a dataclass say.

    read = reader(RunningTask, columns)
    task = read(row)                        # a sequence of values in the order of the columns

- A field takes the column of its name. One whose column is absent takes its default.
- A field that is a dataclass takes for each of its own fields the column with the outer field's
  name in front (``error_code``), or else of the inner name alone (``slot``). If it may be None, it
  is None where the first of these columns is null.
- A field named ``row`` takes the whole row, for readers that look at it later.
- A null in a field that admits none becomes the field's default, or else the empty value.
- A field that is a dataclass and has a column of its own is there as a JSON array of its fields.
- Enums, durations (of seconds or of an interval), tuples, and what `_CONVERTERS` lists are
  converted; everything else is taken as the driver returns it.

Readers are compiled, since a claim makes two objects of thirty columns for each task: a claimed row
takes 5.8 µs, and took 6.7 with a NamedTuple between (2026-11-26, 2-core reference machine).
"""

import dataclasses
import datetime as dt
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from progressor.domain.gates.constraint import Constraints, Version
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.process import Part
from progressor.domain.schedules.schedule import Target, Times
from progressor.domain.views.wait import OrderWait, TimeSpent
from progressor.storage.postgres.rows import documents

R = TypeVar("R")

_EMPTY: Mapping[Any, str] = types.MappingProxyType({bytes: 'b""', str: '""', Mapping: "{}"})
_CONVERTERS: Mapping[type, Callable[[Any], Any]] = types.MappingProxyType(
    {
        Constraints: documents.constraints_of,
        OrderWait: documents.order_wait,
        Part: documents.part_of,
        TimeSpent: documents.time_spent,
        dt.timedelta: lambda it: it if isinstance(it, dt.timedelta) else dt.timedelta(seconds=it),
        Version: lambda parts: Version(tuple(parts)),
    }
)
_MAKERS: Mapping[Any, tuple[Callable[..., Any], tuple[str, ...]]] = types.MappingProxyType(
    {
        HistoryRange: (documents.history_range, documents.HISTORY_COLUMNS),
        Times: (documents.times_of, documents.TIMES_COLUMNS),
        Target: (documents.target_of, documents.TARGET_COLUMNS),
    }
)
"""What is made of several columns."""


@functools.cache
def members(values: type[enum.StrEnum]) -> Mapping[bytes | str | None, Any]:
    """Return the members by their spellings: psycopg returns a text as str, else as bytes."""
    return {spelling: it for it in values for spelling in (it.value, it.value.encode())}


def reader(
    value_type: type[R],
    columns: tuple[str, ...],
    *given: str,
    prefix: str = "",
    is_json: bool = False,
    whole: bool = False,
) -> Callable[..., R]:
    """Return a function that builds a value from a row and the `given` fields.

    Args:
        value_type: A dataclass, a NamedTuple or a Struct; or the type of the only column.
        columns: The names of the columns in their order.
        given: Names of fields, at any depth, whose values the caller adds by position.
        prefix: In front of the names of columns, where they have it.
        is_json: The row is a JSON array, where instants are microseconds from 1970 on.
        whole: Each column must be read, or could be later (``row``).

    Raises:
        AssertionError: A field has neither a column nor a default, or a column has no field.
    """
    compiled = _compiled(typing.cast("Any", value_type), columns, given, prefix, is_json, whole)
    return typing.cast("Callable[..., R]", compiled)


@functools.cache
def _compiled(
    value_type: Any,
    columns: tuple[str, ...],
    given: tuple[str, ...],
    prefix: str,
    is_json: bool,  # noqa: FBT001  # by position, for the cache
    whole: bool,  # noqa: FBT001  # as above
) -> Callable[..., Any]:
    if not _is_record(value_type):
        assert len(columns) <= 1, f"{columns} are not one column"
        return operator.itemgetter(0)
    source = _Source(columns, given, is_json=is_json)
    prefixes = (prefix, "") if prefix else ("",)
    text = f"lambda {', '.join(('row', *given))}: {source.record(value_type, prefixes)}"
    unread = [it for it in columns if it not in source.used]
    is_kept = any(name == "row" for name, _ in _fields(value_type))
    assert not (whole and unread) or is_kept, f"{value_type.__name__} does not read {unread}"
    return typing.cast("Callable[..., Any]", eval(text, source.names))  # noqa: S307  our own names


class _Source:
    """The source of a reader: expressions over ``row``, and the names that they use."""

    def __init__(self, columns: Sequence[str], given: Sequence[str], *, is_json: bool) -> None:
        self.names: dict[str, Any] = {}
        self.used: set[str] = set()
        self._places = {name: place for place, name in enumerate(columns)}
        self._given = given
        self._is_json = is_json

    def record(self, value_type: type[Any], prefixes: tuple[str, ...]) -> str:
        hints = typing.get_type_hints(value_type)
        fields = {
            name: self._field(name, hints[name], it, prefixes) for name, it in _fields(value_type)
        }
        missing = [name for name, found in fields.items() if found is _MISSING]
        assert not missing, f"{value_type.__name__}: no columns of {missing}"
        if hasattr(value_type, "_field_defaults"):
            # By position, which is cheaper than a call by names.
            defaults = {it: self._name(value) for it, value in value_type._field_defaults.items()}
            items = [found or defaults[name] for name, found in fields.items()]
            return f"{self._name(tuple.__new__)}({self._name(value_type)}, ({', '.join(items)},))"
        arguments = [f"{name}={found}" for name, found in fields.items() if found is not None]
        return f"{self._name(value_type)}({', '.join(arguments)})"

    def _field(self, name: str, hint: Any, default: Any, prefixes: tuple[str, ...]) -> Any:
        """Return the expression of a field; None: it takes its default."""
        if name in self._given or name == "row":
            return name
        inner, is_optional = _without_none(hint)
        if inner in _MAKERS:
            make, columns = _MAKERS[inner]
            found = [self._column(it, prefixes) for it in columns]
            return f"{self._name(make)}({', '.join(map(str, found))})"
        if column := self._column(name, prefixes):
            return self._value(column, inner, default, is_optional=is_optional)
        nested = (*(f"{prefix}{name}_" for prefix in prefixes), *prefixes)
        if _is_record(inner):
            places = (self._column(it, nested) for it, _ in _fields(inner))
            first = next((it for it in places if it is not None), None)
            if first is not None and is_optional:
                return f"(None if {first} is None else {self.record(inner, nested)})"
            if first is not None or default is _MISSING:
                return self.record(inner, nested)
        return _MISSING if default is _MISSING else None

    def _column(self, name: str, prefixes: tuple[str, ...]) -> str | None:
        for prefix in prefixes:
            if prefix + name in self._places:
                self.used.add(prefix + name)
                return f"row[{self._places[prefix + name]}]"
        return None

    def _value(self, column: str, hint: Any, default: Any, *, is_optional: bool) -> str:
        empty = _EMPTY.get(typing.get_origin(hint) or hint)
        if empty is not None and not is_optional and default is _MISSING:
            return f"({column} or {empty})"
        converted = self._converted(column, hint)
        if is_optional:
            null = "None"
        elif default is not _MISSING:
            null = "{}" if default == {} else self._name(default)  # a dict of its own for each
        else:
            return converted
        is_same = is_optional and converted == column
        return column if is_same else f"({null} if {column} is None else {converted})"

    def _converted(self, column: str, hint: Any) -> str:
        if typing.get_origin(hint) is tuple:
            function = _converter(typing.get_args(hint)[0], is_json=self._is_json)
            items = f"{column} or ()"
            return f"tuple(map({self._name(function)}, {items}))" if function else f"tuple({items})"
        if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
            return f"{self._name(members(hint))}[{column}]"
        function = _converter(hint, is_json=self._is_json)
        return f"{self._name(function)}({column})" if function else column

    def _name(self, value: object) -> str:
        name = f"n{len(self.names)}"
        self.names[name] = value
        return name


_MISSING: Any = dataclasses.MISSING
_NAMES_OF_FIELDS = ("__dataclass_fields__", "__struct_fields__", "_fields")


def _converter(hint: Any, *, is_json: bool) -> Callable[[Any], Any] | None:
    if hint in _CONVERTERS:
        return _CONVERTERS[hint]
    if hint is dt.datetime and is_json:
        return documents.instant_of
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return members(hint).__getitem__
    if _is_record(hint):
        return reader(hint, tuple(name for name, _ in _fields(hint)), is_json=True)
    return None


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in {types.UnionType, typing.Union}:
        return hint, False
    others = [each for each in typing.get_args(hint) if each is not types.NoneType]
    is_optional = len(others) < len(typing.get_args(hint))
    return (others[0] if len(others) == 1 else hint), is_optional


def _is_record(value_type: Any) -> bool:
    return any(hasattr(value_type, it) for it in _NAMES_OF_FIELDS)


def _fields(value_type: Any) -> list[tuple[str, Any]]:
    if hasattr(value_type, "__struct_fields__"):
        return [(it.name, _MISSING) for it in msgspec.structs.fields(value_type)]
    if not dataclasses.is_dataclass(value_type):
        return [(it, value_type._field_defaults.get(it, _MISSING)) for it in value_type._fields]
    fields = dataclasses.fields(value_type)
    made = {it.name: it.default_factory() for it in fields if callable(it.default_factory)}
    return [(it.name, made.get(it.name, it.default)) for it in fields if it.init]
