"""Gates, constraints and Cancel through the clients: what is sent, what comes back."""

import datetime as dt
from typing import Any

import pytest

from progressor.sdk import Client, Constraints, GateHold
from progressor.v1 import gate_service_pb2 as gates
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.scripted_engine import ScriptedEngine, scripted_engine

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
SECOND = "2"
ONE_GATE = Constraints(gates={"db-1": 1})
ON_THE_WIRE = types.Constraints(
    gates=[types.GateUse(gate="db-1", capacity=1)], priority=3, hold=types.GATE_HOLD_TASK
)


def a_gate(key: str = "db-1") -> gates.Gate:
    message = gates.Gate(
        namespace="orders", gate=key, capacity=2, held=1, waiting_count=5, revision=4
    )
    message.created_at.FromDatetime(NOON)
    message.updated_at.FromDatetime(NOON)
    return message


@pytest.mark.parametrize("has_sessions", [True, False])
@pytest.mark.parametrize("rpc", ["start", "call", "notify"])
async def test_a_request_takes_constraints(
    rpc: str, *, has_sessions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEngine, "has_sessions", has_sessions)
    async with (
        scripted_engine(pb.CallResponse(), pb.CallResponse()) as engine,
        Client(engine.address) as client,
    ):
        await getattr(client, rpc)("p", constraints=ONE_GATE)
        await getattr(client, rpc)("p")

    constrained, plain = engine.requests
    assert constrained.constraints == ON_THE_WIRE
    assert not plain.HasField("constraints")
    assert engine.sessions == has_sessions


@pytest.mark.parametrize("task", [{"task_id": 7}, {"idempotency_key": "k"}])
async def test_cancel_names_the_task_one_way_and_returns_its_id(task: dict[str, Any]) -> None:
    async with (
        scripted_engine(pb.CancelResponse(task_id=7)) as engine,
        Client(engine.address, namespace="orders") as client,
    ):
        cancelled = await client.cancel("p", **task)

    assert cancelled == 7
    assert engine.requests == [pb.CancelRequest(namespace="orders", process_id="p", **task)]


@pytest.mark.parametrize("task", [{}, {"task_id": 1, "idempotency_key": "k"}])
async def test_cancel_refuses_none_or_both(task: dict[str, Any]) -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="exactly one"):
            await client.cancel("p", **task)


async def test_list_gates_follows_the_pages() -> None:
    script = (
        gates.ListGatesResponse(gates=[a_gate("a")], next_page_token=SECOND),
        gates.ListGatesResponse(gates=[a_gate("b")]),
    )
    async with (
        scripted_engine(*script) as engine,
        Client(engine.address, namespace="orders") as client,
    ):
        found = [it async for it in client.gates.list(page_size=1)]

    assert [it.gate for it in found] == ["a", "b"]
    assert (found[0].capacity, found[0].held, found[0].waiting_count) == (2, 1, 5)
    assert (found[0].revision, found[0].created_at, found[0].updated_at) == (4, NOON, NOON)
    assert engine.requests == [
        gates.ListGatesRequest(namespace="orders", page_size=1),
        gates.ListGatesRequest(namespace="orders", page_size=1, page_token=SECOND),
    ]


async def test_get_gate_returns_holders_and_line() -> None:
    answer = gates.GetGateResponse(gate=a_gate())
    holder = answer.holders.add(
        process_id="p", task_id=1, hold=types.GATE_HOLD_PROCESS, reserved=True
    )
    holder.held_at.FromDatetime(NOON)
    waiter = answer.line.add(
        process_id="q", task_id=2, priority=1, gates=["db-1", "db-2"], aged=True
    )
    waiter.since.FromDatetime(NOON)
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        view = await client.gates.get("db-1", namespace="orders")

    assert engine.requests == [gates.GetGateRequest(namespace="orders", gate="db-1")]
    assert view.gate.gate == "db-1"
    [held], [waiting] = view.holders, view.line
    assert (held.process_id, held.task_id, held.held_at) == ("p", 1, NOON)
    assert (held.hold, held.reserved) == (GateHold.PROCESS, True)
    assert (waiting.process_id, waiting.task_id, waiting.since) == ("q", 2, NOON)
    assert (waiting.priority, waiting.gates, waiting.aged) == (1, ("db-1", "db-2"), True)


async def test_set_gate_gives_its_capacity_even_where_that_is_0() -> None:
    answer = gates.SetGateResponse(gate=a_gate())
    async with (
        scripted_engine(answer) as engine,
        Client(engine.address, namespace="orders") as client,
    ):
        found = await client.gates.set("db-1", 0, expected_revision=3)

    [request] = engine.requests
    assert request == gates.SetGateRequest(
        namespace="orders", gate="db-1", capacity=0, expected_revision=3
    )
    assert request.HasField("capacity")
    assert found.capacity == 2


async def test_delete_gate_returns_nothing() -> None:
    async with (
        scripted_engine(gates.DeleteGateResponse()) as engine,
        Client(engine.address) as client,
    ):
        await client.gates.delete("db-1")

    assert engine.requests == [gates.DeleteGateRequest(namespace="default", gate="db-1")]
