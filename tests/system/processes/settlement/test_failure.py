"""Settlement of what went wrong: a rejection hurts its caller alone, a failure the process."""

import asyncio

import pytest
from grpc import StatusCode

from progressor.sdk import ProcessStatus, TaskStatus
from progressor.v1.processor_service_pb2 import ProcessResponse, Reject
from tests.support.engine.env_reads import process_of, tasks_of
from tests.support.engine.replica import (
    Env,
    answering,
    broken,
    refusal,
    response,
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

    async def test_leaves_the_process_untouched_and_ignores_the_rest(self, env: Env) -> None:
        await env.running(
            "p",
            Answer(response(b"e", aux_state=b"s", reject=Reject(code=INVALID_ARGUMENT))),
        )
        before = await env.client.get("p")

        await refusal(env.client.call("p"))

        assert await env.client.get("p") == before

    async def test_unblocks_the_timer(self, env: Env) -> None:
        await env.timed("p", reject(INVALID_ARGUMENT))
        before = await env.client.get("p")

        await refusal(env.client.call("p"))

        assert (await env.client.get("p")).timer == before.timer
        assert before.timer is not None
        assert before.timer.status is TaskStatus.WAITING

    async def test_lets_the_next_in_line_run(self, env: Env) -> None:
        hang = Hang(response=ProcessResponse(reject=Reject(code=INVALID_ARGUMENT)))
        await env.running("p", hang, Answer())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(env.client.call("p")))
            await env.asked("p", 2)
            second = group.create_task(env.client.call("p", b"2"))
            await env.points.wait("admitted", 3, key=env.key("p"))
            hang.released.set()

        assert first.result().code is StatusCode.INVALID_ARGUMENT
        assert second.result().response == b"2"

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

    async def test_of_a_repair_leaves_the_process_in_error(self, env: Env) -> None:
        await env.broken("p", reject(INVALID_ARGUMENT, message="not yet"))
        before = await process_of(env)

        status = await refusal(env.client.repair("p"))

        assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "not yet")
        assert await process_of(env) == before

    async def test_is_in_the_trace(self, env: Env) -> None:
        await env.running("p", reject(INVALID_ARGUMENT, reason="NO", message="no"))
        await refusal(env.client.call("p"))

        task = (await tasks_of(env))[1]
        assert task.status is TaskStatus.ERROR
        assert task.error is not None
        assert (task.error.code, task.error.reason, task.error.message) == (3, "NO", "no")


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

    async def test_of_init_keeps_the_process_to_be_repaired(self, env: Env) -> None:
        env.processor.on_process("p", broken(), answering(b"fixed"))

        status = await refusal(env.client.start("p"))
        await env.client.repair("p")

        assert status.reason == "PROCESS_FAILED"
        assert (await process_of(env)).status is ProcessStatus.RUNNING

    async def test_of_a_notify_puts_the_process_in_error(self, env: Env) -> None:
        await env.running("p", broken())

        accepted = await env.client.notify("p")
        await env.settled("p", 2)

        assert (await process_of(env)).corrupted_by == accepted.task_id

    async def test_of_a_timer_puts_the_process_in_error(self, env: Env) -> None:
        await env.timed("p", broken(), after=0)
        await env.settled("p", 2)

        process = await process_of(env)
        tasks = await tasks_of(env)
        assert process.status is ProcessStatus.ERROR
        assert process.corrupted_by == tasks[1].task_id

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

    async def test_saves_nothing_else_of_the_answer(self, env: Env) -> None:
        failing = broken().response
        assert failing is not None
        failing.events.add(payload=b"e")
        failing.aux_state = b"s"
        await env.running("p", Answer(failing))

        await refusal(env.client.call("p"))

        process = await process_of(env)
        assert (process.last_event_id, process.state) == (0, None)
