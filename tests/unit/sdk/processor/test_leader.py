"""Leaders and followers: what a handler sees of nodes, and how it starts some."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from progressor.sdk import Processor, Step
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.processor.test_step import asked

DONE = nodes.NodeOutcome(name="map-1", state=nodes.NODE_STATE_DONE, result=b"4")


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def join_of(*outcomes: nodes.NodeOutcome) -> pb.ProcessRequest:
    """Return the request of a join."""
    request = asked(types.TASK_TYPE_JOIN)
    request.task.nodes.extend(outcomes)
    return request


async def joined(
    handler: Callable[[Step[Any]], Any], request: pb.ProcessRequest, threads: Executor
) -> pb.ProcessResponse:
    """Return what a join handler answers."""
    processor = Processor("orders")
    processor.join(handler)
    return await processor.answer(request, threads)


async def test_a_follower_gets_what_it_comes_after(threads: Executor) -> None:
    processor = Processor("orders")

    @processor.init
    async def add(step: Step[Any]) -> None:
        step.complete(step.results["map-1"] + step.args)

    request = asked(types.TASK_TYPE_INIT, args=b"1")
    request.task.nodes.append(DONE)

    assert (await processor.answer(request, threads)).complete.result == b"5"


async def test_a_step_of_no_job_has_no_nodes(threads: Executor) -> None:
    async def look(step: Step[Any]) -> None:
        assert (step.nodes, step.results) == ({}, {})

    assert (await joined(look, join_of(), threads)).WhichOneof("action") is None


async def test_a_leader_without_a_join_handler_is_told_so(threads: Executor) -> None:
    response = await Processor("orders").answer(join_of(DONE), threads)

    # No caller waits for a refusal.
    assert response.failure.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert "@processor.join" in response.failure.message
