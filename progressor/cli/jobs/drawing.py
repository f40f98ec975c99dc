"""Draws the graph of a job: as text in a terminal, or as a Mermaid flowchart for documents.

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
    """How a node in a state is drawn: in a terminal, and in a flowchart."""

    symbol: str
    style: str
    mermaid: str = ""


LOOKS: Mapping[str, StateLook] = {
    "failed": StateLook(
        "✗", "bold red", "fill:#fee2e2,stroke:#dc2626,color:#111827,stroke-width:3px"
    ),
    "running": StateLook("●", "green", "fill:#dcfce7,stroke:#16a34a,color:#111827"),
    "ready": StateLook("◎", "cyan", "fill:#cffafe,stroke:#0891b2,color:#111827"),
    "waiting": StateLook("○", "dim", "fill:#f3f4f6,stroke:#9ca3af,color:#111827"),
    "cancelled": StateLook(
        "⊘", "magenta", "fill:#fae8ff,stroke:#a21caf,color:#111827,stroke-dasharray:4"
    ),
    "skipped": StateLook(
        "↷", "yellow", "fill:#fef9c3,stroke:#ca8a04,color:#111827,stroke-dasharray:4"
    ),
    "done": StateLook("✓", "blue", "fill:#dbeafe,stroke:#2563eb,color:#111827"),
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
    groups, predecessors = _grouped(vertices)
    if len(groups) <= DRAWN_MAX:
        plan = layout(predecessors)
        for name_width in _NAME_WIDTHS:
            lines = _lines(plan, [_label(group, name_width) for group in groups])
            if all(line.cell_len <= width for line in lines):
                return lines
    return _listed(groups, predecessors)


def mermaid(vertices: Sequence[Vertex]) -> str:
    """Return a flowchart of all nodes and edges; it is the same for the same graph.

    Args:
        vertices: With unique names; the predecessors are among them.
    """
    ids = {vertex.name: f"n{number}" for number, vertex in enumerate(vertices)}
    lines = ["flowchart LR"]
    for vertex in vertices:
        state = f":::{vertex.state}" if vertex.state in LOOKS else ""
        lines.append(f'  {ids[vertex.name]}["{_escaped(vertex.name)}"]{state}')
    lines += [
        f"  {ids[before]} --> {ids[vertex.name]}"
        for vertex in vertices
        for before in vertex.predecessors
    ]
    states = {vertex.state for vertex in vertices}
    lines += [f"  classDef {it} {look.mermaid}" for it, look in LOOKS.items() if it in states]
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    """Return a name for use in quotes; special characters are replaced by their numbers."""

    def is_plain(character: str) -> bool:
        return character.isalnum() or character in " -_/,+" or not character.isascii()

    return "".join(it if is_plain(it) else f"#{ord(it)};" for it in shown_name(name))


def _lines(plan: Layout, labels: Sequence[Text]) -> list[Text]:
    widths = [
        max((labels[it.node].cell_len for it in layer if it.node is not None), default=1) + 1
        for layer in plan.layers
    ]
    found = []
    for row in plan.rows:
        line = Text(no_wrap=True)
        places = [next((it for it in layer if it.row == row), None) for layer in plan.layers]
        for number, place in enumerate(places):
            line.append_text(_cell(place, labels, widths[number]))
            if number < len(plan.channels):
                line.append(plan.channels[number].line(row), style="dim")
                after = places[number + 1]
                is_passing = after is not None and after.node is None
                line.append("─" if is_passing else " ", style="dim")
        line.rstrip()
        found.append(line)
    return found


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
    look, name = look_of(states[0]), shown_name(group.name)
    if cell_len(name) > name_width:
        name = set_cell_size(name, name_width - 1) + "…"
    label = Text.assemble((look.symbol, look.style), " ", name)
    if len(group.states) > 1:
        label.append(f" ({len(group.states):,}) ", style="bold")
        for state in states:
            look = look_of(state)
            label.append(f" {counts[state]:,}{look.symbol}", style=look.style)
    return label


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


def _grouped(vertices: Sequence[Vertex]) -> tuple[list[_Group], list[list[int]]]:
    """Return groups of vertices that are drawn as one, and the predecessors of each group."""
    number = {vertex.name: place for place, vertex in enumerate(vertices)}
    predecessors = [sorted({number[name] for name in it.predecessors}) for it in vertices]
    depth = depths(predecessors)
    stems = [_DIGITS.sub("#", vertex.name) for vertex in vertices]
    alone = [*map(str, range(len(vertices)))]
    by_name = [f"{layer} {stem}" for layer, stem in zip(depth, stems, strict=True)]
    few = (keys for keys in (alone, by_name) if len({*keys}) <= DRAWN_MAX)
    keys = next(few, [*map(str, depth)])
    members: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    groups = []
    for its in members.values():
        name = vertices[its[0]].name
        if len(its) > 1:
            alike = {stems[it] for it in its}
            name = alike.pop() if len(alike) == 1 else f"{name}, …"
        groups.append(_Group(name, tuple(vertices[it].state for it in its)))
    group = {key: place for place, key in enumerate(members)}
    before = [
        sorted({group[keys[one]] for it in its for one in predecessors[it]})
        for its in members.values()
    ]
    return groups, before
