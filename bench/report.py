"""Prints a table, and a line of JSON per answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bench.measurement import Measurement

_COMPONENTS = ("engine", "postgres", "processor", "client", "relay", "driver")
_ALWAYS = frozenset({"engine", "postgres", "processor", "client"})
_LEAST_SHARE = 0.01
"""CPU below this share is that of an idle part."""
_BUSY_CORES = 0.95


def line_of(measurement: Measurement, around: Mapping[str, Any]) -> str:
    """Return one answer as JSON; `around` has the fields of the whole run."""
    return json.dumps({**fields_of(measurement), **around})


def fields_of(measurement: Measurement) -> dict[str, Any]:
    ratio, rate = measurement.ratio_to_relay, measurement.ops_per_s
    used = measurement.cpu_ms_per_op
    least = _LEAST_SHARE * sum(used.values())
    cpu = {name: round(ms, 4) for name, ms in used.items() if name in _ALWAYS or ms > least}
    return {
        "name": measurement.name,
        "ops_per_s": round(rate, 1),
        "p50_ms": round(measurement.at(0.5), 3),
        "p99_ms": round(measurement.at(0.99), 3),
        "p99_9_ms": round(measurement.at(0.999), 3),
        "ratio_to_relay": None if ratio is None else round(ratio, 3),
        "spread": round(measurement.spread, 3),
        "others_cores": round(measurement.others, 2),
        "cpu_ms_per_op": cpu,
        "cores": {name: round(ms * rate / 1000, 2) for name, ms in cpu.items()},
        **measurement.facts,
    }


def doubts(measurement: Measurement) -> list[str]:
    """Return the reasons to doubt an answer."""
    found = []
    if not measurement.ops_per_s:
        found.append(f"{measurement.name} measured nothing")
    for name, ms in measurement.cpu_ms_per_op.items():
        cores = ms * measurement.ops_per_s / 1000
        if name.endswith("client") and cores > _BUSY_CORES:
            found.append(f"{measurement.name} was held up by its client, {cores:.2f} cores busy")
    return found


def table_of(lines: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return the table: CPU milliseconds per operation, ``others`` as cores of other programs."""
    components = [
        component
        for component in _COMPONENTS
        if any(component in line["cpu_ms_per_op"] for line in lines)
    ]
    table = Table(title=title)
    table.add_column("name", no_wrap=True)
    for column in ("ops/s", "±", "p50 ms", "p99 ms", "p99.9 ms", "of relay", "others", *components):
        table.add_column(column, justify="right")
    for line in lines:
        ratio, cpu = line["ratio_to_relay"], line["cpu_ms_per_op"]
        table.add_row(
            line["name"], f"{line['ops_per_s']:,.0f}", f"{50 * line['spread']:.0f} %",
            f"{line['p50_ms']:.2f}", f"{line['p99_ms']:.2f}", f"{line['p99_9_ms']:.2f}",
            "" if ratio is None else f"{ratio:.2f}", f"{line['others_cores']:.2f}",
            *(f"{cpu[each]:.3f}" if each in cpu else "" for each in components),
        )  # fmt: skip
    return table
