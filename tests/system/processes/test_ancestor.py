"""The ancestor's way with failures, of a namespace with `on_error` cancel and one attempt.

Any failure breaks its process at once; the timer and all that waits are cancelled; a repair, or a
simple repair, brings the process back with nothing but what it was broken by.
"""

import asyncio

import pytest
from google.rpc import code_pb2

from progressor.sdk import OnError, ProcessStatus, RetryPolicy, TaskStatus, TaskType
from tests.support.engine.reads import process_of, tasks_of
from tests.support.engine.replica import Env, answering, refusal
from tests.support.processor.scripted import Hang, Step, fail

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENV_OPTIONS = {"on_error": OnError.CANCEL, "retry_policy": RetryPolicy(attempts_max=1)}

FAILURES = {
    "retryable": fail(code_pb2.ABORTED, message="not now"),
    "an exception": fail(code_pb2.UNKNOWN, reason="KeyError", message="'a'"),
    "for good": fail(code_pb2.FAILED_PRECONDITION, message="no"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_a_failed_call_breaks_its_process_at_the_first_attempt(
    env: Env, failure: Step
) -> None:
    await env.timed("p", failure)

    status = await refusal(env.client.call("p"))

    assert (status.reason, status.metadata["own"]) == ("PROCESS_FAILED", "true")
    snapshot = await env.client.get("p")
    assert snapshot.process.status is ProcessStatus.ERROR
    assert (snapshot.timer, snapshot.waits) == (None, ())
    assert len(env.asked_for("p")) == 2


async def test_a_failed_start_leaves_a_broken_process(env: Env) -> None:
    env.processor.on_process("p", FAILURES["retryable"])

    await refusal(env.client.start("p"))

    process = await process_of(env)
    assert (process.status, process.previous_status) == (ProcessStatus.ERROR, ProcessStatus.INIT)


async def test_what_waits_is_cancelled_accepted_or_not(env: Env) -> None:
    hang = Hang(response=FAILURES["for good"].response)
    await env.running("p", hang)
    async with asyncio.TaskGroup() as group:
        breaking = group.create_task(refusal(env.client.call("p")))
        await env.asked("p", 2)
        waiting = group.create_task(refusal(env.client.call("p")))
        accepted = await env.client.notify("p")
        await env.points.wait("admitted", 4, key=env.key("p"))
        hang.released.set()

    assert breaking.result().metadata["own"] == "true"
    assert waiting.result().metadata["own"] == "false"
    status = await refusal(env.client.await_task("p", task_id=accepted.task_id))
    assert (status.reason, status.metadata["own"]) == ("PROCESS_FAILED", "false")


async def test_a_failed_timer_runs_again_by_a_simple_repair(env: Env) -> None:
    await env.timed("p", FAILURES["retryable"], answering(), after=0)
    await env.settled("p", 2)

    await env.client.simple_repair("p")
    await env.settled("p", 3)

    [timer] = [it for it in await tasks_of(env) if it.type is TaskType.TIMEOUT]
    assert timer.status is TaskStatus.FINISHED
    assert (await process_of(env)).status is ProcessStatus.RUNNING


async def test_a_repair_brings_the_process_back_without_what_was_cancelled(env: Env) -> None:
    await env.timed("p", FAILURES["for good"], answering(response=b"done"))
    await refusal(env.client.call("p"))

    answer = await env.client.repair("p")

    assert answer.response == b"done"
    snapshot = await env.client.get("p")
    assert (snapshot.process.status, snapshot.timer) == (ProcessStatus.RUNNING, None)


async def test_a_failed_repair_leaves_the_process_as_it_was(env: Env) -> None:
    await env.broken("p", FAILURES["retryable"])
    before = await process_of(env)

    status = await refusal(env.client.repair("p"))

    assert status.reason == "REPAIR_FAILED"
    assert await process_of(env) == before
