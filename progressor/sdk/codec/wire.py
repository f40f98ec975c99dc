"""Instants, durations, enums and JSON objects between Python and protobuf."""

import datetime as dt
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Self, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk.codec.codecs import Payload

_EXACT_MAX = 2**53
_DEPTH_MAX = 30
"""Of an engine, for metadata."""

Seconds: TypeAlias = float | dt.timedelta
"""A duration as users write it: seconds, or a timedelta."""


class WireEnum(enum.StrEnum):
    """An enum whose members stand in the order of their numbers on the wire, from 0."""

    @property
    def number(self) -> int:
        """The number of this member on the wire."""
        return tuple(type(self)).index(self)

    @classmethod
    def from_number(cls, number: int) -> Self:
        """Return the member of `number`, the first where this release knows of none."""
        members = tuple(cls)
        return members[number] if 0 <= number < len(members) else members[0]


def timedelta_of(duration: Seconds) -> dt.timedelta:
    """Return `duration`, a number being seconds, as a timedelta."""
    return duration if isinstance(duration, dt.timedelta) else dt.timedelta(seconds=duration)


def optional_timedelta(duration: Seconds | None) -> dt.timedelta | None:
    """Return `duration` as a timedelta, None as None."""
    return None if duration is None else timedelta_of(duration)


def duration_to_wire(duration: Seconds) -> Duration:
    """Return `duration` as a protobuf Duration, to the microsecond."""
    message = Duration()
    message.FromTimedelta(timedelta_of(duration))
    return message


def duration_from_wire(message: Duration) -> dt.timedelta:
    """Return a protobuf Duration as a timedelta."""
    return message.ToTimedelta()


def instant_to_wire(instant: dt.datetime) -> Timestamp:
    """Return `instant` as a protobuf Timestamp.

    Raises:
        ValueError: `instant` has no time zone.
    """
    if instant.tzinfo is None:
        message = f"{instant!r} has no time zone; progressor takes aware datetimes"
        raise ValueError(message)
    timestamp = Timestamp()
    timestamp.FromDatetime(instant)
    return timestamp


def optional_instant_to_wire(instant: dt.datetime | None) -> Timestamp | None:
    """Return `instant` as a protobuf Timestamp, None as None."""
    return None if instant is None else instant_to_wire(instant)


def instant_from_wire(timestamp: Timestamp) -> dt.datetime:
    """Return a protobuf Timestamp as an aware datetime, UTC."""
    return timestamp.ToDatetime(tzinfo=dt.UTC)


def object_to_wire(value: Mapping[str, Payload]) -> Struct:
    """Return a JSON object as a protobuf Struct.

    Raises:
        ValueError: It cannot be one: a whole number beyond 2**53, which would be rounded; no finite
            number; or nested deeper than an engine takes. The message names the place.
    """
    struct = Struct()
    fill_object(struct, value)
    return struct


def fill_object(struct: Struct, value: Mapping[str, Payload]) -> None:
    """Write a JSON object into an empty protobuf Struct.

    Raises:
        ValueError: As `object_to_wire`.
    """
    _check(value, "", depth=1)
    struct.update(value)


def _check(value: Payload, place: str, *, depth: int) -> None:
    """Refuse a value that JSON would change or cannot represent."""
    if isinstance(value, Mapping | list | tuple) and depth > _DEPTH_MAX:
        message = f"is nested deeper than {_DEPTH_MAX}"
        raise ValueError(message)
    children: Iterable[tuple[str, Payload]] = ()
    match value:
        case bool():
            pass
        case int() if abs(value) > _EXACT_MAX:
            message = f"{place}: an integer beyond 2**53 would be rounded; use a string"
            raise ValueError(message)
        case float() if not math.isfinite(value):
            message = f"{place}: {value} is not a JSON number"
            raise ValueError(message)
        case Mapping():
            children = ((f"{place}.{key}" if place else str(key), it) for key, it in value.items())
        case list() | tuple():
            children = ((f"{place}[{number}]", it) for number, it in enumerate(value))
        case _:
            pass
    for inner, child in children:
        _check(child, inner, depth=depth + 1)


def object_from_wire(struct: Struct) -> dict[str, Payload]:
    """Return a protobuf Struct as a JSON object, whole numbers as int.

    Struct knows only doubles: a client that does not check, as this one does, may have rounded
    integers beyond 2**53.
    """
    return {name: _value_from_wire(value) for name, value in struct.fields.items()}


def _value_from_wire(value: Value) -> Payload:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return object_from_wire(value.struct_value)
        case "list_value":
            return _list_from_wire(value.list_value)
        case _:
            return None


def _list_from_wire(values: ListValue) -> list[Payload]:
    return [_value_from_wire(value) for value in values.values]
