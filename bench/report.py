"""What is printed: a table for people, a line of JSON per answer for programs."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from bench.measurement import Measurement
from bench.peers import ROOT

_COMPONENTS = ("engine", "postgres", "processor", "client", "relay")


def table_of(measurements: Iterable[Measurement]) -> Table:
    """Return the table; CPU is milliseconds per operation, ``others`` cores busy without us."""
    table = Table("name", title=f"{machine()}, commit {commit()}")
    for column in ("ops/s", "±", "p50 ms", "p99 ms", "of relay", "others"):
        table.add_column(column, justify="right")
    for component in _COMPONENTS:
        table.add_column(f"cpu {component}", justify="right")
    for each in measurements:
        ratio = each.ratio_to_relay
        table.add_row(
            each.name, f"{each.ops_per_s:,.0f}", f"{50 * each.spread:.0f} %", f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.2f}", "" if ratio is None else f"{ratio:.2f}", f"{each.others:.2f}",
            *(f"{each.cpu_ms_per_op.get(component, 0.0):.3f}" for component in _COMPONENTS),
        )  # fmt: skip
    return table


def line_of(measurement: Measurement, *, date: str, load: float) -> str:
    """Return one answer as JSON; `load` is the machine's load average when it was begun."""
    ratio = measurement.ratio_to_relay
    fields = {
        "name": measurement.name,
        "ops_per_s": round(measurement.ops_per_s, 1),
        "p50_ms": round(measurement.p50_ms, 3),
        "p99_ms": round(measurement.p99_ms, 3),
        "ratio_to_relay": None if ratio is None else round(ratio, 3),
        "spread": round(measurement.spread, 3),
        "others_cores": round(measurement.others, 2),
        "cpu_ms_per_op": {name: round(ms, 4) for name, ms in measurement.cpu_ms_per_op.items()},
        **measurement.facts,
        "load_before": load,
        "commit": commit(),
        "machine": machine(),
        "date": date,
    }
    return json.dumps(fields)


def machine() -> str:
    """Return what this runs on."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    python = platform.python_version()
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.machine()}, Python {python}"


def commit() -> str:
    """Return the commit that was measured, with a + where files differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
