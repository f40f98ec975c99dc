"""The heartbeat: a thread that beats, and the loop that watches it."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from progressor import errors
from progressor.domain.views.replica import ReplicaLoad
from progressor.runtime.upkeep.heartbeat import Heartbeat, Report
from progressor.settings.sections import ReplicaSettings
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.runtime.harness import (
    make_context,
    running,
)
from tests.support.runtime.memory import away
from tests.support.runtime.virtual_time import VirtualTimeLoop, settled

REPLICA = ReplicaSettings(heartbeat_interval=seconds(1), lease_timeout=seconds(5))
QUICK = ReplicaSettings(heartbeat_interval=seconds(0.0001), lease_timeout=seconds(5))
LOAD = ReplicaLoad(step_count=3, caller_count=7)
PATIENCE_SECONDS = 30
KEPT = 4.5
"""Seconds after its last beat at which a replica lets go: nine tenths of its lease timeout."""


class Beats:
    """The storage of heartbeats: each beat is answered as the script says, then it stops."""

    def __init__(self, *script: errors.StorageError | None) -> None:
        self.script = list(script)
        self.draining: list[bool] = []
        self.loads: list[ReplicaLoad] = []
        self.closed_by = ""
        self.cut_at: list[float] = []
        self.done = threading.Event()
        self.on_beat: Callable[[], None] = lambda: None
        self.on_cut: Callable[[], None] = lambda: None

    def beat(self, *, draining: bool, load: ReplicaLoad) -> None:
        self.draining.append(draining)
        self.loads.append(load)
        self.on_beat()
        answer = self.script.pop(0) if self.script else None
        if not self.script:
            self.done.set()
        if answer is not None:
            raise answer

    def cut(self) -> None:
        self.on_cut()

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


class Beating:
    """A heartbeat, and what it reported."""

    def __init__(
        self, beats: Beats, *, loop: Loop | None = None, replica: ReplicaSettings = QUICK
    ) -> None:
        self.reports: list[Report] = []
        self.clock = ManualClock()
        self.beats = beats
        self.heartbeat = Heartbeat(
            heartbeats=cast("Any", beats),
            context=make_context(clock=self.clock, replica=replica),
            loop=cast("asyncio.AbstractEventLoop", loop or Loop()),
            load=lambda: LOAD,
            report=self.reports.append,
        )

    def beat_to_the_end(self) -> None:
        self.heartbeat.start()
        assert self.beats.done.wait(PATIENCE_SECONDS)
        self.heartbeat.stop()

    def beat_once(self) -> None:
        self.beats.on_beat = self.heartbeat._stopped.set
        self.beat_to_the_end()


def test_its_age_counts_from_the_last_beat_that_was_written() -> None:
    harness = Beating(Beats(None, away()))
    harness.beat_to_the_end()

    harness.clock.advance(seconds(3))

    assert harness.heartbeat.age_seconds == 3


def test_a_draining_replica_says_so() -> None:
    harness = Beating(Beats(None))

    harness.heartbeat.drain()
    harness.beat_to_the_end()

    assert set(harness.beats.draining) == {True}


def test_a_beat_counts_from_before_it_was_sent() -> None:
    beats = Beats(None)
    harness = Beating(beats)
    beats.on_beat = lambda: harness.clock.advance(seconds(3))

    before = harness.clock.monotonic()
    harness.heartbeat.start()
    assert beats.done.wait(PATIENCE_SECONDS)
    harness.heartbeat.stop()

    beat_count = len(beats.draining)
    assert harness.heartbeat.last_beat_at == before + 3 * (beat_count - 1)


def test_a_beat_that_took_longer_than_a_lease_lasts_is_a_missed_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beats = Beats(None)
    harness = Beating(beats)

    def take_long() -> None:
        harness.clock.advance(seconds(KEPT))
        harness.heartbeat._stopped.set()

    beats.on_beat = take_long
    with caplog.at_level(logging.WARNING):
        harness.beat_to_the_end()

    assert harness.reports == [Report.MISSED]
    assert harness.heartbeat.last_beat_at == 0.0
    assert [record.message for record in caplog.records] == ["heartbeat missed"]


def test_a_server_that_takes_no_writes_is_reported_besides_the_miss() -> None:
    harness = Beating(Beats(errors.StorageReadOnlyError("demoted")))

    harness.beat_once()

    assert harness.reports == [Report.READ_ONLY, Report.MISSED]


def test_a_process_that_stood_still_lets_go_before_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Beating(Beats(None))
    harness.heartbeat.last_beat_at = -KEPT

    with caplog.at_level(logging.ERROR):
        harness.beat_once()

    assert harness.reports == [Report.LOST, Report.WRITTEN]
    assert len(caplog.records) == 1


def test_a_stop_waits_for_a_beat_in_flight_and_cuts_one_that_hangs() -> None:
    beats = Beats(away())
    cut, hanging = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        assert cut.wait(PATIENCE_SECONDS)

    beats.on_beat, beats.on_cut = hang, cut.set
    short = ReplicaSettings(heartbeat_interval=seconds(0.0001), lease_timeout=seconds(0.05))
    harness = Beating(beats, replica=short)

    harness.heartbeat.start()
    assert hanging.wait(PATIENCE_SECONDS)
    harness.heartbeat.stop()

    assert beats.closed_by == "heartbeat"


class Watch:
    """A heartbeat that is watched in virtual time, and does not beat by itself."""

    def __init__(self) -> None:
        self.lost_at: list[float] = []
        self.reports: list[Report] = []
        self.beats = Beats()
        self.beats.on_cut = lambda: self.beats.cut_at.append(self.now())
        self.heartbeat = Heartbeat(
            heartbeats=cast("Any", self.beats),
            context=make_context(replica=REPLICA),
            loop=asyncio.get_running_loop(),
            load=lambda: LOAD,
            report=self._note,
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def beat(self) -> None:
        """Beat as the thread would, and let the loop hear of it."""
        self.heartbeat._beat()
        await settled()

    def hold_up(self, at: float, duration: float) -> None:
        """Have the loop do nothing for a while."""
        loop = cast("VirtualTimeLoop", asyncio.get_running_loop())

        def block() -> None:
            loop._passed += duration

        loop.call_at(at, block)

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        return running(self.heartbeat.watch)

    def _note(self, report: Report) -> None:
        self.reports.append(report)
        if report is Report.LOST:
            self.lost_at.append(self.now())


async def test_a_lease_is_let_go_a_tenth_of_its_timeout_before_others_may_take_it() -> None:
    watch = Watch()

    async with watch.running():
        await asyncio.sleep(4.6)

    assert watch.lost_at == [KEPT]


@pytest.mark.parametrize("last_beat_at", [0.3, 0.5, 0.999, 1.0, 2.7, 4.4])
async def test_the_time_counts_from_the_last_beat_and_not_from_when_it_was_looked_at(
    last_beat_at: float,
) -> None:
    watch = Watch()

    async with watch.running():
        await asyncio.sleep(last_beat_at)
        await watch.beat()
        await asyncio.sleep(6)

    assert watch.lost_at[0] == pytest.approx(last_beat_at + KEPT, abs=0.001)


@pytest.mark.parametrize("late", [0.1, 0.3, 0.49])
async def test_a_loop_that_is_late_by_less_than_the_margin_is_still_before_the_others(
    late: float,
) -> None:
    watch = Watch()

    async with watch.running():
        watch.hold_up(KEPT - 0.001, late)
        await asyncio.sleep(6)

    assert KEPT < watch.lost_at[0] < 5


async def test_a_loop_that_is_late_lets_go_at_once() -> None:
    watch = Watch()

    async with watch.running():
        watch.hold_up(1.0, 20.0)
        await asyncio.sleep(21)

    assert watch.lost_at[0] == pytest.approx(21)


async def test_a_lease_is_kept_by_beats() -> None:
    watch = Watch()

    async with watch.running():
        for _ in range(10):
            await asyncio.sleep(4)
            await watch.beat()

    assert watch.lost_at == []


async def test_a_beat_ends_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()

    with caplog.at_level(logging.ERROR):
        async with watch.running():
            await asyncio.sleep(4.75)
            await watch.beat()
            await asyncio.sleep(4.75)

    # What was leased before the beat is lost, whenever it was checked.
    lost = Report.LOST
    assert watch.reports == [lost, lost, Report.WRITTEN, lost]
    assert watch.lost_at == [4.5, 4.75, 9.25]
    assert len(caplog.records) == 2


async def test_a_beat_that_hangs_is_cut_once_it_could_renew_nothing() -> None:
    watch = Watch()

    async with watch.running():
        await asyncio.sleep(2)
        watch.heartbeat._sent_at = 2.0
        await asyncio.sleep(5.1)

    assert watch.lost_at[0] == 4.5
    assert watch.beats.cut_at == [6.5, 7.0]


async def test_a_beat_in_flight_is_left_alone_as_long_as_it_may_renew_the_lease() -> None:
    watch = Watch()

    async with watch.running():
        watch.heartbeat._sent_at = 4.0
        await asyncio.sleep(8.1)

    assert watch.lost_at[-1] == 8.0
    assert watch.beats.cut_at == []
