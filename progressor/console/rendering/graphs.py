"""The drawing of a job's graph: boxes and lines with their places, in no language.

A graph of 150 nodes or more, or with too many lines, is folded; one that is still too large is not
drawn, and the table beside it has to do.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from progressor.console.rendering.looks import in_order
from progressor.domain.views.graph_layout import (
    Folding,
    Group,
    Item,
    Vertex,
    folded,
    layered,
    rows_of,
)
from progressor.sdk.values.jobs import Node, NodeState

BOXES_MAX = 149
"""Nodes that are drawn one by one."""

LINES_MAX = 500
"""Lines from layer to layer, so that a page stays light."""

_BOX_WIDTH, _BOX_HEIGHT = 260, 28
_COLUMN, _ROW = 320, 18
_MARGIN = 4
_NAME_LENGTH = 20
"""The word of the state, or the number of nodes, stands behind it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node, or a group of nodes that are drawn as one (``node`` is None).

    ``label`` is ``name``, cut to fit. ``counts``: how many are in each state, in the order of
    looks; ``shares``: the same as parts of a bar, each with its state, its start and its width.
    ``state`` is that of the node, else the one that matters most of those in the group.
    """

    x: int
    y: int
    name: str
    label: str
    layer: int
    state: NodeState
    counts: tuple[tuple[NodeState, int], ...]
    shares: tuple[tuple[NodeState, int, int], ...]
    node: Node[Any] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph with the places of all its parts; ``lines`` is the path of all lines."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[Box, ...]
    lines: str
    is_folded: bool = False


_URGENCY = (
    NodeState.FAILED,
    NodeState.RUNNING,
    NodeState.READY,
    NodeState.WAITING,
    NodeState.CANCELLED,
    NodeState.SKIPPED,
    NodeState.DONE,
)


def drawing_of(vertices: Sequence[Vertex], node_of: Callable[[str], Node[Any]]) -> Drawing | None:
    """Return the drawing of a graph; None if it has too many parts.

    Args:
        vertices: Its nodes; without cycles.
        node_of: Returns a node by its name, for those that are drawn one by one.
    """
    folding = folded(vertices, groups_max=BOXES_MAX, lines_max=LINES_MAX)
    if len(folding.groups) > BOXES_MAX:
        return None
    items, layers = layered(folding.predecessors)
    if sum(len(it.targets) for it in items) > LINES_MAX:
        return None
    drawn = _drawn(folding, items, layers, node_of)
    return dataclasses.replace(drawn, is_folded=len(folding.groups) < len(vertices))


def _drawn(
    folding: Folding,
    items: Sequence[Item],
    layers: Sequence[Sequence[int]],
    node_of: Callable[[str], Node[Any]],
) -> Drawing:
    rows: dict[int, int] = {}
    for layer in layers:
        rows |= rows_of(items, layer, rows)
    places = {
        it: (_MARGIN + number * _COLUMN, _MARGIN + rows[it] * _ROW)
        for number, layer in enumerate(layers)
        for it in layer
    }
    boxes = [
        _box(folding.groups[item.node], node_of, *places[number])
        for number, item in enumerate(items)
        if item.node is not None
    ]
    return Drawing(
        width=2 * _MARGIN + (len(layers) - 1) * _COLUMN + _BOX_WIDTH,
        height=2 * _MARGIN + max(rows.values(), default=0) * _ROW + _BOX_HEIGHT,
        box_width=_BOX_WIDTH,
        box_height=_BOX_HEIGHT,
        boxes=tuple(boxes),
        lines="".join(_lines(items[it], places[it], places) for it in places),
    )


def _box(group: Group, node_of: Callable[[str], Node[Any]], x: int, y: int) -> Box:
    states = Counter(NodeState(it.state) for it in group.members)
    node = node_of(group.members[0].name) if len(group.members) == 1 else None
    counts = in_order(states)
    name = group.name
    return Box(
        x=x,
        y=y,
        name=name,
        label=name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…",
        layer=group.layer,
        state=next((it for it in _URGENCY if states[it]), NodeState.UNSPECIFIED),
        counts=counts,
        shares=() if node is not None else _shares(counts, x),
        node=node,
    )


def _shares(
    counts: Sequence[tuple[NodeState, int]], x: int
) -> tuple[tuple[NodeState, int, int], ...]:
    total, before, found = sum(count for _, count in counts), 0, []
    for state, count in counts:
        start, end = (it * _BOX_WIDTH // total for it in (before, before + count))
        found.append((state, x + start, end - start))
        before += count
    return tuple(found)


def _lines(item: Item, place: tuple[int, int], places: Mapping[int, tuple[int, int]]) -> str:
    """Return the path of the lines that leave an item; one that passes a layer crosses it."""
    x, y = place[0], place[1] + _BOX_HEIGHT // 2
    right, middle = x + _BOX_WIDTH, x + (_BOX_WIDTH + _COLUMN) // 2
    found = f"M{x} {y}H{right}" if item.node is None else ""
    for target in item.targets:
        to_x, to_y = places[target][0], places[target][1] + _BOX_HEIGHT // 2
        found += f"M{right} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return found
