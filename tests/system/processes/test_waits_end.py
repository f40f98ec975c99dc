"""Every wait ends: with the answer, an error or the caller's deadline; and the task goes on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from grpc import StatusCode

from progressor.sdk import Client, ProcessStatus
from tests.support.engine.replica import (
    Env,
    Replica,
    broken,
    open_env,
    refusal,
    response,
)
from tests.support.processor.scripted import Hang, reject

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


class TestAwaitTask:
    async def test_of_a_task_in_line_waits_for_its_turn(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        accepted = await env.client.call("p", b"2", accept_only=True)
        async with asyncio.TaskGroup() as group:
            awaited = group.create_task(env.client.await_task("p", task_id=accepted.task_id))
            await env.points.wait("awaited", key=env.key("p"))
            hang.released.set()

        assert awaited.result().response == b"2"


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
