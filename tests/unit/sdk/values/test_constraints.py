"""Constraints as users write them, and what becomes of them on the wire."""

import datetime as dt
from typing import Any

import pytest

from progressor.sdk import BYTES, Constraints, GateHold, Step
from progressor.sdk.values.constraints import (
    constraints_from_wire,
    constraints_to_wire,
)
from progressor.v1 import processor_service_pb2
from progressor.v1 import types_pb2 as types

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)


def test_what_an_engine_does_not_say_has_the_meaning_of_the_contract() -> None:
    assert constraints_from_wire(types.Constraints()) == Constraints(priority=3, hold="task")
    newer = types.Constraints(hold=9)  # type: ignore[arg-type]  # a newer engine
    assert constraints_from_wire(newer).hold is GateHold.UNSPECIFIED


def test_keys_alone_are_gates_that_must_be_there() -> None:
    assert Constraints(gates=["a", "b"]) == Constraints(gates={"a": None, "b": None})


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


def test_a_step_sets_a_timer_with_constraints() -> None:
    response = processor_service_pb2.ProcessResponse()
    step: Step[None] = Step(processor_service_pb2.ProcessRequest(), response, codec=BYTES)

    step.set_timer(after=1, constraints=Constraints(gates={"g": 2}))
    set_first = response.set_timer.constraints.gates[0].capacity
    step.set_timer(after=1)

    assert set_first == 2
    assert not response.set_timer.HasField("constraints")
