"""Heartbeats and the roster: what a replica tells of itself, and what the others make of it."""

import asyncio
import dataclasses
import datetime as dt
import itertools
import logging
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.task import TaskType
from progressor.domain.views.replica import ReplicaLoad, ReplicaState, ReplicaView
from progressor.settings.sections import ReplicaSettings
from progressor.storage.postgres.functions import Functions
from progressor.storage.replicas import heartbeats
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.replicas import Replicas
from tests.support.clock import ManualClock, SkewedClock
from tests.support.postgres.locks import until_blocked
from tests.support.storage.store import LEASE_TIMEOUT, Store, a_request, fresh_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
IDLE = ReplicaLoad(step_count=0, caller_count=0)
OWN_TIMEOUT = 3 * LEASE_TIMEOUT
SETTINGS = ReplicaSettings(name="host-1", heartbeat_interval=SECOND, lease_timeout=OWN_TIMEOUT)

_ids = itertools.count(1001)


class SlowClock(ManualClock):
    """A clock on which two seconds pass between one look and the next."""

    def monotonic(self) -> float:
        self.advance(2 * SECOND)
        return super().monotonic()


class Beating:
    """A replica that beats when told to."""

    def __init__(self, database: str, clock: Clock, *, replica_id: int | None = None) -> None:
        self.replica_id = next(_ids) if replica_id is None else replica_id
        self.heartbeats = Heartbeats(
            dsn=database,
            identity=Identity(
                replica_id=self.replica_id, name="host-1", version="1.2.3", functions="f"
            ),
            lineage=Lineage(Functions()),
            replica=SETTINGS,
            clock=clock,
        )

    def beat(self, load: ReplicaLoad = IDLE, *, draining: bool = False) -> None:
        self.heartbeats.beat(draining=draining, load=load)


@pytest.fixture
def roster(store: Store) -> Replicas:
    return store.replicas


@pytest.fixture
def beating(database: str, clock: ManualClock) -> Any:
    """Return a replica in step with PostgreSQL's clock; its connection is closed at the end."""
    replica = Beating(database, clock)
    yield replica
    replica.heartbeats.close()


async def view_of(roster: Replicas, replica_id: int) -> ReplicaView:
    [found] = await roster.list(after=replica_id - 1, limit=1)
    assert found.replica_id == replica_id
    return found


class TestABeat:
    async def test_enters_the_replica_with_all_that_it_tells(
        self, beating: Beating, roster: Replicas, clock: ManualClock
    ) -> None:
        beating.beat(ReplicaLoad(step_count=3, caller_count=7))

        assert await view_of(roster, beating.replica_id) == ReplicaView(
            replica_id=beating.replica_id,
            name="host-1",
            version="1.2.3",
            functions="f",
            started_at=clock.now(),
            heartbeat_at=clock.now(),
            heartbeat_age=dt.timedelta(),
            lease_timeout=OWN_TIMEOUT,
            draining=False,
            step_count=3,
            caller_count=7,
            clock_offset=None,
            lease_count=0,
        )

    async def test_renews_what_changes_and_leaves_what_does_not(
        self, beating: Beating, roster: Replicas, clock: ManualClock
    ) -> None:
        beating.beat(ReplicaLoad(step_count=3, caller_count=7))
        before = await view_of(roster, beating.replica_id)
        clock.advance(SECOND)
        beating.beat(ReplicaLoad(step_count=1, caller_count=0), draining=True)

        assert await view_of(roster, beating.replica_id) == dataclasses.replace(
            before,
            heartbeat_at=clock.now(),
            draining=True,
            step_count=1,
            caller_count=0,
            clock_offset=dt.timedelta(),
        )

    async def test_enters_a_replica_again_whose_row_was_deleted(
        self, beating: Beating, roster: Replicas, store: Store
    ) -> None:
        beating.beat()
        await store.replicas.retire(beating.replica_id)
        beating.beat(ReplicaLoad(step_count=1, caller_count=0))

        assert (await view_of(roster, beating.replica_id)).step_count == 1

    async def test_that_cannot_connect_is_unavailable_storage(self, clock: ManualClock) -> None:
        nowhere = Beating("host=/nonexistent", clock)

        with pytest.raises(errors.StorageUnavailableError):
            nowhere.beat()

    async def test_that_hangs_ends_when_it_is_cut_and_the_next_one_connects_anew(
        self, beating: Beating, roster: Replicas, database: str, observer: psycopg.Connection[Any]
    ) -> None:
        beating.beat()
        with psycopg.connect(database) as other:
            other.execute(
                "SELECT FROM progressor.replicas WHERE replica_id = %s FOR UPDATE",
                [beating.replica_id],
            )
            hanging = asyncio.ensure_future(asyncio.to_thread(beating.beat))
            await until_blocked(observer)
            beating.heartbeats.cut()
            with pytest.raises(errors.StorageUnavailableError):
                await hanging
        beating.beat(ReplicaLoad(step_count=5, caller_count=0))

        assert (await view_of(roster, beating.replica_id)).step_count == 5

    async def test_a_cut_without_a_connection_does_nothing(self, beating: Beating) -> None:
        beating.heartbeats.cut()
        beating.beat()
        beating.heartbeats.close()

        beating.heartbeats.cut()


