"""Every cell of the admission table: what a request meets in each state of its process.

The states are entered for real: init by a processor that hangs, error by a call that fails,
finished by a processor that completes.
"""

from collections.abc import AsyncIterator, Awaitable

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.sdk import Process, ProcessStatus, Snapshot, TaskStatus, WaitCause
from progressor.v1.types_pb2 import TASK_TYPE_CALL, TASK_TYPE_INIT, TASK_TYPE_NOTIFY
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    QUIET,
    Replica,
    Stage,
    answering,
    broken,
    open_stage,
    refusal,
    running_replica,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXISTS = (StatusCode.ALREADY_EXISTS, "PROCESS_ALREADY_EXISTS")
NOT_FOUND = (StatusCode.NOT_FOUND, "PROCESS_NOT_FOUND")
FAILED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
IS_RUNNING = (StatusCode.FAILED_PRECONDITION, "PROCESS_IS_RUNNING")
FINISHED = (StatusCode.FAILED_PRECONDITION, "PROCESS_FINISHED")

TYPES = {"call": TASK_TYPE_CALL, "notify": TASK_TYPE_NOTIFY}

REFUSED = [
    ("start", "init", EXISTS),
    ("start", "running", EXISTS),
    ("start", "error", EXISTS),
    ("start", "finished", EXISTS),
    ("call", "none", NOT_FOUND),
    ("call", "error", FAILED),
    ("call", "finished", FINISHED),
    ("notify", "none", NOT_FOUND),
    ("notify", "error", FAILED),
    ("notify", "finished", FINISHED),
    ("repair", "none", NOT_FOUND),
    ("repair", "init", IS_RUNNING),
    ("repair", "running", IS_RUNNING),
    ("repair", "finished", FINISHED),
    ("simple_repair", "none", NOT_FOUND),
    ("simple_repair", "init", IS_RUNNING),
    ("simple_repair", "running", IS_RUNNING),
    ("simple_repair", "finished", FINISHED),
    ("put", "init", EXISTS),
    ("put", "running", EXISTS),
    ("put", "error", EXISTS),
    ("put", "finished", EXISTS),
    ("remove", "none", NOT_FOUND),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    async with open_stage(replica) as stage:
        yield stage


async def enter(stage: Stage, state: str) -> None:
    """Bring process ``p`` into a state."""
    if state == "init":
        await stage.starting("p")
    elif state == "running":
        await stage.running("p")
    elif state == "error":
        await stage.broken("p")
    elif state == "finished":
        await stage.finished("p")


def send(stage: Stage, request: str) -> Awaitable[object]:
    """Send a request of a kind to process ``p``."""
    method: Awaitable[object] = getattr(stage.client, request)("p")
    return method


def essence(process: Process) -> tuple[object, ...]:
    """Return all that a refused request must leave as it was."""
    return (
        process.status,
        process.previous_status,
        process.status_changed_at,
        process.detail,
        process.corrupted_by,
        process.last_event_id,
    )


@pytest.mark.parametrize(
    ("request_", "state", "expected"),
    [pytest.param(*cell, id=f"{cell[0]} with process {cell[1]}: {cell[2][1]}") for cell in REFUSED],
)
async def test_a_request_is_refused_with(
    stage: Stage, request_: str, state: str, expected: tuple[StatusCode, str]
) -> None:
    await enter(stage, state)

    status = await refusal(send(stage, request_))

    assert (status.code, status.reason) == expected
    assert (status.domain, status.metadata["process_id"]) == ("progressor", "p")


@pytest.mark.parametrize("request_", ["start", "call", "repair", "put"])
async def test_a_refused_request_leaves_no_trace(stage: Stage, request_: str) -> None:
    await stage.finished("p")
    before = await stage.client.get("p")
    tasks = (await stage.client.trace("p")).tasks

    await refusal(send(stage, request_))

    assert essence((await stage.client.get("p")).process) == essence(before.process)
    assert (await stage.client.trace("p")).tasks == tasks


async def test_a_call_on_a_broken_process_is_told_why_and_by_which_task(stage: Stage) -> None:
    task_id = await stage.broken("p")

    status = await refusal(stage.client.call("p"))

    assert status.metadata["detail"] == "it broke"
    assert status.metadata["broken_by"] == str(task_id)


class TestStart:
    async def test_creates_the_process_in_init_and_runs_its_init_task(self, stage: Stage) -> None:
        hang = await stage.starting("p")
        during = await stage.client.get("p")
        hang.released.set()
        await stage.settled("p")
        after = await stage.client.get("p")

        assert during.process.status is ProcessStatus.INIT
        assert [wait.cause for wait in during.waits] == [WaitCause.RUNNING]
        assert [it.task.type for it in stage.asked_for("p")] == [TASK_TYPE_INIT]
        assert after.process.status is ProcessStatus.RUNNING
        assert after.process.previous_status is ProcessStatus.INIT

    async def test_returns_the_processors_response(self, stage: Stage) -> None:
        answer = await stage.client.start("p", b"hello")

        assert answer.response == b"hello"
        assert not answer.deduplicated

    async def test_can_return_as_soon_as_it_is_accepted(self, stage: Stage) -> None:
        await stage.starting("p")

        assert (await stage.client.get("p")).process.status is ProcessStatus.INIT

    async def test_in_a_process_of_another_namespace_is_no_conflict(
        self, stage: Stage, replica: Replica
    ) -> None:
        async with open_stage(replica) as other:
            await stage.running("p")

            assert (await other.client.start("p", b"1")).response == b"1"


@pytest.mark.parametrize("request_", ["call", "notify"])
class TestCallAndNotify:
    async def test_wait_behind_init(self, stage: Stage, request_: str) -> None:
        hang = await stage.starting("p")
        accepted = await accept(stage, request_)
        waiting = await stage.client.get("p")
        hang.released.set()
        await stage.settled("p", 2)

        init, behind = waiting.waits
        assert behind.task_id == accepted
        assert (behind.status, behind.cause) == (TaskStatus.WAITING, WaitCause.BEHIND_TASK)
        assert behind.behind_task_id == init.task_id
        assert asked_types(stage) == [TASK_TYPE_INIT, TYPES[request_]]

    async def test_run_at_once_on_a_running_process(self, stage: Stage, request_: str) -> None:
        await stage.running("p")
        accepted = await accept(stage, request_)
        await stage.settled("p", 2)

        assert asked_types(stage) == [TASK_TYPE_INIT, TYPES[request_]]
        assert [event.task_id for event in (await stage.client.get("p")).history] == [accepted]

    async def test_wait_behind_the_running_step(self, stage: Stage, request_: str) -> None:
        hang, busy_id = await stage.busy("p")
        accepted = await accept(stage, request_)
        waiting = await stage.client.get("p")
        hang.released.set()
        await stage.settled("p", 3)

        assert [wait.task_id for wait in waiting.waits] == [busy_id, accepted]
        assert waiting.waits[1].behind_task_id == busy_id
        assert len(stage.asked_for("p")) == 3

    async def test_block_the_waiting_timer(self, stage: Stage, request_: str) -> None:
        hang = Hang()
        await stage.timed("p", hang)
        before = await stage.client.get("p")
        await accept(stage, request_)
        await stage.asked("p", 2)
        during = await stage.client.get("p")
        hang.released.set()
        await stage.settled("p", 2)
        after = await stage.client.get("p")

        assert timer_status(before) is TaskStatus.WAITING
        assert timer_status(during) is TaskStatus.BLOCKED
        assert timer_status(after) is TaskStatus.WAITING
        assert after.timer == before.timer


class TestRepair:
    async def test_runs_at_once_on_a_broken_process(self, stage: Stage) -> None:
        await stage.broken("p", answering(b"fixed", response=b"done"))

        answer = await stage.client.repair("p", b"please")

        assert answer.response == b"done"
        process = (await stage.client.get("p")).process
        assert (process.status, process.detail, process.corrupted_by) == (
            ProcessStatus.RUNNING,
            "",
            None,
        )
        assert stage.asked_for("p")[-1].task.args == b"please"


class TestSimpleRepair:
    async def test_of_a_process_that_a_call_broke_makes_it_running_without_asking(
        self, stage: Stage
    ) -> None:
        await stage.broken("p")
        asked = len(stage.asked_for("p"))

        repaired = await stage.client.simple_repair("p")

        process = (await stage.client.get("p")).process
        assert repaired.task_id is None
        assert process.status is ProcessStatus.RUNNING
        assert process.previous_status is ProcessStatus.ERROR
        assert (process.detail, process.corrupted_by) == ("", None)
        assert len(stage.asked_for("p")) == asked

    async def test_of_a_process_that_its_init_broke_makes_it_running(self, stage: Stage) -> None:
        stage.processor.on_process("p", broken(), Answer())
        await refusal(stage.client.start("p"))

        await stage.client.simple_repair("p")

        assert (await stage.client.call("p", b"1")).response == b"1"


@pytest.mark.parametrize("state", ["init", "running", "error", "finished"])
class TestRemove:
    async def test_leaves_nothing_of_a_process(self, stage: Stage, state: str) -> None:
        await enter(stage, state)

        await stage.client.remove("p")

        for request in (stage.client.get("p"), stage.client.trace("p"), stage.client.remove("p")):
            assert (await refusal(request)).reason == "PROCESS_NOT_FOUND"
        assert [process async for process in stage.client.list()] == []

    async def test_frees_the_id_for_a_new_process(self, replica: Replica, state: str) -> None:
        # The step of the old one may still hang when the new one begins.
        async with open_stage(replica, one_at_a_time=False) as stage:
            await enter(stage, state)
            await stage.client.remove("p")
            stage.processor.on_process("p", answering(b"new"))

            await stage.client.start("p")

            assert [event.payload for event in (await stage.client.get("p")).history] == [b"new"]


async def accept(stage: Stage, request: str) -> int:
    if request == "notify":
        return (await stage.client.notify("p", b"n")).task_id
    return (await stage.client.call("p", b"c", accept_only=True)).task_id


def asked_types(stage: Stage) -> list[int]:
    return [request.task.type for request in stage.asked_for("p")]


def timer_status(snapshot: Snapshot) -> TaskStatus | None:
    return None if snapshot.timer is None else snapshot.timer.status
