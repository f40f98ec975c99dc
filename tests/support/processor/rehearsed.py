"""For tests of rehearsals: graphs, processors that follow a script, and patience."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from progressor.sdk import Graph, Processor
from tests.support.engine.points import Points

Seen = TypeVar("Seen")

_CATCHES_UP_SECONDS = 10.0


async def comes_to(expected: Seen, look: Callable[[], Awaitable[Seen]], points: Points) -> Seen:
    """Look at an engine each time that it passes a point, for 10 s; return what was seen last."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CATCHES_UP_SECONDS):
            while True:
                news = points.news
                if await look() == expected:
                    return expected
                await news.wait()
    return await look()


def chain(*names: str, after: Any = (), **options: Any) -> Graph:
    """Return a graph in which each node comes after the one before, the first after `after`."""
    graph = Graph()
    for name in names:
        after = graph.node(name, after=after, wants_results=True, **options)
    return graph


def processor_of(name: str = "jobs", **handlers: Any) -> Processor[Any]:
    processor = Processor(name)
    for handler_name, handler in handlers.items():
        getattr(processor, handler_name)(handler)
    return processor
