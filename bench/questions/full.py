"""What do starts, calls, steps and Get cost beside a million processes, compared with none?"""

import statistics
from collections.abc import Mapping
from typing import Any

from bench.env import SESSION, Env
from bench.filling.plan import Plan
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.questions.rounds import Way, rounds
from bench.questions.steps import run_for_a_turn

_PROCESS_COUNT = 1_000_000
_PROCESS_COUNT_MIN = 3_000
_CALLED_COUNT = 1000
_STEPPING_COUNT = 50
_NAMESPACE = "full"
_NEW, _ANY = ("start_full", "call_full", "get_full"), ("call_any", "get_any")
_STEPS = "steps_full"
NAMES = (*_NEW, *_ANY, _STEPS)

_Order = Mapping[str, Any]


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Ask in turn a database that was filled and, on the same server, one that was empty.

    Calls and Get are of 1,000 processes that were started last; `call_any` and `get_any` take those
    that were filled in, which lie far apart, and are compared with the former of the other one.
    """
    count = pace.count(_PROCESS_COUNT, least=_PROCESS_COUNT_MIN)
    plan = Plan(process_count=count, timer_count=0, namespace=_NAMESPACE)
    async with env.populated(plan) as population:
        full = {"targets": [population.engine.address], "namespace": plan.namespace}
        started = {"prefix": env.prefix(), "distinct": _CALLED_COUNT}
        filled = {"prefix": plan.prefix, "distinct": plan.callable_count}
        ways = {}
        for name in filter(pace.wants, (*_NEW, *_ANY)):
            what = name.partition("_")[0]
            of = {} if what == "start" else started
            ways[f"empty {name}"] = _way(what, of)
            ways[name] = _way(what, (filled if name in _ANY else of) | full)
        for where in ({}, full):
            await env.ask(
                {"what": "start", **started, "count": started["distinct"], **where}, SESSION
            )
        turns = await rounds(env, pace, ways)
        if pace.wants(_STEPS):
            turns |= await _steps(env, pace, full)
    return [
        _compared(name, turns[name], turns[f"empty {name}"], count)
        for name in NAMES
        if name in turns
    ]


def _way(what: str, order: _Order) -> Way:
    return Way({"what": what, **order}, SESSION)


async def _steps(env: Env, pace: Pace, full: _Order) -> dict[str, list[Turn]]:
    wheres: Mapping[str, _Order] = {f"empty {_STEPS}": {}, _STEPS: full}
    turns: dict[str, list[Turn]] = {name: [] for name in wheres}
    for _ in range(pace.turns):
        for name, where in wheres.items():
            order = {"count": _STEPPING_COUNT, **where}
            turns[name].append(await run_for_a_turn(env, order, name, pace))
    return turns


def _compared(name: str, own: list[Turn], empty: list[Turn], count: int) -> Measurement:
    """Return the rates, and their ratio and that of the CPU of the engine and PostgreSQL."""
    cpu = [_cpu(turn) / max(_cpu(other), 1e-9) for turn, other in zip(own, empty, strict=True)]
    return summed_up(
        name, own, ratio_to_unfilled=round(ratio(own, empty), 3),
        cpu_to_unfilled=round(statistics.median(cpu), 3), processes=count,
    )  # fmt: skip


def _cpu(turn: Turn) -> float:
    return turn.cpu_ms_per_op.get("engine", 0.0) + turn.cpu_ms_per_op.get("postgres", 0.0)
