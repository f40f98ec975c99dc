"""Settlement of repairs: they bring a broken process back, or leave it exactly as it was."""

import asyncio

import pytest
from grpc import StatusCode

from progressor.sdk import ProcessStatus, TaskStatus
from progressor.v1.processor_service_pb2 import UnsetTimer as Unset
from progressor.v1.types_pb2 import TASK_TYPE_TIMEOUT
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    Stage,
    answering,
    broken,
    refusal,
    response,
    timer,
)
from tests.support.stage_reads import process_of, tasks_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestRepair:
    async def test_that_fails_leaves_error_exactly_as_it_was(self, stage: Stage) -> None:
        await stage.broken("p", broken("still broken"))
        before = await stage.client.get("p")

        status = await refusal(stage.client.repair("p"))

        assert (status.code, status.reason) == (StatusCode.FAILED_PRECONDITION, "REPAIR_FAILED")
        assert status.metadata["detail"] == "still broken"
        assert await stage.client.get("p") == before

    async def test_that_succeeds_without_action_runs_a_broken_timer_again(
        self, stage: Stage
    ) -> None:
        await stage.timed("p", broken(), answering(), answering(b"ran"), after=0, args=b"tick")
        await stage.settled("p", 2)

        await stage.client.repair("p")
        await stage.settled("p", 4)

        again = stage.asked_for("p")[3].task
        assert (again.type, again.args, again.attempt) == (TASK_TYPE_TIMEOUT, b"tick", 1)
        assert (await process_of(stage)).last_event_id == 1

    async def test_that_succeeds_with_an_action_leaves_a_broken_timer_behind(
        self, stage: Stage
    ) -> None:
        await stage.timed("p", broken(), answering(set_timer=timer(3600)), after=0)
        await stage.settled("p", 2)

        await stage.client.repair("p")

        timers = [it for it in await tasks_of(stage) if it.type == "timeout"]
        assert [it.status for it in timers] == [TaskStatus.ERROR, TaskStatus.WAITING]
        assert len(stage.asked_for("p")) == 3

    async def test_that_unsets_the_timer_leaves_a_broken_timer_behind(self, stage: Stage) -> None:
        await stage.timed("p", broken(), answering(unset_timer=Unset()), after=0)
        await stage.settled("p", 2)

        await stage.client.repair("p")

        assert (await stage.client.get("p")).timer is None
        assert (await process_of(stage)).status is ProcessStatus.RUNNING

    async def test_of_what_a_call_broke_runs_nothing_again(self, stage: Stage) -> None:
        await stage.broken("p")

        await stage.client.repair("p")

        assert len(await tasks_of(stage)) == 3
        assert (await stage.client.get("p")).waits == ()

    async def test_that_comes_second_is_told_that_the_process_runs(self, stage: Stage) -> None:
        hang = Hang()
        await stage.broken("p", hang)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(stage.client.repair("p", b"1"))
            await stage.asked("p", 3)
            second = group.create_task(refusal(stage.client.repair("p", b"2")))
            await stage.points.wait("admitted", 4, key=stage.key("p"))
            hang.released.set()

        assert first.result().response == b"1"
        assert (second.result().code, second.result().reason) == (
            StatusCode.FAILED_PRECONDITION,
            "PROCESS_IS_RUNNING",
        )
        assert len(stage.asked_for("p")) == 3

    async def test_that_comes_second_runs_if_the_first_has_failed(self, stage: Stage) -> None:
        hang = Hang(response=broken("still").response)
        await stage.broken("p", hang, Answer())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(stage.client.repair("p", b"1")))
            await stage.asked("p", 3)
            second = group.create_task(stage.client.repair("p", b"2"))
            await stage.points.wait("admitted", 4, key=stage.key("p"))
            hang.released.set()

        assert first.result().reason == "REPAIR_FAILED"
        assert second.result().response == b"2"


class TestSimpleRepair:
    async def test_runs_the_timer_that_broke_the_process_and_then_it_is_running(
        self, stage: Stage
    ) -> None:
        hang = Hang(response=response(b"ran"))
        await stage.timed("p", broken(), hang, after=0, args=b"tick")
        await stage.settled("p", 2)

        repaired = await stage.client.simple_repair("p")
        await stage.asked("p", 3)
        during = await process_of(stage)
        hang.released.set()
        await stage.settled("p", 3)

        assert stage.asked_for("p")[2].task.task_id == repaired.task_id
        assert stage.asked_for("p")[2].task.args == b"tick"
        assert during.status is ProcessStatus.ERROR
        assert (await process_of(stage)).status is ProcessStatus.RUNNING

    async def test_is_refused_while_that_timer_runs(self, stage: Stage) -> None:
        await stage.timed("p", broken(), hang := Hang(), after=0)
        await stage.settled("p", 2)
        await stage.client.simple_repair("p")
        await stage.asked("p", 3)

        status = await refusal(stage.client.simple_repair("p"))

        hang.released.set()
        assert status.reason == "PROCESS_IS_RUNNING"

    async def test_whose_timer_breaks_again_leaves_error_with_the_new_detail(
        self, stage: Stage
    ) -> None:
        await stage.timed("p", broken("once"), broken("twice"), after=0)
        await stage.settled("p", 2)

        repaired = await stage.client.simple_repair("p")
        await stage.settled("p", 3)

        process = await process_of(stage)
        assert (process.status, process.detail) == (ProcessStatus.ERROR, "twice")
        assert process.corrupted_by == repaired.task_id

    async def test_is_refused_while_a_repair_runs(self, stage: Stage) -> None:
        await stage.broken("p", hang := Hang())
        accepted = await stage.client.repair("p", accept_only=True)
        await stage.asked("p", 3)

        status = await refusal(stage.client.simple_repair("p"))

        hang.released.set()
        await stage.client.await_task("p", task_id=accepted.task_id)
        assert status.reason == "PROCESS_IS_RUNNING"
