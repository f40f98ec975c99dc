"""Every cell of the admission table: what a request meets in each state of its process.

The states are entered for real: init by a processor that hangs, error by a call that fails,
finished by a processor that completes.
"""

import asyncio
from collections.abc import Awaitable

import pytest
from grpc import StatusCode

from progressor.sdk import ProcessStatus, Reply
from tests.support.engine.replica import (
    Env,
    answering,
    refusal,
)

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


async def test_a_simple_repair_after_a_broken_call_asks_nobody(env: Env) -> None:
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
