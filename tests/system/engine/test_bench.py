"""The benchmarks of disturbances and the soak: a few seconds of each."""

import asyncio
import json
import sys
from typing import Any

import pytest

from bench.disturbing import windows
from bench.disturbing.cells import CELLS
from bench.peers import ROOT
from tests.support.postgres.cluster import Cluster

SHORT = (
    "--turns", "1", "--seconds", "1", "--warm-up", "0.5", "--callers", "8", "--hold-seconds", "0.5",
    "--backlog", "500", "--processes", "20", "--lease-seconds", "1.5", "--json",
)  # fmt: skip
"""Too short to say anything of rates."""


async def measured(*chosen: str) -> dict[str, Any]:
    """Return what is printed of what was chosen, by the names of the measurements."""
    bench = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.disturbed", *SHORT, *chosen, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await bench.communicate()
    document = json.loads(printed)
    assert bench.returncode == (not document["passed"])
    return {line["name"]: line for line in document["measured"]}


def findings(line: dict[str, Any]) -> list[str]:
    return [finding for turn in line["turns"] for finding in turn["findings"]]


async def test_what_a_killed_replica_had_in_hand_is_asked_again_on_the_other() -> None:
    (line,) = (await measured("--only", "kills_p99")).values()

    (turn,) = line["turns"]
    assert findings(line) == []
    assert len(turn["asked"]) == 20
    assert 0 < line["asked_again"]["p50"] <= line["asked_again"]["max"]
    assert line["answered"]["p50"] > 0


def test_by_default_all_nine_of_the_comparison_are_measured() -> None:
    assert list(CELLS) == [
        "restart", "backends", "connections", "killed", "kills",
        "xmin", "backlog", "slow", "large",
    ]  # fmt: skip


def test_a_rate_that_stays_low_is_never_back() -> None:
    busy, idle = [0.01 * number for number in range(500)], [5.0 + number for number in range(5)]

    assert windows.back_after(busy, 1.0, 5.0, before=100.0) == 0.0
    assert windows.back_after(sorted(busy + idle), 5.0, 10.0, before=100.0) is None


@pytest.mark.parametrize("lives", [("--lives", "5"), ("--lives", "200", "--short-lives")])
async def test_a_short_soak_looks_at_everything_and_judges(
    cluster: Cluster, lives: tuple[str, ...]
) -> None:
    conninfo = cluster.create_database()
    soak = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.soak", "--minutes", "0.07", *lives, "--every", "1.5",
        "--memory-slope-max", "1e9", "--dsn", conninfo, cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await soak.communicate()

    *samples, verdict = map(json.loads, printed.splitlines())
    assert verdict["failed"] == 0
    assert soak.returncode == bool(verdict["complaints"])
    assert len(samples) >= 2
    assert samples[-1]["lives"] > 0
    assert samples[-1]["engine_mb"] > 1
    assert samples[-1]["table_mb"].keys() >= {"processes", "tasks", "events", "schedule"}
    assert samples[-1]["oldest_seconds"] > 0
    assert verdict["cores"].keys() >= {"engine", "postgres", "progressor scan"}
