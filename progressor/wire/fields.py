"""Instants, durations, JSON objects and ids between protobuf and Python, and their limits.

An invalid value raises `errors.InvalidRequestError` with the path that the caller gave. Imports no
`domain`, so that a client of the engine does not load it.
"""

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from progressor import errors

HISTORY_LIMIT_MAX = 100_000
"""Events that one range may ask for."""

METADATA_BYTES_MAX = 64 * 1024
"""The size of one metadata on the wire: a page of 1,000 processes still fits a message."""

ID_BYTES_MAX = 256
"""The size of an id, of a key, and of the text of a version."""

METADATA_DEPTH_MAX = 30
"""Objects and lists inside one another. Protobuf's parsers stop at 100 nested messages; an object
takes three of them, and Trace holds an event's metadata three messages deep."""

STEP_TIMEOUT_MIN = dt.timedelta(milliseconds=1)
STEP_TIMEOUT_MAX = dt.timedelta(days=1)

TIMER_AFTER_MAX = dt.timedelta(days=365_000)
"""How far ahead a timer may be set by a duration: Python must be able to represent the instant."""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FIELD_LENGTH_MAX = 256
_SHOWN_MAX = 64
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_SECONDS = 86_400
# A day inside of what datetime can hold: psycopg reads instants in the session's time zone, where
# the first and the last day of UTC may lie in the years 0 and 10,000.
_SECONDS_MIN = int((dt.datetime(1, 1, 2, tzinfo=dt.UTC) - _EPOCH).total_seconds())
_SECONDS_MAX = int((dt.datetime(9999, 12, 31, tzinfo=dt.UTC) - _EPOCH).total_seconds()) - 1
# Durations as google.protobuf.Duration bounds them: about 10,000 years, either way.
_DURATION_SECONDS_MAX = 315_576_000_000
_NANOS = 1_000_000_000
# Above it a double cannot represent every whole number.
_EXACT_INTEGER_MAX = 2.0**53


def refuse(field: str, description: str) -> NoReturn:
    """Raise `errors.InvalidRequestError` for one field; a long path is cut."""
    raise errors.InvalidRequestError(errors.FieldViolation(field[:_FIELD_LENGTH_MAX], description))


NUL = "must not contain a NUL character"


def too_large(size: int, bytes_max: int) -> str:
    return f"must be at most {bytes_max} bytes, got {size}"


def too_many(count: int, count_max: int) -> str:
    return f"must have at most {count_max} items, got {count}"


def duration_text(value: dt.timedelta) -> str:
    """Return a duration as an error message says it: whole days, or seconds."""
    if value > dt.timedelta(days=1) and not value % dt.timedelta(days=1):
        return f"{value.days} days"
    return f"{value.total_seconds():f}".rstrip("0").rstrip(".") + " s"


def shown(value: str) -> str:
    """Return a value for a message: quoted, and truncated if it is long."""
    return repr(value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "…")


def check_payload(payload: bytes, field: str, payload_bytes_max: int) -> None:
    if len(payload) > payload_bytes_max:
        refuse(field, too_large(len(payload), payload_bytes_max))


def id_faults(value: str, bytes_max: int = ID_BYTES_MAX) -> Iterator[str]:
    """Yield what keeps a text from being an id: 1 .. 256 bytes without control characters."""
    if not value:
        yield "must not be empty"
    size = len(value.encode())
    if size > bytes_max:
        yield too_large(size, bytes_max)
    if (found := _CONTROL_CHARACTER.search(value)) is not None:
        yield f"must not contain the control character U+{ord(found[0]):04X}"


