"""A drawing of a job's graph shows each node and each edge, and no other; so does a flowchart."""

import re
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from progressor.cli.jobs.drawing import DRAWN_MAX, LOOKS, drawing, mermaid, shown_name
from progressor.domain.views.graph_layout import Vertex

WIDE = 10_000

_LABEL = re.compile(rf"[{''.join(look.symbol for look in LOOKS.values())}] (n\d+)")
_TEES = "┬┴┼"

NAMES = st.text(
    st.characters(exclude_categories=["Cc", "Cs"])
    | st.sampled_from(["'", '"', "[", "]", "#", ";", "`", "&", "<", "\\", "界", "\u0301"]),
    min_size=1,
    max_size=12,
)


@st.composite
def graphs(draw: st.DrawFn, *, names: st.SearchStrategy[str] | None = None) -> list[Vertex]:
    """Draw an acyclic graph, its nodes in any order."""
    count = draw(st.integers(1, 14))
    called = (
        [f"n{number}" for number in range(count)]
        if names is None
        else draw(st.lists(names, min_size=count, max_size=count, unique=True))
    )
    vertices = [
        Vertex(
            name,
            draw(st.sampled_from([*LOOKS])),
            tuple(draw(st.lists(st.sampled_from(called[:place]), unique=True, max_size=5)))
            if place
            else (),
        )
        for place, name in enumerate(called)
    ]
    return draw(st.permutations(vertices))


def edges_of(vertices: Sequence[Vertex]) -> list[tuple[str, str]]:
    return sorted((before, vertice.name) for vertice in vertices for before in vertice.predecessors)


class Reader:
    """Reads a drawing as a person does: along the lines, round the corners, to the next name."""

    def __init__(self, lines: Sequence[Text]) -> None:
        self.lines = [line.plain for line in lines]
        width = max(map(len, self.lines))
        self.lines = [line.ljust(width) for line in self.lines]
        self.labels = {
            (row, found.start()): found
            for row, line in enumerate(self.lines)
            for found in _LABEL.finditer(line)
        }

    @property
    def names(self) -> list[str]:
        return sorted(found[1] for found in self.labels.values())

    @property
    def edges(self) -> list[tuple[str, str]]:
        return sorted(
            (found[1], target)
            for (row, _), found in self.labels.items()
            for target in sorted({*self.follow(row, found.end() + 1)})
        )

    def follow(self, row: int, column: int) -> Iterator[str]:
        """Yield the names to which a line leads that goes to the right here."""
        line = self.lines[row]
        while column < len(line):
            if (row, column) in self.labels:
                yield self.labels[row, column][1]
                return
            if (row, column + 1) in self.labels and line[column] == " ":
                column += 1
                continue
            if line[column] == " ":
                return
            if line[column] in "╮╯┤┬┴┼":
                yield from self.turn(row, column)
            if line[column] in "╮╯┤":
                return
            column += 1

    def turn(self, row: int, column: int) -> Iterator[str]:
        """Yield the names to which a bus leads that a line on its left reaches; none: it joins."""
        top, bottom = row, row
        while top and self.lines[top][column] in "│┤├┴┼╯╰":
            top -= 1
        while bottom + 1 < len(self.lines) and self.lines[bottom][column] in "│┤├┬┼╮╭":
            bottom += 1
        touched = {number: self.lines[number][column] for number in range(top, bottom + 1)}
        sources = [target for target, corner in touched.items() if corner in "╮╯┤"]
        tees = [target for target, corner in touched.items() if corner in _TEES]
        targets = [target for target, corner in touched.items() if corner in "╭╰├"]
        if not sources and len(targets) + len(tees) > 1:
            assert len(tees) == 1, "it is ambiguous which of them the bus comes from"
            sources = tees
        for target in targets + tees:
            if row in sources and target != row:
                yield from self.follow(target, column + 1)


@given(graphs())
def test_each_edge_can_be_followed_and_none_that_is_not_there(graph: list[Vertex]) -> None:
    reader = Reader(drawing(graph, width=WIDE))

    assert reader.names == sorted(vertex.name for vertex in graph)
    assert reader.edges == edges_of(graph)


@given(graphs(names=NAMES))
def test_each_name_is_shown_once_whatever_it_is(graph: list[Vertex]) -> None:
    lines = drawing(graph, width=WIDE)

    shown = "\n".join(line.plain for line in lines)
    assert all(f" {shown_name(vertex.name)}" in shown for vertex in graph)
    symbols = sum(shown.count(f"{look.symbol} ") for look in LOOKS.values())
    assert symbols >= len(graph)
    assert shown.isprintable() or shown.replace("\n", "").isprintable()


@given(graphs(names=NAMES), st.integers(10, 120))
def test_a_drawing_is_the_same_each_time_and_no_wider_than_allowed(
    graph: list[Vertex], width: int
) -> None:
    lines = drawing(graph, width=width)

    assert lines == drawing(graph, width=width)
    is_told = any("  after " in line.plain for line in lines)
    assert is_told or all(line.cell_len <= width for line in lines)


@given(st.integers(DRAWN_MAX + 1, 300), st.integers(1, 5), st.sampled_from([*LOOKS]))
def test_a_large_graph_is_drawn_in_few_lines_that_count_all(
    count: int, depth: int, state: str
) -> None:
    layers = [[f"{'abcde'[layer]}-{number}" for number in range(count)] for layer in range(depth)]
    graph = [
        Vertex(name, state, (layers[place - 1][number],) if place else ())
        for place, names in enumerate(layers)
        for number, name in enumerate(names)
    ]

    lines = drawing(graph, width=WIDE)

    assert len(lines) == 1
    assert lines[0].plain.count(f"({count})  {count}{LOOKS[state].symbol}") == depth


@given(graphs(names=NAMES))
def test_a_flowchart_has_each_node_and_each_edge_by_the_rules_of_mermaid(
    graph: list[Vertex],
) -> None:
    head, *lines = mermaid(graph).splitlines()

    nodes: dict[str, str] = {}
    edges = []
    states = {}
    for line in lines:
        if node := re.fullmatch(r'  (n\d+)\["([^"`\[\]<>{}()|\\&]+)"\]:::(\w+)', line):
            nodes[node[1]] = re.sub(r"#(\d+);", lambda each: chr(int(each[1])), node[2])
            states[node[1]] = node[3]
        elif edge := re.fullmatch(r"  (n\d+) --> (n\d+)", line):
            edges.append((nodes[edge[1]], nodes[edge[2]]))
        else:
            assert re.fullmatch(r"  classDef \w+ [\w#:,-]+", line), line
    assert head == "flowchart LR"
    assert [*nodes.values()] == [shown_name(vertex.name) for vertex in graph]
    assert [*states.values()] == [vertex.state for vertex in graph]
    assert sorted(edges) == sorted(
        (shown_name(before), shown_name(vertex.name))
        for vertex in graph
        for before in vertex.predecessors
    )
