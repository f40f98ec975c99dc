"""Failures and the retry policy: what is tried again, when, and who waits meanwhile."""

import asyncio
import dataclasses
import datetime as dt
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2

from progressor.sdk import ProcessStatus, TaskStatus, WaitCause
from progressor.v1.processor_service_pb2 import Failure, ProcessResponse
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_INIT, TASK_TYPE_TIMEOUT
from tests.support.processor import Answer, Hang, fail
from tests.support.replica import (
    NOW_AND_THEN,
    QUIET,
    Replica,
    Stage,
    answering,
    broken,
    open_stage,
    refusal,
    running_replica,
    timer,
    unavailable,
)

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
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    async with open_stage(replica, retry_policy=NOW_AND_THEN) as stage:
        yield stage


def attempts(stage: Stage, task_id: int) -> list[int]:
    return [it.task.attempt for it in stage.asked_for("p") if it.task.task_id == task_id]


def later(seconds: int) -> Answer:
    """Return a retryable failure that does not want to be asked again for a while."""
    failure = Failure(
        code=code_pb2.UNAVAILABLE, message="busy", retry_after=Duration(seconds=seconds)
    )
    return Answer(ProcessResponse(failure=failure))


class TestWhichFailures:
    @pytest.mark.parametrize("code", RETRYABLE)
    async def test_are_tried_again(self, stage: Stage, code: str) -> None:
        await stage.running("p", fail(code_pb2.Code.Value(code)), Answer())

        answer = await stage.client.call("p", b"1")

        assert answer.response == b"1"
        assert attempts(stage, answer.task_id) == [1, 2]

    @pytest.mark.parametrize("code", FINAL)
    async def test_are_not_tried_again(self, stage: Stage, code: str) -> None:
        await stage.running("p", fail(code_pb2.Code.Value(code), message="no"))

        status = await refusal(stage.client.call("p"))

        assert (status.reason, status.metadata["detail"]) == ("PROCESS_FAILED", "no")
        assert len(stage.asked_for("p")) == 2

    async def test_of_a_step_past_its_timeout_are_tried_again(self, replica: Replica) -> None:
        quick = dt.timedelta(milliseconds=500)
        async with open_stage(replica, retry_policy=NOW_AND_THEN, step_timeout=quick) as stage:
            await stage.running("p", Hang(), Answer())

            answer = await stage.client.call("p", b"1")

            assert attempts(stage, answer.task_id) == [1, 2]

    async def test_that_last_end_with_the_latest_of_them(self, stage: Stage) -> None:
        await stage.running("p", *[unavailable(str(number)) for number in (1, 2, 3)])

        status = await refusal(stage.client.call("p"))

        task = (await stage.client.trace("p")).tasks[1]
        assert (status.reason, status.metadata["detail"]) == ("PROCESS_FAILED", "3")
        assert (task.attempt_count, task.status) == (3, TaskStatus.ERROR)
        assert task.error is not None
        assert task.error.reason == "NOT_NOW"

    async def test_leave_no_error_behind_once_an_attempt_succeeds(self, stage: Stage) -> None:
        await stage.running("p", unavailable(), Answer())

        await stage.client.call("p")

        task = (await stage.client.trace("p")).tasks[1]
        assert (task.attempt_count, task.status, task.error) == (2, TaskStatus.FINISHED, None)


