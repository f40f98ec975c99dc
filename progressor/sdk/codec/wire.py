"""Instants, durations, enums, JSON objects and payloads between Python and protobuf."""

import datetime as dt
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeAlias, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk.codec.codecs import Payload
from progressor.wire import fields
from progressor.wire.shapes import Field

V = TypeVar("V")
M = TypeVar("M")

_EXACT_MAX = 2**53
_DEPTH_MAX = fields.METADATA_DEPTH_MAX

Seconds: TypeAlias = float | dt.timedelta
"""A duration: seconds, or a timedelta."""


class WireEnum(enum.StrEnum):
    """An enum whose members are in the order of their numbers on the wire, from 0."""

    @property
    def number(self) -> Any:  # noqa: ANN401  # of the type that its message has for it
        """The number of this member on the wire, an int."""
        return tuple(type(self)).index(self)

    @classmethod
    def from_number(cls, number: int) -> Self:
        """Return the member of `number`; the first member if this release does not know it."""
        members = tuple(cls)
        return members[number] if 0 <= number < len(members) else members[0]


def optional(convert: Callable[[V], M], value: V | None) -> M | None:
    """Return a value converted to a message; None: None, which leaves a field out."""
    return None if value is None else convert(value)


def check_options(options: Mapping[str, object], known: type, function: str) -> None:
    """Raise TypeError for an option that is not in the TypedDict `known`, as Python itself would.

    At run time ``**options: Unpack[...]`` takes any name.
    """
    for name in options:
        if name not in known.__annotations__:
            problem = f"{function}() got an unexpected keyword argument {name!r}"
            raise TypeError(problem)


def timedelta_of(duration: Seconds, field: str = "a duration") -> dt.timedelta:
    """Return a duration as a timedelta; raise TypeError or ValueError, which name the field."""
    if isinstance(duration, dt.timedelta):
        return duration
    try:
        return dt.timedelta(seconds=duration)
    except (TypeError, ValueError, OverflowError) as error:
        message = f"{field} must be seconds or a timedelta, got {duration!r}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(message) from error


def duration_to_wire(duration: Seconds, field: str = "a duration") -> Duration:
    """Return a duration as a message, to the microsecond."""
    return fields.timedelta_to_duration(timedelta_of(duration, field))


def duration_from_wire(message: Duration) -> dt.timedelta:
    """Return a duration as a timedelta."""
    return fields.duration_to_timedelta(message, "duration")


def instant_to_wire(instant: dt.datetime) -> Timestamp:
    """Return an instant as a message; raise ValueError if it has no time zone."""
    if instant.tzinfo is None:
        message = f"datetimes must have a time zone, got {instant!r}"
        raise ValueError(message)
    return fields.datetime_to_timestamp(instant)


def instant_from_wire(timestamp: Timestamp) -> dt.datetime:
    """Return an instant as an aware datetime in UTC."""
    return fields.timestamp_to_datetime(timestamp, "timestamp")


def object_to_wire(value: Mapping[str, Payload]) -> Struct:
    """Return a JSON object as a message; raise ValueError for what it would change or lose."""
    _check(value, "", depth=1)
    return fields.mapping_to_struct(value)


def _check(value: Payload, place: str, *, depth: int) -> None:
    """Refuse a value that JSON would change or cannot represent."""
    if isinstance(value, Mapping | list | tuple) and depth > _DEPTH_MAX:
        message = f"must not be nested deeper than {_DEPTH_MAX} levels"
        raise ValueError(message)
    children: Iterable[tuple[str, Payload]] = ()
    match value:
        case bool() | str() | None:
            pass
        case int() | float():
            _check_number(value, place)
        case Mapping():
            children = ((f"{place}.{key}" if place else str(key), it) for key, it in value.items())
        case list() | tuple():
            children = ((f"{place}[{number}]", it) for number, it in enumerate(value))
        case _:
            message = f"{place}: {type(value).__name__} is not a JSON type"
            raise ValueError(message)
    for inner, child in children:
        _check(child, inner, depth=depth + 1)


def _check_number(value: float, place: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            message = f"{place}: {value} is not a JSON number"
            raise ValueError(message)
    elif abs(value) > _EXACT_MAX:
        message = f"{place}: an integer beyond 2**53 would be rounded; use a string"
        raise ValueError(message)


def object_from_wire(struct: Struct) -> dict[str, Payload]:
    """Return a JSON object, with whole numbers up to 2**53 as int.

    Struct has only doubles: a client without the check of `object_to_wire` may have rounded a
    larger integer, which is returned as a float.
    """
    return fields.struct_to_mapping(struct, "metadata")


def payload(name: str) -> Field:
    """Describe a field with a payload; the context of its shape is the codec."""

    def write(message: Any, value: Payload, codec: Any) -> None:  # noqa: ANN401  # of any shape
        setattr(message, name, codec.encode(value))

    return Field(read=lambda message, _, codec: codec.decode(getattr(message, name)), write=write)


def _converted(convert: Callable[[Any], Any]) -> Callable[[str], Field]:
    """Return what describes a field by its name, whose value is converted to a message."""

    def describe(name: str) -> Field:
        def write(message: Any, value: object, _: object) -> None:  # noqa: ANN401  # of any shape
            getattr(message, name).CopyFrom(convert(value))

        return Field(name=name, write=write)

    return describe


metadata = _converted(object_to_wire)
instant = _converted(instant_to_wire)
"""Describe a field with a JSON object, and one with an aware instant."""


def duration(name: str) -> Field:
    """Describe a field with a duration, in seconds or a timedelta."""
    return _converted(lambda value: duration_to_wire(value, name))(name)
