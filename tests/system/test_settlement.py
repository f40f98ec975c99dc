"""Settlement of success: every action, and the line of calls that goes on after it."""

import asyncio

import pytest
from google.protobuf.struct_pb2 import Struct
from grpc import StatusCode

from progressor.sdk import ProcessStatus, TaskStatus
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from progressor.v1.processor_service_pb2 import UnsetTimer as Unset
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_TIMEOUT
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    Stage,
    answering,
    refusal,
    response,
    timer,
)
from tests.support.stage_reads import in_line, process_of, tasks_of, types_asked

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestSuccess:
    async def test_saves_events_state_metadata_and_response_together(self, stage: Stage) -> None:
        metadata = Struct()
        metadata.update({"customer": "c1"})
        everything = response(b"e1", b"e2", aux_state=b"s", metadata=metadata, response=b"r")
        await stage.running("p", Answer(everything))

        answer = await stage.client.call("p")

        snapshot = await stage.client.get("p")
        assert answer.response == b"r"
        assert [(it.event_id, it.payload) for it in snapshot.history] == [(1, b"e1"), (2, b"e2")]
        assert {it.task_id for it in snapshot.history} == {answer.task_id}
        assert snapshot.process.state == b"s"
        assert snapshot.process.metadata == {"customer": "c1"}
        assert snapshot.process.last_event_id == 2

    async def test_without_state_or_metadata_leaves_them(self, stage: Stage) -> None:
        metadata = Struct()
        metadata.update({"a": 1})
        await stage.running("p", answering(aux_state=b"s", metadata=metadata), answering(b"e"))
        await stage.client.call("p")

        await stage.client.call("p")

        process = await process_of(stage)
        assert (process.state, process.metadata) == (b"s", {"a": 1})

    async def test_with_an_empty_state_clears_it(self, stage: Stage) -> None:
        await stage.running("p", answering(aux_state=b"s"), answering(aux_state=b""))
        await stage.client.call("p")

        await stage.client.call("p")

        assert (await process_of(stage)).state is None

    async def test_is_what_the_next_step_starts_from(self, stage: Stage) -> None:
        await stage.running("p", answering(b"e1", aux_state=b"s1"), answering(b"e2"))
        await stage.client.call("p")

        await stage.client.call("p")

        request = stage.asked_for("p")[2]
        assert request.process.aux_state == b"s1"
        assert request.process.last_event_id == 1
        assert [event.payload for event in request.history] == [b"e1"]

    async def test_of_a_step_behind_another_starts_from_what_that_one_saved(
        self, stage: Stage
    ) -> None:
        hang, _ = await stage.busy("p", answer=response(b"e1", aux_state=b"s1"))
        await in_line(stage, b"second")
        hang.released.set()
        await stage.settled("p", 3)

        request = stage.asked_for("p")[2]
        assert (request.process.aux_state, request.process.last_event_id) == (b"s1", 1)
        assert [event.payload for event in request.history] == [b"e1"]

    async def test_brings_init_to_running(self, stage: Stage) -> None:
        await stage.running("p")

        process = await process_of(stage)
        assert process.status is ProcessStatus.RUNNING
        assert process.previous_status is ProcessStatus.INIT


class TestNoAction:
    async def test_lets_the_timer_that_a_call_pushed_aside_go_on(self, stage: Stage) -> None:
        await stage.timed("p")
        before = (await stage.client.get("p")).timer

        await stage.client.call("p")

        assert (await stage.client.get("p")).timer == before

    async def test_runs_a_timer_that_is_overdue_by_then_in_the_same_worker(
        self, stage: Stage
    ) -> None:
        # The first call sets a timer that is due now; the second goes before it all the same.
        due_now = response(set_timer=timer())
        hang, _ = await stage.busy("p", answering(), answering(b"timer"), answer=due_now)
        await in_line(stage, b"second")
        hang.released.set()
        await stage.settled("p", 4)

        assert types_asked(stage)[2:] == [TASK_TYPE_CALL, TASK_TYPE_TIMEOUT]
        assert (await stage.client.get("p")).timer is None


class TestUnsetTimer:
    async def test_cancels_the_timer(self, stage: Stage) -> None:
        await stage.timed("p", answering(unset_timer=Unset()))

        await stage.client.call("p")

        assert (await stage.client.get("p")).timer is None
        assert [it.status for it in await tasks_of(stage)] == [
            TaskStatus.FINISHED,
            TaskStatus.CANCELLED,
            TaskStatus.FINISHED,
        ]

    async def test_lets_waiting_calls_run(self, stage: Stage) -> None:
        hang = Hang(response=response(unset_timer=Unset()))
        await stage.timed("p", hang, Answer())
        await in_line(stage, b"first", b"second")
        hang.released.set()
        await stage.settled("p", 3)

        assert stage.asked_for("p")[2].task.args == b"second"
        assert (await stage.client.get("p")).timer is None

    async def test_without_a_timer_changes_nothing(self, stage: Stage) -> None:
        await stage.running("p", answering(b"e", unset_timer=Unset()))

        await stage.client.call("p")

        assert (await process_of(stage)).status is ProcessStatus.RUNNING


