"""What a drawing of a job's graph looks like; what it must always be, is in tests/property."""

import pytest

from progressor.cli.jobs.drawing import LOOKS, drawing, look_of, mermaid
from progressor.domain.views.graph_layout import Vertex

SEED = [
    Vertex("1", "done"),
    Vertex("2", "done"),
    Vertex("3", "done"),
    Vertex("4", "failed", ("1", "2")),
    Vertex("5", "done", ("2",)),
    Vertex("6", "running", ("2",)),
    Vertex("7", "skipped", ("1", "4")),
    Vertex("8", "waiting", ("5", "6")),
    Vertex("9", "skipped", ("4", "6")),
]
"""The graph of seeds/job-center.md, after its step 6."""


def drawn(*vertices: Vertex, width: int = 80) -> list[str]:
    """Return the lines of a drawing."""
    return [line.plain for line in drawing(vertices, width=width)]


def chain(length: int, done: int = 0) -> list[Vertex]:
    """Return nodes one after the other, the first of them done."""
    return [
        Vertex(f"n{it}", "done" if it < done else "waiting", (f"n{it - 1}",) if it else ())
        for it in range(length)
    ]


def test_lines_part_and_meet() -> None:
    fork = [Vertex(name, "running", ("a",)) for name in ("b", "c", "long")]

    assert drawn(Vertex("a", "done"), *fork, Vertex("z", "waiting", ("b", "c", "long"))) == [
        "✓ a ─┬─ ● b ────╮",
        "     ├─ ● c ────┼─ ○ z",
        "     ╰─ ● long ─╯",
    ]


def test_nodes_that_all_depend_on_the_same_ones_share_a_line() -> None:
    befores = [Vertex(name, "done") for name in "ab"]
    afters = [Vertex(name, "ready", ("a", "b")) for name in "yz"]

    assert drawn(*befores, *afters) == [
        "✓ a ─╮",
        "     ├─ ◎ y",
        "✓ b ─┤",
        "     ╰─ ◎ z",
    ]


def test_a_line_that_only_crosses_another_one_cuts_it() -> None:
    befores = [Vertex(name, "done") for name in "abc"]
    afters = [
        Vertex(name, "done", tuple(before))
        for name, before in (("x", "ab"), ("y", "bc"), ("z", "ca"))
    ]

    assert any("─│─" in line for line in drawn(*befores, *afters))


def test_the_example_of_the_seed() -> None:
    lines = drawn(*SEED)

    assert "✓ 3" in [line[:3] for line in lines]
    assert sum(line.count(f"{LOOKS['skipped'].symbol} ") for line in lines) == 2
    assert len(lines) <= 2 * len(SEED)


def test_a_narrow_terminal_gets_shorter_names_and_then_words() -> None:
    graph = [Vertex("a-very-long-name", "done"), Vertex("b", "failed", ("a-very-long-name",))]

    assert drawn(*graph, width=40) == ["✓ a-very-long-name ─── ✗ b"]
    assert drawn(*graph, width=20) == ["✓ a-very-… ─── ✗ b"]
    assert drawn(*graph, width=10) == ["✓ a-very-long-name", "✗ b  after a-very-long-name"]


def test_names_of_double_width_keep_the_columns() -> None:
    graph = [Vertex("数据", "done"), Vertex("b", "done"), Vertex("z", "ready", ("数据", "b"))]

    assert drawn(*graph) == ["✓ 数据 ─┬─ ◎ z", "✓ b ────╯"]


def test_a_name_cannot_control_the_terminal() -> None:
    [line] = drawn(Vertex("\x1b[2Ja\nb", "done"))

    assert line == "✓ [2Ja b"


def test_a_state_of_a_newer_release_has_a_question_mark() -> None:
    assert drawn(Vertex("a", "unspecified")) == ["? a"]
    assert look_of("unspecified").symbol == "?"


def test_many_that_are_not_alike_are_counted_by_layers() -> None:
    first = [Vertex("a" * it, "done") for it in range(1, 71)]
    last = [Vertex(f"{it.name}z", "running", (it.name,)) for it in first]

    assert drawn(*first, *last) == ["✓ a, … (70)  70✓ ─── ● az, … (70)  70●"]


def test_a_long_chain_shows_what_is_not_done() -> None:
    lines = drawn(*chain(100, done=50))

    assert lines[0] == "✓ n0"
    assert lines[9:11] == ["✓ n9  after n8", "○ n50  after n49"]
    assert lines[-2:] == ["○ n99  after n98", "… 40 more"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ('say "hi"', "say #34;hi#34;"),
        ("a[0]", "a#91;0#93;"),
        ("`code`", "#96;code#96;"),
        ("#35;", "#35;35#59;"),
        ("数据 é", "数据 é"),
        ("\x1b", "…"),
    ],
)
def test_a_flowchart_has_names_that_nothing_else_is_read_into(name: str, label: str) -> None:
    assert f'  n0["{label}"]:::done' in mermaid([Vertex(name, "done")]).splitlines()


def test_a_flowchart_has_a_class_for_each_state_that_there_is() -> None:
    lines = mermaid([*SEED, Vertex("new", "unspecified")]).splitlines()

    assert [line.split()[1] for line in lines if "classDef" in line] == [
        "failed", "running", "waiting", "skipped", "done",
    ]  # fmt: skip
    assert '  n9["new"]' in lines
