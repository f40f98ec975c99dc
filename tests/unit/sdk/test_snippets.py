"""The snippets of the SDK's docstrings are whole programs, or parts of one."""

import ast
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Iterator

import pytest

from progressor import example, sdk
from progressor.sdk import testing

_SNIPPET = re.compile(r"::\n\n((?:(?: {4}.*)?\n)+)")


def snippets() -> Iterator[tuple[str, str]]:
    """Yield the code in the docstrings of modules and classes, with where it stands."""
    for package in (sdk, testing, example):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            with open(str(module.__file__)) as file:  # noqa: PTH123 - read once
                tree = ast.parse(file.read())
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef):
                    for code in _SNIPPET.findall((ast.get_docstring(node) or "") + "\n"):
                        yield found.name, textwrap.dedent(code)


SNIPPETS = list(snippets())


@pytest.mark.parametrize(("where", "code"), SNIPPETS, ids=[it[0] for it in SNIPPETS])
def test_a_snippet_is_python_and_names_what_there_is(where: str, code: str) -> None:
    compile(code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {
        node.func.id
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert {it for it in names if it[0].isupper()} <= {*sdk.__all__, *testing.__all__, "Order"}
