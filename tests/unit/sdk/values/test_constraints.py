"""Constraints as users write them, and what becomes of them on the wire."""

import datetime as dt
from typing import Any

import pytest

from progressor.sdk import BYTES, Constraints, GateHold, NewTimer, Order, Step, TimeSpent
from progressor.sdk.values.constraints import (
    constraints_from_wire,
    constraints_to_wire,
    spent_from_wire,
)
from progressor.sdk.values.process_wire import timer_to_wire
from progressor.v1 import processor_service_pb2
from progressor.v1 import types_pb2 as types

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
FULL = Constraints(
    run_at=NOON,
    order=("db-1", "1.10"),
    gates={"db-1": 1, "rollout": None, "closed": 0},
    priority=1,
    hold="process",
)


def test_everything_goes_on_the_wire() -> None:
    expected = types.Constraints(
        order=types.Order(key="db-1", version="1.10"),
        gates=[
            types.GateUse(gate="db-1", capacity=1),
            types.GateUse(gate="rollout"),
            types.GateUse(gate="closed", capacity=0),
        ],
        priority=1,
        hold=types.GATE_HOLD_PROCESS,
    )
    expected.run_at.FromDatetime(NOON)

    assert constraints_to_wire(FULL) == expected


@pytest.mark.parametrize("constraints", [FULL, Constraints(), Constraints(gates=["a", "b"])])
def test_constraints_come_back_as_they_were_sent(constraints: Constraints) -> None:
    message = constraints_to_wire(constraints)

    assert constraints_from_wire(message) == constraints


def test_what_an_engine_does_not_say_has_the_meaning_of_the_contract() -> None:
    assert constraints_from_wire(types.Constraints()) == Constraints(priority=3, hold="task")
    newer = types.Constraints(hold=9)  # type: ignore[arg-type]  # a newer engine
    assert constraints_from_wire(newer).hold is GateHold.UNSPECIFIED


def test_keys_alone_are_gates_that_must_be_there() -> None:
    assert Constraints(gates=["a", "b"]) == Constraints(gates={"a": None, "b": None})


def test_an_order_is_a_pair() -> None:
    assert Constraints(order=("k", "1.2")) == Constraints(order=Order("k", "1.2"))


def test_one_text_is_no_list_of_keys() -> None:
    with pytest.raises(TypeError, match=r"as \['db-1'\]"):
        Constraints(gates="db-1")


def test_a_hold_that_there_is_not_is_refused() -> None:
    word: Any = "forever"
    with pytest.raises(ValueError, match="forever"):
        Constraints(hold=word)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a time zone"):
        constraints_to_wire(Constraints(run_at=NOON.replace(tzinfo=None)))


def test_holds_mirror_the_wire() -> None:
    assert {f"GATE_HOLD_{it.name}": it.number for it in GateHold} == dict(types.GateHold.items())


def test_a_timer_takes_constraints() -> None:
    timer = NewTimer(after=5, constraints=Constraints(gates=["g"]))

    assert list(timer_to_wire(timer, BYTES).constraints.gates) == [types.GateUse(gate="g")]


def test_a_step_sets_a_timer_with_constraints() -> None:
    response = processor_service_pb2.ProcessResponse()
    step: Step[None] = Step(processor_service_pb2.ProcessRequest(), response, codec=BYTES)

    step.set_timer(after=1, constraints=Constraints(gates={"g": 2}))
    set_first = response.set_timer.constraints.gates[0].capacity
    step.set_timer(after=1)

    assert set_first == 2
    assert not response.set_timer.HasField("constraints")


def test_time_spent_is_told_by_state() -> None:
    message = types.TimeSpent()
    names = ("time", "order", "process", "gates", "available", "running")
    for number, name in enumerate(names, start=1):
        getattr(message, name).FromTimedelta(dt.timedelta(microseconds=number))

    assert spent_from_wire(message) == TimeSpent(
        **{name: dt.timedelta(microseconds=number) for number, name in enumerate(names, start=1)}
    )
