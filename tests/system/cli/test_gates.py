"""Gates, constraints and cancel on the command line."""

import datetime as dt
from typing import Any

import pytest

from progressor.v1 import gate_service_pb2 as gates
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.support.api.scripted_engine import Cli, ScriptedEngine

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def a_gate(key: str = "db-1", waiting: int = 2) -> gates.Gate:
    message = gates.Gate(
        namespace="orders", gate=key, capacity=1, held=1, waiting_count=waiting, revision=4
    )
    message.created_at.FromDatetime(NOON)
    message.updated_at.FromDatetime(NOON)
    return message


def a_view() -> gates.GetGateResponse:
    view = gates.GetGateResponse(gate=a_gate())
    holder = view.holders.add(process_id="p", task_id=11, hold=types.GATE_HOLD_TASK)
    holder.held_at.FromDatetime(NOON)
    for process_id, task_id in (("q", 12), ("r\x1b[2J", 13)):
        waiter = view.line.add(
            process_id=process_id, task_id=task_id, priority=3, gates=["db-1", "db-2"]
        )
        waiter.since.FromDatetime(NOON)
    return view


@pytest.mark.parametrize("command", ["start", "call", "notify"])
def test_a_request_takes_all_constraints(command: str, engine: ScriptedEngine, cli: Cli) -> None:
    ended = cli(
        *(command, "p", "--gate", "db-1=1", "--gate", "rollout", "--order", "db-1=1.10"),
        *("--run-at", "2026-03-01T12:00:00Z", "--priority", "1", "--hold", "process"),
    )

    expected = types.Constraints(
        order=types.Order(key="db-1", version="1.10"),
        gates=[types.GateUse(gate="db-1", capacity=1), types.GateUse(gate="rollout")],
        priority=1,
        hold=types.GATE_HOLD_PROCESS,
    )
    expected.run_at.FromDatetime(NOON)
    assert ended.code == 0
    assert engine.requests[0].constraints == expected


@pytest.mark.parametrize("command", ["start", "call", "notify"])
def test_a_request_without_has_none(command: str, engine: ScriptedEngine, cli: Cli) -> None:
    cli(command, "p")

    assert not engine.requests[0].HasField("constraints")


@pytest.mark.parametrize(
    ("text", "gate", "capacity"),
    [("a", "a", None), ("a=0", "a", 0), ("a=b=2", "a=b", 2), ("a=b=", "a=b", None)],
)
def test_a_gate_is_a_key_and_perhaps_a_capacity(
    text: str, gate: str, capacity: int | None, engine: ScriptedEngine, cli: Cli
) -> None:
    cli("call", "p", "--gate", text)

    [use] = engine.requests[0].constraints.gates
    assert use == types.GateUse(gate=gate, capacity=capacity)


@pytest.mark.parametrize(
    ("option", "task"),
    [(("--task", "7"), {"task_id": 7}), (("--idempotency-key", "k"), {"idempotency_key": "k"})],
)
def test_cancel_names_a_task_by_its_id_or_its_key(
    option: tuple[str, ...], task: dict[str, Any], engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["Cancel"] = pb.CancelResponse(task_id=7)

    people = cli("cancel", "-n", "orders", "p", *option)
    document = cli("cancel", "-n", "orders", "p", *option, "--json").document

    assert (people.out, document) == ("cancelled task 7 of p\n", {"task_id": 7})
    assert engine.requests == [pb.CancelRequest(namespace="orders", process_id="p", **task)] * 2


def test_gates_are_listed(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["ListGates"] = gates.ListGatesResponse(
        gates=[a_gate(), a_gate("db-2", waiting=1000)]
    )

    people = cli("gate", "list", "-n", "orders").out
    document = cli("gate", "list", "-n", "orders", "--json").document

    assert engine.requests[0].namespace == "orders"
    assert "1 of 1" in people
    assert "1,000 or more" in people
    assert [it["gate"] for it in document["gates"]] == ["db-1", "db-2"]


def test_a_gate_shows_who_holds_it_and_who_comes_next(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetGate"] = a_view()

    ended = cli("gate", "get", "-n", "orders", "db-1")

    assert engine.requests == [gates.GetGateRequest(namespace="orders", gate="db-1")]
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["capacity", "1"] in lines
    assert ["p", "11", "2026-03-01", "12:00:00.000Z", "the", "task"] in lines
    since = ["2026-03-01", "12:00:00.000Z"]
    assert ["1", "q", "12", "3", *since, "db-1,", "db-2"] in lines
    assert ["2", "r", "[2J", "13", "3", *since, "db-1,", "db-2"] in lines


def test_a_gate_is_a_document_too(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetGate"] = a_view()

    document = cli("gate", "get", "-n", "orders", "db-1", "--json").document

    assert document["gate"]["capacity"] == 1
    assert document["holders"][0]["hold"] == "task"
    assert [it["process_id"] for it in document["line"]] == ["q", "r\x1b[2J"]


def test_a_capacity_is_set_at_a_revision(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["SetGate"] = gates.SetGateResponse(gate=a_gate())

    ended = cli("gate", "set", "-n", "orders", "db-1", "--capacity", "0", "--revision", "3")

    assert ended.code == 0
    assert engine.requests == [
        gates.SetGateRequest(namespace="orders", gate="db-1", capacity=0, expected_revision=3)
    ]
    assert engine.requests[0].HasField("capacity")


def test_a_gate_is_deleted(engine: ScriptedEngine, cli: Cli) -> None:
    assert cli("gate", "delete", "-n", "orders", "db-1").out == "deleted gate db-1\n"
    assert engine.requests == [gates.DeleteGateRequest(namespace="orders", gate="db-1")]
