"""Draws the graph of a job: as text in a terminal, or as a Mermaid flowchart for documents.

::

    ✓ fetch ─┬─ ✓ build ───╮
             ╰─ ● lint ────┴─ ○ deploy

In a graph of more than 60 nodes, nodes of a layer whose names differ in digits only are drawn as
one: ``● shard-# (40)  38✓ 2●``. If that is not enough, each layer is drawn as one. A graph that is
still too wide for the terminal is printed as a list: a line for each node, with its predecessors.
"""

import collections
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from progressor.cli.output import one_line
from progressor.domain.views.graph_layout import (
    Group,
    Item,
    Vertex,
    depths,
    folded,
    layered,
    rows_of,
)

_NARROWEST = 3
_CORNERS = " ╵╷│╴╯╮┤╶╰╭├─┴┬┼"
"""By the lines that meet: 1 from above, 2 from below, 4 from the left, 8 from the right."""


DRAWN_MAX = 60
"""The maximum number of nodes drawn one by one, and of lines in a list."""

_NAME_WIDTHS = (32, 24, 16, 12, 8)
"""Maximum widths of names, tried in this order; a longer name ends with an ellipsis."""


@dataclasses.dataclass(frozen=True, slots=True)
class Position:
    """The row of a node in its layer, by the node's number, or of a passing line (None)."""

    node: int | None
    row: int
    has_successors: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Channel:
    """The lines between two layers: `width` characters for each row that is not empty."""

    width: int
    rows: Mapping[int, str]

    def line(self, row: int) -> str:
        return self.rows.get(row, " " * self.width)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Layers from left to right, the channel after each but the last, and the rows to show."""

    layers: Sequence[Sequence[Position]]
    channels: Sequence[Channel]
    rows: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Bus:
    """The rows of sources, and the rows of their common targets."""

    sources: frozenset[int]
    targets: frozenset[int]

    @property
    def span(self) -> range:
        touched = self.sources | self.targets
        return range(min(touched), max(touched) + 1)

    def goes_before(self, other: "_Bus") -> bool:
        """Return whether a row has a source of this bus and a target of the other."""
        return self is not other and bool(self.sources & other.targets)

    def overlaps(self, other: "_Bus") -> bool:
        return self.span.start < other.span.stop and other.span.start < self.span.stop

    def corner(self, row: int, before: str) -> str:
        """Return the character in a row, given the one to its left."""
        is_target = row in self.targets
        from_left = row in self.sources or (is_target and before == "─")
        up, down = row > self.span.start, row < self.span.stop - 1
        return _CORNERS[up + 2 * down + 4 * from_left + 8 * is_target]


def layout(predecessors: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of a graph, from left to right; it is the same for the same graph.

    Layers, rows, and channels, the lines between two layers, are found in turn. Between two layers,
    sources with the same targets share a *bus*: a vertical line that theirs enter from the left and
    leave to the right. Where lines only cross, the horizontal one is interrupted, so that corners
    and tees show exactly the edges of the graph.

    Args:
        predecessors: Those of each node, by their distinct numbers; without cycles.
    """
    items, layers = layered(predecessors)
    rows: dict[int, int] = {}
    channels: list[Channel] = []
    shift = 0
    for before, layer in itertools.pairwise([[], *layers]):
        placed = rows_of(items, layer, rows, shift=shift)
        channel = _channel(items, before, rows | placed)
        if channel is None:
            # In shifted rows, no row has both a source and a target.
            shift = 1 - shift
            placed = rows_of(items, layer, rows, shift=shift)
            channel = _channel(items, before, rows | placed)
            assert channel is not None, "no row has both a source and a target"
        channels.append(channel)
        rows |= placed
    places = [
        [Position(items[it].node, rows[it], bool(items[it].targets)) for it in layer]
        for layer in layers
    ]
    # Rows with nothing but vertical lines are left out.
    shown = {place.row for layer in places for place in layer}
    for channel in channels:
        shown |= {row for row, line in channel.rows.items() if line.strip(" │")}
    return Layout(places, channels[1:], sorted(shown))


