"""Draws the graph of a job in a terminal.

::

    ✓ fetch ─┬─ ✓ build ───╮
             ╰─ ● lint ────┴─ ○ deploy

In a graph of more than 60 nodes, nodes of a layer whose names differ in digits only are drawn as
one: ``● shard-# (40)  38✓ 2●``. If that is not enough, each layer is drawn as one. A graph that is
still too wide for the terminal is printed as a list: a line for each node, with its predecessors.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from progressor.cli.jobs.layout import Layout, Position, depths, layout
from progressor.cli.output.output import one_line

DRAWN_MAX = 60
"""The maximum number of nodes drawn one by one, and of lines in a list."""

_NAME_WIDTHS = (32, 24, 16, 12, 8)
"""Maximum widths of names, tried in this order; a longer name ends with an ellipsis."""

_DIGITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class StateLook:
    symbol: str
    style: str


LOOKS: Mapping[str, StateLook] = {
    "failed": StateLook("✗", "bold red"),
    "running": StateLook("●", "green"),
    "ready": StateLook("◎", "cyan"),
    "waiting": StateLook("○", "dim"),
    "cancelled": StateLook("⊘", "magenta"),
    "skipped": StateLook("↷", "yellow"),
    "done": StateLook("✓", "blue"),
}
"""By state; a group of nodes has the look of the first state that occurs in it."""

_UNKNOWN = StateLook("?", "")


@dataclasses.dataclass(frozen=True, slots=True)
class Vertex:
    """A node to draw."""

    name: str
    state: str
    predecessors: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """One node, or several that are drawn as one, with their states."""

    name: str
    states: tuple[str, ...]


def look_of(state: str) -> StateLook:
    """Return the look of a state; a question mark for an unknown one of a newer engine."""
    return LOOKS.get(state, _UNKNOWN)


def shown_name(name: str) -> str:
    """Return a name as one printable line; an ellipsis if none of it is printable."""
    return one_line(name) or "…"


def drawing(vertices: Sequence[Vertex], *, width: int) -> list[Text]:
    """Return the graph as lines of at most `width` cells, the same for the same graph.

    Args:
        vertices: With unique names; the predecessors are among them, without cycles.
        width: That of the terminal. The lines of a list may be longer, and wrap.
    """
    groups, predecessors = _grouped(vertices, _numbers(vertices))
    if len(groups) > DRAWN_MAX:
        return _listed(groups, predecessors)
    plan = layout(predecessors)
    for name_width in _NAME_WIDTHS:
        lines = _lines(plan, [_label(group, name_width) for group in groups])
        if all(line.cell_len <= width for line in lines):
            return lines
    return _listed(groups, predecessors)


def _lines(plan: Layout, labels: Sequence[Text]) -> list[Text]:
    widths = [
        max((labels[it.node].cell_len for it in layer if it.node is not None), default=1) + 1
        for layer in plan.layers
    ]
    found = []
    for row in plan.rows:
        line = Text(no_wrap=True)
        for number, layer in enumerate(plan.layers):
            place = next((it for it in layer if it.row == row), None)
            line.append_text(_cell(place, labels, widths[number]))
            if number < len(plan.channels):
                line.append(plan.channels[number].line(row), style="dim")
                line.append("─" if _is_reached(plan, number + 1, row) else " ", style="dim")
        line.rstrip()
        found.append(line)
    return found


def _is_reached(plan: Layout, layer: int, row: int) -> bool:
    return any(it.row == row and it.node is None for it in plan.layers[layer])


def _cell(place: Position | None, labels: Sequence[Text], width: int) -> Text:
    if place is None:
        return Text(" " * width)
    if place.node is None:
        return Text("─" * width, style="dim")
    label = labels[place.node]
    line = "─" if place.has_successors else " "
    rest = " " + line * (width - 1 - label.cell_len)
    return Text.assemble(label, (rest, "dim"))


def _label(group: _Group, name_width: int) -> Text:
    counts = Counter(group.states)
    states = [*(it for it in LOOKS if counts[it]), *(it for it in counts if it not in LOOKS)]
    look = look_of(states[0])
    label = Text.assemble((look.symbol, look.style), " ", _cut(shown_name(group.name), name_width))
    if len(group.states) > 1:
        label.append(f" ({len(group.states):,}) ", style="bold")
        for state in states:
            look = look_of(state)
            label.append(f" {counts[state]:,}{look.symbol}", style=look.style)
    return label


def _cut(name: str, width: int) -> str:
    return name if cell_len(name) <= width else set_cell_size(name, width - 1) + "…"


def _listed(groups: Sequence[_Group], predecessors: Sequence[Sequence[int]]) -> list[Text]:
    """Return the graph as a list, layer by layer; if it is cut, unfinished nodes are preferred."""
    depth = depths(predecessors)
    order = sorted(range(len(groups)), key=lambda it: ({*groups[it].states} == {"done"}, depth[it]))
    lines = []
    for number in sorted(order[:DRAWN_MAX], key=depth.__getitem__):
        line = _label(groups[number], _NAME_WIDTHS[0])
        before = ", ".join(shown_name(groups[it].name) for it in predecessors[number])
        if before:
            line.append(f"  after {before}", style="dim")
        lines.append(line)
    if len(order) > DRAWN_MAX:
        lines.append(Text(f"… {len(order) - DRAWN_MAX:,} more", style="dim"))
    return lines


def _numbers(vertices: Sequence[Vertex]) -> list[list[int]]:
    """Return the predecessors of each vertex as distinct numbers, in order."""
    number = {vertex.name: place for place, vertex in enumerate(vertices)}
    return [sorted({number[name] for name in vertex.predecessors}) for vertex in vertices]


def _grouped(
    vertices: Sequence[Vertex], predecessors: list[list[int]]
) -> tuple[list[_Group], list[list[int]]]:
    """Return groups of vertices that are drawn as one, and the predecessors of each group."""
    depth = depths(predecessors)
    by_name = [
        f"{layer} {_DIGITS.sub('#', it.name)}" for layer, it in zip(depth, vertices, strict=True)
    ]
    by_layer = [str(layer) for layer in depth]
    alone = [str(number) for number in range(len(vertices))]
    few = (keys for keys in (alone, by_name) if len({*keys}) <= DRAWN_MAX)
    keys = next(few, by_layer)
    members: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        members.setdefault(key, []).append(number)
    place = {key: number for number, key in enumerate(members)}
    groups = [
        _Group(
            vertices[its[0]].name if len(its) == 1 else _name_of(vertices, its),
            tuple(vertices[it].state for it in its),
        )
        for its in members.values()
    ]
    before = [
        sorted({place[keys[one]] for it in its for one in predecessors[it]})
        for its in members.values()
    ]
    return groups, before


def _name_of(vertices: Sequence[Vertex], members: Sequence[int]) -> str:
    stems = {_DIGITS.sub("#", vertices[it].name) for it in members}
    return stems.pop() if len(stems) == 1 else f"{vertices[members[0]].name}, …"
