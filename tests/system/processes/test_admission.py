"""Every cell of the admission table: what a request meets in each state of its process.

The states are entered for real: init by a processor that hangs, error by a call that fails,
finished by a processor that completes.
"""

from collections.abc import Awaitable

import pytest
from grpc import StatusCode

from progressor.sdk import Process, ProcessStatus, TaskStatus, WaitCause
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_INIT, TASK_TYPE_NOTIFY
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
    refusal,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXISTS = (StatusCode.ALREADY_EXISTS, "PROCESS_ALREADY_EXISTS")
NOT_FOUND = (StatusCode.NOT_FOUND, "PROCESS_NOT_FOUND")
FAILED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
IS_RUNNING = (StatusCode.FAILED_PRECONDITION, "PROCESS_IS_RUNNING")
FINISHED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FINISHED")

TYPES = {"call": TASK_TYPE_CALL, "notify": TASK_TYPE_NOTIFY}

REFUSED = [
    ("start", "init", EXISTS),
    ("start", "running", EXISTS),
    ("start", "error", EXISTS),
    ("start", "finished", EXISTS),
    ("call", "none", NOT_FOUND),
    ("call", "error", FAILED),
    ("call", "finished", FINISHED),
    ("notify", "none", NOT_FOUND),
    ("notify", "error", FAILED),
    ("notify", "finished", FINISHED),
    ("repair", "none", NOT_FOUND),
    ("repair", "init", IS_RUNNING),
    ("repair", "running", IS_RUNNING),
    ("repair", "finished", FINISHED),
    ("simple_repair", "none", NOT_FOUND),
    ("simple_repair", "init", IS_RUNNING),
    ("simple_repair", "running", IS_RUNNING),
    ("simple_repair", "finished", FINISHED),
    ("put", "init", EXISTS),
    ("put", "running", EXISTS),
    ("put", "error", EXISTS),
    ("put", "finished", EXISTS),
    ("remove", "none", NOT_FOUND),
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


def essence(process: Process) -> tuple[object, ...]:
    """Return all that a refused request must leave as it was."""
    return (
        process.status,
        process.previous_status,
        process.status_changed_at,
        process.detail,
        process.corrupted_by,
        process.last_event_id,
    )


@pytest.mark.parametrize(
    ("request_", "state", "expected"),
    [pytest.param(*cell, id=f"{cell[0]} with process {cell[1]}: {cell[2][1]}") for cell in REFUSED],
)
async def test_a_request_is_refused_with(
    env: Env, request_: str, state: str, expected: tuple[StatusCode, str]
) -> None:
    await enter(env, state)

    status = await refusal(send(env, request_))

    assert (status.code, status.reason) == expected
    assert (status.domain, status.metadata["process_id"]) == ("progressor", "p")


@pytest.mark.parametrize("request_", ["start", "call", "repair", "put"])
async def test_a_refused_request_leaves_no_trace(env: Env, request_: str) -> None:
    await env.finished("p")
    before = await env.client.get("p")
    tasks = (await env.client.trace("p")).tasks

    await refusal(send(env, request_))

    assert essence((await env.client.get("p")).process) == essence(before.process)
    assert (await env.client.trace("p")).tasks == tasks


async def test_a_call_on_a_broken_process_is_told_why_and_by_which_task(env: Env) -> None:
    task_id = await env.broken("p")

    status = await refusal(env.client.call("p"))

    assert status.metadata["detail"] == "it broke"
    assert status.metadata["broken_by"] == str(task_id)


class TestStart:
    async def test_returns_the_processors_response(self, env: Env) -> None:
        answer = await env.client.start("p", b"hello")

        assert answer.response == b"hello"
        assert not answer.deduplicated


@pytest.mark.parametrize("request_", ["call", "notify"])
class TestCallAndNotify:
    async def test_wait_behind_init(self, env: Env, request_: str) -> None:
        hang = await env.starting("p")
        accepted = await accept(env, request_)
        waiting = await env.client.get("p")
        hang.released.set()
        await env.settled("p", 2)

        init, behind = waiting.waits
        assert behind.task_id == accepted
        assert (behind.status, behind.cause) == (TaskStatus.WAITING, WaitCause.BEHIND_TASK)
        assert behind.behind_task_id == init.task_id
        assert asked_types(env) == [TASK_TYPE_INIT, TYPES[request_]]


class TestRepair:
    async def test_runs_at_once_on_a_broken_process(self, env: Env) -> None:
        await env.broken("p", answering(b"fixed", response=b"done"))

        answer = await env.client.repair("p", b"please")

        assert answer.response == b"done"
        process = (await env.client.get("p")).process
        assert (process.status, process.detail, process.corrupted_by) == (
            ProcessStatus.RUNNING,
            "",
            None,
        )
        assert env.asked_for("p")[-1].task.args == b"please"


class TestSimpleRepair:
    async def test_of_a_process_that_a_call_broke_makes_it_running_without_asking(
        self, env: Env
    ) -> None:
        await env.broken("p")
        asked = len(env.asked_for("p"))

        repaired = await env.client.simple_repair("p")

        process = (await env.client.get("p")).process
        assert repaired.task_id is None
        assert process.status is ProcessStatus.RUNNING
        assert process.previous_status is ProcessStatus.ERROR
        assert (process.detail, process.corrupted_by) == ("", None)
        assert len(env.asked_for("p")) == asked


@pytest.mark.parametrize("state", ["init", "running", "error", "finished"])
class TestRemove:
    async def test_leaves_nothing_of_a_process(self, env: Env, state: str) -> None:
        await enter(env, state)

        await env.client.remove("p")

        for request in (env.client.get("p"), env.client.trace("p"), env.client.remove("p")):
            assert (await refusal(request)).reason == "PROCESS_NOT_FOUND"
        assert [process async for process in env.client.list()] == []

    async def test_frees_the_id_for_a_new_process(self, replica: Replica, state: str) -> None:
        # The step of the old one may still hang when the new one begins.
        async with open_env(replica, one_at_a_time=False) as env:
            await enter(env, state)
            await env.client.remove("p")
            env.processor.on_process("p", answering(b"new"))

            await env.client.start("p")

            assert [event.payload for event in (await env.client.get("p")).history] == [b"new"]


async def accept(env: Env, request: str) -> int:
    if request == "notify":
        return (await env.client.notify("p", b"n")).task_id
    return (await env.client.call("p", b"c", accept_only=True)).task_id


def asked_types(env: Env) -> list[int]:
    return [request.task.type for request in env.asked_for("p")]
