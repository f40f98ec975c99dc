"""Settlement of what went wrong: a rejection hurts its caller alone, a failure the process."""

import asyncio

import pytest
from grpc import StatusCode

from progressor.sdk import ProcessStatus, TaskStatus
from progressor.v1.processor_service_pb2 import ProcessResponse, Reject
from tests.support.engine.reads import process_of, tasks_of
from tests.support.engine.replica import (
    Env,
    broken,
    refusal,
)
from tests.support.processor.scripted import Answer, Hang, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID_ARGUMENT = 3


class TestReject:
    async def test_reaches_the_caller_word_for_word(self, env: Env) -> None:
        refused = Reject(
            code=INVALID_ARGUMENT, message="no tea", reason="NO_TEA", metadata={"shelf": "3"}
        )
        await env.running("p", Answer(ProcessResponse(reject=refused)))

        status = await refusal(env.client.call("p"))

        assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "no tea")
        assert (status.domain, status.reason) == ("processor", "NO_TEA")
        assert status.metadata == {"shelf": "3"}

    async def test_of_init_leaves_no_process(self, env: Env) -> None:
        env.processor.on_process("p", reject(INVALID_ARGUMENT, message="no"))

        status = await refusal(env.client.start("p"))

        assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "no")
        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_of_init_tells_the_callers_behind_it_that_it_is_gone(self, env: Env) -> None:
        refused = ProcessResponse(reject=Reject(code=INVALID_ARGUMENT))
        hang = await env.starting("p", answer=refused)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(env.client.call("p")))
            await env.points.wait("admitted", 2, key=env.key("p"))
            hang.released.set()

        assert waiting.result().reason == "PROCESS_REMOVED"


class TestBreak:
    async def test_of_a_call_puts_the_process_in_error(self, env: Env) -> None:
        await env.running("p", broken())

        status = await refusal(env.client.call("p"))

        process = await process_of(env)
        assert (status.code, status.reason) == (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
        assert process.status is ProcessStatus.ERROR
        assert process.previous_status is ProcessStatus.RUNNING
        assert process.detail == status.metadata["detail"] == "it broke"
        assert str(process.corrupted_by) == status.metadata["task_id"]

    async def test_cancels_the_timer_and_the_line_and_tells_their_callers(self, env: Env) -> None:
        hang = Hang(response=broken().response)
        await env.timed("p", hang)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(env.client.call("p")))
            await env.asked("p", 2)
            waiting = [group.create_task(refusal(env.client.call("p"))) for _ in range(2)]
            await env.points.wait("admitted", 4, key=env.key("p"))
            hang.released.set()

        breaker = first.result().metadata["task_id"]
        for each in waiting:
            status = each.result()
            assert (status.code, status.reason) == (
                StatusCode.FAILED_PRECONDITION,
                "PROCESS_FAILED",
            )
            assert status.metadata["broken_by"] == breaker
            assert status.metadata["detail"] == "it broke"
        snapshot = await env.client.get("p")
        assert (snapshot.timer, snapshot.waits) == (None, ())
        assert [it.status for it in await tasks_of(env)] == [
            TaskStatus.FINISHED,
            TaskStatus.CANCELLED,
            TaskStatus.ERROR,
            TaskStatus.CANCELLED,
            TaskStatus.CANCELLED,
        ]