def timestamp_to_datetime(ts: timestamp_pb2.Timestamp, field: str) -> dt.datetime:
    """Return the instant, UTC, in whole microseconds; between 0001-01-02 and 9999-12-30."""
    seconds, nanos = ts.seconds, ts.nanos
    if not 0 <= nanos < _NANOS:
        refuse(field, f"nanos must be 0 to 999999999, got {nanos}")
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
        refuse(field, f"must be from 0001-01-02 to 9999-12-30, got {seconds} s since 1970")
    return _EPOCH + dt.timedelta(0, seconds, nanos // 1000)


def datetime_to_timestamp(value: dt.datetime) -> timestamp_pb2.Timestamp:
    message = timestamp_pb2.Timestamp()
    fill_timestamp(message, value)
    return message


def fill_timestamp(message: timestamp_pb2.Timestamp, value: dt.datetime) -> None:
    since = value - _EPOCH
    message.seconds = since.days * _DAY_SECONDS + since.seconds
    message.nanos = since.microseconds * 1000


def duration_to_timedelta(d: duration_pb2.Duration, field: str) -> dt.timedelta:
    """Return the duration, of either sign, in whole microseconds; at most 10,000 years."""
    seconds, nanos = d.seconds, d.nanos
    if not -_NANOS < nanos < _NANOS or (seconds > 0 > nanos) or (seconds < 0 < nanos):
        refuse(
            field,
            f"nanos must be less than 1 s, with the sign of {seconds} s, got {nanos}",
        )
    if not -_DURATION_SECONDS_MAX <= seconds <= _DURATION_SECONDS_MAX:
        refuse(field, f"must be at most 10,000 years, got {seconds} s")
    return dt.timedelta(0, seconds, nanos // 1000 if nanos >= 0 else -(-nanos // 1000))


def timedelta_to_duration(value: dt.timedelta) -> duration_pb2.Duration:
    """Return a duration as a message; seconds and nanos have the same sign."""
    message = duration_pb2.Duration()
    fill_duration(message, value)
    return message


def fill_duration(message: duration_pb2.Duration, value: dt.timedelta) -> None:
    seconds, microseconds = value.days * _DAY_SECONDS + value.seconds, value.microseconds
    if seconds < 0 < microseconds:
        seconds, microseconds = seconds + 1, microseconds - 1_000_000
    message.seconds = seconds
    message.nanos = microseconds * 1000


def struct_to_mapping(struct: struct_pb2.Struct, field: str) -> dict[str, object]:
    """Return a JSON object that jsonb can hold; whole numbers as int, so that 1 is stored as 1.

    Refused are one too large or too deep, a NUL character, NaN and infinities.
    """
    if not struct.fields:
        return {}
    size = struct.ByteSize()
    if size > METADATA_BYTES_MAX:
        refuse(field, too_large(size, METADATA_BYTES_MAX))
    return _object_of(struct, field, 1)


def _object_of(struct: struct_pb2.Struct, field: str, depth: int) -> dict[str, object]:
    if depth > METADATA_DEPTH_MAX:
        refuse(field, f"must not be nested deeper than {METADATA_DEPTH_MAX} levels")
    result: dict[str, object] = {}
    for name, value in struct.fields.items():
        if "\0" in name:
            refuse(f"{field}.{name!r}", NUL)
        result[name] = _json_of(value, f"{field}.{name}", depth)
    return result


def _json_of(value: struct_pb2.Value, field: str, depth: int) -> object:
    match value.WhichOneof("kind"):
        case "string_value":
            if "\0" in value.string_value:
                refuse(field, NUL)
            return value.string_value
        case "number_value":
            return _number_of(value.number_value, field)
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return _object_of(value.struct_value, field, depth + 1)
        case "list_value":
            return _list_of(value.list_value, field, depth + 1)
        # A Value without a kind is malformed by its own contract; null is what was meant.
        case _:
            return None


def _list_of(values: struct_pb2.ListValue, field: str, depth: int) -> list[object]:
    if depth > METADATA_DEPTH_MAX:
        refuse(field, f"must not be nested deeper than {METADATA_DEPTH_MAX} levels")
    return [_json_of(value, f"{field}[{i}]", depth) for i, value in enumerate(values.values)]


def _number_of(number: float, field: str) -> int | float:
    if not math.isfinite(number):
        refuse(field, f"must be a finite number, got {number}")
    is_exact_integer = number.is_integer() and abs(number) <= _EXACT_INTEGER_MAX
    return int(number) if is_exact_integer else number


def mapping_to_struct(mapping: Mapping[str, object]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    fill_struct(struct, mapping)
    return struct


def fill_struct(struct: struct_pb2.Struct, mapping: Mapping[str, object]) -> None:
    """Write a JSON object into an empty message, which is present afterwards, if only empty."""
    if not mapping:
        struct.SetInParent()
        return
    fields = struct.fields
    for name, value in mapping.items():
        _fill_value(fields[name], value)


def _fill_value(message: struct_pb2.Value, value: object) -> None:
    match value:
        case None:
            message.null_value = struct_pb2.NULL_VALUE
        case str():
            message.string_value = value
        case bool():
            message.bool_value = value
        case int() | float():
            message.number_value = value
        case Mapping():
            fill_struct(message.struct_value, value)
        case list() | tuple():
            _fill_list(message.list_value, value)
        case _:
            no_json = f"{type(value).__name__} is not a JSON type"
            raise AssertionError(no_json)


def _fill_list(message: struct_pb2.ListValue, values: Sequence[object]) -> None:
    message.SetInParent()
    add = message.values.add
    for value in values:
        _fill_value(add(), value)
