"""The soak: a few seconds of it, so that it does not rot."""

import asyncio
import json
import sys

from bench.peers import ROOT
from tests.support.postgres.cluster import Cluster


async def test_a_short_soak_looks_at_everything_and_judges(cluster: Cluster) -> None:
    conninfo = cluster.create_database()
    soak = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.soak", "--minutes", "0.07", "--lives", "5", "--every", "1.5",
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
