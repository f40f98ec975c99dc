"""Graphs of jobs without an engine: what they look like, and what must become of them.

A graph is a mapping of names to the names that must be done before, in any order that the names are
in. Which nodes have ended, and how, says everything about a job but the times.
"""

import functools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec

Graph = Mapping[str, Sequence[str]]
States = dict[str, str]

DIAMOND: Graph = MappingProxyType({"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")})

SEED_EXAMPLE: Graph = MappingProxyType(
    {
        "1": (), "2": (), "3": (),
        "4": ("1", "2"), "5": ("2",), "6": ("2",),
        "7": ("1", "2", "4"), "8": ("5", "6"), "9": ("4", "6"),
    }
)  # fmt: skip
"""The example of seeds/job-center.md: edges a, b of 1; c .. f of 2; g, h of 4; i of 5; j, k of 6.

Its text says of the four edges of 2 where three lead to, and that the fourth frees none: here it
leads to 7.
"""


def specs(
    graph: Graph, constrained: Collection[str] = (), **fields: object
) -> tuple[NodeSpec, ...]:
    """Return a graph as it is submitted; ``fields`` are of every node.

    Those that are ``constrained`` have to pass a gate, which has room for them all.
    """
    gate = Constraints(gates={"wide": 1000})
    every: dict[str, Any] = {"constraints": None} | fields
    return tuple(
        NodeSpec(
            name=name,
            predecessors=tuple(before),
            **(every | {"constraints": gate} if name in constrained else every),
        )
        for name, before in graph.items()
    )


def ancestors(graph: Graph, name: str) -> frozenset[str]:
    found: set[str] = set()
    pending = list(graph[name])
    while pending:
        each = pending.pop()
        if each not in found:
            found.add(each)
            pending.extend(graph[each])
    return frozenset(found)


def states(graph: Graph, ended: Mapping[str, str]) -> States:
    """Return the state of every node, of which these have ended as done or failed.

    Every node that can run does: there is room for all.
    """
    found: States = {}
    for name, before in graph.items():
        if name in ended:
            found[name] = ended[name]
        elif any(ended.get(each) == "failed" for each in ancestors(graph, name)):
            found[name] = "skipped"
        elif all(ended.get(each) == "done" for each in before):
            found[name] = "running"
        else:
            found[name] = "waiting"
    return found


def running(graph: Graph, ended: Mapping[str, str]) -> list[str]:
    return [name for name, state in states(graph, ended).items() if state == "running"]


def orders(graph: Graph, fails: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Yield every order in which the nodes can end, of which these fail."""
    yield from _orders(graph, fails, {})


def _orders(
    graph: Graph, fails: frozenset[str], ended: dict[str, str]
) -> Iterator[tuple[str, ...]]:
    able = running(graph, ended)
    if not able:
        yield tuple(ended)
    for name in able:
        yield from _orders(graph, fails, {**ended, name: _end(name, fails)})


def order_count(graph: Graph, fails: frozenset[str] = frozenset()) -> int:
    """Return how many orders there are, without going through them."""

    @functools.cache
    def count(done: frozenset[str]) -> int:
        able = running(graph, {name: _end(name, fails) for name in done})
        return sum(count(done | {name}) for name in able) if able else 1

    return count(frozenset())


def _end(name: str, fails: frozenset[str]) -> str:
    return "failed" if name in fails else "done"


def random_graph(chosen: random.Random, nodes_max: int) -> Graph:
    """Return a graph of 1 .. `nodes_max` nodes, in a random order of names.

    Some are wide, some are chains, some dense: how many are likely before a node is drawn first.
    """
    count = chosen.randint(1, nodes_max)
    names = [f"n{number}" for number in range(count)]
    likely, reach = chosen.choice((0, 1, 2, 6)), chosen.choice((2, 8, count))
    graph: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        near = names[max(0, place - reach) : place]
        wanted = min(len(near), chosen.randint(0, 2 * likely))
        graph[name] = chosen.sample(near, wanted)
    shuffled = chosen.sample(names, count)
    return {name: graph[name] for name in shuffled}
