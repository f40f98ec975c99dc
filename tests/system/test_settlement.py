"""Every line of the settlement section but timers and retries: what an outcome does."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from google.protobuf.struct_pb2 import Struct
from grpc import StatusCode

from progressor.sdk import Process, ProcessStatus, TaskStatus, TaskTrace
from progressor.v1.processor_service_pb2 import Complete, ProcessResponse, Reject, RemoveProcess
from progressor.v1.processor_service_pb2 import UnsetTimer as Unset
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_TIMEOUT
from tests.support.processor import Answer, Hang, reject
from tests.support.replica import (
    QUIET,
    Replica,
    Stage,
    answering,
    broken,
    open_stage,
    refusal,
    response,
    running_replica,
    timer,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID_ARGUMENT = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    async with open_stage(replica) as stage:
        yield stage


async def process_of(stage: Stage) -> Process:
    return (await stage.client.get("p")).process


async def tasks_of(stage: Stage) -> tuple[TaskTrace, ...]:
    return (await stage.client.trace("p")).tasks


def types_asked(stage: Stage) -> list[int]:
    return [request.task.type for request in stage.asked_for("p")]


async def in_line(stage: Stage, *args: bytes) -> list[int]:
    """Put calls behind the step in hand, in this order; return their task ids."""
    accepted = [await stage.client.call("p", each, accept_only=True) for each in args]
    return [each.task_id for each in accepted]


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
        stage.processor.on_process("p", broken(), answering(b"mended"))

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
            assert status.metadata["task_id"] == breaker
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
