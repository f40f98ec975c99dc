"""Malformed messages: made from the fields of a type, and by changes to the bytes of a good one."""

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_DEPTH_MAX = 4
_ITEMS_MAX = 3
_LONG = 100_000
_TEXTS = (
    "", "a", "fuzzed", "fuzzed", "p-1", "p-2", "p-3", "*", "\x00", "\n", "../..", "%s%n", "🙂" * 90,
    "'; DROP TABLE progressor.tasks; --", "a" * 257, "\u202e", "INF", "9" * 40, "-1",
    "0 0 31 2 *", "*/5 * * * *", "Europe/Berlin", "9.9.9",
)  # fmt: skip
_INTEGERS = (
    0, 1, 2, 7, 100, -1, 127, 128, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1,
)  # fmt: skip
_REALS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e308, float("inf"), float("-inf"), float("nan"), 5e-324)
_BOUNDS: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
        FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    }
)


class Inputs:
    """Draws messages; equal seeds draw equal ones."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def message(self, descriptor: Descriptor) -> bytes:
        """Return bytes for a message of a type: possible values, a mutation of them, or noise."""
        kind = self._chance.random()
        if kind < 0.05:
            return self._chance.randbytes(self._chance.randrange(400))
        good = self._filled(descriptor, 0).SerializeToString()
        return good if kind < 0.5 else self.mutated(good)

    def mutated(self, data: bytes) -> bytes:
        """Return the bytes with one to four changes."""
        for _ in range(self._chance.randint(1, 4)):
            data = self._chance.choice(_CHANGES)(self._chance, data)
        return data

    def _filled(self, descriptor: Descriptor, depth: int) -> Message:
        message = message_factory.GetMessageClass(descriptor)()
        share = self._chance.choice((0.2, 0.5, 0.9))
        for field in descriptor.fields:
            is_nested = field.type == FieldDescriptor.TYPE_MESSAGE
            if self._chance.random() < share and not (is_nested and depth == _DEPTH_MAX):
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        target = getattr(message, field.name)
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                self._fill_map(message, field, depth)
            elif field.is_repeated:
                for _ in range(self._chance.randint(1, _ITEMS_MAX)):
                    target.add().CopyFrom(self._filled(field.message_type, depth + 1))
            else:
                target.CopyFrom(self._filled(field.message_type, depth + 1))
        elif field.is_repeated:
            target.extend(self._value(field) for _ in range(self._chance.randint(1, _ITEMS_MAX)))
        else:
            setattr(message, field.name, self._value(field))

    def _fill_map(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        assert field.message_type is not None, "a map"
        key, value = field.message_type.fields
        target = getattr(message, field.name)
        for _ in range(self._chance.randint(1, _ITEMS_MAX)):
            if value.message_type is not None:
                target[self._value(key)].CopyFrom(self._filled(value.message_type, depth + 1))
            else:
                target[self._value(key)] = self._value(value)

    def _value(self, field: FieldDescriptor) -> object:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._chance.randbytes(self._chance.choice((0, 1, 16, 300)))
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._chance.choice(_TEXTS)
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._chance.random() < 0.5
        if field.cpp_type in _BOUNDS:
            if field.enum_type is not None and self._chance.random() < 0.8:
                return self._chance.choice(field.enum_type.values).number
            least, most = _BOUNDS[field.cpp_type]
            return self._chance.choice([it for it in _INTEGERS if least <= it <= most])
        return self._chance.choice(_REALS)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _flip(chance: random.Random, data: bytes) -> bytes:
    if not data:
        return b"\x0a"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _insert(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randint(1, 8)) + data[at:]


def _repeat(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at : at + 64] * chance.randint(2, 50) + data[at:]


def _announce(chance: random.Random, data: bytes) -> bytes:
    """Begin a field whose length is another than what follows has."""
    tag = _varint(chance.randrange(1, 40) << 3 | 2)
    return data + tag + _varint(chance.choice((1, 2**31, 2**35, _LONG)))


def _nest(chance: random.Random, data: bytes) -> bytes:
    """Put the bytes deep into fields with one number."""
    tag = _varint(chance.randrange(1, 20) << 3 | 2)
    for _ in range(chance.choice((1, 10, 150))):
        data = tag + _varint(len(data)) + data
    return data


def _pad(chance: random.Random, data: bytes) -> bytes:
    """Append a large field that no release knows."""
    count = chance.choice((10, _LONG))
    return data + _varint(1000 << 3 | 2) + _varint(count) + bytes(count)


_CHANGES: Sequence[Callable[[random.Random, bytes], bytes]] = (
    _flip, _flip, _cut, _insert, _repeat, _announce, _nest, _pad,
)  # fmt: skip
