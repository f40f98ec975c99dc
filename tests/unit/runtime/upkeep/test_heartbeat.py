"""The heartbeat: a thread that beats, and the loop that watches it."""

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from progressor import errors
from progressor.domain.views.replica import ReplicaLoad
from progressor.runtime.upkeep.heartbeat import Heartbeat, Report
from progressor.settings.sections import ReplicaSettings
from progressor.storage.replicas.heartbeats import Heard
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.runtime.harness import make_context, running
from tests.support.runtime.memory import away
from tests.support.runtime.virtual_time import VirtualTimeLoop, settled

REPLICA = ReplicaSettings(heartbeat_interval=seconds(1), lease_timeout=seconds(5))
QUICK = ReplicaSettings(heartbeat_interval=seconds(0.0001), lease_timeout=seconds(5))
LOAD = ReplicaLoad(step_count=3, caller_count=7)
PATIENCE_SECONDS = 30
KEPT = 4.5
"""Seconds after its last beat at which a replica lets go: nine tenths of its lease timeout."""


class Beating:
    """A heartbeat on the loop's clock, or the one given; storage answers as the script says."""

    def __init__(
        self,
        *script: errors.StorageError | None,
        replica: ReplicaSettings = REPLICA,
        **clock: ManualClock,
    ) -> None:
        self.script = list(script)
        self.reports: list[Report] = []
        self.heard: list[Heard] = []
        self.to_hear = Heard((), 0)
        self.lost_at: list[float] = []
        self.cut_at: list[float] = []
        self.draining: list[bool] = []
        self.closed_by = ""
        self.done = threading.Event()
        self.on_beat: Callable[[], None] = lambda: None
        self.on_cut: Callable[[], None] = lambda: self.cut_at.append(now())
        # In a thread there is no loop: what it would call is called at once.
        loop: Any = SimpleNamespace(call_soon_threadsafe=lambda call: call())
        self.heartbeat = Heartbeat(
            heartbeats=cast("Any", self),
            context=make_context(replica=replica, **clock),
            loop=loop if clock else asyncio.get_running_loop(),
            load=lambda: LOAD,
            report=self._note,
            hear=self.heard.append,
        )

    def beat(self, *, draining: bool, load: ReplicaLoad) -> Heard:
        assert load is LOAD
        self.draining.append(draining)
        self.on_beat()
        answer = self.script.pop(0) if self.script else None
        if not self.script:
            self.done.set()
        if answer is not None:
            raise answer
        return self.to_hear

    def cut(self) -> None:
        self.on_cut()

    def close(self) -> None:
        self.closed_by = threading.current_thread().name

    def beat_to_the_end(self, *, once: bool = False) -> None:
        if once:
            self.on_beat = self.heartbeat._stopped.set
        self.heartbeat.start()
        assert self.done.wait(PATIENCE_SECONDS)
        self.heartbeat.stop()

    def _note(self, report: Report) -> None:
        self.reports.append(report)
        if report is Report.LOST and asyncio._get_running_loop() is not None:
            self.lost_at.append(now())


def now() -> float:
    return asyncio.get_running_loop().time()


async def beat(beating: Beating) -> None:
    """Beat as the thread would, and let the loop hear of it."""
    beating.heartbeat._beat()
    await settled()


def hold_up(at: float, duration: float) -> None:
    """Have the loop do nothing for a while."""
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())

    def block() -> None:
        loop._passed += duration

    loop.call_at(at, block)


def test_its_age_counts_from_the_last_beat_that_was_written() -> None:
    clock = ManualClock()
    beating = Beating(None, away(), replica=QUICK, clock=clock)
    beating.beat_to_the_end()

    clock.advance(seconds(3))

    assert beating.heartbeat.age_seconds == 3


def test_a_draining_replica_says_so() -> None:
    beating = Beating(None, replica=QUICK, clock=ManualClock())

    beating.heartbeat.drain()
    beating.beat_to_the_end()

    assert set(beating.draining) == {True}


def test_a_beat_counts_from_before_it_was_sent() -> None:
    clock = ManualClock()
    beating = Beating(None, replica=QUICK, clock=clock)
    beating.on_beat = lambda: clock.advance(seconds(3))
    before = clock.monotonic()

    beating.beat_to_the_end()

    beat_count = len(beating.draining)
    assert beating.heartbeat.last_beat_at == before + 3 * (beat_count - 1)


