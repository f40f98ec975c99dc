"""Malformed messages: the field at fault is found, and nothing is ever raised."""

import pytest

from progressor.api.calls.malformed import FIELDS_MAX, Malformed, deserializer
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2

BAD = b"\xff\xfe"


def field_of(kind: type[pb.PutRequest] | type[pb.CallRequest], data: bytes) -> str:
    found = deserializer(kind)(data)
    assert isinstance(found, Malformed)
    return found.violation.field


def piece(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + bytes([len(data)]) + data


@pytest.mark.parametrize(
    ("number", "field"), [(1, "namespace"), (2, "process_id"), (5, "idempotency_key")]
)
def test_a_text_that_is_not_utf8_is_named(number: int, field: str) -> None:
    data = piece(1, b"orders") + piece(3, BAD) + piece(number, BAD)

    assert field_of(pb.CallRequest, data) == field


def test_a_nested_text_is_named_by_its_path() -> None:
    event = types_pb2.NewEvent(payload=b"x").SerializeToString()
    struct = piece(1, piece(1, b"k") + piece(2, piece(3, BAD)))
    data = piece(10, event) + piece(10, piece(3, struct))

    assert field_of(pb.PutRequest, data) == "history[1].metadata.fields"


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a tag without a length
        b"\x0a\x05ab",  # a text that breaks off
        b"\xff" * 11,  # a number without end
        b"\x0b",  # the end of a group that was not opened
        b"\x09\x00",  # eight bytes that are one
        b"\x0f",  # a wire type that does not exist
        b"\x00",  # a field without a number
    ],
)
def test_bytes_that_are_no_message_at_all_are_refused_as_a_whole(data: bytes) -> None:
    assert field_of(pb.CallRequest, data) == "request"


def test_a_field_of_a_later_release_is_ignored() -> None:
    later = b"\xa0\x06\x01" + b"\xa1\x06" + b"\0" * 8 + b"\xa5\x06" + b"\0" * 4
    data = later + b"\xa2\x06\x02ab" + piece(1, BAD)

    assert field_of(pb.CallRequest, data) == "namespace"


def test_a_message_nested_without_end_is_refused_as_a_whole() -> None:
    value = b"\x1a\x02" + BAD
    for _ in range(300):
        inner = b"\x0a" + varint(len(value)) + value
        value = b"\x32" + varint(len(inner)) + inner
    entry = b"\x0a\x01k\x12" + varint(len(value)) + value
    struct = b"\x0a" + varint(len(entry)) + entry
    data = b"\x32" + varint(len(struct)) + struct

    assert field_of(pb.PutRequest, data) == "request"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_only_the_first_fields_are_looked_at() -> None:
    def after(count: int) -> str:
        return field_of(pb.CallRequest, b"\xa0\x06\x01" * count + piece(1, BAD))

    assert after(FIELDS_MAX - 1) == "namespace"
    assert after(FIELDS_MAX) == "request"


def test_fields_of_nested_messages_count_as_well() -> None:
    events = piece(10, piece(3, b"")) * (FIELDS_MAX // 2)

    assert field_of(pb.PutRequest, events + piece(1, BAD)) == "request"
