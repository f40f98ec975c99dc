"""A context of the runtime for tests: without jitter, on the clock of the event loop."""

import dataclasses
import datetime as dt
import random
from typing import Any

from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.due_queue import DueQueue
from progressor.runtime.effects.gate_queue import GateQueue
from progressor.runtime.effects.upkeep_queue import UpkeepQueue
from tests.support.runtime.virtual_time import LoopClock


class _Steady(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def make_context(**fields: Any) -> Context:
    defaults: dict[str, Any] = {"clock": LoopClock(), "spread": _Steady()}
    return Context(**defaults | fields)


def make_dispatcher(**parts: Any) -> EffectDispatcher:
    """Return a dispatcher into empty queues; without `replies` it takes no results of tasks."""
    context = parts.pop("context", None) or make_context()
    horizon = dt.timedelta(seconds=60)
    defaults: dict[str, Any] = {
        "replies": None,
        "due_queue": DueQueue(clock=context.clock, horizon=horizon, size_max=10),
        "gate_queue": GateQueue(clock=context.clock, horizon=horizon),
        "upkeep_queue": UpkeepQueue(),
        "context": context,
    }
    return EffectDispatcher(**defaults | parts)


def traced(part: Any, tracing: Any) -> Any:
    """Return a part of the runtime whose context has another tracing."""
    return dataclasses.replace(part, context=dataclasses.replace(part.context, tracing=tracing))
