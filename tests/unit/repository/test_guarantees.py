"""The page of guarantees names tests for each promise, and those tests exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "guarantees.md"
LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")


def _promises() -> dict[str, list[str]]:
    """Return the targets of the links in the last column of the table, by promise."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    return {row[0]: LINK.findall(row[-1]) for row in cells}


def _has_tests(path: Path) -> bool:
    return (
        any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            for node in ast.walk(ast.parse(path.read_text()))
        )
        or "TestCase" in path.read_text()
    )  # A state machine of hypothesis is a TestCase.


PROMISES = _promises()


def test_the_page_has_promises() -> None:
    assert PROMISES


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_a_test(promise: str) -> None:
    assert PROMISES[promise]


@pytest.mark.parametrize("target", sorted({link for links in PROMISES.values() for link in links}))
def test_what_a_promise_names_exists(target: str) -> None:
    path = (PAGE.parent / target).resolve()

    assert path.is_relative_to(ROOT / "tests"), target
    assert path.is_dir() or _has_tests(path), target
