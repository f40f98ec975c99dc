"""Failures and the retry policy: what is tried again, when, and who waits meanwhile."""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2

from progressor.sdk import TaskStatus, WaitCause
from progressor.v1.processor_service_pb2 import Failure, ProcessResponse
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_INIT, TASK_TYPE_TIMEOUT
from tests.support.engine.replica import (
    NOW_AND_THEN,
    QUIET,
    Env,
    Replica,
    answering,
    broken,
    open_env,
    refusal,
    running_replica,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang, fail

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONCE = dataclasses.replace(NOW_AND_THEN, attempts_max=1)
RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED")
FINAL = ("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "INTERNAL", "DATA_LOSS")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, retry_policy=NOW_AND_THEN) as env:
        yield env


def attempts(env: Env, task_id: int) -> list[int]:
    return [it.task.attempt for it in env.asked_for("p") if it.task.task_id == task_id]


def later(seconds: int) -> Answer:
    """Return a retryable failure that does not want to be asked again for a while."""
    failure = Failure(
        code=code_pb2.UNAVAILABLE, message="busy", retry_after=Duration(seconds=seconds)
    )
    return Answer(ProcessResponse(failure=failure))


class TestWhichFailures:
    @pytest.mark.parametrize("code", RETRYABLE)
    async def test_are_tried_again(self, env: Env, code: str) -> None:
        await env.running("p", fail(code_pb2.Code.Value(code)), Answer())

        answer = await env.client.call("p", b"1")

        assert answer.response == b"1"
        assert attempts(env, answer.task_id) == [1, 2]

    @pytest.mark.parametrize("code", FINAL)
    async def test_are_not_tried_again(self, env: Env, code: str) -> None:
        await env.running("p", fail(code_pb2.Code.Value(code), message="no"))

        status = await refusal(env.client.call("p"))

        assert (status.reason, status.metadata["detail"]) == ("PROCESS_FAILED", "no")
        assert len(env.asked_for("p")) == 2

    async def test_of_a_step_past_its_timeout_are_tried_again(self, replica: Replica) -> None:
        quick = dt.timedelta(milliseconds=500)
        async with open_env(replica, retry_policy=NOW_AND_THEN, step_timeout=quick) as env:
            await env.running("p", Hang(), Answer())

            answer = await env.client.call("p", b"1")

            assert attempts(env, answer.task_id) == [1, 2]

    async def test_that_last_end_with_the_latest_of_them(self, env: Env) -> None:
        await env.running("p", *[unavailable(str(number)) for number in (1, 2, 3)])

        status = await refusal(env.client.call("p"))

        task = (await env.client.trace("p")).tasks[1]
        assert (status.reason, status.metadata["detail"]) == ("PROCESS_FAILED", "3")
        assert (task.attempt_count, task.status) == (3, TaskStatus.ERROR)
        assert task.error is not None
        assert task.error.reason == "NOT_NOW"

    async def test_leave_no_error_behind_once_an_attempt_succeeds(self, env: Env) -> None:
        await env.running("p", unavailable(), Answer())

        await env.client.call("p")

        task = (await env.client.trace("p")).tasks[1]
        assert (task.attempt_count, task.status, task.error) == (2, TaskStatus.FINISHED, None)


class TestThePolicy:
    async def test_of_a_task_type_goes_before_the_namespaces(self, replica: Replica) -> None:
        async with open_env(
            replica, retry_policy=NOW_AND_THEN, retry_policies={"call": ONCE}
        ) as env:
            env.processor.on_process("p", unavailable(), Answer(), unavailable())
            await env.client.start("p")

            await refusal(env.client.call("p"))

            assert len(env.asked_for("p")) == 3

    async def test_names_reasons_that_are_not_tried_again(self, replica: Replica) -> None:
        policy = dataclasses.replace(NOW_AND_THEN, non_retryable_reasons=("NO_FUNDS",))
        async with open_env(replica, retry_policy=policy) as env:
            await env.running("p", fail(code_pb2.UNAVAILABLE, reason="NO_FUNDS"))

            await refusal(env.client.call("p"))

            assert len(env.asked_for("p")) == 2

    async def test_waits_at_least_as_long_as_the_processor_asks(self, env: Env) -> None:
        await env.running("p", later(HOUR))
        accepted = await env.client.call("p", accept_only=True)
        await env.settled("p", 2)

        (wait,) = (await env.client.get("p")).waits
        task = (await env.client.trace("p")).tasks[1]
        assert (wait.task_id, wait.cause, wait.attempt) == (accepted.task_id, WaitCause.RETRY, 2)
        assert wait.last_error is not None
        assert wait.last_error.message == "busy"
        assert wait.until is not None
        assert task.started_at is not None
        assert wait.until >= task.started_at + dt.timedelta(seconds=HOUR)


HOUR = 3600


class TestWhoWaits:
    async def test_a_later_call_says_that_it_waits_behind_the_one_in_retry(self, env: Env) -> None:
        await env.running("p", later(HOUR))
        first = await env.client.call("p", accept_only=True)
        await env.settled("p", 2)
        second = await env.client.call("p", accept_only=True)

        waits = (await env.client.get("p")).waits
        assert [wait.task_id for wait in waits] == [first.task_id, second.task_id]
        assert waits[1].cause is WaitCause.BEHIND_TASK
        assert waits[1].behind_task_id == first.task_id
        assert len(env.asked_for("p")) == 2

    async def test_a_call_that_came_while_the_timer_ran_goes_before_its_retry(
        self, env: Env
    ) -> None:
        hang = Hang(response=unavailable().response)
        await env.timed("p", hang, answering(b"call"), answering(b"timer"), after=0)
        await env.asked("p", 2)
        await env.client.call("p", accept_only=True)
        hang.released.set()
        await env.settled("p", 4)

        assert [it.task.type for it in env.asked_for("p")] == [
            TASK_TYPE_INIT,
            TASK_TYPE_TIMEOUT,
            TASK_TYPE_CALL,
            TASK_TYPE_TIMEOUT,
        ]
        assert env.asked_for("p")[3].task.attempt == 2

    async def test_the_caller_of_an_init_in_retry(self, env: Env) -> None:
        env.processor.on_process("p", unavailable(), unavailable(), Answer())

        answer = await env.client.start("p", b"1")

        assert answer.response == b"1"

    async def test_a_repair_whose_attempts_are_spent_fails_alone(self, env: Env) -> None:
        await env.broken("p", unavailable())
        before = await env.client.get("p")

        status = await refusal(env.client.repair("p"))

        assert status.reason == "REPAIR_FAILED"
        assert await env.client.get("p") == before
        assert len(env.asked_for("p")) == 5


class TestACallThatFailsAlone:
    @pytest_asyncio.fixture(loop_scope="module")
    async def lenient(self, replica: Replica) -> AsyncIterator[Env]:
        async with open_env(
            replica, retry_policy=NOW_AND_THEN, exhausted_call_fails_alone=True
        ) as env:
            yield env

    async def test_leaves_its_process_as_it_was(self, lenient: Env) -> None:
        await lenient.timed("p", unavailable("gone"))
        before = await lenient.client.get("p")

        status = await refusal(lenient.client.call("p"))

        assert (status.reason, status.metadata["detail"]) == ("TASK_FAILED", "gone")
        assert await lenient.client.get("p") == before

    async def test_is_told_the_same_by_await_task(self, lenient: Env) -> None:
        await lenient.running("p", unavailable("gone"))
        accepted = await lenient.client.call("p", accept_only=True)

        status = await refusal(lenient.client.await_task("p", task_id=accepted.task_id))

        assert status.reason == "TASK_FAILED"

    async def test_is_one_whose_failures_were_worth_another_attempt(self, lenient: Env) -> None:
        await lenient.running("p", broken())

        assert (await refusal(lenient.client.call("p"))).reason == "PROCESS_FAILED"
