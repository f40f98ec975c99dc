"""Settlement of success: every action, and the line of calls that goes on after it."""

import asyncio

import pytest
from google.protobuf.struct_pb2 import Struct
from grpc import StatusCode

from progressor.sdk import TaskStatus
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_TIMEOUT
from tests.support.engine.reads import in_line, tasks_of, types_asked
from tests.support.engine.replica import (
    Env,
    answering,
    refusal,
    response,
    timer,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestSuccess:
    async def test_saves_events_state_metadata_and_response_together(self, env: Env) -> None:
        metadata = Struct()
        metadata.update({"customer": "c1"})
        everything = response(b"e1", b"e2", aux_state=b"s", metadata=metadata, response=b"r")
        await env.running("p", Answer(everything))

        answer = await env.client.call("p")

        snapshot = await env.client.get("p")
        assert answer.response == b"r"
        assert [(it.event_id, it.payload) for it in snapshot.history] == [(1, b"e1"), (2, b"e2")]
        assert {it.task_id for it in snapshot.history} == {answer.task_id}
        assert snapshot.process.state == b"s"
        assert snapshot.process.metadata == {"customer": "c1"}
        assert snapshot.process.last_event_id == 2

    async def test_is_what_the_next_step_starts_from(self, env: Env) -> None:
        await env.running("p", answering(b"e1", aux_state=b"s1"), answering(b"e2"))
        await env.client.call("p")

        await env.client.call("p")

        request = env.asked_for("p")[2]
        assert request.process.aux_state == b"s1"
        assert request.process.last_event_id == 1
        assert [event.payload for event in request.history] == [b"e1"]

    async def test_of_a_step_behind_another_starts_from_what_that_one_saved(self, env: Env) -> None:
        hang, _ = await env.busy("p", answer=response(b"e1", aux_state=b"s1"))
        await in_line(env, b"second")
        hang.released.set()
        await env.settled("p", 3)

        request = env.asked_for("p")[2]
        assert (request.process.aux_state, request.process.last_event_id) == (b"s1", 1)
        assert [event.payload for event in request.history] == [b"e1"]


class TestNoAction:
    async def test_runs_a_timer_that_is_overdue_by_then_in_the_same_worker(self, env: Env) -> None:
        # The first call sets a timer that is due now; the second goes before it all the same.
        due_now = response(set_timer=timer())
        hang, _ = await env.busy("p", answering(), answering(b"timer"), answer=due_now)
        await in_line(env, b"second")
        hang.released.set()
        await env.settled("p", 4)

        assert types_asked(env)[2:] == [TASK_TYPE_CALL, TASK_TYPE_TIMEOUT]
        assert (await env.client.get("p")).timer is None


class TestRemoveAction:
    async def test_in_init_leaves_no_process_and_answers(self, env: Env) -> None:
        env.processor.on_process("p", answering(response=b"bye", remove=RemoveProcess()))

        answer = await env.client.start("p")

        assert answer.response == b"bye"
        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_tells_waiting_callers_that_the_process_was_removed(self, env: Env) -> None:
        hang = Hang(response=response(remove=RemoveProcess()))
        await env.running("p", hang)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(env.client.call("p"))
            await env.asked("p", 2)
            second = group.create_task(refusal(env.client.call("p")))
            await env.points.wait("admitted", 3, key=env.key("p"))
            hang.released.set()

        assert first.result().response is None
        assert (second.result().code, second.result().reason) == (
            StatusCode.ABORTED,
            "PROCESS_REMOVED",
        )


class TestComplete:
    async def test_cancels_waiting_calls_and_tells_their_callers(self, env: Env) -> None:
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
        assert [it.status for it in await tasks_of(env)][2:] == [TaskStatus.CANCELLED] * 3
        assert len(env.asked_for("p")) == 2


class TestTheLine:
    async def test_goes_on_with_the_lowest_task_id_in_the_same_worker(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        task_ids = await in_line(env, b"1", b"2", b"3")
        hang.released.set()
        await env.settled("p", 5)

        assert [it.task.task_id for it in env.asked_for("p")][2:] == task_ids
        assert task_ids == sorted(task_ids)
