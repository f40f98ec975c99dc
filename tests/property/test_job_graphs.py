"""Graphs that are planned: numbered without gaps, known at both ends, refused if they are bad."""

import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.jobs.graph import (
    GraphError,
    NodePlan,
    plan_nodes,
)
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import process_key
from tests.support.models.jobs.graphs import Graph, ancestors, random_graph, specs

LEADER = process_key("orders", "job")
SEEDS = st.integers(0, 2**32)


def plan(nodes: tuple[NodeSpec, ...], known: dict[str, int] | None = None) -> NodePlan:
    return plan_nodes(LEADER, StartNodes(nodes=nodes), known or {})


def edges(*plans: NodePlan) -> tuple[set[tuple[int, int]], list[tuple[int, int]]]:
    """Return the edges that the targets know, and those that the sources know."""
    known_to_targets = {
        (before, node.ordinal)
        for each in plans
        for node in each.nodes
        for before in node.predecessors
    }
    known_to_sources = [
        (node.ordinal, after) for each in plans for node in each.nodes for after in node.successors
    ]
    known_to_sources += [
        (ordinal, after)
        for each in plans
        for ordinal, successors in each.appended.items()
        for after in successors
    ]
    return known_to_targets, known_to_sources


@given(SEEDS)
def test_nodes_are_numbered_in_their_order_and_edges_known_at_both_ends(seed: int) -> None:
    graph = random_graph(random.Random(seed), 200)

    planned = plan(specs(graph))

    assert [node.ordinal for node in planned.nodes] == list(range(1, len(graph) + 1))
    assert [node.spec.name for node in planned.nodes] == list(graph)
    to_targets, to_sources = edges(planned)
    assert sorted(to_targets) == sorted(to_sources)
    ordinals = {name: number for number, name in enumerate(graph, start=1)}
    assert to_targets == {
        (ordinals[each], ordinals[name]) for name, before in graph.items() for each in before
    }
    assert planned.appended == {}


@given(SEEDS)
def test_a_graph_in_several_steps_is_the_same_graph(seed: int) -> None:
    chosen = random.Random(seed)
    graph = random_graph(chosen, 60)
    in_order = sorted(graph, key=lambda name: len(ancestors(graph, name)))
    place = chosen.randint(1, len(in_order))
    first, second = in_order[:place], in_order[place:]
    known = {name: number for number, name in enumerate(first, start=1)}

    plans = [plan(specs({name: graph[name] for name in first}))]
    if second:
        plans.append(plan(specs({name: graph[name] for name in second}), known))

    whole = plan(specs({name: graph[name] for name in in_order}))
    assert [node for each in plans for node in each.nodes if node.ordinal > place] == [
        node for node in whole.nodes if node.ordinal > place
    ]
    to_targets, to_sources = edges(*plans)
    assert sorted(to_sources) == sorted(to_targets) == sorted(edges(whole)[0])


@given(SEEDS)
def test_an_edge_back_is_refused_with_a_cycle_of_the_graph(seed: int) -> None:
    chosen = random.Random(seed)
    graph = {name: list(before) for name, before in random_graph(chosen, 60).items()}
    late = chosen.choice(list(graph))
    early = chosen.choice([late, *ancestors(graph, late)])
    graph[early].append(late)

    with pytest.raises(GraphError, match="cycle") as refused:
        plan(specs(graph))

    told = refused.value.description.removeprefix("closes a cycle: ").split(" -> ")
    assert told[0] == told[-1]
    if not any("more" in name for name in told):
        for before, name in itertools.pairwise(told):
            assert before in graph[name]
    node, index = _place_in(refused.value.field)
    assert graph[node_name(graph, node)][index] == told[-2]


@given(SEEDS, st.sampled_from(["unknown", "double name", "double edge", "double process"]))
def test_a_bad_graph_is_refused_by_its_field(seed: int, wrong: str) -> None:
    chosen = random.Random(seed)
    nodes = list(specs(random_graph(chosen, 40)))
    place = chosen.randrange(len(nodes))
    node = nodes[place]
    if wrong == "unknown":
        nodes[place] = NodeSpec(name=node.name, predecessors=(*node.predecessors, "absent"))
        expected = f"nodes[{place}].predecessors[{len(node.predecessors)}]"
    elif wrong == "double name":
        nodes.append(NodeSpec(name=node.name))
        expected = f"nodes[{len(nodes) - 1}].name"
    elif wrong == "double edge":
        nodes.append(NodeSpec(name="new", predecessors=(node.name, node.name)))
        expected = f"nodes[{len(nodes) - 1}].predecessors[1]"
    else:
        nodes.append(NodeSpec(name="new", process_id=f"job/{node.name}"))
        expected = f"nodes[{len(nodes) - 1}].process_id"

    with pytest.raises(GraphError) as refused:
        plan(tuple(nodes))

    assert refused.value.field == expected


def node_name(graph: Graph, place: int) -> str:
    return list(graph)[place]


def _place_in(field: str) -> tuple[int, int]:
    found = re.fullmatch(r"nodes\[(\d+)]\.predecessors\[(\d+)]", field)
    assert found is not None, field
    return int(found[1]), int(found[2])
