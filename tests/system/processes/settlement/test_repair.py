"""Settlement of repairs: they bring a broken process back, or leave it exactly as it was."""

import asyncio

import pytest
from grpc import StatusCode

from progressor.sdk import ProcessStatus
from progressor.v1.types_pb2 import TASK_TYPE_TIMEOUT
from tests.support.engine.reads import process_of
from tests.support.engine.replica import (
    Env,
    answering,
    broken,
    refusal,
    response,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestRepair:
    async def test_that_succeeds_without_action_runs_a_broken_timer_again(self, env: Env) -> None:
        await env.timed("p", broken(), answering(), answering(b"ran"), after=0, args=b"tick")
        await env.settled("p", 2)

        await env.client.repair("p")
        await env.settled("p", 4)

        again = env.asked_for("p")[3].task
        assert (again.type, again.args, again.attempt) == (TASK_TYPE_TIMEOUT, b"tick", 1)
        assert (await process_of(env)).last_event_id == 1

    async def test_that_comes_second_is_told_that_the_process_runs(self, env: Env) -> None:
        hang = Hang()
        await env.broken("p", hang)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(env.client.repair("p", b"1"))
            await env.asked("p", 3)
            second = group.create_task(refusal(env.client.repair("p", b"2")))
            await env.points.wait("admitted", 4, key=env.key("p"))
            hang.released.set()

        assert first.result().response == b"1"
        assert (second.result().code, second.result().reason) == (
            StatusCode.FAILED_PRECONDITION,
            "PROCESS_IS_RUNNING",
        )
        assert len(env.asked_for("p")) == 3

    async def test_that_comes_second_runs_if_the_first_has_failed(self, env: Env) -> None:
        hang = Hang(response=broken("still").response)
        await env.broken("p", hang, Answer())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(refusal(env.client.repair("p", b"1")))
            await env.asked("p", 3)
            second = group.create_task(env.client.repair("p", b"2"))
            await env.points.wait("admitted", 4, key=env.key("p"))
            hang.released.set()

        assert first.result().reason == "REPAIR_FAILED"
        assert second.result().response == b"2"


class TestSimpleRepair:
    async def test_runs_the_timer_that_broke_the_process_and_then_it_is_running(
        self, env: Env
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

    async def test_whose_timer_breaks_again_leaves_error_with_the_new_detail(
        self, env: Env
    ) -> None:
        await env.timed("p", broken("once"), broken("twice"), after=0)
        await env.settled("p", 2)

        repaired = await env.client.simple_repair("p")
        await env.settled("p", 3)

        process = await process_of(env)
        assert (process.status, process.detail) == (ProcessStatus.ERROR, "twice")
        assert process.corrupted_by == repaired.task_id