class TestThePolicy:
    async def test_counts_all_attempts(self, replica: Replica) -> None:
        async with open_stage(replica, retry_policy=ONCE) as stage:
            await stage.running("p", unavailable())

            await refusal(stage.client.call("p"))

            assert len(stage.asked_for("p")) == 2

    async def test_of_a_task_type_goes_before_the_namespaces(self, replica: Replica) -> None:
        async with open_stage(
            replica, retry_policy=NOW_AND_THEN, retry_policies={"call": ONCE}
        ) as stage:
            stage.processor.on_process("p", unavailable(), Answer(), unavailable())
            await stage.client.start("p")

            await refusal(stage.client.call("p"))

            assert len(stage.asked_for("p")) == 3

    async def test_names_reasons_that_are_not_tried_again(self, replica: Replica) -> None:
        policy = dataclasses.replace(NOW_AND_THEN, non_retryable_reasons=("NO_FUNDS",))
        async with open_stage(replica, retry_policy=policy) as stage:
            await stage.running("p", fail(code_pb2.UNAVAILABLE, reason="NO_FUNDS"))

            await refusal(stage.client.call("p"))

            assert len(stage.asked_for("p")) == 2

    async def test_ends_when_the_time_is_up(self, replica: Replica) -> None:
        policy = dataclasses.replace(
            NOW_AND_THEN,
            initial_interval=dt.timedelta(seconds=10),
            interval_max=dt.timedelta(seconds=10),
            elapsed_max=dt.timedelta(seconds=1),
        )
        async with open_stage(replica, retry_policy=policy) as stage:
            await stage.running("p", unavailable())

            status = await refusal(stage.client.call("p"))

            assert status.reason == "PROCESS_FAILED"
            assert len(stage.asked_for("p")) == 2

    async def test_waits_at_least_as_long_as_the_processor_asks(self, stage: Stage) -> None:
        await stage.running("p", later(HOUR))
        accepted = await stage.client.call("p", accept_only=True)
        await stage.settled("p", 2)

        (wait,) = (await stage.client.get("p")).waits
        task = (await stage.client.trace("p")).tasks[1]
        assert (wait.task_id, wait.cause, wait.attempt) == (accepted.task_id, WaitCause.RETRY, 2)
        assert wait.last_error is not None
        assert wait.last_error.message == "busy"
        assert wait.until is not None
        assert task.started_at is not None
        assert wait.until >= task.started_at + dt.timedelta(seconds=HOUR)

    async def test_grows_the_waits_by_the_coefficient(self, replica: Replica) -> None:
        policy = dataclasses.replace(NOW_AND_THEN, coefficient=4.0)
        async with open_stage(replica, retry_policy=policy) as stage:
            await stage.running("p", unavailable(), unavailable(), Answer())

            answer = await stage.client.call("p")

            due = [it for it in stage.asked_for("p") if it.task.task_id == answer.task_id]
            pauses = [
                (b.deadline.ToDatetime() - a.deadline.ToDatetime()).total_seconds()
                for a, b in itertools.pairwise(due)
            ]
            assert pauses[0] >= 0.01
            assert pauses[1] >= 0.04


HOUR = 3600


class TestWhoWaits:
    async def test_a_call_in_retry_keeps_its_place(self, stage: Stage) -> None:
        await stage.running("p", unavailable(), unavailable(), Answer())
        first = await stage.client.call("p", b"1", accept_only=True)
        second = await stage.client.call("p", b"2")

        called = [it.task.task_id for it in stage.asked_for("p")][1:]
        assert called == [first.task_id] * 3 + [second.task_id]

    async def test_a_later_call_says_that_it_waits_behind_the_one_in_retry(
        self, stage: Stage
    ) -> None:
        await stage.running("p", later(HOUR))
        first = await stage.client.call("p", accept_only=True)
        await stage.settled("p", 2)
        second = await stage.client.call("p", accept_only=True)

        waits = (await stage.client.get("p")).waits
        assert [wait.task_id for wait in waits] == [first.task_id, second.task_id]
        assert waits[1].cause is WaitCause.BEHIND_TASK
        assert waits[1].behind_task_id == first.task_id
        assert len(stage.asked_for("p")) == 2

    async def test_a_timer_stays_blocked_behind_a_call_in_retry(self, stage: Stage) -> None:
        await stage.timed("p", later(HOUR))
        await stage.client.call("p", accept_only=True)
        await stage.settled("p", 2)

        timer_ = (await stage.client.get("p")).timer
        assert timer_ is not None
        assert timer_.status is TaskStatus.BLOCKED

    async def test_a_timer_in_retry_yields_to_calls(self, stage: Stage) -> None:
        await stage.timed("p", later(HOUR), Answer(), after=0)
        await stage.settled("p", 2)
        before = await stage.client.get("p")
        answer = await stage.client.call("p", b"1")
        after = await stage.client.get("p")

        assert answer.response == b"1"
        assert before.waits[0].cause is WaitCause.RETRY
        assert after.waits == before.waits

    async def test_a_call_that_came_while_the_timer_ran_goes_before_its_retry(
        self, stage: Stage
    ) -> None:
        hang = Hang(response=unavailable().response)
        await stage.timed("p", hang, answering(b"call"), answering(b"timer"), after=0)
        await stage.asked("p", 2)
        await stage.client.call("p", accept_only=True)
        hang.released.set()
        await stage.settled("p", 4)

        assert [it.task.type for it in stage.asked_for("p")] == [
            TASK_TYPE_INIT,
            TASK_TYPE_TIMEOUT,
            TASK_TYPE_CALL,
            TASK_TYPE_TIMEOUT,
        ]
        assert stage.asked_for("p")[3].task.attempt == 2

    async def test_the_caller_of_an_init_in_retry(self, stage: Stage) -> None:
        stage.processor.on_process("p", unavailable(), unavailable(), Answer())

        answer = await stage.client.start("p", b"1")

        assert answer.response == b"1"

    async def test_an_init_in_retry_keeps_calls_behind_it(self, stage: Stage) -> None:
        stage.processor.on_process("p", unavailable(), Answer())
        started = await stage.client.start("p", accept_only=True)
        answer = await stage.client.call("p", b"1")

        assert answer.response == b"1"
        assert attempts(stage, started.task_id) == [1, 2]

    async def test_a_repair_in_retry_keeps_the_process_in_error(self, stage: Stage) -> None:
        await stage.broken("p", unavailable(), hang := Hang())
        async with asyncio.TaskGroup() as group:
            repairing = group.create_task(stage.client.repair("p", b"1"))
            await stage.asked("p", 4)
            during = (await stage.client.get("p")).process
            hang.released.set()

        assert during.status is ProcessStatus.ERROR
        assert repairing.result().response == b"1"

    async def test_a_repair_whose_attempts_are_spent_fails_alone(self, stage: Stage) -> None:
        await stage.broken("p", unavailable())
        before = await stage.client.get("p")

        status = await refusal(stage.client.repair("p"))

        assert status.reason == "REPAIR_FAILED"
        assert await stage.client.get("p") == before
        assert len(stage.asked_for("p")) == 5


