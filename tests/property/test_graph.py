"""Invariants of graphs: a plan is in graphlib's order, and its edges mirror each other."""

import graphlib
import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.jobs.graph import GraphError, decode_graph, encode_graph, plan_nodes
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import process_key

LEADER = process_key("orders", "job")
FIELD = re.compile(r"nodes\[([0-9]+)\]\.predecessors\[([0-9]+)\]")
KNOWN = {"k1": 1, "k2": 2, "k3": 3}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[NodeSpec, ...]:
    """Return nodes with any edges among themselves, cycles too, and to those that are known."""
    count = draw(st.integers(1, 8))
    names = [f"n{i}" for i in range(count)]
    edges = st.lists(st.sampled_from([*names, *KNOWN]), unique=True, max_size=4)
    return tuple(NodeSpec(name=name, predecessors=tuple(draw(edges))) for name in names)


@given(graphs())
def test_a_graph_is_planned_if_and_only_if_it_can_be_ordered(nodes: tuple[NodeSpec, ...]) -> None:
    sorter = graphlib.TopologicalSorter({it.name: it.predecessors for it in nodes})
    try:
        sorter.prepare()
    except graphlib.CycleError:
        is_ordered = False
    else:
        is_ordered = True

    try:
        plan_nodes(LEADER, StartNodes(nodes=nodes), KNOWN)
    except GraphError as error:
        assert not is_ordered
        _check_cycle(nodes, error)
    else:
        assert is_ordered


def _check_cycle(nodes: tuple[NodeSpec, ...], error: GraphError) -> None:
    before = {it.name: it.predecessors for it in nodes}
    told = error.description.removeprefix("closes a cycle: ").split(" -> ")
    assert told[0] == told[-1]
    assert len(set(told)) == len(told) - 1
    for earlier, later in itertools.pairwise(told):
        assert earlier in before[later]
    found = FIELD.fullmatch(error.field)
    assert found is not None
    node = nodes[int(found[1])]
    assert node.name == told[0]
    assert node.predecessors[int(found[2])] == told[-2]


@given(graphs())
def test_predecessors_and_successors_of_a_plan_mirror_each_other(
    nodes: tuple[NodeSpec, ...],
) -> None:
    try:
        planned = plan_nodes(LEADER, StartNodes(nodes=nodes), KNOWN)
    except GraphError:
        return
    ordinals = KNOWN | {it.spec.name: it.ordinal for it in planned.nodes}
    forth = {(a, it.ordinal) for it in planned.nodes for a in it.predecessors}
    back = {(it.ordinal, b) for it in planned.nodes for b in it.successors}
    back |= {(a, b) for a, added in planned.appended.items() for b in added}

    assert forth == back
    assert forth == {(ordinals[a], ordinals[it.name]) for it in nodes for a in it.predecessors}
    assert set(planned.appended) <= set(KNOWN.values())
    assert [it.ordinal for it in planned.nodes] == list(range(4, 4 + len(nodes)))


@given(graphs(), st.binary(max_size=20))
def test_every_graph_survives_a_round_trip(nodes: tuple[NodeSpec, ...], args: bytes) -> None:
    action = StartNodes(nodes=(*nodes, NodeSpec(name="last", args=args)))

    assert decode_graph(encode_graph(action)) == action