class TestTheClocks:
    @pytest.mark.parametrize("ahead", [HOUR, -HOUR, dt.timedelta(milliseconds=3)])
    async def test_their_offset_is_told_by_the_second_beat(
        self, database: str, clock: ManualClock, roster: Replicas, ahead: dt.timedelta
    ) -> None:
        skewed = Beating(database, SkewedClock(ahead, clock))
        skewed.beat()
        first = await view_of(roster, skewed.replica_id)
        skewed.beat()
        second = await view_of(roster, skewed.replica_id)
        skewed.heartbeats.close()

        assert (first.clock_offset, second.clock_offset) == (None, ahead)
        assert second.heartbeat_at == clock.now()

    async def test_a_beat_of_two_seconds_says_nothing_of_them(
        self, database: str, roster: Replicas
    ) -> None:
        slow = Beating(database, SlowClock())
        slow.beat()
        slow.beat()
        slow.heartbeats.close()

        assert (await view_of(roster, slow.replica_id)).clock_offset is None

    async def test_an_offset_of_more_than_a_second_is_logged_once_in_ten_minutes(
        self, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()
        skewed = Beating(database, SkewedClock(-2 * SECOND, clock))
        with caplog.at_level(logging.WARNING, logger=heartbeats.__name__):
            for _ in range(3):
                skewed.beat()
                clock.advance(SECOND)
            within = len(caplog.records)
            clock.advance(dt.timedelta(seconds=heartbeats.OFFSET_LOG_SECONDS))
            skewed.beat()
        skewed.heartbeats.close()

        assert (within, len(caplog.records)) == (1, 2)
        assert vars(caplog.records[0])["ahead_seconds"] == -2.0
        assert "leases" in vars(caplog.records[0])["unaffected"]

    async def test_an_offset_of_a_second_is_nothing_to_speak_of(
        self, database: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        skewed = Beating(database, SkewedClock(SECOND, clock))
        with caplog.at_level(logging.WARNING, logger=heartbeats.__name__):
            skewed.beat()
        skewed.heartbeats.close()

        assert caplog.records == []


class TestTheRoster:
    async def test_tells_the_silent_by_their_own_timeouts(
        self, beating: Beating, roster: Replicas, clock: ManualClock
    ) -> None:
        beating.beat()
        clock.advance(OWN_TIMEOUT)
        at_its_end = (await view_of(roster, beating.replica_id)).state
        clock.advance(dt.timedelta(microseconds=1))
        after = await view_of(roster, beating.replica_id)

        assert (at_its_end, after.state) == (ReplicaState.SERVING, ReplicaState.SILENT)
        assert after.heartbeat_age == OWN_TIMEOUT + dt.timedelta(microseconds=1)

    async def test_tells_what_a_release_before_does_not_tell_as_unknown(
        self, other: Store, roster: Replicas, clock: ManualClock
    ) -> None:
        await other.beat()
        clock.advance(LEASE_TIMEOUT + SECOND)

        view = await view_of(roster, other.replica_id)
        await other.beat()

        told = (view.step_count, view.caller_count, view.clock_offset, view.lease_timeout)
        assert told == (None, None, None, LEASE_TIMEOUT)
        assert view.state is ReplicaState.SILENT

    async def test_counts_the_leases_of_each(
        self, store: Store, other: Store, roster: Replicas
    ) -> None:
        for each, count in ((store, 2), (other, 1)):
            await each.beat()
            for _ in range(count):
                await each.start(fresh_key())

        views = [await view_of(roster, each.replica_id) for each in (store, other)]

        assert [view.lease_count for view in views] == [2, 1]

    async def test_goes_page_by_page_in_the_order_of_the_ids(
        self, database: str, clock: ManualClock, roster: Replicas
    ) -> None:
        three = [Beating(database, clock) for _ in range(3)]
        for each in reversed(three):
            each.beat()
            each.heartbeats.close()
        ids = [each.replica_id for each in three]

        first = await roster.list(after=ids[0] - 1, limit=2)
        second = await roster.list(after=first[-1].replica_id, limit=2)

        assert [view.replica_id for view in (*first, *second)] == ids


class TestALease:
    async def test_is_lost_by_the_timeout_of_its_replica_and_not_by_that_of_who_looks(
        self, store: Store, other: Store, database: str
    ) -> None:
        patient = Beating(database, store.clock, replica_id=other.replica_id)
        patient.beat()
        task = await other.start(fresh_key())
        store.clock.advance(OWN_TIMEOUT)
        await store.beat()
        while_it_holds = await store.find_zombies()
        store.clock.advance(dt.timedelta(microseconds=1))
        await store.beat()
        afterwards = await store.find_zombies()
        patient.heartbeats.close()
        await store.replicas.retire(other.replica_id)
        await other.beat()

        assert while_it_holds == ()
        assert [zombie.task_id for zombie in afterwards] == [task.task_id]

    async def test_of_a_release_before_is_lost_by_the_timeout_of_who_looks(
        self, store: Store, other: Store
    ) -> None:
        await other.beat()
        request = a_request(fresh_key(), TaskType.INIT)
        task = await other.run_task(request)
        store.clock.advance(LEASE_TIMEOUT + SECOND)
        await store.beat()

        found = await store.find_zombies()
        await other.beat()

        assert [zombie.task_id for zombie in found] == [task.task_id]