class TestACallThatFailsAlone:
    @pytest_asyncio.fixture(loop_scope="module")
    async def lenient(self, replica: Replica) -> AsyncIterator[Stage]:
        async with open_stage(
            replica, retry_policy=NOW_AND_THEN, exhausted_call_fails_alone=True
        ) as stage:
            yield stage

    async def test_leaves_its_process_as_it_was(self, lenient: Stage) -> None:
        await lenient.timed("p", unavailable("gone"))
        before = await lenient.client.get("p")

        status = await refusal(lenient.client.call("p"))

        assert (status.reason, status.metadata["detail"]) == ("TASK_FAILED", "gone")
        assert await lenient.client.get("p") == before

    async def test_lets_the_next_in_line_run(self, lenient: Stage) -> None:
        await lenient.running("p", *[unavailable()] * 3, Answer())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(lenient.client.call("p", b"1")))
            await lenient.points.wait("admitted", 2, key=lenient.key("p"))
            second = group.create_task(lenient.client.call("p", b"2"))

        assert first.result().reason == "TASK_FAILED"
        assert second.result().response == b"2"

    async def test_is_told_the_same_by_await_task(self, lenient: Stage) -> None:
        await lenient.running("p", unavailable("gone"))
        accepted = await lenient.client.call("p", accept_only=True)

        status = await refusal(lenient.client.await_task("p", task_id=accepted.task_id))

        assert status.reason == "TASK_FAILED"

    async def test_is_one_whose_failures_were_worth_another_attempt(self, lenient: Stage) -> None:
        await lenient.running("p", broken())

        assert (await refusal(lenient.client.call("p"))).reason == "PROCESS_FAILED"

    @pytest.mark.parametrize("kind", ["init", "timeout"])
    async def test_is_no_init_and_no_timer(self, lenient: Stage, kind: str) -> None:
        steps: list[Any] = [answering(set_timer=timer()), unavailable()]
        lenient.processor.on_process("p", *steps[kind == "init" :])
        accepted = await lenient.client.start("p", accept_only=True)
        assert accepted.task_id
        await lenient.points.wait("settled", key=lenient.key("p"), settlement="Break")

        assert (await lenient.client.get("p")).process.status is ProcessStatus.ERROR
