"""Running an engine: it drains on a signal, its errors come out, and what several replicas need."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from progressor import errors
from progressor.cli.engine.hosting import host
from progressor.cli.engine.serve import count_of
from progressor.cli.input.signals import run_loop
from progressor.cli.main import main
from progressor.settings.config import Config
from progressor.settings.sections import Database
from progressor.storage.embedded.settings import room_for


class FakeEngine:
    """An engine that notes how it is treated."""

    addresses = ("127.0.0.1:1",)
    metrics_url = ""
    database = "nowhere"

    def __init__(self) -> None:
        self.serving = asyncio.Event()
        self.broken = asyncio.Event()
        self.drained = False

    async def failed(self) -> None:
        await self.broken.wait()
        raise errors.MigrationError("the schema is from the future")

    @contextlib.asynccontextmanager
    async def open(self, config: Config) -> AsyncIterator[Any]:
        del config
        try:
            yield self
        finally:
            self.drained = True


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGINT]],
    ids=["SIGTERM", "SIGINT", "SIGTERM and SIGINT at once"],
)
def test_a_signal_ends_the_work_and_drains(numbers: list[signal.Signals]) -> None:
    engine = FakeEngine()
    ended = []

    async def work(_engine: object) -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    run_loop(host(Config(), open_engine=engine.open, work=work))

    assert engine.drained
    assert ended == ["work"]


def test_the_engine_drains_when_the_work_is_done() -> None:
    engine = FakeEngine()

    async def work(_engine: object) -> None:
        await asyncio.sleep(0)

    run_loop(host(Config(), open_engine=engine.open, work=work))

    assert engine.drained


def test_an_engine_that_breaks_ends_the_work_with_its_error() -> None:
    engine = FakeEngine()

    async def work(_engine: object) -> None:
        engine.broken.set()
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        run_loop(host(Config(), open_engine=engine.open, work=work))

    assert caught.group_contains(errors.MigrationError)
    assert engine.drained


_DRAINS_FOREVER = """
import asyncio, contextlib, os, signal
from progressor.cli.engine.hosting import host
from progressor.cli.input.signals import run_loop
from progressor.settings.config import Config

class Engine:
    addresses, database, serving = ("a:1",), "none", None
    async def failed(self): await asyncio.Event().wait()

@contextlib.asynccontextmanager
async def forever_draining(config):
    yield Engine()
    while True:  # an impatient person
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)

async def work(engine): os.kill(os.getpid(), signal.SIGTERM)

run_loop(host(Config(), open_engine=forever_draining, work=work))
"""


def test_a_second_signal_ends_a_drain_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _DRAINS_FOREVER], capture_output=True, timeout=20, check=False
    )

    assert ended.returncode == -signal.SIGTERM
    assert b"second signal" in ended.stderr


def test_no_workers_means_one_for_each_core() -> None:
    assert count_of(0) == len(os.sched_getaffinity(0))
    assert [count_of(workers) for workers in (1, 2, 7)] == [1, 2, 7]
    assert count_of(Config().server.workers) == 1


def test_a_replica_may_have_as_many_connections_as_the_readme_says() -> None:
    assert Database().connections_max == 19


@pytest.mark.parametrize(("replicas", "settings"), [(4, {}), (5, {"max_connections": "108"})])
def test_an_embedded_postgresql_has_room_for_all_replicas(
    replicas: int, settings: dict[str, str]
) -> None:
    assert room_for(replicas * Database().connections_max) == settings


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "--workers", "2", "--bind", "unix:/tmp/absent.sock"),
        ("config", "--workers", "0", "--bind", "127.0.0.1:0,unix:/tmp/absent.sock"),
        ("config", "--workers", "-1"),
        ("config", "--workers", "257"),
        ("dev", "--workers", "2", "--once"),
    ],
)
def test_workers_that_cannot_be_are_refused_by_their_key(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main([*arguments, "--json"] if arguments[0] == "config" else [*arguments]) == 2

    err = capfd.readouterr().err
    assert "server.workers" in err


def test_the_flag_is_the_key(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--workers", "3", "--json"]) == 0

    rows = {row["key"]: row for row in json.loads(capfd.readouterr().out)["settings"]}
    assert rows["server.workers"]["value"] == 3
    assert rows["server.workers"]["source"]["kind"] == "flag"
