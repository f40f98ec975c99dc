"""A context of the runtime for tests: without jitter, on the clock of the event loop."""

import dataclasses
import random
from typing import Any

from progressor.runtime.core.context import Context
from tests.support.runtime.virtual_time import LoopClock


class _Steady(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def make_context(**fields: Any) -> Context:
    defaults: dict[str, Any] = {"clock": LoopClock(), "spread": _Steady()}
    return Context(**defaults | fields)


def traced(part: Any, tracing: Any) -> Any:
    """Return a part of the runtime whose context has another tracing."""
    return dataclasses.replace(part, context=dataclasses.replace(part.context, tracing=tracing))
