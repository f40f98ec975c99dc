"""Partitions: none, or in each table those that `progressor migrate --partitions` makes."""

import dataclasses
import re

from psycopg.rows import DictRow

from progressor.storage.doctor import findings
from progressor.storage.doctor.findings import Verdict, count_of
from progressor.storage.doctor.run import DoctorRun
from progressor.storage.postgres import statements
from progressor.storage.postgres.schema import partitions

_SQL = statements.load("doctor/environment/schema")
_RANGE = re.compile(r"^FOR VALUES FROM \((.+)\) TO \((.+)\)$")
_KEY = "RANGE (slot)"


@dataclasses.dataclass(frozen=True, slots=True)
class _Partitioned:
    """A partitioned table, with the ranges of its partitions in order."""

    name: str
    ranges: tuple[tuple[str, str], ...]
    problem: str | None
    """Why it is not supported."""


def partitions_verdict(doctor_run: DoctorRun) -> Verdict:
    found = {row["name"]: _read(row) for row in doctor_run.rows(_SQL["read_partitions"])}
    if not found:
        return findings.ok("no table is partitioned")
    problems = [f"{it.name}: {it.problem}" for it in found.values() if it.problem]
    if not problems:
        problems = _differences(found)
    if problems:
        return findings.failed(
            "tables are partitioned in a way that is not supported",
            advice=(
                "Restore the partitions that `progressor migrate --partitions` makes: the same "
                f"ranges of slots, without a gap, for {', '.join(partitions.TABLES)} alone."
            ),
            offenders=problems,
        )
    count = len(found["processes"].ranges)
    return findings.ok(f"{len(found)} tables in {count_of(count, 'partition')} each, by slot")


def _read(row: DictRow) -> _Partitioned:
    ranges = sorted(map(_range, row["bounds"]), key=_first_slot)
    begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
    problem = row["problem"]
    if row["key"] != _KEY:
        problem = f"partitioned by {row['key']}, not by {_KEY}"
    elif problem is None and ["MINVALUE", *ends] != [*begins, "MAXVALUE"]:
        problem = "some slots have no partition"
    return _Partitioned(row["name"], tuple(ranges), problem)


def _differences(found: dict[str, _Partitioned]) -> list[str]:
    missing = [f"{name}: not partitioned" for name in partitions.TABLES if name not in found]
    others = [f"{name}: partitioned" for name in found if name not in partitions.TABLES]
    if missing or others:
        return missing + others
    ranges = found["processes"].ranges
    return [
        f"{it.name}: {count_of(len(it.ranges), 'partition')} with other ranges of slots than "
        f"those of processes ({len(ranges)})"
        for it in found.values()
        if it.ranges != ranges
    ]


def _range(bound: str) -> tuple[str, str]:
    match = _RANGE.match(bound)
    return (match[1].strip("'"), match[2].strip("'")) if match else (bound, bound)


def _first_slot(slots: tuple[str, str]) -> int:
    return int(slots[0]) if slots[0].lstrip("-").isdigit() else -(2**15) - 1
