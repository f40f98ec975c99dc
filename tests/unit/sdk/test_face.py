"""The public names of the SDK, which are loaded when they are used."""

import importlib.util
import py_compile
import subprocess
import sys
from importlib.machinery import SourcelessFileLoader
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


def test_the_names_are_known_where_there_is_no_source(tmp_path: Path) -> None:
    compiled = py_compile.compile(sdk.__file__, str(tmp_path / "sdk.pyc"), doraise=True)
    loader = SourcelessFileLoader("sourceless_sdk", str(compiled))
    spec = importlib.util.spec_from_loader("sourceless_sdk", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)

    assert module.__all__ == sdk.__all__
    assert module.Client is sdk.Client


def test_a_client_loads_neither_the_processor_nor_what_only_engines_need() -> None:
    program = "import sys; from progressor.sdk import Client; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )

    loaded = set(run.stdout.split())
    assert "progressor.sdk.client.client" in loaded
    assert not loaded.intersection(LOADED_BY_OTHERS)
