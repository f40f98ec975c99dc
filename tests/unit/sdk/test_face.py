"""The public names of the SDK: loaded when used, and the same for type checkers as at run time."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from progressor import sdk

LOADED_BY_OTHERS = (
    "progressor.domain.processes.task",
    "progressor.domain.views",
    "progressor.sdk.client.jobs",
    "progressor.sdk.processor",
    "progressor.sdk.testing",
    "progressor.sdk.client.schedules",
    "uvloop",
)


def test_every_public_name_can_be_loaded() -> None:
    assert [it for it in sdk.__all__ if not hasattr(sdk, it)] == []
    with pytest.raises(AttributeError, match="'Cleint'"):
        sdk.Cleint  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_and_the_interpreter_know_the_same_names() -> None:
    tree = ast.parse(Path(str(sdk.__file__)).read_text())
    imports = [it for it in ast.walk(tree) if isinstance(it, ast.ImportFrom)]
    known = {it.name: of.module for of in imports for it in of.names if it.asname == it.name}

    assert known == sdk._HOMES


def test_a_client_loads_neither_the_processor_nor_what_only_engines_need() -> None:
    program = "import sys; from progressor.sdk import Client; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )

    loaded = set(run.stdout.split())
    assert "progressor.sdk.client.client" in loaded
    assert not loaded.intersection(LOADED_BY_OTHERS)
