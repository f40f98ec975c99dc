"""The page of guarantees names tests for each promise, and those tests exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "guarantees.md"
LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")


def _promises() -> dict[str, list[str]]:
    """Return the targets of the links in the last column of the tables, by promise."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {row[0]: LINK.findall(row[-1]) for row in cells if row[0] not in {"promise", "---"}}


def _tests(path: Path) -> set[str]:
    """Return the tests of a file; those of a class as ``TestClass.test_name``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {
            prefix + each.name
            for each in inner
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name.startswith("test_")
        }
    return found


PROMISES = _promises()


def test_the_page_has_promises() -> None:
    assert len(PROMISES) >= 12


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_tests(promise: str) -> None:
    assert len(PROMISES[promise]) >= 2


@pytest.mark.parametrize("target", sorted({link for links in PROMISES.values() for link in links}))
def test_what_a_promise_names_exists(target: str) -> None:
    name, _, test = target.partition("#")
    path = (PAGE.parent / name).resolve()

    assert path.is_relative_to(ROOT / "tests"), target
    assert test in _tests(path), target
