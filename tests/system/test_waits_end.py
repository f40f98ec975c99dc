"""Every wait ends: with the answer, an error or the caller's deadline; and the task goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.sdk import Client, ProcessStatus
from progressor.v1.process_service_pb2 import CallRequest
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.processor_service_pb2 import Complete, UnsetTimer
from tests.support.processor import Answer, Hang, reject
from tests.support.replica import (
    QUIET,
    Replica,
    Stage,
    broken,
    open_stage,
    refusal,
    response,
    running_replica,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON = 1.0
"""A caller's patience, in seconds."""

Send = Callable[[Client], Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    async with open_stage(replica) as stage:
        yield stage


class TestDeadline:
    async def test_tells_the_task_that_goes_on(self, stage: Stage) -> None:
        await stage.running("p", hang := Hang())

        status = await refusal(stage.client.call("p", b"1", timeout=SOON))

        hang.released.set()
        answer = await stage.client.await_task("p", task_id=int(status.metadata["task_id"]))
        assert (status.code, status.reason) == (
            StatusCode.DEADLINE_EXCEEDED,
            "DEADLINE_EXCEEDED",
        )
        assert answer.response == b"1"

    async def test_lets_the_answer_be_fetched_by_the_key(self, stage: Stage) -> None:
        await stage.running("p", hang := Hang())

        await refusal(stage.client.call("p", b"1", timeout=SOON, idempotency_key="k"))

        hang.released.set()
        answer = await stage.client.await_task("p", idempotency_key="k")
        assert answer.response == b"1"

    async def test_lets_the_request_be_repeated_with_the_key(self, stage: Stage) -> None:
        await stage.running("p", hang := Hang())
        await refusal(stage.client.call("p", b"1", timeout=SOON, idempotency_key="k"))
        hang.released.set()

        answer = await stage.client.call("p", b"1", idempotency_key="k")

        assert (answer.response, answer.deduplicated) == (b"1", True)
        assert len(stage.asked_for("p")) == 2

    async def test_of_a_start_leaves_the_process_in_init(self, stage: Stage) -> None:
        stage.processor.on_process("p", hang := Hang())

        status = await refusal(stage.client.start("p", timeout=SOON))

        during = (await stage.client.get("p")).process
        hang.released.set()
        await stage.settled("p")
        assert status.metadata["task_id"]
        assert during.status is ProcessStatus.INIT
        assert (await stage.client.get("p")).process.status is ProcessStatus.RUNNING

    async def test_of_one_in_line_keeps_it_in_line(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p")

        status = await refusal(stage.client.call("p", b"2", timeout=SOON))

        hang.released.set()
        answer = await stage.client.await_task("p", task_id=int(status.metadata["task_id"]))
        assert answer.response == b"2"

    async def test_of_await_task_is_told_with_the_task(self, stage: Stage) -> None:
        hang, task_id = await stage.busy("p")

        status = await refusal(stage.client.await_task("p", task_id=task_id, timeout=SOON))

        hang.released.set()
        assert status.code is StatusCode.DEADLINE_EXCEEDED
        assert status.metadata["task_id"] == str(task_id)

    async def test_that_has_passed_already_leaves_nothing(self, stage: Stage) -> None:
        await stage.running("p")

        with pytest.raises(Exception, match=r"[Dd]eadline"):
            await stage.client.call("p", timeout=1e-6)

        # Whatever was sent before has been seen once this is answered.
        await stage.client.get("p")
        assert len((await stage.client.trace("p")).tasks) == 1


class TestACallerWhoGoesAway:
    async def test_takes_nothing_back_from_a_running_step(self, stage: Stage) -> None:
        await stage.running("p", hang := Hang())
        caller = asyncio.ensure_future(stage.client.call("p", b"1", idempotency_key="k"))
        await stage.asked("p", 2)
        caller.cancel()
        await asyncio.wait({caller})
        hang.released.set()

        answer = await stage.client.await_task("p", idempotency_key="k")

        assert answer.response == b"1"

    async def test_takes_nothing_back_from_the_line(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p")
        caller = asyncio.ensure_future(stage.client.call("p", b"1", idempotency_key="k"))
        await stage.points.wait("admitted", 3, key=stage.key("p"))
        caller.cancel()
        await asyncio.wait({caller})
        hang.released.set()

        answer = await stage.client.await_task("p", idempotency_key="k")

        assert answer.response == b"1"

    async def test_by_closing_the_connection_takes_nothing_back(self, stage: Stage) -> None:
        await stage.running("p", hang := Hang())
        async with grpc.aio.insecure_channel(stage.replica.address) as channel:
            request = CallRequest(
                namespace=stage.namespace, process_id="p", args=b"1", idempotency_key="k"
            )
            call = ProcessServiceStub(channel).Call(request)
            await stage.asked("p", 2)
        assert call.cancelled()
        hang.released.set()

        answer = await stage.client.await_task("p", idempotency_key="k")

        assert answer.response == b"1"

    async def test_leaves_the_others_who_wait_for_the_same_task(self, stage: Stage) -> None:
        await stage.running("p", hang := Hang())
        gone = asyncio.ensure_future(stage.client.call("p", b"1", idempotency_key="k"))
        await stage.asked("p", 2)
        async with asyncio.TaskGroup() as group:
            stays = group.create_task(stage.client.call("p", b"1", idempotency_key="k"))
            await stage.points.wait("admitted", 3, key=stage.key("p"))
            gone.cancel()
            await asyncio.wait({gone})
            hang.released.set()

        assert stays.result().response == b"1"


class TestAwaitTask:
    async def test_of_a_task_that_has_ended_returns_at_once(self, stage: Stage) -> None:
        answer = await stage.client.start("p", b"1")

        awaited = await stage.client.await_task("p", task_id=answer.task_id)

        assert (awaited.task_id, awaited.type, awaited.response) == (answer.task_id, "init", b"1")

    async def test_of_a_task_in_line_waits_for_its_turn(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p")
        accepted = await stage.client.call("p", b"2", accept_only=True)
        async with asyncio.TaskGroup() as group:
            awaited = group.create_task(stage.client.await_task("p", task_id=accepted.task_id))
            await stage.points.wait("awaited", key=stage.key("p"))
            hang.released.set()

        assert awaited.result().response == b"2"

    async def test_of_a_notify_returns_what_the_processor_said(self, stage: Stage) -> None:
        await stage.running("p")
        accepted = await stage.client.notify("p", b"1")

        awaited = await stage.client.await_task("p", task_id=accepted.task_id)

        assert (awaited.type, awaited.response) == ("notify", b"1")

    async def test_of_a_rejected_call_is_rejected_alike(self, stage: Stage) -> None:
        await stage.running("p", reject(5, reason="NO", message="no"))
        accepted = await stage.client.call("p", accept_only=True)

        status = await refusal(stage.client.await_task("p", task_id=accepted.task_id))

        assert (status.code, status.domain, status.reason) == (
            StatusCode.NOT_FOUND,
            "processor",
            "NO",
        )

    async def test_of_a_timer_that_was_replaced_says_that_it_is_cancelled(
        self, stage: Stage
    ) -> None:
        await stage.timed("p", Answer(response(unset_timer=UnsetTimer())))
        timer = (await stage.client.get("p")).timer
        assert timer is not None
        await stage.client.call("p")

        status = await refusal(stage.client.await_task("p", task_id=timer.task_id))

        assert (status.code, status.reason) == (StatusCode.ABORTED, "TASK_CANCELLED")

    async def test_of_a_timer_waits_until_it_has_fired(self, stage: Stage) -> None:
        await stage.timed("p", Answer(response(response=b"fired")), after=0.1)
        timer = (await stage.client.get("p")).timer
        assert timer is not None

        awaited = await stage.client.await_task("p", task_id=timer.task_id)

        assert (awaited.type, awaited.response) == ("timeout", b"fired")

    async def test_of_an_unknown_task_or_process_says_which(self, stage: Stage) -> None:
        await stage.running("p")

        reasons = [
            (await refusal(stage.client.await_task("p", task_id=10**12))).reason,
            (await refusal(stage.client.await_task("p", idempotency_key="k"))).reason,
            (await refusal(stage.client.await_task("q", task_id=1))).reason,
        ]

        assert reasons == ["TASK_NOT_FOUND", "TASK_NOT_FOUND", "PROCESS_NOT_FOUND"]


class TestGetThatAwaitsInit:
    async def test_returns_once_the_process_has_left_init(self, stage: Stage) -> None:
        hang = await stage.starting("p")
        async with asyncio.TaskGroup() as group:
            got = group.create_task(stage.client.get("p", await_init=True))
            await stage.points.wait("awaited", key=stage.key("p"))
            hang.released.set()

        assert got.result().process.status is ProcessStatus.RUNNING

    async def test_returns_also_when_init_has_broken(self, stage: Stage) -> None:
        hang = await stage.starting("p", answer=broken().response)
        async with asyncio.TaskGroup() as group:
            got = group.create_task(stage.client.get("p", await_init=True))
            await stage.points.wait("awaited", key=stage.key("p"))
            hang.released.set()

        assert got.result().process.status is ProcessStatus.ERROR

    async def test_that_was_rejected_says_that_there_is_no_process(self, stage: Stage) -> None:
        hang = await stage.starting("p", answer=reject(3).response)
        async with asyncio.TaskGroup() as group:
            got = group.create_task(refusal(stage.client.get("p", await_init=True)))
            await stage.points.wait("awaited", key=stage.key("p"))
            hang.released.set()

        assert got.result().reason == "PROCESS_NOT_FOUND"

    async def test_ends_with_the_deadline(self, stage: Stage) -> None:
        await stage.starting("p")

        status = await refusal(stage.client.get("p", await_init=True, timeout=SOON))

        assert status.code is StatusCode.DEADLINE_EXCEEDED


WAITERS: dict[str, tuple[Send, str, int]] = {
    "the caller of the step in hand": (
        lambda client: client.call("p", idempotency_key="busy"), "admitted", 3,
    ),
    "a caller in line": (lambda client: client.call("p", b"2"), "admitted", 3),
    "one who awaits the step in hand": (
        lambda client: client.await_task("p", idempotency_key="busy"), "awaited", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("waiter", WAITERS)
async def test_remove_tells(stage: Stage, waiter: str) -> None:
    send, point, count = WAITERS[waiter]
    await stage.running("p", Hang())
    await stage.client.call("p", idempotency_key="busy", accept_only=True)
    await stage.asked("p", 2)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(send(stage.client)))
        await stage.points.wait(point, count, key=stage.key("p"))
        await stage.client.remove("p")

    status = waiting.result()
    assert (status.code, status.reason) == (StatusCode.ABORTED, "PROCESS_REMOVED")


class TestAStepInFlight:
    async def test_of_a_removed_process_is_fenced_off(self, stage: Stage) -> None:
        hang, task_id = await stage.busy("p")
        await stage.client.remove("p")
        hang.released.set()
        await stage.points.wait("fenced", key=stage.key("p"), task_id=task_id)

        assert (await refusal(stage.client.get("p"))).reason == "PROCESS_NOT_FOUND"

    async def test_of_a_removed_process_does_not_touch_its_successor(
        self, replica: Replica
    ) -> None:
        # The step of the old process hangs while the new one of the same id begins.
        async with open_stage(replica, one_at_a_time=False) as stage:
            hang, task_id = await stage.busy("p", answer=response(b"old", aux_state=b"old"))
            await stage.client.remove("p")
            await stage.running("p")
            hang.released.set()
            await stage.points.wait("fenced", key=stage.key("p"), task_id=task_id)

            process = (await stage.client.get("p")).process
            assert (process.last_event_id, process.state) == (0, None)

    async def test_of_a_finished_process_was_the_last(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p", answer=response(complete=Complete()))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(stage.client.call("p")))
            await stage.points.wait("admitted", 3, key=stage.key("p"))
            hang.released.set()

        assert waiting.result().reason == "PROCESS_FINISHED"
        assert len(stage.asked_for("p")) == 2
