"""Running an engine: it drains on a signal, and its errors come out."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from progressor import errors
from progressor.cli.engine.hosting import host
from progressor.cli.input.signals import run_loop
from progressor.settings.config import Config


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_work_and_drains(number: signal.Signals) -> None:
    engine = FakeEngine()
    ended = []

    async def work(_engine: object) -> None:
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


def test_the_echo_of_a_signal_is_no_second_one() -> None:
    engine = FakeEngine()

    async def work(_engine: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    run_loop(host(Config(), open_engine=engine.open, work=work))

    assert engine.drained


def test_a_second_signal_ends_a_drain_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _DRAINS_FOREVER], capture_output=True, timeout=20, check=False
    )

    assert ended.returncode == -signal.SIGTERM
    assert b"second signal" in ended.stderr
