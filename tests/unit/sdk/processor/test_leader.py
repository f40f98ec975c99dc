"""Leaders and followers: what a handler sees of nodes, and how it starts some."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest

from progressor.sdk import Processor, Step
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.processor.test_step import asked

DONE = nodes.NodeOutcome(name="map-1", state=nodes.NODE_STATE_DONE, result=b"4")


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_a_follower_gets_what_it_comes_after(threads: Executor) -> None:
    processor = Processor("orders")

    @processor.init
    async def add(step: Step[Any]) -> None:
        step.complete(step.results["map-1"] + step.args)

    request = asked(types.TASK_TYPE_INIT, args=b"1")
    request.task.nodes.append(DONE)

    assert (await processor.answer(request, threads)).complete.result == b"5"
