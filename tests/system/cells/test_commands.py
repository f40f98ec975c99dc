"""The commands that work on all cells, or on one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TEMPLATE
from tests.support.engine.cells import Cells, open_cells
from tests.support.postgres.cluster import Cluster


@pytest.fixture(scope="module")
def cells(cluster: Cluster) -> Iterator[Cells]:
    with open_cells(cluster, TEMPLATE) as opened:
        yield opened


@pytest.fixture
def file(cells: Cells, tmp_path: Path) -> Path:
    tables = (
        f"[[cells]]\nname = {name!r}\ndsn = {json.dumps(proxy.conninfo)}\n"
        for name, proxy in cells.proxies.items()
    )
    path = tmp_path / "cells.toml"
    path.write_text("\n".join(tables))
    return path


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "progressor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_migrate_and_doctor_work_on_all_cells_or_one(file: Path) -> None:
    migrated = _run("migrate", "--config", str(file))
    one = _run("migrate", "--config", str(file), "--cell", "b", "--json")
    examined = _run("doctor", "--config", str(file), "--json")
    unknown = _run("doctor", "--config", str(file), "--cell", "c")

    assert migrated.stdout.splitlines() == ["main: nothing to apply", "b: nothing to apply"]
    assert [it["cell"] for it in json.loads(one.stdout)["cells"]] == ["b"]
    assert [it["cell"] for it in json.loads(examined.stdout)["cells"]] == ["main", "b"]
    assert (unknown.returncode, "must be one of main, b, got 'c'" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_a_cell_that_is_away_does_not_hold_up_the_others(
    cells: Cells, file: Path, command: str
) -> None:
    cells.proxies["main"].refuse()
    try:
        ran = _run(command, "--config", str(file), "--json")
    finally:
        cells.proxies["main"].restore()

    assert [it["cell"] for it in json.loads(ran.stdout)["cells"]] == ["b"]
    assert ran.returncode == 5
    assert "cell main" in ran.stderr


def test_a_dsn_beside_cells_is_refused(file: Path) -> None:
    ran = _run("config", "--config", str(file), "--set", "database.dsn=dbname=x")

    assert ran.returncode == 2
    assert "database.dsn: must not be given with [[cells]]" in ran.stderr


def test_the_example_runs_in_an_engine_with_two_cells() -> None:
    ran = _run("dev", "--once", "--ephemeral", "--cells", "2", "--set", "server.bind=127.0.0.1:0")

    assert ran.returncode == 0, ran.stderr
