"""Invariants of a stream to a processor under any order of requests, answers and cancellations."""

import asyncio
from typing import Any

import grpc
from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.intent import Failed
from progressor.processor.stream import Stream
from tests.support.processor.call import ScriptedCall
from tests.support.runtime.virtual_time import in_virtual_time, settled

SECONDS_MAX = 8


CODES = (
    grpc.StatusCode.OK,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
)
STEP_IDS = st.lists(st.integers(0, 8), max_size=5).map(tuple)
GOING_ON = st.one_of(
    *[st.tuples(st.just("ask"), st.integers(1, SECONDS_MAX))] * 3,
    # The steps may be any, whether or not they were ever asked.
    st.tuples(st.just("answer"), STEP_IDS),
    st.tuples(st.just("give up"), st.integers(0, 6)),
    st.tuples(st.just("pass"), st.integers(0, SECONDS_MAX)),
)
ENDING = st.one_of(
    st.tuples(st.just("answer and drain"), STEP_IDS),
    # None: by a frame that cannot be read.
    st.tuples(st.just("end"), st.sampled_from((*CODES, None))),
    st.tuples(st.just("close"), st.none()),
)
Action = tuple[str, Any]


class Play:
    """A stream, what was asked of it, and how each ask ended."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.call = ScriptedCall()
        self.stream = Stream("target", lambda: self.call)
        self.ends: dict[int, list[object]] = {}
        self._group = group
        self.tasks: list[asyncio.Task[None]] = []
        self.stream.open(group)

    def act(self, action: Action) -> None:
        match action:
            case "ask", int(seconds):
                number = len(self.tasks)
                self.tasks.append(self._group.create_task(self._ask(number, seconds)))
            case "answer" | "answer and drain" as word, step_ids:
                answers = [(step_id, b"answer to %d" % step_id) for step_id in step_ids]
                self.call.answer(answers, draining=word != "answer")
            case "give up", int(number) if number < len(self.tasks):
                self.tasks[number].cancel()
            case "end", None:
                self.call.garble()
            case "end", code:
                self.call.end(code)
            case "close", _:
                self.stream.close()
            case _:
                pass

    async def _ask(self, number: int, seconds: int) -> None:
        ends = self.ends.setdefault(number, [])
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            ends.append(await self.stream.ask(b"%d" % number, deadline))
        except asyncio.CancelledError:
            ends.append("given up")
            raise


@given(
    course=st.lists(st.tuples(GOING_ON, st.booleans()), max_size=25),
    ending=st.lists(st.tuples(ENDING | GOING_ON, st.booleans()), max_size=6),
)
@in_virtual_time
async def test_every_request_ends_exactly_once_and_as_it_was_answered(
    course: list[tuple[Action, bool]], ending: list[tuple[Action, bool]]
) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        play = Play(group)
        for action, at_rest in course + ending:
            play.act(action)
            if action[0] == "pass":
                await asyncio.sleep(action[1])
            if at_rest:
                await settled()
        asked_at = loop.time()
        if play.tasks:
            await asyncio.wait(play.tasks)
        # No request waits longer than the longest timeout.
        assert loop.time() - asked_at <= SECONDS_MAX + 1
        await settled()
        play.stream.close()
    _check(play)


def _check(play: Play) -> None:
    call, written = play.call, {}
    for step_id, request in call.steps.items():
        written[int(request)] = step_id
    answered = set()
    for number, ends in play.ends.items():
        assert len(ends) == 1
        (end,) = ends
        match end:
            case bytes():
                # It is the answer to this step, which was written.
                assert end == b"answer to %d" % written[number]
                answered.add(written[number])
            case None:
                assert number not in written or play.stream.was_refused
            case Failed():
                assert end.retryable
            case _:
                assert end == "given up"
    # What is given up was written, is said once, and not of what was answered.
    assert len(set(call.cancelled)) == len(call.cancelled)
    assert set(call.cancelled) <= set(written.values()) - answered
    # Nothing is written twice.
    sent = [step.step_id for frame in call.frames for step in frame.steps]
    assert len(sent) == len(set(sent))
