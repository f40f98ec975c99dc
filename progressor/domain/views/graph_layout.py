"""Where a graph is drawn: its layers from left to right, the order in each, and rows.

Terminals and browsers draw the same layout. A graph that is too large to be drawn node by node is
folded: several nodes are drawn as one.
"""

import dataclasses
import graphlib
import itertools
import re
from collections.abc import Mapping, Sequence

ROW_STEP = 2
"""Rows from one position to the next; a shifted layer uses those between."""

_SWEEPS = 4
_DIGITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class Vertex:
    """A node to draw."""

    name: str
    state: str
    predecessors: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One node, or several of a layer that are drawn as one.

    ``name``: the name of a single node; what the names have in common, with # for digits; or the
    first of different names and an ellipsis.
    """

    name: str
    layer: int
    members: tuple[Vertex, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Folding:
    """Groups, and the predecessors of each by their numbers."""

    groups: tuple[Group, ...]
    predecessors: tuple[tuple[int, ...], ...]

    @property
    def line_count(self) -> int:
        return sum(map(len, self.predecessors))


@dataclasses.dataclass(slots=True)
class Item:
    """A node, by its number, or a passing line (None); linked with items of the next layers."""

    node: int | None
    targets: list[int] = dataclasses.field(default_factory=list)
    sources: list[int] = dataclasses.field(default_factory=list)


def depths(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the longest path to each node, in a graph without cycles.

    Args:
        predecessors: Those of each node, by their numbers.
    """
    found = [0] * len(predecessors)
    for node in graphlib.TopologicalSorter(dict(enumerate(predecessors))).static_order():
        found[node] = max((found[before] + 1 for before in predecessors[node]), default=0)
    return found


def stem(name: str) -> str:
    """Return a name with # for its numbers; nodes of a fan-out have the same stem."""
    return _DIGITS.sub("#", name)


def folded(vertices: Sequence[Vertex], *, groups_max: int, lines_max: int | None = None) -> Folding:
    """Return the first of these that is small enough, else the last.

    Each node alone; nodes of a layer whose names differ in digits only as one; each layer as one.

    Args:
        vertices: With unique names; the predecessors are among them, without cycles.
        groups_max: How many groups are small enough.
        lines_max: How many pairs of a group and a predecessor are; None: any number.
    """
    number = {vertex.name: place for place, vertex in enumerate(vertices)}
    predecessors = [sorted({number[name] for name in it.predecessors}) for it in vertices]
    layers = depths(predecessors)
    likeness = [(layer, stem(it.name)) for layer, it in zip(layers, vertices, strict=True)]
    for keys in (range(len(vertices)), likeness):
        if len({*keys}) <= groups_max:
            folding = _folded(vertices, predecessors, layers, keys)
            if lines_max is None or folding.line_count <= lines_max:
                return folding
    return _folded(vertices, predecessors, layers, layers)


def layered(predecessors: Sequence[Sequence[int]]) -> tuple[list[Item], list[list[int]]]:
    """Return nodes and passing lines, and the numbers of the items of each layer, in their order.

    A node is placed right of its predecessors. A line that passes a layer has a position in it,
    like a node. The result is the same for the same graph.

    Args:
        predecessors: Those of each node, by their distinct numbers; without cycles.
    """
    items, layers = _linked(predecessors)
    _untangle(items, layers)
    return items, layers


def rows_of(
    items: Sequence[Item], layer: Sequence[int], rows: Mapping[int, int], *, shift: int = 0
) -> dict[int, int]:
    """Return a row for each item, as close to the rows of its sources as the order allows."""
    placed: dict[int, int] = {}
    free = shift
    for it in layer:
        sources = sorted(rows[one] for one in items[it].sources)
        wanted = sources[(len(sources) - 1) // 2] if sources else free
        placed[it] = max(free, wanted - (wanted - shift) % ROW_STEP)
        free = placed[it] + ROW_STEP
    return placed


def _folded(
    vertices: Sequence[Vertex],
    predecessors: Sequence[Sequence[int]],
    layers: Sequence[int],
    keys: Sequence[object],
) -> Folding:
    members: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    group = {key: place for place, key in enumerate(members)}
    return Folding(
        tuple(_group([vertices[it] for it in its], layers[its[0]]) for its in members.values()),
        tuple(
            tuple(sorted({group[keys[one]] for it in its for one in predecessors[it]}))
            for its in members.values()
        ),
    )


def _group(members: Sequence[Vertex], layer: int) -> Group:
    name = members[0].name
    if len(members) > 1:
        alike = {stem(it.name) for it in members}
        name = alike.pop() if len(alike) == 1 else f"{name}, …"
    return Group(name, layer, tuple(members))


def _linked(predecessors: Sequence[Sequence[int]]) -> tuple[list[Item], list[list[int]]]:
    """Return nodes and passing lines, linked from layer to layer, and the layers."""
    depth = depths(predecessors)
    items = [Item(node) for node in range(len(predecessors))]
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for node, layer in enumerate(depth):
        layers[layer].append(node)

    def link(source: int, target: int) -> None:
        items[source].targets.append(target)
        items[target].sources.append(source)

    # The item that stands for a node's line in a later layer.
    passing: dict[tuple[int, int], int] = {}
    for node, before in enumerate(predecessors):
        for source in before:
            last = source
            for layer in range(depth[source] + 1, depth[node]):
                if (source, layer) not in passing:
                    passing[source, layer] = len(items)
                    layers[layer].append(len(items))
                    items.append(Item(None))
                    link(last, passing[source, layer])
                last = passing[source, layer]
            link(last, node)
    return items, layers


def _untangle(items: Sequence[Item], layers: list[list[int]]) -> None:
    """Sort each layer by the mean position of linked items, in a few sweeps back and forth."""
    for sweep in range(_SWEEPS + 1):
        for before, layer in itertools.pairwise(layers):
            _sort(layer, before, [items[it].sources for it in layer])
        if sweep < _SWEEPS:
            for layer, after in itertools.pairwise(reversed(layers)):
                _sort(after, layer, [items[it].targets for it in after])


def _sort(layer: list[int], beside: Sequence[int], linked: Sequence[Sequence[int]]) -> None:
    position = {it: place for place, it in enumerate(beside)}
    middle = {
        it: sum(position[one] for one in links) / len(links) if links else float(place)
        for place, (it, links) in enumerate(zip(layer, linked, strict=True))
    }
    layer.sort(key=middle.__getitem__)
