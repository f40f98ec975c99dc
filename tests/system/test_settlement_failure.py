"""Settlement of what went wrong: a rejection hurts its caller alone, a failure the process."""

import asyncio

import pytest
from grpc import StatusCode

from progressor.sdk import ProcessStatus, TaskStatus
from progressor.v1.processor_service_pb2 import ProcessResponse, Reject
from tests.support.processor import Answer, Hang, reject
from tests.support.replica import (
    Stage,
    answering,
    broken,
    refusal,
    response,
)
from tests.support.stage_reads import process_of, tasks_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID_ARGUMENT = 3


class TestReject:
    async def test_reaches_the_caller_word_for_word(self, stage: Stage) -> None:
        refused = Reject(
            code=INVALID_ARGUMENT, message="no tea", reason="NO_TEA", metadata={"shelf": "3"}
        )
        await stage.running("p", Answer(ProcessResponse(reject=refused)))

        status = await refusal(stage.client.call("p"))

        assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "no tea")
        assert (status.domain, status.reason) == ("processor", "NO_TEA")
        assert status.metadata == {"shelf": "3"}

    async def test_leaves_the_process_untouched_and_ignores_the_rest(self, stage: Stage) -> None:
        await stage.running(
            "p",
            Answer(response(b"e", aux_state=b"s", reject=Reject(code=INVALID_ARGUMENT))),
        )
        before = await stage.client.get("p")

        await refusal(stage.client.call("p"))

        assert await stage.client.get("p") == before

    async def test_unblocks_the_timer(self, stage: Stage) -> None:
        await stage.timed("p", reject(INVALID_ARGUMENT))
        before = await stage.client.get("p")

        await refusal(stage.client.call("p"))

        assert (await stage.client.get("p")).timer == before.timer
        assert before.timer is not None
        assert before.timer.status is TaskStatus.WAITING

    async def test_lets_the_next_in_line_run(self, stage: Stage) -> None:
        hang = Hang(response=ProcessResponse(reject=Reject(code=INVALID_ARGUMENT)))
        await stage.running("p", hang, Answer())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(stage.client.call("p")))
            await stage.asked("p", 2)
            second = group.create_task(stage.client.call("p", b"2"))
            await stage.points.wait("admitted", 3, key=stage.key("p"))
            hang.released.set()

        assert first.result().code is StatusCode.INVALID_ARGUMENT
        assert second.result().response == b"2"

    async def test_of_init_leaves_no_process(self, stage: Stage) -> None:
        stage.processor.on_process("p", reject(INVALID_ARGUMENT, message="no"))

        status = await refusal(stage.client.start("p"))

        assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "no")
        assert (await refusal(stage.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_of_init_tells_the_callers_behind_it_that_it_is_gone(self, stage: Stage) -> None:
        refused = ProcessResponse(reject=Reject(code=INVALID_ARGUMENT))
        hang = await stage.starting("p", answer=refused)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(stage.client.call("p")))
            await stage.points.wait("admitted", 2, key=stage.key("p"))
            hang.released.set()

        assert waiting.result().reason == "PROCESS_REMOVED"

    async def test_of_a_repair_leaves_the_process_in_error(self, stage: Stage) -> None:
        await stage.broken("p", reject(INVALID_ARGUMENT, message="not yet"))
        before = await process_of(stage)

        status = await refusal(stage.client.repair("p"))

        assert (status.code, status.message) == (StatusCode.INVALID_ARGUMENT, "not yet")
        assert await process_of(stage) == before

    async def test_is_in_the_trace(self, stage: Stage) -> None:
        await stage.running("p", reject(INVALID_ARGUMENT, reason="NO", message="no"))
        await refusal(stage.client.call("p"))

        task = (await tasks_of(stage))[1]
        assert task.status is TaskStatus.ERROR
        assert task.error is not None
        assert (task.error.code, task.error.reason, task.error.message) == (3, "NO", "no")


class TestBreak:
    async def test_of_a_call_puts_the_process_in_error(self, stage: Stage) -> None:
        await stage.running("p", broken())

        status = await refusal(stage.client.call("p"))

        process = await process_of(stage)
        assert (status.code, status.reason) == (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
        assert process.status is ProcessStatus.ERROR
        assert process.previous_status is ProcessStatus.RUNNING
        assert process.detail == status.metadata["detail"] == "it broke"
        assert str(process.corrupted_by) == status.metadata["task_id"]

    async def test_of_init_keeps_the_process_to_be_repaired(self, stage: Stage) -> None:
        stage.processor.on_process("p", broken(), answering(b"fixed"))

        status = await refusal(stage.client.start("p"))
        await stage.client.repair("p")

        assert status.reason == "PROCESS_FAILED"
        assert (await process_of(stage)).status is ProcessStatus.RUNNING

    async def test_of_a_notify_puts_the_process_in_error(self, stage: Stage) -> None:
        await stage.running("p", broken())

        accepted = await stage.client.notify("p")
        await stage.settled("p", 2)

        assert (await process_of(stage)).corrupted_by == accepted.task_id

    async def test_of_a_timer_puts_the_process_in_error(self, stage: Stage) -> None:
        await stage.timed("p", broken(), after=0)
        await stage.settled("p", 2)

        process = await process_of(stage)
        tasks = await tasks_of(stage)
        assert process.status is ProcessStatus.ERROR
        assert process.corrupted_by == tasks[1].task_id

    async def test_cancels_the_timer_and_the_line_and_tells_their_callers(
        self, stage: Stage
    ) -> None:
        hang = Hang(response=broken().response)
        await stage.timed("p", hang)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(stage.client.call("p")))
            await stage.asked("p", 2)
            waiting = [group.create_task(refusal(stage.client.call("p"))) for _ in range(2)]
            await stage.points.wait("admitted", 4, key=stage.key("p"))
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
        snapshot = await stage.client.get("p")
        assert (snapshot.timer, snapshot.waits) == (None, ())
        assert [it.status for it in await tasks_of(stage)] == [
            TaskStatus.FINISHED,
            TaskStatus.CANCELLED,
            TaskStatus.ERROR,
            TaskStatus.CANCELLED,
            TaskStatus.CANCELLED,
        ]

    async def test_saves_nothing_else_of_the_answer(self, stage: Stage) -> None:
        failing = broken().response
        assert failing is not None
        failing.events.add(payload=b"e")
        failing.aux_state = b"s"
        await stage.running("p", Answer(failing))

        await refusal(stage.client.call("p"))

        process = await process_of(stage)
        assert (process.last_event_id, process.state) == (0, None)
