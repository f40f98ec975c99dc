"""What the engine sends of a turn, and to whom: only a processor that announces turns gets any."""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Sequence

import pytest_asyncio

from progressor.clock import SystemClock
from progressor.domain.processes.intent import TURN_ENDED, Failed, Succeeded
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.internal.v1 import frames_pb2
from progressor.processor.client import AskedTurn, ProcessorClient
from progressor.v1 import types_pb2
from tests.support.processor import scripted as script
from tests.support.processor.asking import TASK, running_channels
from tests.support.processor.scripted import ScriptedProcessor

LINE = [
    dataclasses.replace(TASK, task_id=3, args=b"three"),
    dataclasses.replace(TASK, task_id=4, args=b"four", task_type=TaskType.NOTIFY),
]


@pytest_asyncio.fixture
async def processor() -> AsyncIterator[ScriptedProcessor]:
    async with ScriptedProcessor() as processor:
        yield processor


class Turning:
    """A client that has asked once, so that its stream is open."""

    def __init__(self, client: ProcessorClient, processor: ScriptedProcessor) -> None:
        self.client, self._processor = client, processor
        self.namespace = Namespace(name="orders", processor_targets=(processor.target,))
        self.lines_read = 0

    async def connect(self, *, announces: bool) -> None:
        timeout = dt.timedelta(seconds=10)
        await self.client.ask(TASK, (), namespace=self.namespace, timeout=timeout)
        if announces:
            await self._processor.streams.write(frames_pb2.StepAnswersFrame(turns=True))
            await self.client.ask(TASK, (), namespace=self.namespace, timeout=timeout)

    async def ask(self) -> AskedTurn | None:
        return await self.client.ask_turn(
            TASK, (), self._line, namespace=self.namespace, timeout=dt.timedelta(seconds=10)
        )

    async def _line(self) -> Sequence[RunningTask]:
        self.lines_read += 1
        return LINE


@pytest_asyncio.fixture
async def turning(processor: ScriptedProcessor) -> AsyncIterator[Turning]:
    async with running_channels() as channels:
        yield Turning(ProcessorClient(channels, SystemClock()), processor)


async def test_a_processor_that_announces_no_turns_gets_none(turning: Turning) -> None:
    await turning.connect(announces=False)

    assert await turning.ask() is None
    assert turning.lines_read == 0


async def test_the_outcomes_of_a_turn_come_in_the_order_of_its_tasks(turning: Turning) -> None:
    await turning.connect(announces=True)
    turn = await turning.ask()
    assert turn is not None

    asked = []
    while (task := turn.following) is not None:
        outcome = await turn.outcome()
        assert isinstance(outcome, Succeeded)
        asked.append((task.task_id, outcome.intent.response))
    await turn.close()

    assert asked == [(2, b"args"), (3, b"three"), (4, b"four")]


async def test_a_step_that_was_not_begun_is_no_refusal_of_the_processor(
    processor: ScriptedProcessor, turning: Turning
) -> None:
    processor.on_type(types_pb2.TASK_TYPE_NOTIFY, script.fail(14, reason=TURN_ENDED))
    await turning.connect(announces=True)
    turn = await turning.ask()
    assert turn is not None

    outcomes = [await turn.outcome() for _ in range(3)]
    await turn.close()

    assert [type(it) for it in outcomes] == [Succeeded, Succeeded, type(None)]
    assert turning.client.reach.unreachable() == {}
    assert turning.client.reach.breakers == {}


async def test_a_turn_whose_stream_breaks_fails_each_step_that_was_not_answered(
    processor: ScriptedProcessor, turning: Turning
) -> None:
    processor.on_type(types_pb2.TASK_TYPE_NOTIFY, script.EndStream())
    await turning.connect(announces=True)
    turn = await turning.ask()
    assert turn is not None

    outcomes = [await turn.outcome() for _ in range(3)]
    await turn.close()

    assert isinstance(outcomes[2], Failed)
    assert outcomes[2].retryable
