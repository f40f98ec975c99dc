"""The examples that `progressor dev` plays, as a reader of the README runs them."""

import asyncio
import os
import re
import sys

import pytest

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
