"""Constraints and gates from the wire: the bounds of the proto comments, all violations at once."""

import datetime as dt
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.api import gates
from progressor.api.processes import requests
from progressor.domain.gates.constraint import (
    CAPACITY_MAX,
    GATES_MAX,
    Constraints,
    Order,
    Version,
)
from progressor.domain.processes.task import TaskType
from progressor.v1 import gate_service_pb2 as gates_pb
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.wire import processes as process_wire
from tests.unit.api.codecs.test_processes import fields_of

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NEVER = Timestamp(seconds=2**62)
LIMIT = 1000


def uses(*gates: tuple[str, int | None]) -> list[types.GateUse]:
    return [types.GateUse(gate=gate, capacity=capacity) for gate, capacity in gates]


def decoded(message: types.Constraints) -> Constraints:
    return process_wire.constraints_from_wire(message, "constraints")


def wrong(**fields: Any) -> list[str]:
    return fields_of(lambda: decoded(types.Constraints(**fields)))


def test_all_violations_of_a_request_are_reported_together() -> None:
    message = pb.CallRequest(
        namespace="Orders",
        process_id="",
        constraints=types.Constraints(
            run_at=NEVER,
            order=types.Order(key="", version="1.x"),
            gates=uses(("a", CAPACITY_MAX + 1), ("b", 1), ("", None), ("b", None), ("c\n", -1)),
            priority=6,
            hold=3,  # type: ignore[arg-type]  # a newer client
        ),
    )

    fields = fields_of(
        lambda: requests.request_from_wire(message, TaskType.CALL, {}, payload_bytes_max=LIMIT)
    )

    assert fields == [
        "namespace",
        "process_id",
        "constraints.run_at",
        "constraints.order.key",
        "constraints.order.version",
        "constraints.gates[0].capacity",
        "constraints.gates[2].gate",
        "constraints.gates[3].gate",
        "constraints.gates[4].gate",
        "constraints.gates[4].capacity",
        "constraints.priority",
        "constraints.hold",
    ]


def test_the_largest_number_of_gates_is_accepted_and_one_more_is_not() -> None:
    gates = uses(*((f"g{number}", None) for number in range(GATES_MAX + 1)))

    assert len(decoded(types.Constraints(gates=gates[1:])).gates) == GATES_MAX
    assert wrong(gates=gates) == ["constraints.gates"]


def test_beyond_the_limit_of_gates_only_the_first_are_checked() -> None:
    # However much nonsense comes, the answer stays short.
    assert wrong(gates=uses(*[("", None)] * 10_000)) == [
        "constraints.gates",
        *(f"constraints.gates[{index}].gate" for index in range(GATES_MAX)),
    ]


@pytest.mark.parametrize(
    "version",
    ["", ".", "1.", ".1", "1..2", "v1", "1.-2", " 1", "1\n", "\u0661", "2147483648",
     ".".join("1" * 17), "9" * 257, "9" * 100_000],
)  # fmt: skip
def test_an_invalid_version_is_refused_by_its_field(version: str) -> None:
    assert wrong(order=types.Order(key="k", version=version)) == ["constraints.order.version"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [("1", (1,)), ("1.0", (1,)), ("1.10", (1, 10)), ("2147483647", (2**31 - 1,)),
     (".".join("1" * 16), (1,) * 16)],
)  # fmt: skip
def test_a_version_is_its_numbers(text: str, parts: tuple[int, ...]) -> None:
    order = decoded(types.Constraints(order=types.Order(key="k", version=text))).order

    assert order == Order("k", Version(parts))


def test_a_repair_has_no_constraints() -> None:
    assert "constraints" not in pb.RepairRequest.DESCRIPTOR.fields_by_name


def test_a_timer_has_an_instant_of_its_own() -> None:
    message = types.SetTimer()
    message.constraints.run_at.FromDatetime(NOON)

    assert fields_of(lambda: process_wire.set_timer_from_wire(message, "set_timer", LIMIT)) == [
        "set_timer.constraints.run_at"
    ]


def test_a_timer_that_removes_waits_for_nothing_else() -> None:
    message = types.SetTimer(remove=True, constraints=types.Constraints(gates=uses(("g", 1))))

    assert fields_of(lambda: process_wire.set_timer_from_wire(message, "set_timer", LIMIT)) == [
        "set_timer.constraints"
    ]


def test_an_import_has_no_constraints() -> None:
    message = pb.PutRequest(
        namespace="orders",
        process_id="1",
        status=types.PROCESS_STATUS_RUNNING,
        timer=types.SetTimer(constraints=types.Constraints()),
    )

    assert fields_of(lambda: requests.put_from_wire(message, {}, payload_bytes_max=LIMIT)) == [
        "timer.constraints"
    ]


def test_all_violations_of_a_gate_are_reported_together() -> None:
    message = gates_pb.SetGateRequest(namespace="Orders", gate="a\n", expected_revision=-1)

    assert fields_of(lambda: gates.set_from_wire(message)) == [
        "namespace",
        "gate",
        "capacity",
        "expected_revision",
    ]
