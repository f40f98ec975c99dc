"""All questions, the names of their answers, and the paces at which they run."""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from types import ModuleType
from typing import Self

from bench.env import Env
from bench.measurement import Measurement, Pace
from bench.questions import (
    bulk,
    call,
    console,
    fan_in,
    fan_out,
    filters,
    full,
    gates,
    get,
    handover,
    history,
    hot_process,
    in_flight,
    job_settlement,
    latency,
    messages,
    mutex,
    neighbours,
    notify,
    open_loop,
    operate,
    pause,
    raw,
    reads,
    replicas,
    schedules,
    secured,
    start,
    steps,
    timers,
    traced,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question, and the names of its answers."""

    name: str
    text: str
    ask: Callable[[Env, Pace], Awaitable[list[Measurement]]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, module: ModuleType) -> Self:
        """Return the question of a module, which is its first line."""
        return cls(
            name=module.__name__.rpartition(".")[2],
            text=(module.__doc__ or "").partition("\n")[0],
            ask=module.ask,
            names=module.NAMES,
        )


QUESTIONS = tuple(
    Question.of(module)
    for module in (
        start, call, steps, timers, get, latency, notify, reads, handover, history, hot_process,
        fan_in, open_loop, raw, replicas, in_flight, traced, mutex, gates, fan_out, job_settlement,
        schedules, messages, operate, bulk, filters, full, pause, secured, neighbours, console,
    )
)  # fmt: skip

QUICK_NAMES = frozenset({
    "relay", "start", "start_stream", "start_session", "call", "call_stream", "call_session",
    "steps", "timers", "get", "latency",
})  # fmt: skip

ON_DEMAND = frozenset({
    *neighbours.NAMES, *schedules.NAMES, "gates_30k", "gates_100k", "fan_out_own",
    "job_of_100", "job_of_1000", *operate.NAMES, *bulk.NAMES, *console.NAMES,
    *filters.NAMES, *full.NAMES,
})  # fmt: skip
"""What a full run leaves out unless it is named: a million processes, or minutes of set-up."""

FULL = Pace(names=frozenset(name for question in QUESTIONS for name in question.names) - ON_DEMAND)
QUICK = Pace(seconds=0.6, warm_up=0.3, long_turns=1, names=QUICK_NAMES)
SMOKE = Pace(seconds=0.4, warm_up=0.1, turns=1, long_turns=1, scale=0.01)


def names_of(chosen: Iterable[str]) -> frozenset[str]:
    """Return the answers that the given names of questions and answers select.

    Raises:
        ValueError: A name is unknown.
    """
    by_question = {question.name: question.names for question in QUESTIONS}
    known = {name for names in by_question.values() for name in names}
    found: set[str] = set()
    for name in chosen:
        if name not in known and name not in by_question:
            message = f"no question {name!r}; there are {', '.join(sorted(known | {*by_question}))}"
            raise ValueError(message)
        found.update(by_question.get(name, (name,)))
    return frozenset(found)


def asked(pace: Pace) -> list[Question]:
    return [each for each in QUESTIONS if any(map(pace.wants, each.names))]
