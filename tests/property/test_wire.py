"""Values on the wire and in the columns of jobs: they survive round trips, or are refused."""

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import random
import types
import typing
from typing import Any

import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from progressor import errors, sdk
from progressor.api import jobs as job_codec
from progressor.api.calls import page_tokens
from progressor.domain.gates import constraint as domain
from progressor.domain.jobs.graph import decode_graph, encode_graph
from progressor.domain.jobs.job import Job, Node
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import JobOptions, Leadership, Part, ProcessKey
from progressor.sdk.values.constraints import constraints_from_wire, constraints_to_wire
from progressor.storage.postgres.rows.documents import options_text, part_of
from progressor.v1 import namespace_service_pb2, nodes_pb2, process_service_pb2, types_pb2
from progressor.wire import fields as wire
from progressor.wire import nodes as node_wire
from progressor.wire import processes as process_wire
from progressor.wire.shapes import Violations

PAYLOAD_BYTES_MAX = 20
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INSTANTS = st.datetimes(
    dt.datetime(1, 1, 3),  # noqa: DTZ001 - hypothesis adds the zone
    dt.datetime(9999, 12, 29, 23, 59, 59, 999_999),  # noqa: DTZ001
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

POLICIES = st.builds(
    RetryPolicy,
    initial_interval=(
        durations := st.timedeltas(dt.timedelta(microseconds=1), process_wire.INTERVAL_MAX)
    ),
    coefficient=st.floats(1, 1e300),
    interval_max=durations,
    jitter=st.floats(0, 1),
    attempts_max=st.integers(1, process_wire.ATTEMPTS_MAX),
    elapsed_max=st.none() | durations,
    non_retryable_reasons=st.lists(TEXTS, max_size=3).map(tuple),
)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    dt.datetime: INSTANTS,
    int: st.integers(1, 2**31 - 1),
    str: TEXTS.filter(bool),
    domain.Constraints: st.nothing(),
    RetryPolicy: POLICIES,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of a type: a dataclass by the types of its fields."""
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return st.one_of([values(arg) for arg in typing.get_args(hint)])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(
            hint, **{field.name: values(hints[field.name]) for field in dataclasses.fields(hint)}
        )
    return st.sampled_from(hint) if issubclass(hint, enum.Enum) else st.just(None)


@given(INSTANTS)
def test_an_instant_is_written_as_protobuf_does_and_comes_back(instant: dt.datetime) -> None:
    expected = timestamp_pb2.Timestamp()
    expected.FromDatetime(instant)

    written = wire.datetime_to_timestamp(instant)

    assert written == expected
    sent = timestamp_pb2.Timestamp.FromString(written.SerializeToString())
    assert wire.timestamp_to_datetime(sent, "at") == instant


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


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).filter(
    lambda each: len(each.encode()) <= wire.ID_BYTES_MAX
)
VERSIONS = st.lists(
    st.integers(0, domain.VERSION_PART_MAX), min_size=1, max_size=domain.VERSION_PARTS_MAX
).map(lambda parts: ".".join(map(str, parts)))
CONSTRAINTS = st.builds(
    sdk.Constraints,
    run_at=st.none() | INSTANTS,
    order=st.none() | st.tuples(NAMES, VERSIONS),
    gates=st.dictionaries(
        NAMES, st.none() | st.integers(0, domain.CAPACITY_MAX), max_size=domain.GATES_MAX
    ),
    priority=st.integers(1, domain.PRIORITY_MAX),
    hold=st.sampled_from(["task", "process"]),
)
LONG_TEXTS = st.text(max_size=300)
ANY_CONSTRAINTS = st.builds(
    types_pb2.Constraints,
    order=st.none() | st.builds(types_pb2.Order, key=LONG_TEXTS, version=LONG_TEXTS | VERSIONS),
    gates=st.lists(
        st.builds(types_pb2.GateUse, gate=LONG_TEXTS | st.just("g"), capacity=st.none() | INT32),
        max_size=domain.GATES_MAX + 2,
    ),
    priority=INT32 | st.integers(-1, 6),
    hold=st.integers(0, 4),
)


@given(CONSTRAINTS)
def test_the_engine_reads_the_constraints_that_the_sdk_writes(constraints: sdk.Constraints) -> None:
    message = constraints_to_wire(constraints)
    assert message is not None
    found = process_wire.constraints_from_wire(message, "constraints")

    order = None
    if constraints.order is not None:
        key, version = constraints.order.key, constraints.order.version
        order = domain.Order(key, domain.Version.parse(version))
    assert found == domain.Constraints(
        run_at=constraints.run_at,
        order=order,
        gates=constraints.gates,
        priority=constraints.priority,
        hold=domain.GateHold(constraints.hold.value),
    )
    assert constraints_from_wire(message) == constraints


@given(CONSTRAINTS, st.randoms())
def test_equal_constraints_have_one_text_whatever_the_order_of_their_gates(
    constraints: sdk.Constraints, chance: random.Random
) -> None:
    message = constraints_to_wire(constraints)
    assert message is not None
    shuffled = types_pb2.Constraints()
    shuffled.CopyFrom(message)
    del shuffled.gates[:]
    shuffled.gates.extend(chance.sample(list(message.gates), len(message.gates)))

    one = process_wire.constraints_from_wire(message, "c")
    other = process_wire.constraints_from_wire(shuffled, "c")

    assert str(one) == str(other)


@given(ANY_CONSTRAINTS)
def test_any_constraints_are_within_bounds_or_rejected_by_field(
    message: types_pb2.Constraints,
) -> None:
    violations = Violations()
    found = violations.attempt(process_wire.constraints_from_wire, message, "constraints")
    if found is None:
        with pytest.raises(errors.InvalidRequestError) as refused:
            violations.raise_any()
        assert all(
            violation.field.startswith("constraints.") for violation in refused.value.violations
        )
        assert all(len(violation.description) < 1000 for violation in refused.value.violations)
        return
    assert len(found.gates) == len(message.gates) <= domain.GATES_MAX
    assert 1 <= found.priority <= domain.PRIORITY_MAX
    for gate, capacity in found.gates.items():
        assert 0 < len(gate.encode()) <= wire.ID_BYTES_MAX
        assert capacity is None or 0 <= capacity <= domain.CAPACITY_MAX
    if found.order is not None:
        parts = found.order.version.parts
        assert 1 <= len(parts) <= domain.VERSION_PARTS_MAX
        assert all(0 <= part <= domain.VERSION_PART_MAX for part in parts)


ANY_SPEC = st.builds(
    nodes_pb2.NodeSpec,
    name=TEXTS,
    namespace=st.just("stock") | TEXTS,
    process_id=TEXTS,
    predecessors=st.lists(TEXTS, max_size=3),
    args=st.binary(max_size=PAYLOAD_BYTES_MAX + 2),
    wants_results=st.booleans(),
    constraints=st.none() | ANY_CONSTRAINTS,
    retry_policy=st.none()
    | st.builds(namespace_service_pb2.RetryPolicy, coefficient=st.floats(), attempts_max=INT32),
    zombie_policy=st.integers(-1, 4),
    target=st.text(max_size=5),
)


@given(st.lists(ANY_SPEC, max_size=3), INT64, INT32)
def test_any_nodes_are_accepted_and_stored_or_refused_by_their_field(
    specs: list[nodes_pb2.NodeSpec], seconds: int, nanos: int
) -> None:
    message = nodes_pb2.StartNodes(nodes=specs)
    message.timeout.seconds, message.timeout.nanos = seconds, nanos
    sent = nodes_pb2.StartNodes.FromString(message.SerializeToString())

    violations = Violations()
    action = violations.attempt(
        node_wire.start_nodes_from_wire, sent, "start_nodes", PAYLOAD_BYTES_MAX
    )

    if action is None:
        with pytest.raises(errors.InvalidRequestError, match=r"^start_nodes"):
            violations.raise_any()
    else:
        assert [node.name for node in action.nodes] == [spec.name for spec in specs]
        assert all(len(node.args) <= PAYLOAD_BYTES_MAX for node in action.nodes)
        assert decode_graph(encode_graph(action)) == action


@given(POLICIES)
def test_a_policy_survives_a_round_trip(policy: RetryPolicy) -> None:
    message = process_wire.retry_policy_to_wire(policy)

    assert process_wire.retry_policy_from_wire(message, "retry_policy") == policy


@given(values(Job), st.lists(values(Node), max_size=5))
def test_changes_of_a_job_lose_no_node(job: Job, nodes: list[Node]) -> None:
    sent = list(job_codec.changes_to_wire(job, nodes, sent_revision=0))

    assert [node.name for message in sent for node in message.nodes] == [
        node.name for node in nodes
    ]
    assert sent[-1].job == job_codec.job_to_wire(job)


@given(INSTANTS, TEXTS.filter(lambda each: 0 < len(each.encode()) <= wire.ID_BYTES_MAX))
def test_a_page_token_comes_back_or_is_refused(created_at: dt.datetime, job_id: str) -> None:
    token = page_tokens.JOBS.write((created_at, job_id))

    try:
        assert page_tokens.JOBS.read(token) == (created_at, job_id)
    except errors.InvalidRequestError:
        assert any(wire.id_faults(job_id))


@given(st.text(max_size=60))
def test_any_text_is_a_page_token_or_refused(token: str) -> None:
    with contextlib.suppress(errors.InvalidRequestError):
        assert (page_tokens.JOBS.read(token) is None) == (not token)


@given(
    st.none() | st.sampled_from(Leadership),
    st.none() | st.tuples(st.builds(ProcessKey, st.integers(0, 1023), TEXTS, TEXTS), st.integers()),
    values(JobOptions),
)
def test_a_job_membership_is_read_as_it_was_stored(
    led_by: Leadership | None, follows: tuple[ProcessKey, int] | None, options: JobOptions
) -> None:
    text = options_text(options)
    column = None if text is None else json.loads(text)
    leader, node = (None, None) if follows is None else follows
    key = [None] * 3 if leader is None else [leader.slot, leader.namespace, leader.process_id]

    found = part_of([led_by and led_by.value, *key, node, column])

    assert found == Part(led_by=led_by, leader=leader, node=node, options=options)
    assert (text is None) == (options == JobOptions())
