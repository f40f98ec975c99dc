"""The questions that progressor and Restate are asked in alternating turns."""

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from bench.env import SESSION, STREAM, Env, Variant
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.questions.rounds import processes
from bench.questions.steps import run_for_a_turn

_CALLERS = 64
_CALLED_COUNT = 1000
_STEPPING_COUNT = 50

_Order = Mapping[str, Any]
_Take = Callable[[str, Pace], Awaitable[Turn]]
"""Takes a turn, under a name, at a pace."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is compared, and how a turn is taken for each answer, by its name."""

    text: str
    ours: Mapping[str, _Take]
    theirs: Mapping[str, _Take]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """An answer of each side; ``ratio`` is our rate to theirs, the median over pairs of turns."""

    text: str
    ours: Measurement
    theirs: Measurement
    ratio: float


async def start(ours: Env, theirs: Env) -> Question:
    """Start processes, and invoke new objects: the answer comes after the first step of each."""
    order = {"what": "start", "callers": _CALLERS}
    return _requests(f"starts, {_CALLERS} callers", "start", (ours, order), (theirs, order))


async def call(ours: Env, theirs: Env) -> Question:
    return await _calls(f"calls, {_CALLERS} callers", "call", _CALLERS, ours, theirs)


async def lone_call(ours: Env, theirs: Env) -> Question:
    return await _calls("calls, a lone caller", "lone_call", 1, ours, theirs)


async def steps(ours: Env, theirs: Env) -> Question:
    """Let processes step by themselves.

    A message of an object to itself comes closest to a timer of zero: calls may come between two
    steps. Steps within one invocation cost less, but any call waits for the last of them.
    """
    count = {"count": _STEPPING_COUNT}
    return Question(
        f"self-driven steps, {_STEPPING_COUNT} processes",
        {"steps": _steps(ours, count)},
        {
            "restate_messages": _steps(theirs, {"what": "messages", **count}),
            "restate_steps": _steps(theirs, {"what": "steps", **count}),
        },
    )


QUESTIONS: Mapping[str, Callable[[Env, Env], Awaitable[Question]]] = MappingProxyType({
    "start": start, "call": call, "steps": steps, "lone_call": lone_call,
})  # fmt: skip


async def ask(question: Question, pace: Pace) -> list[Comparison]:
    """Return each answer of ours beside each of theirs; the first turn of all is a warm-up."""
    takes = {**question.ours, **question.theirs}
    warm_up = dataclasses.replace(pace, seconds=pace.warm_up)
    for name, take in takes.items():
        await take(name, warm_up)
    turns: dict[str, list[Turn]] = {name: [] for name in takes}
    for number in range(pace.turns):
        # In turn, so that a machine that slows down does not favour one of them.
        for name in list(takes)[:: -1 if number % 2 else 1]:
            turns[name].append(await takes[name](name, pace))
    return compared(question, turns)


def compared(question: Question, turns: Mapping[str, list[Turn]]) -> list[Comparison]:
    measured = {name: summed_up(name, own) for name, own in turns.items()}
    return [
        Comparison(question.text, measured[own], measured[other], ratio(turns[own], turns[other]))
        for own in question.ours
        for other in question.theirs
    ]


async def _calls(text: str, name: str, callers: int, ours: Env, theirs: Env) -> Question:
    order = {"what": "call", "callers": callers, "distinct": _CALLED_COUNT}
    # Both streams call the same processes.
    sides = [
        (env, {**order, "prefix": await processes(env, STREAM, _CALLED_COUNT)})
        for env in (ours, theirs)
    ]
    return _requests(text, name, *sides)


def _requests(
    text: str, name: str, ours: tuple[Env, _Order], theirs: tuple[Env, _Order]
) -> Question:
    return Question(
        text,
        {
            name: functools.partial(_take, *ours, STREAM),
            f"{name}_session": functools.partial(_take, *ours, SESSION),
        },
        {f"restate_{name}": functools.partial(_take, *theirs, STREAM)},
    )


def _steps(env: Env, order: _Order) -> _Take:
    return functools.partial(run_for_a_turn, env, order)


async def _take(env: Env, order: _Order, variant: Variant, name: str, pace: Pace) -> Turn:
    return await env.turn(name, {**order, "seconds": pace.seconds}, variant)
