"""Nodes bound to one target, over real sockets: asked only there, and waited for a while."""

import contextlib
import dataclasses
import datetime as dt
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from progressor.domain.processes.intent import Failed, Outcome
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import JobOptions, Part
from progressor.domain.processes.task import RunningTask
from progressor.processor.channels import Channels
from progressor.processor.client import ProcessorClient
from tests.support.builders import make_key, seconds
from tests.support.clock import ManualClock
from tests.support.processor.asking import ANSWERED, TASK, running_channels
from tests.support.processor.scripted import Drop, ScriptedProcessor

PATIENCE = dt.timedelta(minutes=5)
TIMEOUT = seconds(10)


@pytest.fixture
def dead() -> Iterator[str]:
    """Return a target whose port is bound by a socket that never listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[Channels]:
    async with running_channels() as channels:
        yield channels


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A client whose steps are bound to targets of one namespace."""

    client: ProcessorClient
    namespace: Namespace

    async def ask(self, target: str | None, **fields: Any) -> Outcome:
        task = TASK if target is None else bound_to(target)
        namespace = dataclasses.replace(self.namespace, **fields)
        return await self.client.ask(task, (), namespace=namespace, timeout=TIMEOUT)


def bound_to(target: str) -> RunningTask:
    part = Part(leader=make_key("leader"), node=1, options=JobOptions(target=target))
    return dataclasses.replace(TASK, process=dataclasses.replace(TASK.process, part=part))


@contextlib.asynccontextmanager
async def two_targets(
    channels: Channels, clock: ManualClock, second: str
) -> AsyncIterator[tuple[Bound, ScriptedProcessor]]:
    """Give a namespace of a processor that is there, and of a second target."""
    async with ScriptedProcessor() as first:
        namespace = Namespace(
            name="orders", processor_targets=(first.target, second), unreachable_patience=PATIENCE
        )
        yield Bound(ProcessorClient(channels, clock), namespace), first


def is_waited_for(outcome: Outcome) -> bool:
    assert isinstance(outcome, Failed), outcome
    if outcome.unreachable:
        assert (outcome.reason, outcome.retryable) == ("PROCESSOR_UNAVAILABLE", True)
    else:
        assert (outcome.reason, outcome.retryable) == ("TARGET_UNREACHABLE", False)
    return outcome.unreachable


async def test_a_bound_step_is_asked_there_and_others_in_turn(
    channels: Channels, clock: ManualClock
) -> None:
    async with (
        ScriptedProcessor() as second,
        two_targets(channels, clock, second.target) as (bound, first),
    ):
        for _ in range(4):
            assert await bound.ask(second.target) == ANSWERED
        only = (len(first.requests), len(second.requests))
        while not first.requests:  # until both are connected
            assert await bound.ask(None) == ANSWERED
        before = (len(first.requests), len(second.requests))
        for _ in range(4):
            assert await bound.ask(None) == ANSWERED

        assert only == (0, 4)
        assert (len(first.requests), len(second.requests)) == (before[0] + 2, before[1] + 2)


async def test_a_target_that_the_namespace_has_no_more_fails_the_step_for_good(
    channels: Channels, clock: ManualClock, dead: str
) -> None:
    async with two_targets(channels, clock, dead) as (bound, first):
        outcome = await bound.ask(dead, processor_targets=(first.target,))

        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.reason, outcome.retryable, outcome.unreachable) == (
            9, "TARGET_NOT_FOUND", False, False,
        )  # fmt: skip
        assert dead in outcome.message
        assert first.requests == []


async def test_a_dead_port_is_waited_for_until_the_patience_is_over(
    channels: Channels, clock: ManualClock, dead: str
) -> None:
    async with two_targets(channels, clock, dead) as (bound, first):
        at_first = is_waited_for(await bound.ask(dead))
        clock.advance(PATIENCE - seconds(1))
        almost = is_waited_for(await bound.ask(dead))
        clock.advance(seconds(1))
        over = is_waited_for(await bound.ask(dead))

        assert (at_first, almost, over) == (True, True, False)
        assert first.requests == []


async def test_a_target_that_came_back_is_waited_for_as_long_again(
    channels: Channels, clock: ManualClock
) -> None:
    async with (
        ScriptedProcessor() as second,
        two_targets(channels, clock, second.target) as (
            bound,
            _,
        ),
    ):
        await second.stop()
        assert is_waited_for(await bound.ask(second.target))
        clock.advance(PATIENCE)
        await second.restart()
        await _answered(bound, second.target)
        await second.stop()

        # A step sent before the channel notices the closed socket is cut off at once.
        while _is_cut_off(outcome := await bound.ask(second.target)):
            pass
        assert is_waited_for(outcome)


async def test_a_target_that_is_cut_off_under_a_step_costs_it_an_attempt(
    channels: Channels, clock: ManualClock
) -> None:
    """Or a step that takes its target down each time would be asked for ever."""
    async with (
        ScriptedProcessor() as second,
        two_targets(channels, clock, second.target) as (bound, _),
    ):
        await _answered(bound, second.target)
        second.on_process(TASK.key.process_id, Drop())

        cut_off = await bound.ask(second.target)

        assert isinstance(cut_off, Failed)
        assert (cut_off.reason, cut_off.unreachable) == ("PROCESSOR_UNAVAILABLE", False)


def _is_cut_off(outcome: Outcome) -> bool:
    assert isinstance(outcome, Failed), outcome
    return outcome.reason == "PROCESSOR_UNAVAILABLE" and not outcome.unreachable


async def _answered(bound: Bound, target: str) -> None:
    """Ask until there is an answer: a channel that has failed waits before it connects again."""
    while await bound.ask(target) != ANSWERED:
        pass