def _channel(
    items: Sequence[Item], layer: Sequence[int], rows: Mapping[int, int]
) -> Channel | None:
    """Return the lines from one layer to the next; None if they would be ambiguous."""
    shared: dict[frozenset[int], set[int]] = {}
    for it in layer:
        if items[it].targets:
            targets = frozenset(rows[one] for one in items[it].targets)
            shared.setdefault(targets, set()).add(rows[it])
    buses = [_Bus(frozenset(sources), targets) for targets, sources in shared.items()]
    turning = [bus for bus in buses if bus.sources != bus.targets or len(bus.targets) > 1]
    columns = _columns(turning)
    if columns is None or not all(_is_plain(bus, buses) for bus in buses):
        return None
    return _drawn(buses, columns)


def _is_plain(bus: _Bus, buses: Iterable[_Bus]) -> bool:
    """Return whether a bus shows which of its tees are sources, and which are targets."""
    through = bus.sources & bus.targets
    if len(bus.targets) == 1 or not through:
        return True
    joined = {row for other in buses if other is not bus for row in other.targets}
    return len(bus.sources) == 1 and not joined & (bus.targets - through)


def _columns(buses: Sequence[_Bus]) -> dict[_Bus, int] | None:
    """Return a column for each bus that turns; None if they block each other.

    In a row with a source and a target, the line from the source turns to the left of the line to
    the target.
    """
    left = sorted(buses, key=lambda bus: (bus.span.start, bus.span.stop, sorted(bus.targets)))
    columns: dict[_Bus, int] = {}
    while left:
        bus = next((it for it in left if not any(one.goes_before(it) for one in left)), None)
        if bus is None:
            return None
        left.remove(bus)
        column = max((columns[one] + 1 for one in columns if one.goes_before(bus)), default=0)
        while any(at == column and one.overlaps(bus) for one, at in columns.items()):
            column += 1
        columns[bus] = column
    return columns


def _drawn(buses: Sequence[_Bus], columns: Mapping[_Bus, int]) -> Channel:
    width = max(_NARROWEST, 2 * (max(columns.values(), default=-1) + 1) + 1)
    at = {bus: 2 * column + 1 for bus, column in columns.items()}
    lines = collections.defaultdict[int, list[str]](lambda: [" "] * width)
    for bus in buses:
        for row in bus.sources:
            # The source's line up to its bus, or all the way.
            end = at.get(bus, width)
            lines[row][:end] = "─" * end
        for row in bus.targets:
            begin = at.get(bus, 0)
            lines[row][begin:] = "─" * (width - begin)
    for bus, column in at.items():
        for row in bus.span:
            lines[row][column] = bus.corner(row, lines[row][column - 1])
    return Channel(width, {row: "".join(line) for row, line in lines.items()})


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
    folding = folded(vertices, groups_max=DRAWN_MAX)
    groups, predecessors = folding.groups, folding.predecessors
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


def _label(group: Group, name_width: int) -> Text:
    counts = Counter(it.state for it in group.members)
    states = [*(it for it in LOOKS if counts[it]), *(it for it in counts if it not in LOOKS)]
    look, name = look_of(states[0]), shown_name(group.name)
    if cell_len(name) > name_width:
        name = set_cell_size(name, name_width - 1) + "…"
    label = Text.assemble((look.symbol, look.style), " ", name)
    if len(group.members) > 1:
        label.append(f" ({len(group.members):,}) ", style="bold")
        for state in states:
            look = look_of(state)
            label.append(f" {counts[state]:,}{look.symbol}", style=look.style)
    return label


def _listed(groups: Sequence[Group], predecessors: Sequence[Sequence[int]]) -> list[Text]:
    """Return the graph as a list, layer by layer; if it is cut, unfinished nodes are preferred."""
    depth = depths(predecessors)
    order = sorted(range(len(groups)), key=lambda it: (_is_done(groups[it]), depth[it]))
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


def _is_done(group: Group) -> bool:
    return all(it.state == "done" for it in group.members)
