"""The benchmarks: one tiny iteration of everything, so that none rots."""

import asyncio
import json
import sys
from pathlib import Path

from bench.peers import ROOT
from tests.support.postgres import Cluster

_TINY = ("--quick", "--seconds", "0.3", "--turns", "1", "--scale", "0.01")
_NAMES = ["relay", "start", "call", "steps", "steps_200", "timers", "latency", "handover"]


async def test_every_question_is_answered_with_a_line_of_json(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "lines.json"

    bench = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench", *_TINY, "--dsn", cluster.conninfo, "--json", str(file),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await bench.communicate()

    assert bench.returncode == 0
    assert file.read_bytes() == printed
    answers = {answer["name"]: answer for answer in map(json.loads, printed.splitlines())}
    assert list(answers) == _NAMES
    for answer in answers.values():
        assert answer["ops_per_s"] > 0
        assert 0 < answer["p50_ms"] <= answer["p99_ms"]
        assert answer["cpu_ms_per_op"].keys() >= {"engine", "postgres", "processor", "client"}
    for name in ("start", "call", "latency"):
        assert answers[name]["ratio_to_relay"] > 0
    assert answers["handover"]["scan_found"] == 0
