"""The examples of jobs and schedules, as a reader of the README runs them; each checks itself."""

import re

from tests.system.engine.test_examples import play

SUCCESS = """\
  ready at the beginning: 1, 2, 3
  1 is done   ready now: nothing
  2 is done   ready now: 4, 5, 6
  3 is done   ready now: nothing
  5 is done   ready now: nothing
  4 is done   ready now: 7
  6 is done   ready now: 8, 9
  8 is done   ready now: nothing
  9 is done   ready now: nothing
  7 is done   ready now: nothing
  the job is done: 1 done, 2 done, 3 done, 4 done, 5 done, 6 done, 7 done, 8 done, 9 done
"""
FAILURE = """\
  ready at the beginning: 1, 2, 3
  1 is done   ready now: nothing
  2 is done   ready now: 4, 5, 6
  3 is done   ready now: nothing
  5 is done   ready now: nothing
  4 is failed ready now: nothing; skipped: 7, 9
  6 is done   ready now: 8
  8 is done   ready now: nothing
  the job is failed: 1 done, 2 done, 3 done, 4 failed, 5 done, 6 done, 7 skipped, 8 done, 9 skipped
"""
BY_THE_ENGINE = "a job of nine tasks and 11 edges, led by the engine"
BY_A_PROCESSOR = "a job of nine tasks and 11 edges, led by its own processor"


async def test_the_nine_tasks_go_as_the_text_has_them_led_in_both_ways(own_database: str) -> None:
    code, printed = await play(own_database, "--example", "job")

    assert code == 0, printed
    expected = (
        f"{BY_THE_ENGINE}\n{SUCCESS}"
        f"{BY_THE_ENGINE}; 4 will fail\n{FAILURE}"
        "  3 of 9 nodes are not done: 4 failed (TOLD_SO: task 4 was told to fail)\n"
        f"{BY_A_PROCESSOR}\n{SUCCESS}"
        f"{BY_A_PROCESSOR}; 4 will fail\n{FAILURE}"
        "  not done: 4, 7, 9\n"
    )
    assert expected in printed, printed


async def test_a_thousand_pages_are_counted(own_database: str) -> None:
    code, printed = await play(own_database, "--example", "mapreduce")

    assert code == 0, printed
    assert "has split 1000 pages into 1033 nodes" in printed
    assert re.findall(r"^  (.*) of the nodes are done$", printed, re.MULTILINE) == [
        "a quarter", "half", "three quarters", "all",
    ]  # fmt: skip
    assert "40000 words, 12 different ones:\n  the       6736\n  step      5544\n" in printed


async def test_a_nightly_schedule_runs_by_hand_and_by_the_clock(own_database: str) -> None:
    code, printed = await play(own_database, "--example", "nightly")

    assert code == 0, printed
    assert len(re.findall("✓ sales reported", printed)) == 3
    assert "one by a trigger, at least 2 by time; it is paused" in printed
