"""Graphs: what is wrong with one is named, and a stored graph can be read back."""

import dataclasses
import datetime as dt

import pytest

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.jobs import graph
from progressor.domain.jobs.graph import GraphError, NodePlan, plan_nodes
from progressor.domain.jobs.job import (
    EDGES_PER_STEP_MAX,
    NODES_MAX,
    NODES_PER_STEP_MAX,
    NodeSpec,
    StartNodes,
)
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import JobOptions, process_key
from tests.support.builders import make_namespace

LEADER = process_key("orders", "job-1")
FULL = StartNodes(
    nodes=(
        NodeSpec(
            name="é",
            namespace="stock",
            process_id="p",
            predecessors=("a", "b"),
            args=b"\0args",
            constraints=Constraints(
                run_at=dt.datetime(2027, 1, 1, tzinfo=dt.UTC),
                order=Order("key", Version.parse("1.10.2")),
                gates={"b": None, "a": 3},
                priority=1,
                hold=GateHold.PROCESS,
            ),
            options=JobOptions(
                takes_results=True,
                retry_policy=RetryPolicy(
                    elapsed_max=dt.timedelta(days=365_000, microseconds=7),
                    non_retryable_reasons=("A",),
                ),
                zombie_policy=ZombiePolicy.FAIL,
                target="unix:/run/p",
                scheduled=True,
            ),
        ),
        NodeSpec(name="a"),
    ),
    timeout=dt.timedelta(microseconds=1),
    schedule_id="nightly",
    caller_context={"tenant": "t"},
)


def node(name: str, *predecessors: str, process_id: str = "", namespace: str = "") -> NodeSpec:
    return NodeSpec(
        name=name, predecessors=predecessors, process_id=process_id, namespace=namespace
    )


def plan(*nodes: NodeSpec, known: dict[str, int] | None = None) -> NodePlan:
    return plan_nodes(LEADER, StartNodes(nodes=nodes), known or {})


def refusal(*nodes: NodeSpec, known: dict[str, int] | None = None) -> tuple[str, str]:
    with pytest.raises(GraphError) as caught:
        plan(*nodes, known=known)
    assert str(caught.value) == f"{caught.value.field}: {caught.value.description}"
    return caught.value.field, caught.value.description


def test_a_diamond_is_planned_with_its_edges_both_ways() -> None:
    planned = plan(node("d", "b", "c"), node("a"), node("b", "a"), node("c", "a"))

    assert [(it.ordinal, it.spec.name) for it in planned.nodes] == [
        (1, "d"),
        (2, "a"),
        (3, "b"),
        (4, "c"),
    ]
    assert [it.predecessors for it in planned.nodes] == [(3, 4), (), (2,), (2,)]
    assert [it.successors for it in planned.nodes] == [(), (3, 4), (1,), (1,)]
    assert planned.appended == {}


def test_followers_are_named_after_the_leader_unless_they_have_names_of_their_own() -> None:
    planned = plan(node("a"), node("b", process_id="x"), node("c", namespace="stock"))

    assert [it.follower for it in planned.nodes] == [
        process_key("orders", "job-1/a"),
        process_key("orders", "x"),
        process_key("stock", "job-1/c"),
    ]


def test_a_graph_without_nodes_is_refused() -> None:
    assert refusal() == ("nodes", "must not be empty")


def test_the_nodes_of_a_step_and_of_a_job_are_bounded() -> None:
    most = [node(f"n{i}") for i in range(NODES_PER_STEP_MAX)]
    known = {f"k{i}": i + 1 for i in range(NODES_MAX - NODES_PER_STEP_MAX)}

    assert len(plan(*most, known=known).nodes) == NODES_PER_STEP_MAX
    assert refusal(*most, node("x")) == ("nodes", "must have at most 10000 items, got 10001")
    known["last"] = len(known) + 1
    assert refusal(*most, known=known) == (
        "nodes",
        "a job must have at most 50000 nodes, got 10000 besides the 40001 that it has",
    )


def test_the_edges_of_a_step_are_bounded() -> None:
    names = [f"n{i}" for i in range(1_001)]
    nodes = [node(name) for name in names]
    dense = [node(f"d{i}", *names[:1_000]) for i in range(EDGES_PER_STEP_MAX // 1_000)]

    assert len(plan(*nodes, *dense).nodes) == len(nodes) + len(dense)
    assert refusal(*nodes, *dense, node("x", "n0")) == (
        "nodes",
        "must have at most 200000 predecessors, got 200001",
    )


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("", "must not be empty"),
        ("a\n", "must not contain control characters"),
        ("a\x85", "must not contain control characters"),
        ("x" * 129, "must be at most 128 bytes, got 129"),
        ("é" * 65, "must be at most 128 bytes, got 130"),
    ],
)
def test_an_invalid_node_name_is_refused(name: str, description: str) -> None:
    assert refusal(node("ok"), node(name)) == ("nodes[1].name", description)


