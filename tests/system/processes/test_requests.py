"""What a request meets in each state of its process, and every wait ends.

The states are entered for real: init by a processor that hangs, error by a call that fails,
finished by a processor that completes. A wait ends with the answer, an error or the caller's
deadline; and the task goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from grpc import StatusCode

from progressor.sdk import Client, ProcessStatus, Reply
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    broken,
    open_env,
    refusal,
    response,
)
from tests.support.processor.scripted import Hang, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXISTS = (StatusCode.ALREADY_EXISTS, "PROCESS_ALREADY_EXISTS")
NOT_FOUND = (StatusCode.NOT_FOUND, "PROCESS_NOT_FOUND")
FAILED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
IS_RUNNING = (StatusCode.FAILED_PRECONDITION, "PROCESS_IS_RUNNING")
FINISHED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FINISHED")

# Requests, the states of the process in which they are refused, and how.
REFUSED = [
    ("start put", "init running error finished", EXISTS),
    ("call notify repair simple_repair remove", "none", NOT_FOUND),
    ("call notify", "error", FAILED),
    ("call notify repair simple_repair", "finished", FINISHED),
    ("repair simple_repair", "init running", IS_RUNNING),
]
CELLS = [
    pytest.param(request, state, expected, id=f"{request} with process {state}: {expected[1]}")
    for requests, states, expected in REFUSED
    for request in requests.split()
    for state in states.split()
]


async def enter(env: Env, state: str) -> None:
    """Bring process ``p`` into a state."""
    if state == "init":
        await env.starting("p")
    elif state == "running":
        await env.running("p")
    elif state == "error":
        await env.broken("p")
    elif state == "finished":
        await env.finished("p")


def send(env: Env, request: str) -> Awaitable[object]:
    """Send a request of a kind to process ``p``."""
    method: Awaitable[object] = getattr(env.client, request)("p")
    return method


@pytest.mark.parametrize(("request_", "state", "expected"), CELLS)
async def test_a_request_is_refused_with(
    env: Env, request_: str, state: str, expected: tuple[StatusCode, str]
) -> None:
    await enter(env, state)

    status = await refusal(send(env, request_))

    assert (status.code, status.reason) == expected
    assert (status.domain, status.metadata["process_id"]) == ("progressor", "p")


async def test_a_repair_brings_a_broken_process_back(env: Env) -> None:
    await env.broken("p", answering(b"fixed", response=b"done"))

    answer = await env.client.repair("p", b"please")

    process = (await env.client.get("p")).process
    assert answer.response == b"done"
    assert (process.status, process.detail) == (ProcessStatus.RUNNING, "")
    assert process.corrupted_by is None
    assert env.asked_for("p")[-1].task.args == b"please"


async def test_a_simple_repair_after_a_broken_call_does_not_call_the_processor(env: Env) -> None:
    await env.broken("p")
    asked = len(env.asked_for("p"))

    repaired = await env.client.simple_repair("p")

    process = (await env.client.get("p")).process
    assert repaired.task_id is None
    assert (process.status, process.previous_status) == (ProcessStatus.RUNNING, ProcessStatus.ERROR)
    assert (process.detail, process.corrupted_by) == ("", None)
    assert len(env.asked_for("p")) == asked


class TestAnIdempotencyKey:
    async def test_makes_a_hundred_calls_at_once_one_execution(self, env: Env) -> None:
        await env.running("p")

        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(_sent(env.client.call("p", b"a", idempotency_key="k")))
                for _ in range(100)
            ]

        replies = [call.result() for call in calls]
        assert len({(reply.task_id, reply.response) for reply in replies}) == 1
        assert sum(not reply.deduplicated for reply in replies) == 1
        assert len(env.asked_for("p")) == 2
        assert (await env.client.get("p")).process.last_event_id == 1

    async def test_is_refused_by_name_for_other_args(self, env: Env) -> None:
        await env.running("p")
        await env.client.call("p", b"a", idempotency_key="k")

        status = await refusal(env.client.call("p", b"b", idempotency_key="k"))

        assert (status.code, status.reason) == (
            StatusCode.INVALID_ARGUMENT,
            "IDEMPOTENCY_KEY_REUSED",
        )
        assert status.metadata["idempotency_key"] == "k"
        assert len(env.asked_for("p")) == 2

    async def test_that_is_empty_makes_every_request_new(self, env: Env) -> None:
        await env.running("p")
        one = await env.client.call("p", b"a", idempotency_key="")
        other = await env.client.call("p", b"a", idempotency_key="")

        assert one.task_id != other.task_id


async def _sent(request: Awaitable[Reply]) -> Reply:
    return await request


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


async def test_a_running_step_completes_after_its_caller_has_disconnected(env: Env) -> None:
    await env.running("p", hang := Hang())
    caller = asyncio.ensure_future(env.client.call("p", b"1", idempotency_key="k"))
    await env.asked("p", 2)
    caller.cancel()
    await asyncio.wait({caller})
    hang.released.set()

    answer = await env.client.await_task("p", idempotency_key="k")

    assert answer.response == b"1"


async def test_await_task_waits_for_a_queued_task(env: Env) -> None:
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


async def test_a_step_in_flight_of_a_removed_process_does_not_touch_its_successor(
    replica: Replica,
) -> None:
    # The step of the old process hangs while the new one of the same id begins.
    async with open_env(replica, one_at_a_time=False) as env:
        hang, task_id = await env.busy("p", answer=response(b"old", aux_state=b"old"))
        await env.client.remove("p")
        await env.running("p")
        hang.released.set()
        await env.points.wait("revoked", key=env.key("p"), task_id=task_id)

        process = (await env.client.get("p")).process
        assert (process.last_event_id, process.state) == (0, None)