class TestRemoveAction:
    async def test_deletes_the_process_and_still_answers_the_caller(self, stage: Stage) -> None:
        await stage.timed("p", answering(b"e", response=b"bye", remove=RemoveProcess()))

        answer = await stage.client.call("p")

        assert answer.response == b"bye"
        assert (await refusal(stage.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_in_init_leaves_no_process_and_answers(self, stage: Stage) -> None:
        stage.processor.on_process("p", answering(response=b"bye", remove=RemoveProcess()))

        answer = await stage.client.start("p")

        assert answer.response == b"bye"
        assert (await refusal(stage.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_tells_waiting_callers_that_the_process_was_removed(self, stage: Stage) -> None:
        hang = Hang(response=response(remove=RemoveProcess()))
        await stage.running("p", hang)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(stage.client.call("p"))
            await stage.asked("p", 2)
            second = group.create_task(refusal(stage.client.call("p")))
            await stage.points.wait("admitted", 3, key=stage.key("p"))
            hang.released.set()

        assert first.result().response is None
        assert (second.result().code, second.result().reason) == (
            StatusCode.ABORTED,
            "PROCESS_REMOVED",
        )


class TestComplete:
    async def test_finishes_the_process_with_its_result(self, stage: Stage) -> None:
        last = answering(b"last", response=b"r", complete=Complete(result=b"42"))
        await stage.running("p", last)

        answer = await stage.client.call("p")

        snapshot = await stage.client.get("p")
        assert answer.response == b"r"
        assert snapshot.process.status is ProcessStatus.FINISHED
        assert snapshot.process.result == b"42"
        assert [event.payload for event in snapshot.history] == [b"last"]

    async def test_cancels_the_timer(self, stage: Stage) -> None:
        await stage.timed("p", answering(complete=Complete()))

        await stage.client.call("p")

        assert (await stage.client.get("p")).timer is None
        assert (await tasks_of(stage))[1].status is TaskStatus.CANCELLED

    async def test_cancels_waiting_calls_and_tells_their_callers(self, stage: Stage) -> None:
        hang = Hang(response=response(complete=Complete()))
        await stage.running("p", hang)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.client.call("p"))
            await stage.asked("p", 2)
            waiting = [group.create_task(refusal(stage.client.call("p"))) for _ in range(3)]
            await stage.points.wait("admitted", 5, key=stage.key("p"))
            hang.released.set()

        told = {(each.result().code, each.result().reason) for each in waiting}
        assert told == {(StatusCode.FAILED_PRECONDITION, "PROCESS_FINISHED")}
        assert [it.status for it in await tasks_of(stage)][2:] == [TaskStatus.CANCELLED] * 3
        assert len(stage.asked_for("p")) == 2

    async def test_of_init_finishes_at_once(self, stage: Stage) -> None:
        stage.processor.on_process("p", answering(complete=Complete(result=b"r")))

        await stage.client.start("p")

        process = await process_of(stage)
        assert process.status is ProcessStatus.FINISHED
        assert process.previous_status is ProcessStatus.INIT


class TestTheLine:
    async def test_goes_on_with_the_lowest_task_id_in_the_same_worker(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p")
        task_ids = await in_line(stage, b"1", b"2", b"3")
        hang.released.set()
        await stage.settled("p", 5)

        assert [it.task.task_id for it in stage.asked_for("p")][2:] == task_ids
        assert task_ids == sorted(task_ids)

    async def test_blocks_a_new_timer_meanwhile(self, stage: Stage) -> None:
        later = response(set_timer=timer(3600))
        hang, _ = await stage.busy("p", second := Hang(), answer=later)
        await in_line(stage, b"second")
        hang.released.set()
        await stage.asked("p", 3)
        during = (await stage.client.get("p")).timer
        second.released.set()
        await stage.settled("p", 3)
        after = (await stage.client.get("p")).timer

        assert during is not None
        assert during.status is TaskStatus.BLOCKED
        assert after is not None
        assert (after.task_id, after.status) == (during.task_id, TaskStatus.WAITING)

    async def test_hands_each_step_a_higher_token(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p")
        await in_line(stage, b"1", b"2")
        hang.released.set()
        await stage.settled("p", 4)

        tokens = [request.task.token for request in stage.asked_for("p")]
        assert tokens == sorted(set(tokens))
