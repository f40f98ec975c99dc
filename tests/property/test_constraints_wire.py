"""Constraints on the wire: the engine reads what the SDK writes, and all of it is bounded."""

import datetime as dt
import random

from hypothesis import given
from hypothesis import strategies as st

from progressor import errors
from progressor.domain.gates import constraint as domain
from progressor.sdk.values.constraints import (
    Constraints,
    constraints_from_wire,
    constraints_to_wire,
)
from progressor.v1 import types_pb2 as types
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire

instants = st.datetimes(
    min_value=dt.datetime(1, 1, 3),  # noqa: DTZ001  the strategy adds the time zone
    max_value=dt.datetime(9999, 12, 29),  # noqa: DTZ001  as above
    timezones=st.just(dt.UTC),
)
keys = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).filter(
    lambda it: len(it.encode()) <= wire.ID_BYTES_MAX
)
numbers = st.integers(0, domain.VERSION_PART_MAX)
versions = st.lists(numbers, min_size=1, max_size=domain.VERSION_PARTS_MAX).map(
    lambda parts: ".".join(map(str, parts))
)
capacities = st.none() | st.integers(0, domain.CAPACITY_MAX)
valid = st.builds(
    Constraints,
    run_at=st.none() | instants,
    order=st.none() | st.tuples(keys, versions),
    gates=st.dictionaries(keys, capacities, max_size=domain.GATES_MAX),
    priority=st.integers(1, domain.PRIORITY_MAX),
    hold=st.sampled_from(["task", "process"]),
)

ints = st.integers(-(2**31), 2**31 - 1)
any_text = st.text(max_size=300)
anything = st.builds(
    types.Constraints,
    order=st.none() | st.builds(types.Order, key=any_text, version=any_text | versions),
    gates=st.lists(
        st.builds(types.GateUse, gate=any_text | st.just("g"), capacity=st.none() | ints),
        max_size=domain.GATES_MAX + 2,
    ),
    priority=ints | st.integers(-1, 6),
    hold=st.integers(0, 4),
)


@given(valid)
def test_what_the_sdk_writes_the_engine_reads(constraints: Constraints) -> None:
    message = constraints_to_wire(constraints)
    assert message is not None
    found = process_wire.constraints_from_wire(message, "constraints")

    order = constraints.order
    assert found == domain.Constraints(
        run_at=constraints.run_at,
        order=None
        if order is None
        else domain.Order(order.key, domain.Version.parse(order.version)),
        gates=constraints.gates,
        priority=constraints.priority,
        hold=domain.GateHold(constraints.hold.value),
    )
    assert constraints_from_wire(message) == constraints


@given(valid, st.randoms())
def test_equal_constraints_have_one_text_whatever_the_order_of_their_gates(
    constraints: Constraints, chance: random.Random
) -> None:
    message = constraints_to_wire(constraints)
    assert message is not None
    turned = types.Constraints()
    turned.CopyFrom(message)
    del turned.gates[:]
    gates = list(message.gates)
    chance.shuffle(gates)
    turned.gates.extend(gates)

    one = process_wire.constraints_from_wire(message, "c")
    other = process_wire.constraints_from_wire(turned, "c")

    assert str(one) == str(other)


@given(anything)
def test_any_constraints_are_within_bounds_or_rejected_by_field(message: types.Constraints) -> None:
    found, violations = read(message)

    assert (found is None) == bool(violations)
    assert all(it.field.startswith("constraints.") for it in violations)
    assert all(len(it.description) < 1000 for it in violations)
    if found is not None:
        assert_bounded(found)
        assert len(found.gates) == len(message.gates)


def read(
    message: types.Constraints,
) -> tuple[domain.Constraints | None, tuple[errors.FieldViolation, ...]]:
    """Return the constraints, or what is wrong with them."""
    try:
        return process_wire.constraints_from_wire(message, "constraints"), ()
    except errors.InvalidRequestError as error:
        return None, error.violations


def assert_bounded(found: domain.Constraints) -> None:
    assert len(found.gates) <= domain.GATES_MAX
    assert 1 <= found.priority <= domain.PRIORITY_MAX
    for gate, capacity in found.gates.items():
        assert 0 < len(gate.encode()) <= wire.ID_BYTES_MAX
        assert capacity is None or 0 <= capacity <= domain.CAPACITY_MAX
    if found.order is not None:
        parts = found.order.version.parts
        assert 1 <= len(parts) <= domain.VERSION_PARTS_MAX
        assert all(0 <= part <= domain.VERSION_PART_MAX for part in parts)
