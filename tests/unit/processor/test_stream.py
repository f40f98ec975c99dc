"""One stream to a processor, without a socket: timeouts, reports, bounds, ends."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from progressor.domain.processes.intent import Failed
from progressor.domain.processes.memo import StepLease
from progressor.processor import failures, stream
from progressor.processor.step_calls import StepCalls
from progressor.processor.stream import STALL_SECONDS, STEP_KEY, STREAM_KEY, Stream
from progressor.v1 import processor_service_pb2 as pb
from tests.support.processor.asking import TASK
from tests.support.processor.call import ScriptedCall
from tests.support.runtime.virtual_time import in_virtual_time, settled


@contextlib.asynccontextmanager
async def opened(
    *, stalled: bool = False, step_calls: StepCalls | None = None
) -> AsyncIterator[tuple[Stream, ScriptedCall]]:
    call = ScriptedCall()
    if stalled:
        call.flowing.clear()
    asked = Stream("target", lambda: call, step_calls, "name")
    async with asyncio.TaskGroup() as group:
        asked.open(group)
        yield asked, call
        asked.close()


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_step_ends_at_its_deadline_and_the_processor_is_told() -> None:
    async with opened() as (asked, call):
        answer = await asked.ask(b"a", now() + 5)
        await settled()

        assert answer == failures.STEP_RAN_OUT
        assert now() == pytest.approx(5, abs=0.01)
        assert call.cancelled == [1]


@in_virtual_time
async def test_a_step_that_is_due_sooner_does_not_wait_for_those_before_it() -> None:
    async with opened() as (asked, _), asyncio.TaskGroup() as group:
        late = group.create_task(asked.ask(b"a", now() + 60))
        await settled()
        await asked.ask(b"b", now() + 1)

        assert now() == pytest.approx(1, abs=0.01)
        await late
        assert now() == pytest.approx(60, abs=0.02)


@in_virtual_time
async def test_a_step_that_was_given_up_before_it_was_written_is_never_told() -> None:
    async with opened(stalled=True) as (asked, call), asyncio.TaskGroup() as group:
        kept = group.create_task(asked.ask(b"a", now() + 5))
        await settled()
        given_up = group.create_task(asked.ask(b"b", now() + 5))
        await settled()
        given_up.cancel()
        call.flowing.set()
        await settled()
        call.answer([(1, b"A")])

        assert await kept == b"A"
        assert given_up.cancelled()
    assert (call.steps, call.cancelled) == ({1: b"a"}, [])


@in_virtual_time
async def test_a_step_that_was_given_up_after_it_was_written_is_told_once() -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        given_up = group.create_task(asked.ask(b"b", now() + 5))
        await settled()
        given_up.cancel()
        await settled()
        await asyncio.sleep(10)

    assert call.cancelled == [1]


@pytest.mark.parametrize(("is_answered", "cancelled"), [(True, []), (False, [1])])
@in_virtual_time
async def test_a_step_that_ends_as_its_caller_goes_is_not_cancelled_again(
    is_answered: bool, cancelled: list[int]
) -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        asking = group.create_task(asked.ask(b"a", now() + 1))
        await settled()
        # Before the caller wakes up for its end.
        if is_answered:
            call.answer([(1, b"A")])
            while asked._waiting:  # noqa: ASYNC110  the very moment is the point
                await asyncio.sleep(0)
            asking.cancel()
        else:
            asyncio.get_running_loop().call_at(now() + 1, asking.cancel)
        await asyncio.sleep(10)

        assert asking.cancelled()
    assert call.cancelled == cancelled


@in_virtual_time
async def test_draining_gives_back_what_was_not_written_and_hangs_up_after_the_last() -> None:
    async with opened(stalled=True) as (asked, call), asyncio.TaskGroup() as group:
        written = group.create_task(asked.ask(b"a", now() + 5))
        await settled()
        call.answer([], draining=True)
        await settled()

        assert (asked.is_open, call.is_cancelled) == (False, False)
        assert await asked.ask(b"b", now() + 5) is None
        call.answer([(1, b"A")])
        assert await written == b"A"
        assert call.is_cancelled
        assert asked.ended_early


@in_virtual_time
async def test_draining_in_the_moment_before_a_frame_is_written_takes_nothing_along() -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        await settled()
        call.answer([], draining=True)
        asking = group.create_task(asked.ask(b"a", now() + 5))

        assert await asking is None
    assert call.steps == {}


@in_virtual_time
async def test_over_the_bound_of_the_line_a_step_goes_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "LINE_MAX", 2)
    async with opened(stalled=True) as (asked, _), asyncio.TaskGroup() as group:
        group.create_task(asked.ask(b"a", now() + 5))
        await settled()
        for _ in range(2):
            group.create_task(asked.ask(b"b", now() + 5))
        await settled()

        assert await asked.ask(b"c", now() + 5) is None


@in_virtual_time
async def test_a_processor_that_reads_nothing_while_steps_run_out_is_cut_off() -> None:
    async with opened(stalled=True) as (asked, call), asyncio.TaskGroup() as group:
        written = group.create_task(asked.ask(b"a", now() + 60))
        await settled()
        early = await asked.ask(b"b", now() + STALL_SECONDS / 2)
        assert not call.is_cancelled
        await asked.ask(b"c", now() + STALL_SECONDS)

        assert early == failures.STEP_RAN_OUT
        assert await written == failures.processor_unavailable("the processor stopped reading")
        assert not asked.broke


@in_virtual_time
async def test_an_answer_without_a_response_finishes_nothing() -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        first = group.create_task(asked.ask(b"a", now() + 5))
        second = group.create_task(asked.ask(b"b", now() + 5))
        await settled()
        call.answer([(1, None), (2, b"")])

        unanswered = await first
        assert isinstance(unanswered, Failed)
        assert (unanswered.reason, unanswered.retryable) == ("INVALID_ANSWER", False)
        assert unanswered.message == "answers.response: must be set"
        assert await second == b""


@in_virtual_time
async def test_a_stream_refused_gives_its_steps_back() -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        asking = group.create_task(asked.ask(b"a", now() + 5))
        await settled()
        call.end(grpc.StatusCode.UNIMPLEMENTED)

        assert await asking is None
        assert asked.was_refused
        assert asked.has_ended


@in_virtual_time
async def test_a_stream_that_answered_is_not_refused_any_more() -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        first = group.create_task(asked.ask(b"a", now() + 5))
        second = group.create_task(asked.ask(b"b", now() + 5))
        await settled()
        call.answer([(1, b"A")])
        call.end(grpc.StatusCode.UNIMPLEMENTED)

        assert await first == b"A"
        cut_off = await second
        assert isinstance(cut_off, Failed)
        assert (cut_off.reason, cut_off.retryable) == ("PROCESSOR_UNAVAILABLE", True)
        assert (asked.was_refused, asked.broke, asked.ended_early) == (False, True, False)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
@in_virtual_time
async def test_a_connection_that_is_lost_is_no_fault_of_the_steps(code: grpc.StatusCode) -> None:
    async with opened() as (asked, call), asyncio.TaskGroup() as group:
        asking = group.create_task(asked.ask(b"a", now() + 5))
        await settled()
        call.end(code)

        assert isinstance(await asking, Failed)
        assert (asked.broke, asked.ended_early) == (False, False)


@in_virtual_time
async def test_an_engine_that_leaves_ends_the_steps() -> None:
    call = ScriptedCall()
    asked = Stream("target", lambda: call)
    answers = []

    async def ask() -> None:
        answers.append(await asked.ask(b"a", now() + 5))

    async with asyncio.TaskGroup() as asking:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1), asyncio.TaskGroup() as group:
                asked.open(group)
                asking.create_task(ask())
                await asyncio.Event().wait()

    assert answers == [failures.processor_unavailable("the engine leaves")]
    assert call.is_cancelled


class Memos:
    """Serves the calls of steps; `asked` has the tasks, in order."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def remember(self, lease: StepLease, _key: str, _value: bytes) -> None:
        self.asked.append(lease.task_id)

    async def extend(self, lease: StepLease, _by: dt.timedelta) -> dt.timedelta:
        self.asked.append(lease.task_id)
        return dt.timedelta(seconds=1)

    async def time_left(self, _lease: StepLease) -> None: ...

    def deadline_in(self, left: dt.timedelta) -> dt.datetime:
        return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + left


@in_virtual_time
async def test_a_guest_makes_calls_on_a_stream_which_stays_for_it_in_a_drain() -> None:
    memos = Memos()
    step_calls = StepCalls(running_steps=memos, status=lambda error: error.reason.encode())
    async with opened(step_calls=step_calls) as (asked, call):
        with asked.guest(TASK) as metadata:
            step_id = int(dict(metadata)[STEP_KEY])
            call.answer([], draining=True)
            call.ask(step_id, remember=pb.RememberCall(key="k").SerializeToString())
            call.ask(step_id, extend=pb.ExtendCall(by=Duration(seconds=1)).SerializeToString())
            await settled()
            assert (asked.is_open, call.is_cancelled) == (False, False)
            call.ask(step_id + 1, remember=b"")
            await settled()
        assert call.is_cancelled

    results = [it for frame in call.frames for it in frame.results]
    assert dict(metadata)[STREAM_KEY] == "name"
    assert (memos.asked, [it.WhichOneof("result") for it in results]) == (
        [TASK.task_id] * 2, ["remember", "extend", "error"],
    )  # fmt: skip
    assert [it.error for it in results if it.error] == [b"LEASE_LOST"]
