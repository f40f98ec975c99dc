"""Graphs that are planned: numbered without gaps, known at both ends, refused if they are bad."""

import graphlib
import itertools
import random
import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.jobs.graph import (
    GraphError,
    NodePlan,
    decode_graph,
    encode_graph,
    plan_nodes,
)
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import process_key
from tests.support.models.jobs.graphs import Graph, ancestors, random_graph, specs

LEADER = process_key("orders", "job")
SEEDS = st.integers(0, 2**32)
KNOWN = {"k1": 1, "k2": 2, "k3": 3}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return nodes with any edges among themselves, cycles too, and to those that are known."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 8)))]
    edges = st.lists(st.sampled_from([*names, *KNOWN]), unique=True, max_size=4)
    return {name: tuple(draw(edges)) for name in names}


def plan(graph: Graph, known: Mapping[str, int] | None = None) -> NodePlan:
    return plan_nodes(LEADER, StartNodes(nodes=specs(graph)), known or {})


def edges(*plans: NodePlan) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the edges that the targets know, and those that the sources know, in order."""
    at_targets = [
        (before, node.ordinal)
        for each in plans
        for node in each.nodes
        for before in node.predecessors
    ]
    successors = [
        *((node.ordinal, node.successors) for each in plans for node in each.nodes),
        *itertools.chain.from_iterable(each.appended.items() for each in plans),
    ]
    return sorted(at_targets), sorted(
        (successor, after) for successor, afters in successors for after in afters
    )


def assert_names_a_cycle(graph: Mapping[str, Sequence[str]], error: GraphError) -> None:
    """Assert that an error names a cycle of the graph, and the edge that closes it."""
    cycle = error.description.removeprefix("closes a cycle: ").split(" -> ")
    assert cycle[0] == cycle[-1]
    assert len(set(cycle)) == len(cycle) - 1
    if not any("more" in name for name in cycle):
        assert all(earlier in graph[later] for earlier, later in itertools.pairwise(cycle))
    found = re.fullmatch(r"nodes\[(\d+)]\.predecessors\[(\d+)]", error.field)
    assert found is not None, error.field
    name = list(graph)[int(found[1])]
    assert (name, graph[name][int(found[2])]) == (cycle[0], cycle[-2])


@given(graphs())
def test_a_graph_is_planned_if_and_only_if_it_can_be_ordered(graph: Graph) -> None:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        with pytest.raises(GraphError) as refused:
            plan(graph, KNOWN)
        assert_names_a_cycle(graph, refused.value)
        return

    planned = plan(graph, KNOWN)

    ordinals = KNOWN | {node.spec.name: node.ordinal for node in planned.nodes}
    expected = sorted(
        (ordinals[a], ordinals[name]) for name, before in graph.items() for a in before
    )
    assert edges(planned) == (expected, expected)
    assert set(planned.appended) <= set(KNOWN.values())
    assert [node.ordinal for node in planned.nodes] == list(range(4, 4 + len(graph)))


@given(SEEDS)
def test_nodes_are_numbered_in_their_order_and_edges_known_at_both_ends(seed: int) -> None:
    graph = random_graph(random.Random(seed), 200)

    planned = plan(graph)

    ordinals = {name: number for number, name in enumerate(graph, start=1)}
    assert {node.spec.name: node.ordinal for node in planned.nodes} == ordinals
    expected = sorted(
        (ordinals[a], ordinals[name]) for name, before in graph.items() for a in before
    )
    assert edges(planned) == (expected, expected)
    assert planned.appended == {}


@given(SEEDS)
def test_a_graph_in_several_steps_is_the_same_graph(seed: int) -> None:
    chosen = random.Random(seed)
    graph = random_graph(chosen, 60)
    in_order = sorted(graph, key=lambda name: len(ancestors(graph, name)))
    place = chosen.randint(1, len(in_order))
    first, second = in_order[:place], in_order[place:]
    known = {name: number for number, name in enumerate(first, start=1)}

    plans = [plan({name: graph[name] for name in first})]
    if second:
        plans.append(plan({name: graph[name] for name in second}, known))

    whole = plan({name: graph[name] for name in in_order})
    assert [node for each in plans for node in each.nodes if node.ordinal > place] == [
        node for node in whole.nodes if node.ordinal > place
    ]
    assert edges(*plans) == edges(whole)


@given(SEEDS)
def test_an_edge_back_is_refused_with_a_cycle_of_the_graph(seed: int) -> None:
    chosen = random.Random(seed)
    graph = {name: list(before) for name, before in random_graph(chosen, 60).items()}
    late = chosen.choice(list(graph))
    early = chosen.choice([late, *ancestors(graph, late)])
    graph[early].append(late)

    with pytest.raises(GraphError, match="cycle") as refused:
        plan(graph)

    assert_names_a_cycle(graph, refused.value)


@given(SEEDS, st.sampled_from(["unknown", "double name", "double edge", "double process"]))
def test_a_bad_graph_is_refused_by_its_field(seed: int, wrong: str) -> None:
    chosen = random.Random(seed)
    nodes = list(specs(random_graph(chosen, 40)))
    place = chosen.randrange(len(nodes))
    node, last = nodes[place], f"nodes[{len(nodes)}]"
    match wrong:
        case "unknown":
            nodes[place] = NodeSpec(name=node.name, predecessors=(*node.predecessors, "absent"))
            expected = f"nodes[{place}].predecessors[{len(node.predecessors)}]"
        case "double name":
            nodes.append(NodeSpec(name=node.name))
            expected = f"{last}.name"
        case "double edge":
            nodes.append(NodeSpec(name="new", predecessors=(node.name, node.name)))
            expected = f"{last}.predecessors[1]"
        case _:
            nodes.append(NodeSpec(name="new", process_id=f"job/{node.name}"))
            expected = f"{last}.process_id"

    with pytest.raises(GraphError) as refused:
        plan_nodes(LEADER, StartNodes(nodes=tuple(nodes)), {})

    assert refused.value.field == expected


@given(graphs(), st.binary(max_size=20))
def test_every_graph_survives_a_round_trip(graph: Graph, args: bytes) -> None:
    action = StartNodes(nodes=(*specs(graph), NodeSpec(name="last", args=args)))

    assert decode_graph(encode_graph(action)) == action
