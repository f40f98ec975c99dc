"""Round trips of what both codecs put on the wire."""

import contextlib
import datetime as dt
import json

import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from progressor import errors
from progressor.v1 import process_service_pb2, types_pb2
from progressor.wire import fields as wire

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INSTANTS = st.datetimes(
    dt.datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    dt.datetime(9999, 12, 30, 23, 59, 59, 999_999),  # noqa: DTZ001
    timezones=st.just(dt.UTC),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=5)


@given(INSTANTS)
def test_an_instant_comes_back_to_the_microsecond(instant: dt.datetime) -> None:
    sent = timestamp_pb2.Timestamp.FromString(
        wire.datetime_to_timestamp(instant).SerializeToString()
    )

    assert wire.timestamp_to_datetime(sent, "at") == instant


@given(INSTANTS)
def test_an_instant_is_written_as_protobuf_does(instant: dt.datetime) -> None:
    expected = timestamp_pb2.Timestamp()
    expected.FromDatetime(instant)

    assert wire.datetime_to_timestamp(instant) == expected


@given(INT64, INT32)
def test_any_timestamp_is_an_instant_or_refused(seconds: int, nanos: int) -> None:
    message = timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos)

    with contextlib.suppress(errors.InvalidRequestError):
        instant = wire.timestamp_to_datetime(message, "at")
        # What a session of PostgreSQL far west or east of Greenwich makes of it must exist too.
        for hours in (-15, 15):
            assert instant.astimezone(dt.timezone(dt.timedelta(hours=hours))) == instant


@given(st.timedeltas(dt.timedelta(days=-3_650_000), dt.timedelta(days=3_650_000)))
def test_a_duration_comes_back_to_the_microsecond(duration: dt.timedelta) -> None:
    message = wire.timedelta_to_duration(duration)
    expected = duration_pb2.Duration()
    expected.FromTimedelta(duration)

    assert message == expected
    assert wire.duration_to_timedelta(message, "after") == duration


@given(INT64, INT32)
def test_any_duration_is_one_or_refused(seconds: int, nanos: int) -> None:
    message = duration_pb2.Duration(seconds=seconds, nanos=nanos)

    with contextlib.suppress(errors.InvalidRequestError):
        duration = wire.duration_to_timedelta(message, "after")
        assert abs(duration - dt.timedelta(seconds=seconds)) < dt.timedelta(seconds=1)


@given(OBJECTS)
def test_an_object_comes_back_through_wire_and_json(mapping: dict[str, object]) -> None:
    sent = struct_pb2.Struct.FromString(wire.mapping_to_struct(mapping).SerializeToString())

    received = wire.struct_to_mapping(sent, "metadata")

    assert received == mapping
    assert json.loads(json.dumps(received, allow_nan=False)) == mapping
    assert wire.struct_to_mapping(wire.mapping_to_struct(received), "metadata") == received


@pytest.mark.parametrize(
    ("number", "stored"), [(1, "1"), (-0.0, "0"), (1.5, "1.5"), (1e300, "1e+300")]
)
def test_a_whole_number_is_stored_as_one(number: float, stored: str) -> None:
    received = wire.struct_to_mapping(wire.mapping_to_struct({"n": number}), "metadata")

    assert json.dumps(received["n"]) == stored


def test_a_value_without_a_kind_is_null() -> None:
    struct = struct_pb2.Struct(fields={"a": struct_pb2.Value()})

    assert wire.struct_to_mapping(struct, "metadata") == {"a": None}


def test_lists_may_not_be_deeper_than_objects() -> None:
    value: object = 1
    for _ in range(30):
        value = [value]

    with pytest.raises(errors.InvalidRequestError, match="nested deeper than 30"):
        wire.struct_to_mapping(wire.mapping_to_struct({"a": value}), "metadata")


def test_the_deepest_metadata_can_be_read_in_a_trace() -> None:
    deepest: dict[str, object] = {}
    for _ in range(wire.METADATA_DEPTH_MAX - 1):
        deepest = {"a": deepest}
    event = types_pb2.Event(metadata=wire.mapping_to_struct(deepest))
    task = process_service_pb2.TaskTrace(events=[event])
    packed = process_service_pb2.TraceResponse(tasks=[task]).SerializeToString()

    received = process_service_pb2.TraceResponse.FromString(packed)

    assert wire.struct_to_mapping(received.tasks[0].events[0].metadata, "m") == deepest


@given(st.text(max_size=400))
def test_the_message_about_a_refused_field_is_short(field: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as refused:
        wire.refuse(field, "why")

    assert refused.value.violations == (errors.FieldViolation(field[:256], "why"),)
