"""Lays out a graph from left to right: the positions of its nodes, and the lines between them.

::

    predecessors ──► layers ──► order in each ──► rows ──► channels, the lines between two layers

A node is placed right of all its predecessors. A line that passes a layer has a position in it,
like a node. Between two layers, sources with the same targets share a *bus*: a vertical line that
their lines enter from the left and leave to the right. Where lines only cross, the horizontal one
is interrupted, so that corners and tees show exactly the edges of the graph.
"""

import collections
import dataclasses
import graphlib
import itertools
from collections.abc import Iterable, Mapping, Sequence

_SWEEPS = 4
_STEP = 2
"""Rows from one position to the next; a shifted layer uses those between."""

_NARROWEST = 3
_CORNERS = " ╵╷│╴╯╮┤╶╰╭├─┴┬┼"
"""By the lines that meet: 1 from above, 2 from below, 4 from the left, 8 from the right."""


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


@dataclasses.dataclass(slots=True)
class _Item:
    """A node or a passing line before it has a row; `targets` are items of the next layer."""

    node: int | None
    targets: list[int] = dataclasses.field(default_factory=list)
    sources: list[int] = dataclasses.field(default_factory=list)


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


def depths(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the longest path to each node, in a graph without cycles.

    Args:
        predecessors: Those of each node, by their numbers.
    """
    found = [0] * len(predecessors)
    for node in graphlib.TopologicalSorter(dict(enumerate(predecessors))).static_order():
        found[node] = max((found[before] + 1 for before in predecessors[node]), default=0)
    return found


def layout(predecessors: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of a graph; it is the same for the same graph.

    Args:
        predecessors: Those of each node, by their distinct numbers; without cycles.
    """
    items, layers = _items(predecessors)
    _untangle(items, layers)
    rows: dict[int, int] = {}
    channels: list[Channel] = []
    shift = 0
    for before, layer in itertools.pairwise([[], *layers]):
        placed = _rows(items, layer, rows, shift)
        channel = _channel(items, before, rows | placed)
        if channel is None:
            # In shifted rows, no row has both a source and a target.
            shift = 1 - shift
            placed = _rows(items, layer, rows, shift)
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


def _items(predecessors: Sequence[Sequence[int]]) -> tuple[list[_Item], list[list[int]]]:
    """Return nodes and passing lines, linked from layer to layer, and the layers."""
    depth = depths(predecessors)
    items = [_Item(node) for node in range(len(predecessors))]
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
                    items.append(_Item(None))
                    link(last, passing[source, layer])
                last = passing[source, layer]
            link(last, node)
    return items, layers


def _untangle(items: Sequence[_Item], layers: list[list[int]]) -> None:
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


def _rows(
    items: Sequence[_Item], layer: Sequence[int], rows: Mapping[int, int], shift: int
) -> dict[int, int]:
    """Return a row for each item, as close to the rows of its sources as the order allows."""
    placed: dict[int, int] = {}
    free = shift
    for it in layer:
        sources = sorted(rows[one] for one in items[it].sources)
        wanted = sources[(len(sources) - 1) // 2] if sources else free
        placed[it] = max(free, wanted - (wanted - shift) % _STEP)
        free = placed[it] + _STEP
    return placed


def _channel(
    items: Sequence[_Item], layer: Sequence[int], rows: Mapping[int, int]
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
