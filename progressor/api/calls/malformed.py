"""Requests that do not parse as their type become `Malformed` values, at no cost to those that do.

grpc.aio 1.85 ends a call whose deserializer raises with UNKNOWN and logs a traceback.
"""

import dataclasses
from collections.abc import Callable
from typing import NoReturn

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from progressor import errors

_UNPARSED = "the message could not be parsed"
_WHOLE = "request"
_DEPTH_MAX = 100  # Where protobuf's own parsers stop.
_VARINT_BYTES_MAX = 10

FIELDS_MAX = 5_000
"""Fields that are looked at to find the one at fault, 1 us each; a message may have millions."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Malformed:
    """A request that could not be parsed, and the field at fault where that is known."""

    violation: errors.FieldViolation

    def refuse(self) -> NoReturn:
        raise errors.InvalidRequestError(self.violation)


def deserializer(kind: type[Message]) -> Callable[[bytes], Message | Malformed]:
    parse, descriptor = kind.FromString, kind.DESCRIPTOR
    assert isinstance(descriptor, Descriptor), "generated messages have a descriptor"

    def deserialize(data: bytes) -> Message | Malformed:
        try:
            return parse(data)
        except DecodeError:
            return Malformed(violation_of(descriptor, data))

    return deserialize


def violation_of(descriptor: Descriptor, data: bytes) -> errors.FieldViolation:
    """Return what is wrong with bytes that protobuf refused: the first text that is not UTF-8."""
    try:
        field = _Search().bad_text(descriptor, memoryview(data), 0)
    except _NotFoundError:
        field = None
    if field is None:
        return errors.FieldViolation(_WHOLE, _UNPARSED)
    return errors.FieldViolation(field, f"{_UNPARSED}: this is not valid UTF-8")


class _NotFoundError(Exception):
    """The bytes are truncated or not in wire format, or there are too many fields."""


class _Search:
    """Looks for the first text that is not UTF-8, among the first `FIELDS_MAX` fields."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def bad_text(self, descriptor: Descriptor, data: memoryview, depth: int) -> str | None:
        """Return the path of the text; None if all are well. Raises `_NotFoundError`."""
        if depth > _DEPTH_MAX:
            raise _NotFoundError
        seen: dict[int, int] = {}
        position = 0
        while position < len(data):
            self._left -= 1
            if self._left < 0:
                raise _NotFoundError
            tag, position = _varint(data, position)
            number, wire_type = tag >> 3, tag & 7
            if wire_type != _LENGTH:
                position = _skip(data, position, wire_type)
                continue
            size, position = _varint(data, position)
            position, start = position + size, position
            if position > len(data):
                raise _NotFoundError
            field = descriptor.fields_by_number.get(number)
            if field is None:
                continue
            index = seen[number] = seen.get(number, -1) + 1
            bad = self._in_field(field, data[start:position], depth)
            if bad is not None:
                return _path(field, index, bad)
        return None

    def _in_field(self, field: FieldDescriptor, data: memoryview, depth: int) -> str | None:
        """Return the path within a field, empty for the field itself; None if all is well."""
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type is not None, "a field of messages has their type"
            return self.bad_text(field.message_type, data, depth + 1)
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                str(data, "utf-8")
            except UnicodeDecodeError:
                return ""
        return None


def _path(field: FieldDescriptor, index: int, inner: str) -> str:
    message_type = field.message_type
    if message_type is not None and message_type.GetOptions().map_entry:
        return field.name
    own = f"{field.name}[{index}]" if field.is_repeated else field.name
    return f"{own}.{inner}" if inner else own


def _skip(data: memoryview, position: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        return _varint(data, position)[1]
    if wire_type not in _FIXED_SIZES:
        raise _NotFoundError
    return position + _FIXED_SIZES[wire_type]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if position + index >= len(data):
            raise _NotFoundError
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the bit that says more bytes follow
            return value, position + index + 1
    raise _NotFoundError
