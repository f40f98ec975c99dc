"""Leaders and followers: what a handler sees of nodes, and how it starts some."""

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from progressor.sdk import Graph, NodeState, Processor, Step, TaskError, TaskType
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.processor.test_step import asked

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DONE = nodes.NodeOutcome(name="map-1", state=nodes.NODE_STATE_DONE, result=b"4")
FAILED = nodes.NodeOutcome(
    name="map-2",
    state=nodes.NODE_STATE_FAILED,
    error=types.TaskError(code=9, reason="R", message="m"),
)
SKIPPED = nodes.NodeOutcome(name="sum", state=nodes.NODE_STATE_SKIPPED, skipped_because_of="map-2")


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


async def test_a_join_hears_how_each_node_has_ended(threads: Executor) -> None:
    async def join(step: Step[Any]) -> None:
        assert step.type is TaskType.JOIN
        assert list(step.nodes) == ["map-1", "map-2", "sum"]
        done, failed, skipped = step.nodes.values()
        assert (done.state, done.is_done, done.result) == (NodeState.DONE, True, 4)
        assert (failed.state, failed.is_done) == (NodeState.FAILED, False)
        assert failed.error == TaskError(code=9, reason="R", message="m")
        assert (skipped.state, skipped.skipped_because_of) == (NodeState.SKIPPED, "map-2")
        assert (skipped.result, skipped.error) == (None, None)
        assert step.nodes is step.nodes
        assert step.results == {"map-1": 4}
        step.complete(sum(step.results_as(int).values()))

    response = await joined(join, join_of(DONE, FAILED, SKIPPED), threads)

    assert response.complete.result == b"4"


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


async def test_a_result_of_another_type_names_its_node(threads: Executor) -> None:
    def join(step: Step[Any]) -> None:
        step.results_as(str)

    response = await joined(join, join_of(DONE), threads)

    assert response.failure.message.startswith("the result of node 'map-1' cannot be read")


async def test_args_that_cannot_be_read_break_a_join(threads: Executor) -> None:
    request = join_of()
    request.task.args = b"{garbage"

    response = await joined(lambda step: step.args, request, threads)

    assert response.failure.reason == "DecodeError"


@pytest.mark.parametrize(
    ("deadline", "field"),
    [
        (None, {}),
        (NOON, {"deadline": NOON}),
        (90, {"timeout": dt.timedelta(seconds=90)}),
    ],
)
async def test_a_step_starts_nodes(deadline: Any, field: Any, threads: Executor) -> None:
    async def split(step: Step[Any]) -> None:
        graph = Graph()
        more = graph.node("more", [1], after="map-1")
        graph.node("last", after=more)
        step.start_nodes(graph, deadline=deadline)

    response = await joined(split, join_of(DONE), threads)

    assert response.start_nodes == nodes.StartNodes(
        nodes=[
            nodes.NodeSpec(name="more", args=b"[1]", predecessors=["map-1"]),
            nodes.NodeSpec(name="last", predecessors=["more"]),
        ],
        **field,
    )


async def test_the_last_action_stands(threads: Executor) -> None:
    async def hesitate(step: Step[Any]) -> None:
        graph = Graph()
        graph.node("a")
        step.start_nodes(graph)
        step.complete(1)

    assert (await joined(hesitate, join_of(), threads)).WhichOneof("action") == "complete"


async def test_an_empty_graph_fails_the_step(threads: Executor) -> None:
    response = await joined(lambda step: step.start_nodes(Graph()), join_of(), threads)

    assert response.failure.message == "the graph must have at least one node"


async def test_a_leader_without_a_join_handler_is_told_so(threads: Executor) -> None:
    response = await Processor("orders").answer(join_of(DONE), threads)

    # No caller waits for a refusal.
    assert response.failure.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert "@processor.join" in response.failure.message