def test_a_duplicate_node_name_is_refused() -> None:
    assert refusal(node("a"), node("b"), node("a")) == (
        "nodes[2].name",
        "'a' is the name of nodes[0] too",
    )
    assert refusal(node("b"), node("a"), known={"a": 1}) == (
        "nodes[1].name",
        "'a' is a node of the job already",
    )


@pytest.mark.parametrize(
    ("nodes", "field", "description"),
    [
        ([node("a"), node("b", process_id="job-1/a")], 1, "'job-1/a' is the process of nodes[0]"),
        ([node("a", process_id="job-1")], 0, "'job-1' is the leader itself"),
        ([node("a", process_id="x" * 257)], 0, "must be at most 256 bytes, got 257"),
        ([node("a", process_id="x\0")], 0, "must not contain control characters"),
    ],
)
def test_a_follower_that_cannot_be_is_refused(
    nodes: list[NodeSpec], field: int, description: str
) -> None:
    told = refusal(*nodes)

    assert told[0] == f"nodes[{field}].process_id"
    assert told[1].startswith(description)


def test_a_name_that_makes_too_long_an_id_is_refused_by_its_name() -> None:
    leader = process_key("orders", "x" * 256)

    with pytest.raises(GraphError) as caught:
        plan_nodes(leader, StartNodes(nodes=(node("a"),)), {})
    assert caught.value.field == "nodes[0].name"


def test_an_unknown_or_doubled_predecessor_is_named_by_its_place() -> None:
    assert refusal(node("a"), node("b", "a", "z")) == (
        "nodes[1].predecessors[1]",
        "'z' is not a node of the job",
    )
    assert refusal(node("a"), node("b", "a", "a")) == (
        "nodes[1].predecessors[1]",
        "'a' is listed twice",
    )
    field, description = refusal(node("b", "z" * 1_000))
    assert (field, len(description)) == ("nodes[0].predecessors[0]", 156)


@pytest.mark.parametrize(
    ("nodes", "field", "cycle"),
    [
        ([node("a", "a")], "nodes[0].predecessors[0]", "a -> a"),
        ([node("a", "b"), node("b", "a")], "nodes[0].predecessors[0]", "a -> b -> a"),
        (
            [node("x", "k", "a"), node("k"), node("a", "k", "c"), node("b", "a"), node("c", "b")],
            "nodes[2].predecessors[1]",
            "a -> b -> c -> a",
        ),
    ],
)
def test_a_cycle_is_reported_by_its_nodes(nodes: list[NodeSpec], field: str, cycle: str) -> None:
    assert refusal(*nodes) == (field, f"closes a cycle: {cycle}")


def test_a_long_cycle_is_shortened() -> None:
    nodes = [node(f"n{i}", f"n{(i - 1) % 10_000}") for i in range(10_000)]

    assert refusal(*nodes) == (
        "nodes[0].predecessors[0]",
        "closes a cycle: n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> n6 -> (9992 more) -> n9999 -> n0",
    )


def test_namespaces_are_told_once_in_the_order_of_the_nodes() -> None:
    action = StartNodes(nodes=(node("a", namespace="z"), node("b"), node("c", namespace="z")))

    assert graph.namespaces_of(LEADER, action) == ("z", "orders")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (NodeSpec(name="a", namespace="absent"), "namespace"),
        (NodeSpec(name="a", options=JobOptions(target="a:2")), "target"),
        (NodeSpec(name="a", namespace="small", args=b"xx"), "args"),
    ],
)
def test_a_node_without_a_place_to_run_is_named(spec: NodeSpec, field: str) -> None:
    namespaces = {
        "orders": make_namespace("orders", processor_targets=("a:1",)),
        "small": make_namespace("small", payload_bytes_max=1),
    }
    fine = NodeSpec(name="b", args=b"xx", options=JobOptions(target="a:1"))

    graph.check_places(LEADER, StartNodes(nodes=(fine,)), namespaces)
    with pytest.raises(GraphError) as caught:
        graph.check_places(LEADER, StartNodes(nodes=(fine, spec)), namespaces)
    assert caught.value.field == f"nodes[1].{field}"


@pytest.mark.parametrize(
    "action",
    [
        FULL,
        dataclasses.replace(FULL, timeout=None, deadline=dt.datetime(2027, 1, 1, tzinfo=dt.UTC)),
        StartNodes(nodes=(node("a"),)),
    ],
)
def test_a_graph_comes_back_as_it_was_kept(action: StartNodes) -> None:
    assert graph.decode_graph(graph.encode_graph(action)) == action


def test_fields_of_a_later_release_in_a_graph_are_ignored() -> None:
    kept = b"\x82\xa5nodes\x91\x82\xa4name\xa1a\xa5later\x01\xa5later\x02"

    assert graph.decode_graph(kept) == StartNodes(nodes=(node("a"),))
