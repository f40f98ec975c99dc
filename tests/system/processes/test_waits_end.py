"""Every wait ends: with the answer, an error or the caller's deadline; and the task goes on."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from progressor.sdk import Client, ProcessStatus
from progressor.v1.process_service_pb2 import CallRequest
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.processor_service_pb2 import Complete, UnsetTimer
from tests.support.engine.replica import (
    Env,
    Replica,
    broken,
    open_env,
    refusal,
    response,
)
from tests.support.processor.scripted import Answer, Hang, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON = 1.0
"""A caller's patience, in seconds."""

Send = Callable[[Client], Any]


class TestDeadline:
    async def test_tells_the_task_that_goes_on(self, env: Env) -> None:
        await env.running("p", hang := Hang())

        status = await refusal(env.client.call("p", b"1", timeout=SOON))

        hang.released.set()
        answer = await env.client.await_task("p", task_id=int(status.metadata["task_id"]))
        assert (status.code, status.reason) == (
            StatusCode.DEADLINE_EXCEEDED,
            "DEADLINE_EXCEEDED",
        )
        assert answer.response == b"1"

    async def test_lets_the_answer_be_fetched_by_the_key(self, env: Env) -> None:
        await env.running("p", hang := Hang())

        await refusal(env.client.call("p", b"1", timeout=SOON, idempotency_key="k"))

        hang.released.set()
        answer = await env.client.await_task("p", idempotency_key="k")
        assert answer.response == b"1"

    async def test_lets_the_request_be_repeated_with_the_key(self, env: Env) -> None:
        await env.running("p", hang := Hang())
        await refusal(env.client.call("p", b"1", timeout=SOON, idempotency_key="k"))
        hang.released.set()

        answer = await env.client.call("p", b"1", idempotency_key="k")

        assert (answer.response, answer.deduplicated) == (b"1", True)
        assert len(env.asked_for("p")) == 2

    async def test_of_a_start_leaves_the_process_in_init(self, env: Env) -> None:
        env.processor.on_process("p", hang := Hang())

        status = await refusal(env.client.start("p", timeout=SOON))

        during = (await env.client.get("p")).process
        hang.released.set()
        await env.settled("p")
        assert status.metadata["task_id"]
        assert during.status is ProcessStatus.INIT
        assert (await env.client.get("p")).process.status is ProcessStatus.RUNNING

    async def test_of_one_in_line_keeps_it_in_line(self, env: Env) -> None:
        hang, _ = await env.busy("p")

        status = await refusal(env.client.call("p", b"2", timeout=SOON))

        hang.released.set()
        answer = await env.client.await_task("p", task_id=int(status.metadata["task_id"]))
        assert answer.response == b"2"

    async def test_of_await_task_is_told_with_the_task(self, env: Env) -> None:
        hang, task_id = await env.busy("p")

        status = await refusal(env.client.await_task("p", task_id=task_id, timeout=SOON))

        hang.released.set()
        assert status.code is StatusCode.DEADLINE_EXCEEDED
        assert status.metadata["task_id"] == str(task_id)

    async def test_that_has_passed_already_leaves_nothing(self, env: Env) -> None:
        await env.running("p")

        with pytest.raises(Exception, match=r"[Dd]eadline"):
            await env.client.call("p", timeout=1e-6)

        # Whatever was sent before has been seen once this is answered.
        await env.client.get("p")
        assert len((await env.client.trace("p")).tasks) == 1


