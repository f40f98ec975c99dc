"""How fast a run was before, between and after its faults, and the table that says so."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.plan import calm_seconds, warm_up_seconds
from tests.chaos.report.pace import calm_spans, pace, rate
from tests.chaos.report.reference import Reference, Sample
from tests.chaos.report.table import table

SECONDS = 100.0


def test_a_rate_counts_what_lies_between() -> None:
    assert rate([0.5, 1.5, 2.5, 9.0], 1.0, 3.0) == 1.0


def test_calm_is_what_is_left_between_faults_that_overlap() -> None:
    faults = [(40.0, 41.0), (20.0, 30.0), (22.0, 24.0), (33.0, 34.0)]

    assert list(calm_spans(faults, 0.0, SECONDS)) == [
        (2.0, 20.0),
        (32.0, 33.0),
        (36.0, 40.0),
        (43.0, 100.0),
    ]


def run_of(reference: Reference, *, after: int) -> dict[str, Any]:
    """Return the pace of a run with ten writes a second before its fault, and so many after."""
    before = [number / 10 for number in range(500)]
    later = [50.0 + number / after for number in range(50 * after)]
    return pace([*before, *later], [(49.0, 50.0)], reference, begun_at=0.0, ended_at=SECONDS)


def reference_with(directory: Path, *costs: tuple[float, float]) -> Reference:
    reference = Reference(directory)
    reference.samples += [Sample(at, cost, 0.001) for at, cost in costs]
    return reference


def test_a_slower_machine_is_taken_out_of_the_comparison(tmp_path: Path) -> None:
    reference = reference_with(tmp_path, (10.0, 0.001), (99.0, 0.002))

    found = run_of(reference, after=5)

    assert calm_seconds(SECONDS) == 10.0
    assert found["rate_first"] == pytest.approx(10, 0.05)
    assert found["rate_last"] == pytest.approx(5, 0.05)
    assert found["rate_kept"] == pytest.approx(0.5, 0.05)
    assert found["rate_kept_adjusted"] == pytest.approx(1.0, 0.05)


def test_a_slower_engine_is_not(tmp_path: Path) -> None:
    reference = reference_with(tmp_path, (10.0, 0.001), (99.0, 0.001))

    found = run_of(reference, after=5)

    assert found["rate_kept_adjusted"] == found["rate_kept"]
    assert found["rate_calm"] == [pytest.approx(10, 0.05), pytest.approx(5, 0.05), None]


def test_the_first_seconds_of_young_processes_do_not_count(tmp_path: Path) -> None:
    young = [number / 100 for number in range(int(100 * warm_up_seconds(SECONDS)))]
    old = [warm_up_seconds(SECONDS) + number / 10 for number in range(950)]

    found = pace(
        [*young, *old], [(49.0, 50.0)], Reference(tmp_path), begun_at=0.0, ended_at=SECONDS
    )

    assert found["rate_kept"] == pytest.approx(1.0, 0.05)


def test_without_a_reference_nothing_is_adjusted(tmp_path: Path) -> None:
    found = run_of(Reference(tmp_path), after=10)

    assert (found["speed_first"], found["rate_kept_adjusted"]) == (None, None)


def test_a_reference_works_while_it_is_entered(tmp_path: Path) -> None:
    with Reference(tmp_path) as reference:
        while reference.speed(0.0, float("inf")) is None:
            pass
    speed = reference.speed(0.0, float("inf"))

    assert speed is not None
    assert speed.pieces > 0
    assert not list(tmp_path.iterdir())


def fault(**fields: Any) -> dict[str, Any]:
    figures = {"before": 100.0, "during": 50.0, "after": 90.0, "silence": 0.5, "whole": 1.0}
    return {"kind": "kill replica", "lasted": 2.0, **figures, **fields}


def test_the_table_has_a_line_for_each_run_and_each_kind() -> None:
    run = {
        "seed": 7, "minutes": 20.0, "operations": 200_000, "processes": 7000, "findings": [],
        "undecided": 0, "doctor": "35 ok", "rate_first": 160.2, "rate_last": 150.1,
        "rate_kept": 0.937, "rate_kept_adjusted": None,
        "faults": [fault(), fault(silence=1.5, whole=None), fault(kind="drain replica")],
    }  # fmt: skip

    lines = list(table([run, run]))

    assert lines[2] == lines[3]
    assert lines[2] == (
        "| 7 | 20 | 3 | 200,000 | 7,000 | 0 | 0 | 35 ok | 160, 150 | 94% | unknown |"
    )
    assert lines[-2:] == [
        "| drain replica | 2 | 2.0 s | 100, 50, 90 | 0.50, 0.50 s | 1.00, 1.00 s |",
        "| kill replica | 4 | 2.0 s | 100, 50, 90 | 1.00, 1.50 s | 1.00, 1.00 s, 2 never |",
    ]
