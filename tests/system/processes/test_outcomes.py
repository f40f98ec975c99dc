"""What becomes of a step: a rejection hurts its caller alone, a failure the process."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from google.rpc import code_pb2
from grpc import StatusCode

from progressor.sdk import (
    ProcessFailedError,
    ProcessStatus,
    RepairFailedError,
    StepFailedError,
    TaskFailedError,
    TaskStatus,
    WaitCause,
)
from progressor.sdk.transport.failures import Status
from progressor.v1.processor_service_pb2 import Complete, ProcessResponse, Reject
from tests.support.engine.reads import process_of, tasks_of
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    broken,
    open_env,
    refusal,
    response,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang, fail

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENV_OPTIONS = {"retry_policy": NOW_AND_THEN}
INVALID_ARGUMENT = 3
INTERNAL = "13"
FAILED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
TOLD = ("own", "task_id", "broken_by", "failure_code", "failure_reason", "detail")


@pytest_asyncio.fixture(loop_scope="module")
async def lenient(replica: Replica) -> AsyncIterator[Env]:
    """Return an environment whose calls fail alone, at the third attempt."""
    async with open_env(replica, retry_policy=NOW_AND_THEN, exhausted_call_fails_alone=True) as env:
        yield env


async def test_a_reject_reaches_the_caller_word_for_word(env: Env) -> None:
    refused = Reject(
        code=INVALID_ARGUMENT, message="no tea", reason="NO_TEA", metadata={"shelf": "3"}
    )
    await env.running("p", Answer(ProcessResponse(reject=refused)))

    status = await refusal(env.client.call("p"))

    assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "no tea")
    assert (status.domain, status.reason) == ("processor", "NO_TEA")
    assert status.metadata == {"shelf": "3"}


async def test_a_break_holds_the_timer_and_cancels_the_queue_and_notifies_its_callers(
    env: Env,
) -> None:
    hang = Hang(response=broken().response)
    await env.timed("p", hang)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(refusal(env.client.call("p")))
        await env.asked("p", 2)
        waiting = [group.create_task(refusal(env.client.call("p"))) for _ in range(2)]
        await env.points.wait("admitted", 4, key=env.key("p"))
        hang.released.set()

    breaker = first.result().metadata["task_id"]
    for status in (each.result() for each in waiting):
        assert (status.code, status.reason) == FAILED
        assert status.metadata["broken_by"] == breaker
        assert status.metadata["detail"] == "it broke"
    snapshot = await env.client.get("p")
    assert snapshot.timer is not None
    assert [wait.cause for wait in snapshot.waits] == [WaitCause.PROCESS_FAILED]
    assert [task.status for task in await tasks_of(env)] == [
        TaskStatus.FINISHED, TaskStatus.BLOCKED, TaskStatus.ERROR,
        TaskStatus.CANCELLED, TaskStatus.CANCELLED,
    ]  # fmt: skip


async def test_completion_cancels_waiting_calls_and_notifies_their_callers(env: Env) -> None:
    hang = Hang(response=response(complete=Complete()))
    await env.running("p", hang)
    async with asyncio.TaskGroup() as group:
        group.create_task(env.client.call("p"))
        await env.asked("p", 2)
        waiting = [group.create_task(refusal(env.client.call("p"))) for _ in range(3)]
        await env.points.wait("admitted", 5, key=env.key("p"))
        hang.released.set()

    told = {(each.result().code, each.result().reason) for each in waiting}
    assert told == {(StatusCode.FAILED_PRECONDITION, "PROCESS_FINISHED")}
    assert [task.status for task in await tasks_of(env)][2:] == [TaskStatus.CANCELLED] * 3
    assert len(env.asked_for("p")) == 2


async def test_simple_repair_runs_the_timer_that_broke_the_process_and_then_it_is_running(
    env: Env,
) -> None:
    hang = Hang(response=response(b"ran"))
    await env.timed("p", broken(), hang, after=0, args=b"tick")
    await env.settled("p", 2)

    repaired = await env.client.simple_repair("p")
    await env.asked("p", 3)
    during = await process_of(env)
    hang.released.set()
    await env.settled("p", 3)

    assert env.asked_for("p")[2].task.task_id == repaired.task_id
    assert env.asked_for("p")[2].task.args == b"tick"
    assert during.status is ProcessStatus.ERROR
    assert (await process_of(env)).status is ProcessStatus.RUNNING


@pytest.mark.parametrize("code", ["UNKNOWN", "ABORTED"])
async def test_a_failure_that_may_pass_is_retried_and_leaves_no_error(env: Env, code: str) -> None:
    await env.running("p", fail(code_pb2.Code.Value(code)), Answer())

    answer = await env.client.call("p", b"1")

    task = (await tasks_of(env))[1]
    assert answer.response == b"1"
    assert (task.attempt_count, task.status, task.error) == (2, TaskStatus.FINISHED, None)


async def test_a_call_that_fails_alone_leaves_its_process_as_it_was(lenient: Env) -> None:
    await lenient.timed("p", unavailable("gone"))
    before = await lenient.client.get("p")

    status = await refusal(lenient.client.call("p"))

    assert (status.reason, status.metadata["detail"]) == ("TASK_FAILED", "gone")
    assert await lenient.client.get("p") == before


def details(status: Status) -> list[str | None]:
    return [status.metadata.get(name) for name in TOLD]


async def breaker_of(env: Env) -> str:
    return str((await process_of(env)).corrupted_by)


async def test_the_error_says_that_the_callers_own_step_broke_the_process(env: Env) -> None:
    await env.running("p", broken())

    status = await refusal(env.client.call("p", idempotency_key="k"))
    later = await refusal(env.client.await_task("p", idempotency_key="k"))
    repeated = await refusal(env.client.call("p", idempotency_key="k"))

    breaker = await breaker_of(env)
    assert (status.code, status.reason) == FAILED
    assert details(status) == ["true", breaker, breaker, INTERNAL, "BROKEN", "it broke"]
    assert status.message == f"task {breaker} of this request broke process 'p': it broke"
    assert details(later) == details(repeated) == details(status)


async def test_a_later_caller_learns_what_broke_the_process(env: Env) -> None:
    await env.broken("p")

    for request in (env.client.call("p"), env.client.notify("p")):
        status = await refusal(request)

        breaker = await breaker_of(env)
        assert status.reason == "PROCESS_FAILED"
        assert details(status) == ["false", None, breaker, INTERNAL, "BROKEN", "it broke"]
        assert status.message == "process 'p' is in error: it broke"


async def test_the_sdk_has_all_of_it_as_fields(env: Env, lenient: Env) -> None:
    await env.running("p", broken(), broken("still"))
    await lenient.running("q", *[unavailable("gone")] * 3, Answer())
    caught: list[StepFailedError] = []
    for error_class, request in (
        (ProcessFailedError, env.client.call("p")),
        (ProcessFailedError, env.client.call("p")),
        (RepairFailedError, env.client.repair("p")),
        (TaskFailedError, lenient.client.call("q")),
    ):
        with pytest.raises(error_class) as info:
            await request
        caught.append(info.value)

    breaker = int(await breaker_of(env))
    own, other, repair, alone = caught
    assert [(error.own, error.broken_by) for error in caught] == [
        (True, breaker), (False, breaker), (True, breaker), (True, None),
    ]  # fmt: skip
    assert (own.task_id, other.task_id) == (breaker, None)
    assert [error.failure_code for error in caught] == [13, 13, 13, 10]
    assert [error.failure_reason for error in caught] == ["BROKEN"] * 3 + ["NOT_NOW"]
    assert (repair.detail, alone.detail) == ("still", "gone")


async def test_a_failed_repair_is_named_beside_what_broke_the_process(env: Env) -> None:
    broken_by = await env.broken("p", broken("no such bin"), broken("worse"))
    status = await refusal(env.client.repair("p"))
    after_repair = await env.client.get("p")
    await env.client.retry("p")
    await env.settled("p", 4)
    broken_again = await env.client.get("p")

    repair = after_repair.failed_repair
    assert repair is not None
    assert (str(repair.task_id), repair.reason) == (status.metadata["task_id"], "BROKEN")
    assert repair.message == "no such bin"
    assert after_repair.process.corrupted_by == broken_by
    assert f"; repair {repair.task_id} has failed since" in after_repair.explanation
    assert (broken_again.failed_repair, broken_again.process.detail) == (None, "worse")