class TestACallerWhoGoesAway:
    async def test_takes_nothing_back_from_a_running_step(self, env: Env) -> None:
        await env.running("p", hang := Hang())
        caller = asyncio.ensure_future(env.client.call("p", b"1", idempotency_key="k"))
        await env.asked("p", 2)
        caller.cancel()
        await asyncio.wait({caller})
        hang.released.set()

        answer = await env.client.await_task("p", idempotency_key="k")

        assert answer.response == b"1"

    async def test_takes_nothing_back_from_the_line(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        caller = asyncio.ensure_future(env.client.call("p", b"1", idempotency_key="k"))
        await env.points.wait("admitted", 3, key=env.key("p"))
        caller.cancel()
        await asyncio.wait({caller})
        hang.released.set()

        answer = await env.client.await_task("p", idempotency_key="k")

        assert answer.response == b"1"

    async def test_by_closing_the_connection_takes_nothing_back(self, env: Env) -> None:
        await env.running("p", hang := Hang())
        async with grpc.aio.insecure_channel(env.replica.address) as channel:
            request = CallRequest(
                namespace=env.namespace, process_id="p", args=b"1", idempotency_key="k"
            )
            call = ProcessServiceStub(channel).Call(request)
            await env.asked("p", 2)
        assert call.cancelled()
        hang.released.set()

        answer = await env.client.await_task("p", idempotency_key="k")

        assert answer.response == b"1"

    async def test_leaves_the_others_who_wait_for_the_same_task(self, env: Env) -> None:
        await env.running("p", hang := Hang())
        gone = asyncio.ensure_future(env.client.call("p", b"1", idempotency_key="k"))
        await env.asked("p", 2)
        async with asyncio.TaskGroup() as group:
            stays = group.create_task(env.client.call("p", b"1", idempotency_key="k"))
            await env.points.wait("admitted", 3, key=env.key("p"))
            gone.cancel()
            await asyncio.wait({gone})
            hang.released.set()

        assert stays.result().response == b"1"


class TestAwaitTask:
    async def test_of_a_task_that_has_ended_returns_at_once(self, env: Env) -> None:
        answer = await env.client.start("p", b"1")

        awaited = await env.client.await_task("p", task_id=answer.task_id)

        assert (awaited.task_id, awaited.type, awaited.response) == (answer.task_id, "init", b"1")

    async def test_of_a_task_in_line_waits_for_its_turn(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        accepted = await env.client.call("p", b"2", accept_only=True)
        async with asyncio.TaskGroup() as group:
            awaited = group.create_task(env.client.await_task("p", task_id=accepted.task_id))
            await env.points.wait("awaited", key=env.key("p"))
            hang.released.set()

        assert awaited.result().response == b"2"

    async def test_of_a_notify_returns_what_the_processor_said(self, env: Env) -> None:
        await env.running("p")
        accepted = await env.client.notify("p", b"1")

        awaited = await env.client.await_task("p", task_id=accepted.task_id)

        assert (awaited.type, awaited.response) == ("notify", b"1")

    async def test_of_a_rejected_call_is_rejected_alike(self, env: Env) -> None:
        await env.running("p", reject(5, reason="NO", message="no"))
        accepted = await env.client.call("p", accept_only=True)

        status = await refusal(env.client.await_task("p", task_id=accepted.task_id))

        assert (status.code, status.domain, status.reason) == (
            StatusCode.NOT_FOUND,
            "processor",
            "NO",
        )

    async def test_of_a_timer_that_was_replaced_says_that_it_is_cancelled(self, env: Env) -> None:
        await env.timed("p", Answer(response(unset_timer=UnsetTimer())))
        timer = (await env.client.get("p")).timer
        assert timer is not None
        await env.client.call("p")

        status = await refusal(env.client.await_task("p", task_id=timer.task_id))

        assert (status.code, status.reason) == (StatusCode.ABORTED, "TASK_CANCELLED")

    async def test_of_a_timer_waits_until_it_has_fired(self, env: Env) -> None:
        await env.timed("p", Answer(response(response=b"fired")), after=0.1)
        timer = (await env.client.get("p")).timer
        assert timer is not None

        awaited = await env.client.await_task("p", task_id=timer.task_id)

        assert (awaited.type, awaited.response) == ("timeout", b"fired")

    async def test_of_an_unknown_task_or_process_says_which(self, env: Env) -> None:
        await env.running("p")

        reasons = [
            (await refusal(env.client.await_task("p", task_id=10**12))).reason,
            (await refusal(env.client.await_task("p", idempotency_key="k"))).reason,
            (await refusal(env.client.await_task("q", task_id=1))).reason,
        ]

        assert reasons == ["TASK_NOT_FOUND", "TASK_NOT_FOUND", "PROCESS_NOT_FOUND"]


class TestGetThatAwaitsInit:
    async def test_returns_once_the_process_has_left_init(self, env: Env) -> None:
        hang = await env.starting("p")
        async with asyncio.TaskGroup() as group:
            got = group.create_task(env.client.get("p", await_init=True))
            await env.points.wait("awaited", key=env.key("p"))
            hang.released.set()

        assert got.result().process.status is ProcessStatus.RUNNING

    async def test_returns_also_when_init_has_broken(self, env: Env) -> None:
        hang = await env.starting("p", answer=broken().response)
        async with asyncio.TaskGroup() as group:
            got = group.create_task(env.client.get("p", await_init=True))
            await env.points.wait("awaited", key=env.key("p"))
            hang.released.set()

        assert got.result().process.status is ProcessStatus.ERROR

    async def test_that_was_rejected_says_that_there_is_no_process(self, env: Env) -> None:
        hang = await env.starting("p", answer=reject(3).response)
        async with asyncio.TaskGroup() as group:
            got = group.create_task(refusal(env.client.get("p", await_init=True)))
            await env.points.wait("awaited", key=env.key("p"))
            hang.released.set()

        assert got.result().reason == "PROCESS_NOT_FOUND"

    async def test_ends_with_the_deadline(self, env: Env) -> None:
        await env.starting("p")

        status = await refusal(env.client.get("p", await_init=True, timeout=SOON))

        assert status.code is StatusCode.DEADLINE_EXCEEDED


WAITERS: dict[str, tuple[Send, str, int]] = {
    "the caller of the step in hand": (
        lambda client: client.call("p", idempotency_key="busy"), "admitted", 3,
    ),
    "a caller in line": (lambda client: client.call("p", b"2"), "admitted", 3),
    "one who awaits the step in hand": (
        lambda client: client.await_task("p", idempotency_key="busy"), "awaited", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("waiter", WAITERS)
async def test_remove_tells(env: Env, waiter: str) -> None:
    send, point, count = WAITERS[waiter]
    await env.running("p", Hang())
    await env.client.call("p", idempotency_key="busy", accept_only=True)
    await env.asked("p", 2)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(send(env.client)))
        await env.points.wait(point, count, key=env.key("p"))
        await env.client.remove("p")

    status = waiting.result()
    assert (status.code, status.reason) == (StatusCode.ABORTED, "PROCESS_REMOVED")


class TestAStepInFlight:
    async def test_of_a_removed_process_is_fenced_off(self, env: Env) -> None:
        hang, task_id = await env.busy("p")
        await env.client.remove("p")
        hang.released.set()
        await env.points.wait("fenced", key=env.key("p"), task_id=task_id)

        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_of_a_removed_process_does_not_touch_its_successor(
        self, replica: Replica
    ) -> None:
        # The step of the old process hangs while the new one of the same id begins.
        async with open_env(replica, one_at_a_time=False) as env:
            hang, task_id = await env.busy("p", answer=response(b"old", aux_state=b"old"))
            await env.client.remove("p")
            await env.running("p")
            hang.released.set()
            await env.points.wait("fenced", key=env.key("p"), task_id=task_id)

            process = (await env.client.get("p")).process
            assert (process.last_event_id, process.state) == (0, None)

    async def test_of_a_finished_process_was_the_last(self, env: Env) -> None:
        hang, _ = await env.busy("p", answer=response(complete=Complete()))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(env.client.call("p")))
            await env.points.wait("admitted", 3, key=env.key("p"))
            hang.released.set()

        assert waiting.result().reason == "PROCESS_FINISHED"
        assert len(env.asked_for("p")) == 2
