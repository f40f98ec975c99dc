"""What the error of a broken process tells: whose step broke it, with what code, and why."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.sdk import (
    ProcessFailedError,
    RepairFailedError,
    RetryPolicy,
    StepFailedError,
    TaskFailedError,
)
from progressor.sdk.transport.failures import Status
from tests.support.engine.reads import process_of
from tests.support.engine.replica import Env, Replica, broken, open_env, refusal, unavailable
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

INTERNAL = "13"
UNAVAILABLE = "14"
TOLD = ("own", "task_id", "broken_by", "failure_code", "failure_reason", "detail")


@pytest_asyncio.fixture(loop_scope="module")
async def lenient(replica: Replica) -> AsyncIterator[Env]:
    """Return an environment whose calls fail alone, at the second attempt."""
    policy = RetryPolicy(initial_interval=dt.timedelta(milliseconds=10), attempts_max=2)
    async with open_env(replica, retry_policy=policy, exhausted_call_fails_alone=True) as env:
        yield env


def told(status: Status) -> list[str | None]:
    return [status.metadata.get(name) for name in TOLD]


async def breaker_of(env: Env) -> str:
    return str((await process_of(env)).corrupted_by)


async def test_the_error_says_that_the_callers_own_step_broke_the_process(env: Env) -> None:
    await env.running("p", broken())

    status = await refusal(env.client.call("p", idempotency_key="k"))
    later = await refusal(env.client.await_task("p", idempotency_key="k"))
    repeated = await refusal(env.client.call("p", idempotency_key="k"))

    breaker = await breaker_of(env)
    assert (status.code, status.reason) == (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
    assert told(status) == ["true", breaker, breaker, INTERNAL, "BROKEN", "it broke"]
    assert status.message == f"task {breaker} of this request broke process 'p': it broke"
    assert told(later) == told(repeated) == told(status)


async def test_a_later_caller_learns_what_broke_the_process(env: Env) -> None:
    await env.broken("p")

    for request in (env.client.call("p"), env.client.notify("p")):
        status = await refusal(request)

        breaker = await breaker_of(env)
        assert status.reason == "PROCESS_FAILED"
        assert told(status) == ["false", None, breaker, INTERNAL, "BROKEN", "it broke"]
        assert status.message == "process 'p' is in error: it broke"


async def test_a_waiting_caller_learns_that_another_step_broke_the_process(env: Env) -> None:
    hang = Hang(response=broken().response)
    await env.running("p", hang)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(refusal(env.client.call("p", b"1")))
        await env.asked("p", 2)
        second = group.create_task(refusal(env.client.call("p", b"2", idempotency_key="k")))
        await env.points.wait("admitted", 3, key=env.key("p"))
        hang.released.set()

    breaker = await breaker_of(env)
    own = second.result().metadata["task_id"]
    later = await refusal(env.client.await_task("p", idempotency_key="k"))
    assert told(first.result())[0] == "true"
    assert int(own) > int(breaker)
    assert told(second.result()) == ["false", own, breaker, INTERNAL, "BROKEN", "it broke"]
    assert told(later) == told(second.result())
    assert len(env.asked_for("p")) == 2


async def test_a_failed_repair_reports_its_failure_and_what_broke_the_process(
    env: Env,
) -> None:
    breaker = await env.broken("p", broken("still"))

    status = await refusal(env.client.repair("p", idempotency_key="k"))
    later = await refusal(env.client.await_task("p", idempotency_key="k"))

    own = status.metadata["task_id"]
    assert status.reason == "REPAIR_FAILED"
    assert told(status) == ["true", own, str(breaker), INTERNAL, "BROKEN", "still"]
    assert told(later) == told(status)


async def test_a_call_that_failed_alone_reports_its_failure(lenient: Env) -> None:
    await lenient.running("p", *[unavailable("gone")] * 2)

    status = await refusal(lenient.client.call("p"))

    own = status.metadata["task_id"]
    assert status.reason == "TASK_FAILED"
    assert told(status) == ["true", own, None, UNAVAILABLE, "NOT_NOW", "gone"]


async def test_the_sdk_has_all_of_it_as_fields(env: Env, lenient: Env) -> None:
    await env.running("p", broken(), broken("still"))
    await lenient.running("q", *[unavailable("gone")] * 2, Answer())
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
    assert [(it.own, it.broken_by) for it in caught] == [
        (True, breaker), (False, breaker), (True, breaker), (True, None),
    ]  # fmt: skip
    assert (own.task_id, other.task_id) == (breaker, None)
    assert [it.failure_code for it in caught] == [13, 13, 13, 14]
    assert [it.failure_reason for it in caught] == ["BROKEN"] * 3 + ["NOT_NOW"]
    assert (repair.detail, alone.detail) == ("still", "gone")
