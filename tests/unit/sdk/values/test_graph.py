"""The builder of graphs: what it says on the wire, and what it refuses at once."""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest

from progressor.domain.jobs.graph import plan_nodes
from progressor.domain.jobs.job import NAME_BYTES_MAX, NODES_PER_STEP_MAX, NodeSpec, StartNodes
from progressor.domain.processes.process import process_key
from progressor.sdk import (
    JSON,
    Constraints,
    Cron,
    Graph,
    RetryPolicy,
    ScheduledJob,
    ScheduleSpec,
    ZombiePolicy,
)
from progressor.sdk.client.schedules import read_spec, spec_to_wire
from progressor.sdk.values import graph
from progressor.sdk.values.graph import graph_from_wire, nodes_to_wire
from progressor.v1 import namespace_service_pb2 as namespaces
from progressor.v1 import nodes_pb2 as pb


def deployment() -> Graph:
    """Return the graph of the module's docstring."""
    built = Graph()
    build = built.node("build", {"ref": "main"})
    tests = built.fan_out("test", ["unit", "system"], after=build)
    built.node("deploy", after=tests, wants_results=True)
    return built


def test_a_graph_shows_what_it_has() -> None:
    built = deployment()

    assert [it.name for it in built] == ["build", "test-1", "test-2", "deploy"]
    assert built.edges == (
        ("build", "test-1"), ("build", "test-2"), ("test-1", "deploy"), ("test-2", "deploy"),
    )  # fmt: skip
    assert len(built) == 4
    assert "build" in built
    assert "ship" not in built
    assert built["deploy"].after == ("test-1", "test-2")
    assert repr(built) == "Graph(4 nodes, 4 edges)"
    assert repr(built["test-1"]) == "NewNode(name='test-1', after=('build',), options={})"


def test_the_options_of_nodes_come_back_as_they_were_sent() -> None:
    built = Graph()
    built.node(
        "a",
        [1],
        namespace="maps",
        process_id="follower",
        wants_results=True,
        constraints=Constraints(gates={"k": 2}),
        retry_policy=RetryPolicy(attempts_max=1, initial_interval=dt.timedelta(seconds=2)),
        zombie_policy=ZombiePolicy.FAIL,
        target="10.0.0.1:7421",
    )
    built.node("b", after="a")
    [a, b] = nodes_to_wire(built, JSON)

    read = graph_from_wire([b, a], JSON)  # in whatever order they come

    assert {it.name for it in pb.NodeSpec.DESCRIPTOR.fields} == {
        it.name for node in (a, b) for it, _ in node.ListFields()
    }
    assert (a.args, a.constraints.gates[0].gate, a.retry_policy.attempts_max) == (b"[1]", "k", 1)
    assert a.zombie_policy == namespaces.ZOMBIE_POLICY_FAIL
    assert nodes_to_wire(read, JSON) == [a, b]
    assert (read.present, read["a"].options) == ((), built["a"].options)


def test_a_fan_out_makes_args_and_names_of_its_items() -> None:
    built = Graph()
    nodes = built.fan_out(
        "map", [("a", 1), ("b", 2)], args=lambda it: it[1] * 10, named=lambda it: it[0], target="t"
    )

    assert [(it.name, it.args, it.options) for it in nodes] == [
        ("map-a", 10, {"target": "t"}),
        ("map-b", 20, {"target": "t"}),
    ]


def test_a_name_that_the_graph_has_not_is_of_a_node_that_the_job_has() -> None:
    built = Graph()
    built.node("more", after="old")

    assert built.present == ("old",)
    with pytest.raises(
        ValueError, match="'old' was used as the name of a node that the job already has"
    ):
        built.node("old")


OTHER = Graph()
FOREIGN = OTHER.node("theirs")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda it: it.node("a"), "the graph already has a node 'a'"),
        (lambda it: it.node(""), "the name of a node must be 1 to 128 bytes, got 0: ''"),
        (lambda it: it.node("é" * 65), "the name of a node must be 1 to 128 bytes, got 130"),
        (
            lambda it: it.node("x\n"),
            "the name of a node must not contain control characters, got 'x\\n'",
        ),
        (
            lambda it: it.node("x\x85"),
            "the name of a node must not contain control characters, got 'x\\x85'",
        ),
        (lambda it: it.node(7), "the name of a node must be a string, got 7"),
        (lambda it: it.node("b", after=""), "the name of a node must be 1 to 128 bytes, got 0: ''"),
        (lambda it: it.node("b", after="b"), "node 'b' cannot come after itself"),
        (
            lambda it: it.node("b", after=FOREIGN),
            "node 'b' cannot come after 'theirs', a node of another graph",
        ),
        (
            lambda it: it.fan_out("b", [1, 2], process_id="p"),
            "nodes 'b' cannot share the process_id 'p'",
        ),
        (
            lambda it: it.node("b", namespce="n"),
            "node() got an unexpected keyword argument 'namespce'",
        ),
        (lambda it: it.fan_out("b", [], x=1), "fan_out() got an unexpected keyword argument 'x'"),
    ],
)
def test_what_cannot_be_is_refused_at_once(build: Callable[[Graph], Any], words: str) -> None:
    built = Graph()
    built.node("a")
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        build(built)

    assert [it.name for it in built] == ["a"]


def test_what_was_refused_leaves_no_name_behind() -> None:
    built = Graph()
    with pytest.raises(ValueError, match="another graph"):
        built.node("b", after=["old", FOREIGN])

    assert built.present == ()


def test_a_graph_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (graph.NAME_BYTES_MAX, graph.NODES_MAX) == (NAME_BYTES_MAX, NODES_PER_STEP_MAX)
    monkeypatch.setattr(graph, "NODES_MAX", 2)
    built = Graph()
    built.fan_out("a", range(2))

    with pytest.raises(ValueError, match="at most 2 nodes"):
        built.node("b")


def test_what_the_builder_takes_the_engine_takes() -> None:
    specs = tuple(
        NodeSpec(name=it.name, predecessors=tuple(it.predecessors), args=it.args)
        for it in nodes_to_wire(deployment(), JSON)
    )

    plan = plan_nodes(process_key("n", "j"), StartNodes(nodes=specs), {})

    assert [it.predecessors for it in plan.nodes] == [(), (1,), (1,), (2, 3)]


def diamond() -> Graph:
    built = Graph()
    a = built.node("a", 1)
    built.node("b", after=[a, built.node("c", {"x": [1]}, after=a)], wants_results=True)
    return built


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"timeout": dt.timedelta(days=1), "job_id_template": "j-{instant}"},
        {"context": {"a": "b"}, "metadata": {"n": 1}},
    ],
)
def test_a_scheduled_job_comes_back_as_it_was_sent(options: dict[str, Any]) -> None:
    target = ScheduledJob(diamond(), **options)
    message = spec_to_wire(ScheduleSpec(times=Cron("@daily"), target=target), JSON)
    read = read_spec(message, context=JSON).target

    assert isinstance(read, ScheduledJob)
    assert message.job.nodes == nodes_to_wire(read.graph, JSON)
    assert dataclasses.replace(read, graph=target.graph) == target
    assert message.job.HasField("timeout") is ("timeout" in options)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ScheduledJob(Graph()), "at least one node"),
        (ScheduledJob(diamond()), "no node 'old': each run submits a new job"),
    ],
)
def test_a_scheduled_job_is_a_whole_graph(target: ScheduledJob, words: str) -> None:
    if len(target.graph):
        target.graph.node("late", after="old")

    with pytest.raises(ValueError, match=words):
        spec_to_wire(ScheduleSpec(times=Cron("@daily"), target=target), JSON)
