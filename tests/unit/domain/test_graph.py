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

    assert [(it.ordinal, it.spec.name) for it in planned.nodes] == [*enumerate("dabc", 1)]
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


FOREIGN = "z" * 1_000
LONG_CYCLE = [node(f"n{i}", f"n{(i - 1) % 10_000}") for i in range(10_000)]
REFUSED: dict[str, tuple[list[NodeSpec], str, str]] = {
    "no nodes": ([], "", "must not be empty"),
    "no name": ([node("a"), node("")], "[1].name", "must not be empty"),
    "line end": ([node("a\n")], "[0].name", "must not contain control characters"),
    "C1 control": ([node("a\x85")], "[0].name", "must not contain control characters"),
    "long name": ([node("x" * 129)], "[0].name", "must be at most 128 bytes, got 129"),
    "long in bytes": ([node("é" * 65)], "[0].name", "must be at most 128 bytes, got 130"),
    "name twice": (
        [node("a"), node("b"), node("a")], "[2].name", "'a' is the name of nodes[0] too",
    ),
    "name of the job": (
        [node("b"), node("old")], "[1].name", "'old' is a node of the job already",
    ),
    "process twice": (
        [node("a"), node("b", process_id="job-1/a")], "[1].process_id",
        "'job-1/a' is the process of nodes[0] too",
    ),
    "leader": ([node("a", process_id="job-1")], "[0].process_id", "'job-1' is the leader itself"),
    "long id": (
        [node("a", process_id="x" * 257)], "[0].process_id", "must be at most 256 bytes, got 257",
    ),
    "control in id": (
        [node("a", process_id="x\0")], "[0].process_id", "must not contain control characters",
    ),
    "unknown": (
        [node("a"), node("b", "a", "z")], "[1].predecessors[1]", "'z' is not a node of the job",
    ),
    "unknown and long": (
        [node("b", FOREIGN)], "[0].predecessors[0]",
        f"{FOREIGN[:128] + '…'!r} is not a node of the job",
    ),
    "doubled": ([node("a"), node("b", "a", "a")], "[1].predecessors[1]", "'a' is listed twice"),
    "of itself": ([node("a", "a")], "[0].predecessors[0]", "closes a cycle: a -> a"),
    "cycle of two": (
        [node("a", "b"), node("b", "a")], "[0].predecessors[0]", "closes a cycle: a -> b -> a",
    ),
    "cycle in a graph": (
        [node("x", "k", "a"), node("k"), node("a", "k", "c"), node("b", "a"), node("c", "b")],
        "[2].predecessors[1]", "closes a cycle: a -> b -> c -> a",
    ),
    "long cycle": (
        LONG_CYCLE, "[0].predecessors[0]",
        "closes a cycle: n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> n6 -> (9992 more) -> n9999 -> n0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "field", "description"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_graph_is_refused_by_its_place(
    nodes: list[NodeSpec], field: str, description: str
) -> None:
    assert refusal(*nodes, known={"old": 1}) == (f"nodes{field}", description)


def test_a_name_that_makes_too_long_an_id_is_refused_by_its_name() -> None:
    leader = process_key("orders", "x" * 256)

    with pytest.raises(GraphError) as caught:
        plan_nodes(leader, StartNodes(nodes=(node("a"),)), {})
    assert caught.value.field == "nodes[0].name"


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
