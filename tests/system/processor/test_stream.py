"""What streams to a processor have of their own: frames, breaks, drains, the way back to calls."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import Failed, Intent, Outcome, Succeeded
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import RunningTask
from progressor.internal.v1 import frames_pb2
from progressor.processor import channels, client
from progressor.v1 import types_pb2
from tests.support.engine.points import eventually
from tests.support.processor import scripted as script
from tests.support.processor.asking import (
    ANSWERED,
    TASK,
    UNAVAILABLE,
    Asking,
    running_channels,
    wordless,
)
from tests.support.processor.scripted import ScriptedProcessor


@pytest_asyncio.fixture
async def processor() -> AsyncIterator[ScriptedProcessor]:
    async with ScriptedProcessor() as processor:
        yield processor


@pytest_asyncio.fixture
async def asking(processor: ScriptedProcessor) -> AsyncIterator[Asking]:
    async with running_channels() as channels:
        yield Asking(channels, processor.target)


def task_of(name: str, *, task_id: int = 2, args: bytes = b"args") -> RunningTask:
    """Return a task of a process."""
    process = dataclasses.replace(TASK.process, key=process_key("orders", name))
    return dataclasses.replace(TASK, process=process, task_id=task_id, args=args)


def answered(args: bytes) -> Succeeded:
    return Succeeded(Intent(events=(NewEvent(payload=args),), response=args))


async def ask_each(asking: Asking, *tasks: RunningTask, seconds: float = 10) -> list[Outcome]:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(asking.ask(task, seconds=seconds)) for task in tasks]
    return [task.result() for task in asked]


class TestFrames:
    async def test_hold_what_is_asked_in_one_moment_on_one_stream(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        tasks = [task_of(f"p{n}", args=b"%d" % n) for n in range(100)]

        outcomes = await ask_each(asking, *tasks)

        assert outcomes == [answered(task.args) for task in tasks]
        assert processor.streams.opened_count == 1
        assert processor.streams.frame_sizes[0] > 1
        assert not processor.called

    async def test_take_ten_thousand_steps_at_once(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        hang = script.Hang()
        processor.on_type(types_pb2.TASK_TYPE_CALL, hang)
        tasks = [task_of(f"p{n}", args=b"%d" % n) for n in range(10_000)]

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask_each(asking, *tasks, seconds=60))
            await processor.received(10_000, seconds=50)
            hang.released.set()

        assert asked.result() == [answered(task.args) for task in tasks]
        assert not processor.called

    async def test_a_huge_step_goes_by_a_call_beside_the_small_ones(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        asking.namespace = dataclasses.replace(asking.namespace, payload_bytes_max=8 * 1024**2)
        huge = task_of("huge", args=b"x" * (2 * 1024**2))

        outcomes = await ask_each(asking, huge, task_of("p"))

        assert outcomes == [answered(huge.args), ANSWERED]
        assert processor.called == ["huge"]


class TestABreak:
    async def test_of_the_connection_cuts_off_each_step_and_the_next_is_answered(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        processor.on_process("hangs", script.Hang())
        processor.on_process("drops", script.Drop())
        asked = await ask_each(asking, task_of("hangs"), task_of("drops"))
        await reached(asking)

        assert [wordless(outcome) for outcome in asked] == [UNAVAILABLE, UNAVAILABLE]
        assert await asking.ask() == ANSWERED
        assert not processor.called

    @pytest.mark.parametrize(
        "step",
        [
            script.GarbleFrame(),
            script.EndStream(),
            script.EndStream(grpc.StatusCode.INTERNAL, "a bug"),
            script.EndStream(grpc.StatusCode.PERMISSION_DENIED, "a proxy"),
        ],
    )
    async def test_by_one_step_costs_each_an_attempt_and_then_only_that_step_is_alone(
        self, step: script.Step, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        await asking.ask()
        hang = script.Hang()
        processor.on_process("neighbour", hang, script.Answer())
        processor.on_process("culprit", step)
        tasks = (task_of("neighbour", task_id=3), task_of("culprit", task_id=4))

        first = await ask_each(asking, *tasks)
        second = await ask_each(asking, *tasks)
        third = await ask_each(asking, task_of("neighbour", task_id=5))

        assert [wordless(outcome) for outcome in first] == [UNAVAILABLE, UNAVAILABLE]
        assert second == [ANSWERED, ANSWERED]
        assert sorted(processor.called) == ["culprit", "neighbour"]
        assert third == [ANSWERED]
        assert processor.streams.opened_count == 2

    async def test_is_remembered_of_the_latest_tasks_only(
        self, processor: ScriptedProcessor, asking: Asking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "SUSPECTS_MAX", 1)
        await asking.ask()
        processor.on_process("culprit", script.EndStream(), script.Answer())
        processor.on_process("neighbour", script.Hang(), script.Answer())
        tasks = (task_of("neighbour", task_id=3), task_of("culprit", task_id=4))
        await ask_each(asking, *tasks)

        assert await ask_each(asking, *tasks) == [ANSWERED, ANSWERED]
        assert len(processor.called) == 1

    async def test_before_anything_came_back_leads_to_calls_for_a_while(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        processor.on_process("order-1", script.EndStream(grpc.StatusCode.INTERNAL), script.Answer())
        await asking.ask()

        outcomes = [await asking.ask(task_of(name, task_id=3)) for name in ("p", "q")]

        assert outcomes == [ANSWERED, ANSWERED]
        assert (processor.called, processor.streams.opened_count) == (["p", "q"], 1)


async def reached(asking: Asking) -> None:
    """Wait until the channel to the processor is up (again)."""
    async with asyncio.timeout(10):
        taken = await asking.channels.take(asking.namespace)
        await taken.channel.channel_ready()
        await asking.channels.give_back(taken)


async def lost(asking: Asking) -> None:
    """Wait until the connection, not only its channel, has noticed that the processor is gone.

    What is sent before that may have reached it.
    """
    taken = await asking.channels.take(asking.namespace)
    await eventually(lambda: not taken.is_ready)
    await asking.channels.give_back(taken)


class TestDraining:
    async def test_lets_steps_in_hand_end_and_sends_the_next_by_another_stream(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        await asking.ask()
        hang = script.Hang()
        processor.on_process("busy", hang)

        async with asyncio.TaskGroup() as group:
            busy = group.create_task(asking.ask(task_of("busy")))
            await processor.received(2)
            await processor.streams.write(frames_pb2.StepAnswersFrame(draining=True))
            while processor.streams.opened_count < 2:
                assert await asking.ask(task_of("p")) == ANSWERED
            assert not busy.done()
            hang.released.set()

        assert busy.result() == ANSWERED
        assert not processor.called
        await processor.streams.until(lambda streams: streams.open_count == 1)


class TestNotOffered:
    async def test_is_asked_by_calls_and_remembered(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        processor.streaming = False

        first = await ask_each(asking, *(task_of(f"p{n}") for n in range(20)))
        processor.streaming = True
        later = await asking.ask()

        assert first == [ANSWERED] * 20
        assert later == ANSWERED
        assert processor.streams.opened_count == 0
        assert len(processor.requests) == 21

    async def test_is_told_from_a_break_also_where_it_crosses_a_frame(
        self, processor: ScriptedProcessor, asking: Asking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # grpc.aio says of one in ten of these INTERNAL, if it is asked itself.
        monkeypatch.setattr(channels, "REFUSED_SECONDS", 0.0)
        processor.streaming = False
        tasks = [task_of(f"p{number}", args=b"x" * 300_000) for number in range(8)]

        for _ in range(30):
            assert await ask_each(asking, *tasks) == [answered(tasks[0].args)] * 8

    async def test_is_tried_again_when_the_processor_was_away(
        self, processor: ScriptedProcessor, asking: Asking
    ) -> None:
        processor.streaming = False
        await asking.ask()
        await processor.stop()
        await lost(asking)
        processor.streaming = True
        away = await asking.ask()
        assert isinstance(away, Failed)
        assert (away.unreachable, away.sent) == (True, False)
        await processor.restart()
        await reached(asking)

        assert await asking.ask() == ANSWERED
        assert processor.streams.opened_count == 1
