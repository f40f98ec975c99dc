"""Gates over the API: constraints, Cancel and GateService on the real engine.

The first calls hold what the second ones wait for, and are released by the test. What waits says so
itself, in what Get tells of its task, or by standing in a gate's line.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc
import pytest

from progressor import errors
from progressor.sdk import (
    Constraints,
    GateHold,
    GateView,
    TaskStatus,
)
from tests.support.engine.replica import (
    Env,
    Replica,
    refusal,
)
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

Code = grpc.StatusCode
MUTEX = Constraints(gates={"mutex": 1})


@contextlib.asynccontextmanager
async def held(
    env: Env, process_id: str = "holder", constraints: Constraints = MUTEX
) -> AsyncIterator[Hang]:
    hang = Hang()
    await env.running(process_id, hang)
    await env.client.call(process_id, constraints=constraints, accept_only=True)
    await env.asked(process_id, 2)
    try:
        yield hang
    finally:
        hang.released.set()
        await env.settled(process_id, 2)


async def line_of(env: Env, gate: str = "mutex") -> list[str]:
    return [each.process_id for each in (await env.client.gates.get(gate)).line]


async def status_of(env: Env, process_id: str, task_id: int) -> TaskStatus:
    tasks = (await env.client.trace(process_id)).tasks
    return next(task.status for task in tasks if task.task_id == task_id)


class TestConstraints:
    async def test_a_gate_that_is_not_there_needs_a_capacity(self, env: Env) -> None:
        await env.running("p")

        with pytest.raises(errors.GateNotFoundError) as caught:
            await env.client.call("p", constraints=Constraints(gates=["nowhere"]))
        status = await refusal(env.client.start("q", constraints=Constraints(gates=["nowhere"])))

        assert (caught.value.namespace, caught.value.gate) == (env.namespace, "nowhere")
        assert (status.code, status.metadata["gate"]) == (Code.NOT_FOUND, "nowhere")
        assert len((await env.client.trace("p")).tasks) == 1
        with pytest.raises(errors.ProcessNotFoundError):
            await env.client.get("q")

    async def test_a_capacity_counts_for_a_new_gate_only(self, env: Env) -> None:
        await env.client.start("p", constraints=Constraints(gates={"g": 2}))
        await env.client.start("q", constraints=Constraints(gates={"g": 9}))

        assert (await env.client.gates.get("g")).gate.capacity == 2


class TestCancel:
    @pytest.mark.parametrize("by", ["task_id", "idempotency_key"])
    async def test_waiting_callers_get_an_error(self, env: Env, by: str) -> None:
        await env.running("p")
        async with held(env):
            waiting = asyncio.ensure_future(
                refusal(env.client.call("p", idempotency_key="k", constraints=MUTEX))
            )
            [admitted] = (await env.points.wait("admitted", 2, key=env.key("p")))[1:]
            task_id = admitted["task_id"]
            named = {"task_id": task_id, "idempotency_key": "k"}
            cancelled = await env.client.cancel("p", **{by: named[by]})
            told = await waiting
            line = await line_of(env)

        assert cancelled == task_id
        assert (told.code, told.reason) == (Code.ABORTED, "TASK_CANCELLED")
        assert await status_of(env, "p", task_id) is TaskStatus.CANCELLED
        assert line == []
        assert (await env.client.call("p", b"1")).response == b"1"

    async def test_with_an_init_task_its_process_goes(self, env: Env) -> None:
        async with held(env):
            waiting = asyncio.ensure_future(refusal(env.client.start("p", constraints=MUTEX)))
            [admitted] = await env.points.wait("admitted", 1, key=env.key("p"))
            await env.client.cancel("p", task_id=admitted["task_id"])
            told = await waiting

        assert (told.code, told.reason) == (Code.ABORTED, "PROCESS_REMOVED")
        with pytest.raises(errors.ProcessNotFoundError):
            await env.client.get("p")

    async def test_a_call_that_waits_behind_another_can_be_cancelled(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        accepted = await env.client.call("p", b"2", accept_only=True)
        await env.client.cancel("p", task_id=accepted.task_id)
        hang.released.set()
        await env.settled("p", 2)

        assert (await env.client.call("p", b"3")).response == b"3"
        assert [request.task.args for request in env.asked_for("p")] == [b"", b"busy", b"3"]

    async def test_what_has_ended_is_not_cancelled(self, env: Env) -> None:
        await env.running("p")
        answer = await env.client.call("p", b"1")

        status = await refusal(env.client.cancel("p", task_id=answer.task_id))

        assert (status.code, status.reason) == (Code.FAILED_PRECONDITION, "TASK_HAS_ENDED")

    async def test_what_is_not_there_is_not_cancelled(self, env: Env) -> None:
        await env.running("p")

        with pytest.raises(errors.TaskNotFoundError):
            await env.client.cancel("p", idempotency_key="unknown")
        with pytest.raises(errors.ProcessNotFoundError):
            await env.client.cancel("q", task_id=1)
        with pytest.raises(errors.NamespaceNotFoundError):
            await env.client.cancel("p", task_id=1, namespace="nowhere")
        with pytest.raises(errors.InvalidRequestError, match="task_id"):
            await env.client.cancel("p", task_id=0)

    async def test_it_is_told_in_the_log(self, env: Env, caplog: pytest.LogCaptureFixture) -> None:
        async with held(env):
            accepted = await env.client.start("p", constraints=MUTEX, accept_only=True)
            with caplog.at_level(logging.INFO):
                await env.client.cancel("p", task_id=accepted.task_id)

        [line] = [record for record in caplog.records if record.getMessage() == "task cancelled"]
        fields = {name: vars(line)[name] for name in ("namespace", "process_id", "task_id")}
        assert fields == {
            "namespace": env.namespace,
            "process_id": "p",
            "task_id": accepted.task_id,
        }


class TestGateService:
    async def test_a_gate_shows_who_holds_it_and_who_waits(self, env: Env) -> None:
        wide = Constraints(gates={"mutex": 1, "wide": 5}, priority=2)
        async with held(env):
            await env.client.start("p", constraints=wide, accept_only=True)
            view: GateView = await env.client.gates.get("mutex")
        await env.asked("p")

        [holder], [waiter] = view.holders, view.line
        gate = view.gate
        assert (gate.namespace, gate.gate, gate.capacity) == (env.namespace, "mutex", 1)
        assert (gate.held, gate.waiting_count, gate.revision) == (1, 1, 1)
        assert (holder.process_id, holder.hold, holder.reserved) == (
            "holder",
            GateHold.TASK,
            False,
        )
        assert (waiter.process_id, waiter.priority, waiter.is_aged) == ("p", 2, False)
        assert set(waiter.gates) == {"mutex", "wide"}
        assert gate.created_at <= holder.held_at <= waiter.since

    async def test_a_capacity_is_set_at_the_revision_that_is_expected(self, env: Env) -> None:
        made = await env.client.gates.set("g", 1)
        changed = await env.client.gates.set("g", 2, expected_revision=made.revision)

        with pytest.raises(errors.GateChangedError) as caught:
            await env.client.gates.set("g", 3, expected_revision=made.revision)
        with pytest.raises(errors.GateNotFoundError):
            await env.client.gates.set("nowhere", 1, expected_revision=1)

        assert (made.revision, changed.revision) == (1, 2)
        assert (caught.value.gate, caught.value.expected, caught.value.actual) == ("g", 1, 2)
        assert (await env.client.gates.get("g")).gate.capacity == 2

    async def test_a_gate_in_use_is_not_deleted(self, env: Env) -> None:
        async with held(env):
            status = await refusal(env.client.gates.delete("mutex"))
        await env.client.gates.delete("mutex")

        assert (status.code, status.reason) == (Code.FAILED_PRECONDITION, "GATE_IN_USE")
        with pytest.raises(errors.GateNotFoundError):
            await env.client.gates.get("mutex")
        with pytest.raises(errors.GateNotFoundError):
            await env.client.gates.delete("mutex")

    async def test_gates_are_listed_page_by_page_in_the_order_of_their_keys(self, env: Env) -> None:
        keys = ["é", "b", "a/2", "a", "\U0001f9ea"]
        for key in keys:
            await env.client.gates.set(key, 1)

        found = [gate.gate async for gate in env.client.gates.list(page_size=2)]

        assert found == sorted(keys, key=str.encode)

    async def test_gates_go_with_their_namespace(self, replica: Replica, env: Env) -> None:
        config = await env.client.namespaces.get(env.namespace)
        async with replica.namespace("short-lived", config.processor_targets[0]) as client:
            await client.gates.set("g", 1)
            await client.namespaces.delete("short-lived")
        async with replica.namespace("short-lived", config.processor_targets[0]) as client:
            found = [gate async for gate in client.gates.list()]
            await client.namespaces.delete("short-lived")

        assert found == []

    async def test_changes_are_told_in_the_log(
        self, env: Env, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            await env.client.gates.set("g", 3)
            await env.client.gates.delete("g")

        told = [
            (record.getMessage(), vars(record)["namespace"], vars(record)["gate"])
            for record in caplog.records
            if record.getMessage().startswith("gate ")
        ]
        assert told == [("gate set", env.namespace, "g"), ("gate deleted", env.namespace, "g")]


async def test_a_task_without_constraints_passes_a_closed_gate(env: Env) -> None:
    async with held(env):
        answer = await env.client.start("p", b"1")

    assert answer.response == b"1"
