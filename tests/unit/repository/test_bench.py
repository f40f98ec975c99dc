"""The bench's own arithmetic; that each question works is what `make bench-smoke` shows."""

import asyncio
import dataclasses
import importlib.util
import json
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import questions
from bench.catalogue import FULL, ON_DEMAND, QUESTIONS, SMOKE
from bench.comparing import restate
from bench.comparing.questions import Question, compared
from bench.comparing.table import line_of
from bench.measurement import Pace, Turn, summed_up
from bench.parts import loads
from bench.parts.percentiles import SHARES, curve
from bench.soaking.samples import Sample, slope
from bench.soaking.verdict import judge

NO_QUESTION = {"quiet", "rounds"}


def make_turn(rate: float, *, cpu: Mapping[str, float] | None = None) -> Turn:
    times = [float(number) for number in range(len(SHARES))]
    return Turn(ops_per_s=rate, curve=times, cpu_ms_per_op=cpu or {"engine": 0.1}, others=0.0)


def test_every_file_with_a_question_is_in_the_catalogue() -> None:
    files = {module.name for module in pkgutil.iter_modules(questions.__path__)}

    assert {question.name for question in QUESTIONS} == files - NO_QUESTION
    assert all(question.text.endswith("?") for question in QUESTIONS)


def test_no_two_questions_answer_under_one_name() -> None:
    names = [name for question in QUESTIONS for name in question.names]

    assert len(names) == len(set(names))


def test_a_full_run_leaves_out_what_takes_long_and_a_smoke_run_nothing() -> None:
    names = {name for question in QUESTIONS for name in question.names}

    assert names >= ON_DEMAND
    assert {name for name in names if not FULL.wants(name)} == ON_DEMAND
    assert all(map(SMOKE.wants, names))


def test_a_curve_has_the_time_of_each_share() -> None:
    times = curve([number / 1000 for number in range(1000)])

    assert times == pytest.approx([500, 750, 900, 950, 990, 995, 999, 999])
    assert curve([]) == [0.0] * len(SHARES)


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    own = [make_turn(rate) for rate in (100, 400, 300)]
    relay = [make_turn(rate) for rate in (100, 200, 600)]

    measured = summed_up("start", own, relay)

    assert measured.ratio_to_relay == 1.0
    assert measured.ops_per_s == 300
    assert measured.spread == 1.0
    assert measured.facts["relay_ops_per_s"] == 200


def test_each_answer_of_ours_is_compared_with_each_of_theirs_in_the_same_turn() -> None:
    async def take(name: str, pace: Pace) -> Turn:
        del name, pace
        pytest.fail("only what was measured is compared")

    question = Question("starts", {"start": take, "session": take}, {"restate": take})
    turns = {
        "start": [make_turn(rate) for rate in (100, 400, 300)],
        "session": [make_turn(rate) for rate in (200, 800, 600)],
        "restate": [make_turn(rate) for rate in (100, 200, 600)],
    }

    found = compared(question, turns)

    assert [(it.ours.name, it.theirs.name, it.ratio) for it in found] == [
        ("start", "restate", 1.0), ("session", "restate", 2.0),
    ]  # fmt: skip
    line = json.loads(line_of(found[1], {"commit": "c"}))
    assert (line["what"], line["ratio"], line["commit"]) == ("starts", 2.0, "c")
    assert (line["progressor"]["ops_per_s"], line["restate"]["ops_per_s"]) == (600, 200)


def test_without_restate_the_comparison_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(
        restate.MissingError, match=r"not installed: restate-sdk, .*; `make setup-compare`"
    ):
        restate.check_packages()
    with pytest.raises(restate.MissingError, match=r"restate-server not found.*make setup-compare"):
        restate.find_server(None, home=tmp_path)
    with pytest.raises(restate.MissingError, match=r"restate-server not found at .*elsewhere"):
        restate.find_server(tmp_path / "elsewhere")


def test_the_server_that_npm_installed_is_found_unless_another_is_named(tmp_path: Path) -> None:
    program = tmp_path / "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
    program.parent.mkdir(parents=True)
    program.touch()
    other = tmp_path / "restate-server"
    other.touch()

    assert restate.find_server(None, home=tmp_path) == program
    assert restate.find_server(other, home=tmp_path) == other


