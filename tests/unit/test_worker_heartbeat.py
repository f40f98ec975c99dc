"""The heartbeat: a thread that beats, and the loop that watches it."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from progressor import errors
from progressor.settings.sections import Replica
from progressor.worker.heartbeat import Heartbeat
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.memory import away
from tests.support.virtual_time import LoopClock, in_virtual_time

REPLICA = Replica(heartbeat_interval=seconds(1), lease_timeout=seconds(5))
QUICK = Replica(heartbeat_interval=seconds(0.0001), lease_timeout=seconds(5))
PATIENCE_SECONDS = 30


class Beats:
    """The storage of heartbeats: each beat is answered as the script says, then it stops."""

    def __init__(self, *script: errors.StorageError | None) -> None:
        self.script = list(script)
        self.draining: list[bool] = []
        self.closed_by = ""
        self.done = threading.Event()
        self.on_beat: Callable[[], None] = lambda: None

    def beat(self, *, draining: bool) -> None:
        self.draining.append(draining)
        self.on_beat()
        answer = self.script.pop(0) if self.script else None
        if not self.script:
            self.done.set()
        if answer is not None:
            raise answer

    def close(self) -> None:
        self.closed_by = threading.current_thread().name


class Loop:
    """A loop that calls back at once, or is closed."""

    def __init__(self) -> None:
        self.closed = False

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        callback()


class Bench:
    """A heartbeat, and what it said."""

    def __init__(self, beats: Beats, *, loop: Loop | None = None) -> None:
        self.said: list[str] = []
        self.clock = ManualClock()
        self.beats = beats
        self.heartbeat = Heartbeat(
            heartbeats=beats,
            replica=QUICK,
            clock=self.clock,
            loop=cast("asyncio.AbstractEventLoop", loop or Loop()),
            on_beat=lambda: self.said.append("beat"),
            on_miss=lambda: self.said.append("miss"),
            on_lost=lambda: self.said.append("lost"),
        )

    def beat_to_the_end(self) -> None:
        self.heartbeat.start()
        assert self.beats.done.wait(PATIENCE_SECONDS)
        self.heartbeat.stop()


def test_beats_and_misses_are_told_to_the_loop() -> None:
    bench = Bench(Beats(None, away(), None))

    bench.beat_to_the_end()

    assert bench.said[:3] == ["beat", "miss", "beat"]


def test_a_miss_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Bench(Beats(away())).beat_to_the_end()

    assert caplog.records[0].message == "heartbeat missed"


def test_the_connection_is_closed_by_the_thread_that_used_it() -> None:
    beats = Beats(None)

    Bench(beats).beat_to_the_end()

    assert beats.closed_by == "heartbeat"


def test_a_draining_replica_says_so() -> None:
    bench = Bench(Beats(None))

    bench.heartbeat.drain()
    bench.beat_to_the_end()

    assert set(bench.beats.draining) == {True}


def test_a_loop_that_is_closed_already_hurts_nobody() -> None:
    loop = Loop()
    loop.closed = True
    bench = Bench(Beats(None), loop=loop)

    bench.beat_to_the_end()

    assert bench.said == []


def test_a_beat_counts_from_before_it_was_sent() -> None:
    beats = Beats(None)
    bench = Bench(beats)
    beats.on_beat = lambda: bench.clock.advance(seconds(3))

    before = bench.clock.monotonic()
    bench.heartbeat.start()
    assert beats.done.wait(PATIENCE_SECONDS)
    bench.heartbeat.stop()

    beat_count = len(beats.draining)
    assert bench.heartbeat.last_beat_at == before + 3 * (beat_count - 1)


def test_a_missed_beat_renews_nothing() -> None:
    beats = Beats(away())
    bench = Bench(beats)
    bench.heartbeat.last_beat_at = -7.0
    beats.on_beat = bench.heartbeat._stopped.set

    bench.beat_to_the_end()

    assert bench.heartbeat.last_beat_at == -7.0


class Watch:
    """A heartbeat that is watched in virtual time, and does not beat by itself."""

    def __init__(self) -> None:
        self.lost_at: list[float] = []
        self.heartbeat = Heartbeat(
            heartbeats=Beats(),
            replica=REPLICA,
            clock=LoopClock(),
            loop=asyncio.get_running_loop(),
            on_beat=lambda: None,
            on_miss=lambda: None,
            on_lost=lambda: self.lost_at.append(asyncio.get_running_loop().time()),
        )

    def beat(self) -> None:
        self.heartbeat.last_beat_at = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(self.heartbeat.watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})


@in_virtual_time
async def test_a_lease_is_lost_when_no_beat_was_written_for_its_timeout() -> None:
    watch = Watch()

    async with watch.running():
        await asyncio.sleep(5.6)

    assert watch.lost_at == [5.5]


@in_virtual_time
async def test_a_lease_is_kept_by_beats() -> None:
    watch = Watch()

    async with watch.running():
        for _ in range(10):
            await asyncio.sleep(4)
            watch.beat()

    assert watch.lost_at == []


@in_virtual_time
async def test_what_is_leased_while_beats_are_missed_is_let_go_as_well() -> None:
    watch = Watch()

    async with watch.running():
        await asyncio.sleep(6.6)

    assert watch.lost_at == [5.5, 6.0, 6.5]


@in_virtual_time
async def test_the_loss_of_a_lease_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()

    with caplog.at_level(logging.ERROR):
        async with watch.running():
            await asyncio.sleep(10)

    assert len(caplog.records) == 1


@in_virtual_time
async def test_a_beat_ends_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()

    with caplog.at_level(logging.ERROR):
        async with watch.running():
            await asyncio.sleep(5.6)
            watch.beat()
            await asyncio.sleep(5.5)

    assert watch.lost_at == [5.5, 11.0]
    assert len(caplog.records) == 2