def test_a_beat_that_took_longer_than_a_lease_lasts_is_a_missed_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    beating = Beating(None, replica=QUICK, clock=clock)

    def take_long() -> None:
        clock.advance(seconds(KEPT))
        beating.heartbeat._stopped.set()

    beating.on_beat = take_long
    with caplog.at_level(logging.WARNING):
        beating.beat_to_the_end()

    assert beating.reports == [Report.MISSED]
    assert beating.heartbeat.last_beat_at == 0.0
    assert [record.message for record in caplog.records] == ["heartbeat missed"]


def test_a_server_that_takes_no_writes_is_reported_besides_the_miss() -> None:
    read_only = errors.StorageReadOnlyError("demoted")
    beating = Beating(read_only, replica=QUICK, clock=ManualClock())

    beating.beat_to_the_end(once=True)

    assert beating.reports == [Report.READ_ONLY, Report.MISSED]


def test_a_process_that_stood_still_lets_go_before_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beating = Beating(None, replica=QUICK, clock=ManualClock())
    beating.heartbeat.last_beat_at = -KEPT

    with caplog.at_level(logging.ERROR):
        beating.beat_to_the_end(once=True)

    assert beating.reports == [Report.LOST, Report.WRITTEN]
    assert len(caplog.records) == 1


def test_a_stop_waits_for_a_beat_in_flight_and_cuts_one_that_hangs() -> None:
    short = ReplicaSettings(heartbeat_interval=seconds(0.0001), lease_timeout=seconds(0.05))
    beating = Beating(away(), replica=short, clock=ManualClock())
    cut, hanging = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        assert cut.wait(PATIENCE_SECONDS)

    beating.on_beat, beating.on_cut = hang, cut.set
    beating.heartbeat.start()
    assert hanging.wait(PATIENCE_SECONDS)
    beating.heartbeat.stop()

    assert beating.closed_by == "heartbeat"


async def test_a_lease_is_let_go_a_tenth_of_its_timeout_before_others_may_take_it() -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        await asyncio.sleep(4.6)

    assert watch.lost_at == [KEPT]


@pytest.mark.parametrize("last_beat_at", [0.3, 0.5, 0.999, 1.0, 2.7, 4.4])
async def test_the_time_counts_from_the_last_beat_and_not_from_when_it_was_looked_at(
    last_beat_at: float,
) -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        await asyncio.sleep(last_beat_at)
        await beat(watch)
        await asyncio.sleep(6)

    assert watch.lost_at[0] == pytest.approx(last_beat_at + KEPT, abs=0.001)


@pytest.mark.parametrize("late", [0.1, 0.3, 0.49])
async def test_a_loop_that_is_late_by_less_than_the_margin_is_still_before_the_others(
    late: float,
) -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        hold_up(KEPT - 0.001, late)
        await asyncio.sleep(6)

    assert KEPT < watch.lost_at[0] < 5


async def test_a_loop_that_is_late_lets_go_at_once() -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        hold_up(1.0, 20.0)
        await asyncio.sleep(21)

    assert watch.lost_at[0] == pytest.approx(21)


async def test_a_lease_is_kept_by_beats() -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        for _ in range(10):
            await asyncio.sleep(4)
            await beat(watch)

    assert watch.lost_at == []


async def test_a_beat_ends_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    watch = Beating()

    with caplog.at_level(logging.ERROR):
        async with running(watch.heartbeat.watch):
            await asyncio.sleep(4.75)
            await beat(watch)
            await asyncio.sleep(4.75)

    # What was leased before the beat is lost, whenever it was checked.
    lost = Report.LOST
    assert watch.reports == [lost, lost, Report.WRITTEN, lost]
    assert watch.lost_at == [4.5, 4.75, 9.25]
    assert len(caplog.records) == 2


async def test_a_beat_that_hangs_is_cut_once_it_could_renew_nothing() -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        await asyncio.sleep(2)
        watch.heartbeat._sent_at = 2.0
        await asyncio.sleep(5.1)

    assert watch.lost_at[0] == 4.5
    assert watch.cut_at == [6.5, 7.0]


async def test_a_beat_in_flight_is_left_alone_as_long_as_it_may_renew_the_lease() -> None:
    watch = Beating()

    async with running(watch.heartbeat.watch):
        watch.heartbeat._sent_at = 4.0
        await asyncio.sleep(8.1)

    assert watch.lost_at[-1] == 8.0
    assert watch.cut_at == []


async def test_what_is_paused_is_heard_before_a_beat_counts() -> None:
    beating = Beating(None, away())
    beating.to_hear = Heard(("orders",), 7)
    heard_at: list[int] = []
    beating.heartbeat._report = lambda _: heard_at.append(len(beating.heard))

    await beat(beating)
    await beat(beating)

    assert (beating.heard, heard_at) == ([beating.to_hear], [1, 1])