async def test_an_open_loop_counts_a_stall_for_all_who_were_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    passed = asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal now
        until = now + seconds
        await passed(0)
        now = max(now, until)

    async def ask(number: int, process_id: str) -> None:
        nonlocal now
        del process_id
        now += 1.0 if number == 0 else 0.0

    monkeypatch.setattr(loads, "_clock", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    ids = ((number, "p") for number in range(100))

    answer = await loads.open_loop(ask, ids, rate=10, seconds=0.5)

    assert answer["times"] == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6])


async def test_a_closed_loop_counts_what_ends_in_full_swing_and_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    async def ask(number: int, process_id: str) -> None:
        nonlocal now
        del number, process_id
        now += 0.04

    monkeypatch.setattr(loads, "_clock", lambda: now)
    ids = ((number, "p") for number in range(100))

    answer = await loads.closed_loop(ask, ids, callers=1, seconds=0.1)

    # The first ends at 40 ms, before the full swing at 50; the fourth at 160, after the end at 150.
    assert answer["times"] == pytest.approx([0.04, 0.04])
    assert answer["done"] == 4
    assert answer["seconds"] == pytest.approx(0.1)


def make_samples(*rates: float, **changes: Any) -> list[Sample]:
    """Return samples a minute apart; a field of `changes` grows by its value with each."""
    sample = Sample(
        at=0.0,
        lives=0,
        lives_per_s=0.0,
        failed=0,
        p50_ms=5.0,
        p99_ms=10.0,
        engine_mb=80.0,
        table_mb={"tasks": 900.0},
        index_mb={"tasks": 100.0},
        dead_rows={},
        oldest_seconds=300.0,
        cores={"engine": 0.5},
    )
    return [
        dataclasses.replace(
            sample,
            at=60.0 * number,
            lives=100 * number,
            lives_per_s=rate,
            **{name: getattr(sample, name) + number * more for name, more in changes.items()},
        )
        for number, rate in enumerate(rates, start=1)
    ]


def test_a_steady_run_gives_no_cause_for_complaint() -> None:
    verdict = judge(make_samples(*[50.0] * 10), memory_mb_per_hour_max=1.0)

    assert verdict.complaints == []
    assert (verdict.lives_per_s, verdict.rate_kept) == (50.0, 1.0)
    assert verdict.growth == {"tasks": 0.0, "indexes of tasks": 0.0}
    assert (verdict.lag_growth_seconds, verdict.cores) == (0.0, {"engine": 0.5})


def test_a_table_that_grows_is_reported() -> None:
    samples = [
        dataclasses.replace(each, table_mb={"tasks": 1000.0 + each.lives / 4})
        for each in make_samples(*[50.0] * 10)
    ]

    verdict = judge(samples, memory_mb_per_hour_max=1.0)

    assert verdict.growth["tasks"] == pytest.approx(175 / 1162.5, abs=0.001)
    assert verdict.stored_bytes_per_life == pytest.approx(2**20 / 4)
    assert verdict.complaints == ["tasks grew by 15%"]


def test_retention_that_falls_behind_is_reported() -> None:
    samples = make_samples(*[50.0] * 10, oldest_seconds=5.0)

    verdict = judge(samples, memory_mb_per_hour_max=1.0)

    assert verdict.complaints == ["retention fell behind by 35 s"]


def test_a_rate_that_falls_after_five_minutes_is_reported() -> None:
    verdict = judge(make_samples(*[50.0] * 5, *[45.0] * 5), memory_mb_per_hour_max=1.0)

    assert verdict.complaints == ["the rate fell to 0.90 of what it was"]


def test_memory_that_grows_is_reported() -> None:
    samples = make_samples(*[50.0] * 10, engine_mb=0.5)

    verdict = judge(samples, memory_mb_per_hour_max=20.0)

    assert verdict.memory_mb_per_hour == pytest.approx(30.0)
    assert verdict.complaints == ["the engine grows by 30 MB an hour"]


def test_a_life_cut_short_is_reported() -> None:
    verdict = judge(make_samples(50.0, 50.0, failed=1), memory_mb_per_hour_max=1.0)

    assert verdict.complaints == ["2 lives were cut short by an error"]


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]])
def test_too_few_points_have_no_slope(points: list[tuple[float, float]]) -> None:
    assert slope(points) == 0.0
