"""Nodes in a processor's answer, and how nodes have ended in what it is asked."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from progressor.domain.jobs.graph import GRAPH_BYTES_MAX
from progressor.domain.jobs.job import NODES_PER_STEP_MAX, NodeSpec, StartNodes
from progressor.domain.processes.intent import Failed, Intent, Succeeded
from progressor.domain.processes.task import NodeOutcome, NodeState, TaskType
from progressor.processor import codec
from progressor.v1 import namespace_service_pb2, nodes_pb2, processor_service_pb2, types_pb2
from tests.support.builders import make_error, make_task
from tests.support.clock import START

PAYLOAD_BYTES_MAX = 100


def decode(
    message: nodes_pb2.StartNodes, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX
) -> codec.StepOutcome:
    response = processor_service_pb2.ProcessResponse(start_nodes=message)
    return codec.decode_response(
        response.SerializeToString(),
        task_type=TaskType.CALL,
        payload_bytes_max=payload_bytes_max,
    )


def node(**fields: Any) -> nodes_pb2.StartNodes:
    """Return two nodes, of which the second one has the fields."""
    second = nodes_pb2.NodeSpec(**{"name": "b"} | fields)
    return nodes_pb2.StartNodes(nodes=[nodes_pb2.NodeSpec(name="a"), second])


def due(**fields: Any) -> nodes_pb2.StartNodes:
    return nodes_pb2.StartNodes(nodes=[nodes_pb2.NodeSpec(name="a")], **fields)


def test_constraints_that_say_nothing_are_none() -> None:
    answer = decode(node(constraints=types_pb2.Constraints(priority=2)))

    assert answer == Succeeded(
        Intent(action=StartNodes(nodes=(NodeSpec(name="a"), NodeSpec(name="b"))))
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (due(), (None, None)),
        (due(timeout=duration_pb2.Duration(nanos=1_000)), (None, dt.timedelta(microseconds=1))),
        (due(deadline=timestamp_pb2.Timestamp(seconds=1)),
         (dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), None)),
    ],
)  # fmt: skip
def test_a_job_has_a_deadline_or_a_timeout_or_neither(
    message: nodes_pb2.StartNodes, expected: tuple[object, object]
) -> None:
    answer = decode(message)

    assert isinstance(answer, Succeeded)
    action = answer.intent.action
    assert isinstance(action, StartNodes)
    assert (action.deadline, action.timeout) == expected


REFUSED: Mapping[str, tuple[Callable[[], nodes_pb2.StartNodes], str]] = {
    "no node": (nodes_pb2.StartNodes, "start_nodes.nodes: must have 1 to 10000 items, got 0"),
    "too many": (
        lambda: nodes_pb2.StartNodes(
            nodes=[nodes_pb2.NodeSpec(name="a")] * (NODES_PER_STEP_MAX + 1)
        ),
        "start_nodes.nodes: must have 1 to 10000 items, got 10001",
    ),
    "large args": (
        lambda: node(args=b"x" * (PAYLOAD_BYTES_MAX + 1)),
        "start_nodes.nodes[1].args: must be at most 100 bytes, got 101",
    ),
    "a namespace": (
        lambda: node(namespace="Stock"),
        "start_nodes.nodes[1].namespace: must be 1 to 64 characters of [a-z0-9._-], got 'Stock'",
    ),
    "a constraint": (
        lambda: node(constraints=types_pb2.Constraints(priority=6)),
        "start_nodes.nodes[1].constraints.priority: must be 0 to 5, got 6",
    ),
    "a retry policy": (
        lambda: node(retry_policy=namespace_service_pb2.RetryPolicy(coefficient=0.5)),
        "start_nodes.nodes[1].retry_policy.coefficient: must be at least 1, got 0.5",
    ),
    "a zombie policy": (
        lambda: node(zombie_policy=9),
        "start_nodes.nodes[1].zombie_policy: unknown zombie policy 9",
    ),
    "a long target": (
        lambda: node(target="x" * 513),
        "start_nodes.nodes[1].target: must be at most 512 bytes without NUL characters",
    ),
    "a target with NUL": (
        lambda: node(target="\0"),
        "start_nodes.nodes[1].target: must be at most 512 bytes without NUL characters",
    ),
    "no timeout": (
        lambda: due(timeout=duration_pb2.Duration()),
        "start_nodes.timeout: must be greater than 0 and at most 365000 days, got 0 s",
    ),
    "a long timeout": (
        lambda: due(timeout=duration_pb2.Duration(seconds=40_000_000_000)),
        "start_nodes.timeout: must be greater than 0 and at most 365000 days, got 40000000000 s",
    ),
    "no deadline": (
        lambda: due(deadline=timestamp_pb2.Timestamp(nanos=-1)),
        "start_nodes.deadline: nanos must be 0 to 999999999, got -1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_nodes_fail_the_step_and_are_named(what: str) -> None:
    make, words = REFUSED[what]

    answer = decode(make())

    assert isinstance(answer, Failed)
    assert (answer.reason, answer.retryable) == ("INVALID_ANSWER", False)
    assert answer.message.startswith(words)


def test_the_bytes_of_a_graph_are_bounded() -> None:
    large = nodes_pb2.NodeSpec(name="a", args=b"x" * (GRAPH_BYTES_MAX // 2))

    answer = decode(nodes_pb2.StartNodes(nodes=[large] * 2), payload_bytes_max=GRAPH_BYTES_MAX)

    assert isinstance(answer, Failed)
    assert answer.message == (
        f"start_nodes: must be at most 33554432 bytes, got {GRAPH_BYTES_MAX + 26}"
    )


def test_a_leader_hears_how_each_node_has_ended() -> None:
    outcomes = (
        NodeOutcome(name="a", state=NodeState.DONE, result=b"result"),
        NodeOutcome(name="b", state=NodeState.FAILED, error=make_error()),
        NodeOutcome(name="c", state=NodeState.SKIPPED, skipped_because_of="b"),
        NodeOutcome(name="d", state=NodeState.CANCELLED),
    )
    task = dataclasses.replace(make_task(task_type=TaskType.JOIN), nodes=outcomes)

    sent = processor_service_pb2.ProcessRequest.FromString(codec.encode_request(task, (), START))

    error = make_error()
    assert sent.task.type == types_pb2.TASK_TYPE_JOIN
    assert list(sent.task.nodes) == [
        nodes_pb2.NodeOutcome(name="a", state=nodes_pb2.NODE_STATE_DONE, result=b"result"),
        nodes_pb2.NodeOutcome(
            name="b",
            state=nodes_pb2.NODE_STATE_FAILED,
            error=types_pb2.TaskError(code=error.code, reason=error.reason, message=error.message),
        ),
        nodes_pb2.NodeOutcome(name="c", state=nodes_pb2.NODE_STATE_SKIPPED, skipped_because_of="b"),
        nodes_pb2.NodeOutcome(name="d", state=nodes_pb2.NODE_STATE_CANCELLED),
    ]
