"""Claims: who gets a lease, and who does not."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.intent import Lost, Released
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import Claim, TaskStatus, TaskType
from progressor.storage.steps.claims import (
    FLOOR_MARGIN,
    FULL_SECONDS_MAX,
    FULL_SHARE,
    Overdue,
    Room,
    Wanted,
)
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    EXPIRES_AFTER,
    GRACE,
    LEASE_TIMEOUT,
    NO_TIME,
    Store,
    a_request,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)


class TestByTheirIds:
    async def test_a_due_task_is_leased_with_all_that_a_step_needs(self, store: Store) -> None:
        key = await store.ready(success(events=2, aux_state=b"s", metadata={"m": 1}))
        asked = a_request(key, args=b"a", caller_context={"who": "me"})
        admission = await store.admit(asked, run=False)

        [claimed] = await store.claim(key, admission.task_id)

        task = claimed.task
        assert (task.args, task.caller_context, task.attempt) == (b"a", {"who": "me"}, 1)
        assert task.process == (await store.processes.get(key)).process
        assert (task.started_at, task.first_started_at) == (store.clock.now(), store.clock.now())

    async def test_a_task_is_leased_once(self, store: Store, other: Store) -> None:
        key, timer = await store.timed(NO_TIME)

        async with asyncio.TaskGroup() as group:
            claims = [group.create_task(each.claim(key, timer)) for each in (store, other) * 10]

        assert sum(len(claim.result()) for claim in claims) == 1

    async def test_a_timer_is_not_leased_a_microsecond_early(self, store: Store) -> None:
        key, timer = await store.timed(SECOND)
        store.clock.advance(SECOND - dt.timedelta(microseconds=1))
        assert await store.claim(key, timer) == []

        store.clock.advance(dt.timedelta(microseconds=1))
        assert len(await store.claim(key, timer)) == 1

    async def test_a_task_leased_ahead_of_its_time_counts_as_started_when_it_is_due(
        self, store: Store
    ) -> None:
        key, timer = await store.timed(SECOND)
        due_at = store.clock.now() + SECOND
        store.clock.advance(SECOND / 2 - dt.timedelta(microseconds=1))
        assert await store.claim(key, timer, ahead=SECOND / 2) == []
        store.clock.advance(dt.timedelta(microseconds=1))

        [claimed] = await store.claim(key, timer, ahead=SECOND / 2)

        assert (claimed.task.started_at, claimed.task.first_started_at) == (due_at, due_at)

    async def test_the_lease_of_a_task_claimed_ahead_lasts_from_its_time_on(
        self, store: Store
    ) -> None:
        key, timer = await store.timed(SECOND, step_timeout=SECOND)
        await store.claim(key, timer, ahead=SECOND)

        store.clock.advance(2 * SECOND + GRACE)
        await store.beat()
        assert await store.find_zombies() == ()

    async def test_a_task_knows_since_when_it_was_due_and_how_long_its_claim_took(
        self, store: Store
    ) -> None:
        key, timer = await store.timed(SECOND)
        due_at = store.clock.now() + SECOND
        store.clock.advance(HOUR)

        [claimed] = await store.claim(key, timer)

        assert claimed.task.claim == Claim(due_at, store.clock.now(), store.clock.now())

    async def test_a_task_that_is_gone_is_left_out(self, store: Store) -> None:
        key, timer = await store.timed(NO_TIME)
        kept, kept_timer = await store.timed(NO_TIME)
        await store.remove(key)

        claimed = await store.claims.claim_tasks(
            store.pool,
            [
                Wanted(key=key, task_id=timer, expires_after=EXPIRES_AFTER),
                Wanted(key=kept, task_id=kept_timer, expires_after=EXPIRES_AFTER),
            ],
        )

        assert [each.task.key for each in claimed] == [kept]

    async def test_the_lease_lasts_as_long_as_the_step_may_take(self, store: Store) -> None:
        key, timer = await store.timed(NO_TIME, step_timeout=SECOND)
        await store.claim(key, timer)

        store.clock.advance(SECOND + GRACE)
        await store.beat()
        assert await store.find_zombies() == ()

        store.clock.advance(dt.timedelta(microseconds=1))
        assert [each.task_id for each in await store.find_zombies()] == [timer]


class TestByTheirTime:
    async def test_the_longest_overdue_go_first_and_no_more_than_there_is_room_for(
        self, store: Store
    ) -> None:
        timers = [await store.timed(each * SECOND) for each in (3, 1, 4, 2)]
        store.clock.advance(HOUR)

        claimed = await store.claim_due(limit=2)

        assert {each.task.task_id for each in claimed} == {timers[1][1], timers[3][1]}

    @pytest.mark.parametrize("requests_first", [False, True])
    async def test_requests_and_all_that_is_due_take_turns(
        self, store: Store, requests_first: bool
    ) -> None:
        timers = [(await store.timed(each * SECOND))[1] for each in range(4)]
        calls = []
        store.clock.advance(HOUR)
        for _ in range(3):
            key = await store.ready()
            calls.append((await store.admit(a_request(key), run=False)).task_id)
            store.clock.advance(SECOND)

        taken = [
            {each.task.task_id for each in await store.claim_due(limit=3, requests_first=turn)}
            for turn in (requests_first, not requests_first)
        ]

        first_two = {timers[0], calls[0]}
        assert taken[0] - first_two == ({calls[1]} if requests_first else {timers[1]})
        assert len(taken[1] & set(timers)) + len(taken[0] & set(timers)) == 3
        [last] = await store.claim_due()
        assert last.task.task_id in {timers[3], calls[2]}

    async def test_places_that_no_request_wants_go_to_timers_and_the_other_way_round(
        self, store: Store
    ) -> None:
        timers = {(await store.timed(NO_TIME))[1] for _ in range(3)}
        only_timers = {each.task.task_id for each in await store.claim_due(limit=3)}
        calls = set()
        for _ in range(3):
            key = await store.ready()
            calls.add((await store.admit(a_request(key), run=False)).task_id)
        only_calls = {each.task.task_id for each in await store.claim_due(limit=3)}

        assert (only_timers, only_calls) == (timers, calls)

    async def test_what_is_not_overdue_enough_is_left_to_who_set_it(self, store: Store) -> None:
        await store.timed(NO_TIME)
        store.clock.advance(SECOND)

        assert await store.claim_due(overdue=SECOND + dt.timedelta(microseconds=1)) == []
        assert len(await store.claim_due(overdue=SECOND)) == 1

    async def test_two_replicas_share_without_overlap(self, store: Store, other: Store) -> None:
        timers = {(await store.timed(NO_TIME))[1] for _ in range(40)}

        async with asyncio.TaskGroup() as group:
            claims = [group.create_task(each.claim_due(limit=15)) for each in (store, other) * 2]

        claimed = [each.task.task_id for claim in claims for each in claim.result()]
        assert len(claimed) == len(set(claimed))
        assert set(claimed) <= timers

    async def test_a_locked_process_is_passed_over_unless_it_is_waited_for(
        self, store: Store, database: str
    ) -> None:
        locked, free = await store.timed(NO_TIME), await store.timed(NO_TIME)
        with psycopg.connect(database) as holder:
            holder.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                [locked[0].process_id],
            )

            passing = await store.claim_due(wait=False)
            holder.rollback()

        assert [each.task.task_id for each in passing] == [free[1]]
        assert [each.task.task_id for each in await store.claim_due()] == [locked[1]]

    async def test_each_namespace_has_room_of_its_own(self, store: Store) -> None:
        timers = [await store.timed(NO_TIME) for _ in range(3)]
        rooms = [
            Room(namespace="elsewhere", limit=5, expires_after=EXPIRES_AFTER),
            Room(namespace="orders", limit=2, expires_after=EXPIRES_AFTER),
        ]

        claimed = await store.claims.claim_due(store.pool, rooms, overdue=NO_TIME, wait=True)

        assert len(claimed) == 2 < len(timers)

    async def test_only_the_head_of_a_line_is_due(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        head = await store.admit(a_request(key))
        await store.admit(a_request(key))
        await store.settled(init, continues=False)

        assert [each.task.task_id for each in await store.claim_due()] == [head.task_id]
        assert await store.claim_due() == []


class TestOfADamagedLine:
    """Rows that only damage leaves behind, which the doctor reports, block no other claim."""

    async def two_due(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> tuple[ProcessKey, list[int]]:
        """Return a process with two calls that are due, the first in line first."""
        key = fresh_key()
        init = await store.start(key)
        calls = [(await store.admit(a_request(key))).task_id for _ in range(2)]
        await store.settled(init, continues=False)
        observer.execute(
            "UPDATE progressor.schedule SET due_at = coalesce(due_at, %s) WHERE process_id = %s",
            [store.clock.now() - SECOND, key.process_id],
        )
        return key, [call for call in calls if call is not None]

    async def test_of_two_due_tasks_of_a_process_the_first_in_line_is_claimed(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        _, calls = await self.two_due(store, observer)
        _, timer = await store.timed(NO_TIME)

        claimed = await store.claim_due()

        assert {each.task.task_id for each in claimed} == {calls[0], timer}

    async def test_the_doctor_reports_the_other_until_it_has_had_its_turn(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        _, calls = await self.two_due(store, observer)
        [first] = await store.claim_due()
        reported = broken_invariants(observer, now=store.clock.now())
        await store.settled(first.task, continues=False)

        [second] = await store.claim_due()

        assert list(reported) == ["waiting_tasks_are_due_in_order"]
        assert second.task.task_id == calls[1]
        assert broken_invariants(observer, now=store.clock.now()) == {}

    async def test_of_two_wanted_tasks_of_a_process_one_is_claimed(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        key, calls = await self.two_due(store, observer)
        other_key, timer = await store.timed(NO_TIME)
        wanted = [
            Wanted(key=each, task_id=task_id, expires_after=EXPIRES_AFTER)
            for each, task_id in [(key, calls[1]), (key, calls[0]), (other_key, timer)]
        ]

        claimed = await store.claims.claim_tasks(store.pool, wanted)

        assert {each.task.task_id for each in claimed} == {calls[0], timer}

    async def test_a_due_task_that_has_ended_is_not_begun_again(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        ended, task_id = await store.timed(NO_TIME)
        _, timer = await store.timed(NO_TIME)
        observer.execute(
            "UPDATE progressor.tasks SET status = 'finished', finished_at = %s"
            " WHERE process_id = %s AND task_id = %s",
            [store.clock.now(), ended.process_id, task_id],
        )

        assert [each.task.task_id for each in await store.claim_due()] == [timer]
        assert await store.task_status(ended, task_id) is TaskStatus.FINISHED


class TestUpcoming:
    async def upcoming(self, store: Store, horizon: dt.timedelta = HOUR) -> list[int]:
        room = Room(namespace="orders", limit=10, expires_after=EXPIRES_AFTER)
        found, _ = await store.claims.find_upcoming(
            store.pool, [room], horizon=horizon, lease_timeout=LEASE_TIMEOUT
        )
        return [due.task_id for due in found]

    async def test_are_those_that_this_replica_has_set(self, store: Store, other: Store) -> None:
        await other.beat()
        own, _others = await store.timed(SECOND), await other.timed(SECOND)

        assert await self.upcoming(store) == [own[1]]

    async def test_are_those_of_a_replica_that_is_gone(self, store: Store, other: Store) -> None:
        orphan = await other.timed(HOUR)
        store.clock.advance(2 * LEASE_TIMEOUT)

        assert await self.upcoming(store) == [orphan[1]]
        await other.beat()
        await store.beat()

    async def test_are_none_beyond_the_horizon(self, store: Store) -> None:
        await store.timed(2 * SECOND)

        assert await self.upcoming(store, SECOND) == []


class TestZombies:
    async def test_are_the_leases_of_a_silent_replica(self, store: Store, other: Store) -> None:
        await store.beat()
        await other.beat()
        lost, held = await other.start(fresh_key()), await store.start(fresh_key())
        store.clock.advance(LEASE_TIMEOUT)
        await store.beat()
        assert await store.find_zombies() == ()

        store.clock.advance(dt.timedelta(microseconds=1))
        zombies = await store.find_zombies()

        assert [(each.task_id, each.cause) for each in zombies] == [(lost.task_id, "silent")]
        assert zombies[0].started_at == lost.started_at
        assert held.task_id not in {each.task_id for each in zombies}
        await other.beat()

    async def test_are_the_leases_of_a_replica_that_has_left(self, store: Store) -> None:
        await store.beat()
        lost = await store.start(fresh_key())
        await store.replicas.retire(store.replica_id)

        assert [each.token for each in await store.find_zombies()] == [lost.token]
        await store.beat()

    async def test_are_told_with_the_trace_of_their_tasks(self, store: Store) -> None:
        await store.beat()
        traced = await store.start(fresh_key(), trace_context={"traceparent": "00-1"})
        plain = await store.start(fresh_key())
        await store.replicas.retire(store.replica_id)

        zombies = await store.find_zombies()

        assert {each.token: each.trace_context for each in zombies} == {
            traced.token: {"traceparent": "00-1"},
            plain.token: {},
        }
        await store.beat()

    async def test_are_steps_that_overran(self, store: Store) -> None:
        await store.start(fresh_key())
        store.clock.advance(EXPIRES_AFTER + dt.timedelta(microseconds=1))
        await store.beat()

        assert [each.cause for each in await store.find_zombies()] == ["overrun"]

    async def test_are_leases_that_their_own_replica_does_not_know(self, store: Store) -> None:
        known, stray = await store.start(fresh_key()), await store.start(fresh_key())
        store.clock.advance(LEASE_TIMEOUT + SECOND)
        await store.beat()

        zombies = await store.find_zombies(known=[known.token])

        assert [(each.task_id, each.cause) for each in zombies] == [(stray.task_id, "unknown")]

    async def test_are_found_oldest_first_and_no_more_than_asked_for(self, store: Store) -> None:
        lost = []
        for _ in range(3):
            lost.append(await store.start(fresh_key()))
            store.clock.advance(SECOND)
        store.clock.advance(HOUR)

        zombies = await store.find_zombies(limit=2)

        assert [each.task_id for each in zombies] == [each.task_id for each in lost[:2]]
        await store.beat()

    async def test_are_collected_once_by_the_first_replica(
        self, store: Store, other: Store
    ) -> None:
        await store.start(fresh_key())
        store.clock.advance(HOUR)
        [zombie] = await store.find_zombies()

        async with asyncio.TaskGroup() as group:
            collected = [
                group.create_task(each.collect(zombie, Lost())) for each in (store, other) * 3
            ]

        written = [task.result() for task in collected]
        assert sum(type(each).__name__ == "Written" for each in written) == 1
        [again] = await store.claim_due()
        assert again.task.attempt == 2

    async def test_of_a_repair_tell_what_broke_the_process(self, store: Store) -> None:
        key = fresh_key()
        broken_by = await store.broken(key)
        await store.run_task(a_request(key, TaskType.REPAIR))
        store.clock.advance(HOUR)

        [zombie] = await store.find_zombies()
        await store.beat()

        assert (zombie.task_type, zombie.broken_by) == (TaskType.REPAIR, broken_by)

    async def test_of_a_call_keep_its_place_and_wake_the_line(self, store: Store) -> None:
        key = await store.ready()
        call = await store.run_task(a_request(key))
        later = await store.admit(a_request(key, TaskType.NOTIFY))
        store.clock.advance(HOUR)

        [zombie] = await store.find_zombies()
        await store.collect(zombie, Released())

        [again] = await store.claim_due()
        assert (again.task.task_id, again.task.attempt) == (call.task_id, 1)
        following = await store.next_of(again.task)
        assert following.task_id == later.task_id


class TestBehindDeadRows:
    async def test_a_single_slow_look_sets_no_floor(self, store: Store) -> None:
        floors = store.claims.floors
        for seconds in (9.0, 0.0, 9.0):
            floors.note([Overdue("orders", None, store.clock.now())], seconds=seconds, full=True)
            assert floors.since(["orders"]) == [None]

    async def test_a_look_that_took_long_is_followed_by_looks_from_a_floor(
        self, store: Store
    ) -> None:
        floors, until = store.claims.floors, store.clock.now()
        for seconds in (9.0, 0.05):
            floors.note([Overdue("orders", None, until)], seconds=seconds, full=True)

        assert floors.since(["orders", "else"]) == [until - FLOOR_MARGIN, None]
        store.clock.advance(0.04 * SECOND / FULL_SHARE)
        floors.note([Overdue("orders", until, until + HOUR)], seconds=9.0, full=False)
        assert floors.since(["orders"]) == [until - FLOOR_MARGIN]
        store.clock.advance(0.01 * SECOND / FULL_SHARE)
        assert floors.since(["orders"]) == [None]
        for _ in range(2):
            floors.note([], seconds=HOUR.total_seconds(), full=True)
        store.clock.advance(SECOND * FULL_SECONDS_MAX)
        assert floors.since(["orders"]) == [None]

    async def test_what_is_due_below_the_floor_is_found_by_the_next_look_at_all(
        self, store: Store
    ) -> None:
        _, below = await store.timed(NO_TIME)
        store.clock.advance(2 * FLOOR_MARGIN)
        _, above = await store.timed(NO_TIME)
        nothing = Overdue("orders", None, store.clock.now())
        for _ in range(2):
            store.claims.floors.note([nothing], seconds=0.05, full=True)

        async def overdue() -> frozenset[str]:
            return await store.claims.find_overdue(store.pool, ["orders", "void"], overdue=NO_TIME)

        assert await overdue() == {"orders"}
        assert [each.task.task_id for each in await store.claim_due()] == [above]
        assert await overdue() == frozenset()
        store.clock.advance(0.05 * SECOND / FULL_SHARE)
        assert await overdue() == {"orders"}
        assert [each.task.task_id for each in await store.claim_due()] == [below]
