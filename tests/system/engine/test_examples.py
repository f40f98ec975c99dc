"""The examples that `progressor dev` plays, as a reader of the README runs them."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.console.visitor import Visitor

_PATIENCE_SECONDS = 60.0


async def play(database: str, *flags: str) -> tuple[int | None, str]:
    """Play an example; return the exit code and what it printed, with the log if it failed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "dev", "--once",
        "--set", f"database.dsn={database}", "--set", "server.bind=127.0.0.1:0", *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": "", "COLUMNS": "200"},
    )  # fmt: skip
    async with asyncio.timeout(_PATIENCE_SECONDS):
        printed, log = await process.communicate()
    if process.returncode:
        printed += log
    return process.returncode, printed.decode()


@pytest.mark.parametrize("example", ["order", "rollout"])
async def test_an_example_comes_to_its_end(own_database: str, example: str) -> None:
    """Each checks what it plays: see ScenarioError."""
    code, printed = await play(own_database, "--example", example)

    assert code == 0, printed
    assert "trace of" in printed


async def test_an_example_runs_with_tls_between_all_parts(own_database: str) -> None:
    code, printed = await play(own_database, "--tls")

    assert code == 0, printed
    assert "trace of" in printed
    directory = re.search(r"TLS with certificates in (\S+), deleted at the end", printed)
    assert directory is not None
    assert not await asyncio.to_thread(Path(directory[1]).exists)
    # The next one goes without, on the same namespaces.
    assert (await play(own_database))[0] == 0


async def test_the_console_runs_beside_the_example(own_database: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "dev", "--tls",
        "--set", f"database.dsn={own_database}", "--set", "server.bind=127.0.0.1:0",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": "", "COLUMNS": "200"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            async for line in process.stdout:
                if found := re.match(r"console at (http://127\.0\.0\.1:\d+/)", line.decode()):
                    answer = await Visitor(found[1]).get("/processes")
                    assert (answer.status, answer.page.one("h1").text) == (200, "Processes")
                    break
            else:
                pytest.fail("no console")
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def test_a_rollout_says_who_waits_for_what_and_when_each_starts(own_database: str) -> None:
    code, printed = await play(own_database, "--example", "rollout")

    assert code == 0, printed
    told = {name: printed.index(f"{name} begins") for name in _begun(printed)}
    assert sorted(told) == [
        "billing-1.10", "billing-1.2", "orders-1.10", "orders-1.11", "orders-1.2", "orders-1.3",
        "stock-1.10", "stock-1.2",
    ]  # fmt: skip
    # Versions are numbers, and the one that fails does not delay the others.
    assert told["orders-1.2"] < told["orders-1.3"] < told["orders-1.10"] < told["orders-1.11"]
    assert "orders-1.3 fails" in printed
    assert "orders-2.0 is cancelled" in printed
    for cause in (
        "orders-1.11   waits for its time, version 1.2 (waiting)",
        "rollout/spring (0 of 0 held, position 1)",
        "database/orders (1 of 1 held",
        "rollout/spring (2 of 2 held",
    ):
        assert cause in printed, printed


def _begun(printed: str) -> list[str]:
    return re.findall(r"(\S+) begins", printed)


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
