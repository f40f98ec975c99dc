"""Rows in COPY's binary format from templates: one `%` per process fills in what varies.

Source: PostgreSQL manual, "COPY - Binary Format"; the types are as their recv functions read them.
"""

import struct
from collections.abc import Sequence

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
TRAILER = struct.pack("!h", -1)

_LENGTH = struct.Struct("!i")
_COUNT = struct.Struct("!h")


class Hole:
    """A hole in a template: ``size`` bytes without their length, or None for a field with it."""

    def __init__(self, size: int | None, *, field_count: int = 1) -> None:
        assert size is None or field_count == 1, "a length says how long one field is"
        self.size = size
        self.field_count = field_count


INT8 = Hole(8)
"""A bigint, or an instant."""
FIELD = Hole(None)
KEY = Hole(None, field_count=3)
"""The three fields of a process's key, which every row begins with."""

Field = bytes | Hole | None


def row(fields: Sequence[Field]) -> bytes:
    """Return the template of a row: constants, nulls and holes in their order."""
    count = sum(field.field_count if isinstance(field, Hole) else 1 for field in fields)
    return _escaped(_COUNT.pack(count)) + b"".join(map(_part, fields))


def field(data: bytes) -> bytes:
    """Return a field with its length, for a hole without a size."""
    return _LENGTH.pack(len(data)) + data


def key_fields(slot: int, namespace: bytes, process_id: bytes) -> bytes:
    """Return the contents of a `KEY` hole."""
    return b"".join((struct.pack("!ih", 2, slot), field(namespace), field(process_id)))


def int8(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def int4(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def jsonb(text: bytes) -> bytes:
    return b"\x01" + text


def _part(value: Field) -> bytes:
    if value is None:
        return _LENGTH.pack(-1)
    if not isinstance(value, Hole):
        return _escaped(field(value))
    return b"%b" if value.size is None else _escaped(_LENGTH.pack(value.size)) + b"%b"


def _escaped(constant: bytes) -> bytes:
    return constant.replace(b"%", b"%%")
