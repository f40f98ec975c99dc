"""The bench's own arithmetic; that each question works is what `make bench-smoke` shows."""

import asyncio
import json
import math
import pkgutil
from collections.abc import Mapping
from typing import Any

import pytest

from bench import questions
from bench.catalogue import QUESTIONS, QUICK, asked, names_of
from bench.measurement import Measurement, Turn, summed_up
from bench.parts import loads
from bench.parts.percentiles import SHARES, curve
from bench.readme import figures, written
from bench.report import doubts, line_of

NO_QUESTION = {"quiet", "rounds"}
AROUND = {
    "commit": "abc", "machine": "2 x CPU", "python": "3.11", "postgres": "18",
    "date": "2026-11-21T10:00:00+00:00", "command": "python -m bench",
}  # fmt: skip


def make_turn(rate: float, *, cpu: Mapping[str, float] | None = None) -> Turn:
    times = [float(number) for number in range(len(SHARES))]
    return Turn(ops_per_s=rate, curve=times, cpu_ms_per_op=cpu or {"engine": 0.1}, others=0.0)


def make_measurement(rate: float, *, cpu: Mapping[str, float] | None = None) -> Measurement:
    return summed_up("start", [make_turn(rate, cpu=cpu)])


def make_line(name: str, **fields: object) -> dict[str, Any]:
    cpu = {"engine": 0.1, "postgres": 0.2, "processor": 0.3, "client": 0.4}
    line = json.loads(line_of(make_measurement(1000, cpu=cpu), AROUND))
    return {**line, "name": name, **fields}


def test_every_file_with_a_question_is_in_the_catalogue() -> None:
    files = {module.name for module in pkgutil.iter_modules(questions.__path__)}

    assert {question.name for question in QUESTIONS} == files - NO_QUESTION
    assert all(question.text.endswith("?") for question in QUESTIONS)


def test_no_two_questions_answer_under_one_name() -> None:
    names = [name for question in QUESTIONS for name in question.names]

    assert len(names) == len(set(names))


def test_the_quick_pace_asks_only_what_it_needs() -> None:
    names = [question.name for question in asked(QUICK)]

    assert names == ["start", "call", "steps", "timers", "get", "latency"]
    assert QUICK.wants("steps")
    assert not QUICK.wants("steps_200")


def test_a_question_means_all_its_answers() -> None:
    assert names_of(["steps", "raw_8"]) >= {"steps", "raw_8"}
    assert names_of(["reads"]) == {"trace", "list"}


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no question 'stpes'"):
        names_of(["stpes"])


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


def test_an_answer_that_measured_nothing_is_in_doubt() -> None:
    assert doubts(make_measurement(0)) == ["start measured nothing"]
    assert doubts(make_measurement(1000)) == []


def test_a_client_that_is_the_limit_puts_the_answer_in_doubt() -> None:
    (doubt,) = doubts(make_measurement(1000, cpu={"client": 0.99}))

    assert "held up by its client" in doubt


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


async def test_a_closed_loop_asks_so_many_times() -> None:
    seen = []

    async def ask(number: int, process_id: str) -> None:
        seen.append((number, process_id))

    ids = ((number, f"p-{number % 2}") for number in range(3))

    answer = await loads.closed_loop(ask, ids, callers=2, seconds=math.inf)

    assert seen == [(0, "p-0"), (1, "p-1"), (2, "p-0")]
    assert len(answer["times"]) == answer["done"] == 3


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


def test_the_table_of_the_readme_has_a_row_for_each_answer() -> None:
    lines = [make_line("latency", ratio=1.234), make_line("start", ratio_to_relay=0.8)]

    text = figures(lines)

    assert "`python -m bench`, 2026-11-21, commit `abc`" in text
    assert "| `start` | 1,000 | 0.80 of the relay | 0.00 | 4.00 | 0.100 / 0.200" in text
    assert "| `latency` | 1,000 | 1.23 x (relay + 2 commits) |" in text
    assert text.index("`start`") < text.index("`latency`")


def test_only_what_stands_between_the_markers_is_written() -> None:
    readme = "a\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nz\n"

    text = written(readme, [make_line("start")])

    assert text.startswith("a\n<!-- bench:begin -->\n\n`python -m bench`")
    assert text.endswith("|\n\n<!-- bench:end -->\nz\n")
    assert "old" not in text


def test_a_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="0 regions"):
        written("nothing", [make_line("start")])
