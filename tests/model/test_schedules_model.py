"""Overlap policies on PostgreSQL against a model that knows nothing of transactions.

A course of deeds on one schedule: minutes pass, what was started ends in some way, the queue is
looked at, triggers and backfills come, the schedule is paused, resumed and given another policy.
After each deed every run is where the model has it, and each started exactly one process.
"""

import asyncio
import dataclasses
import datetime as dt
from typing import Literal

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from progressor.domain.processes.intent import Complete
from progressor.domain.processes.process import process_key
from progressor.domain.schedules.schedule import (
    Decision,
    OverlapPolicy,
    Schedule,
    ScheduleRun,
    ScheduleRunCause,
    Upcoming,
    decide,
    decide_queued,
)
from tests.support.clock import ManualClock
from tests.support.storage.schedules import MINUTE, ScheduleStore, a_spec, schedule_store
from tests.support.storage.store import BROKEN, create_namespace, empty, running_stores, success

How = Literal["done", "failed", "gone"]
POLICIES = list(OverlapPolicy)


@dataclasses.dataclass(frozen=True)
class Tick:
    """A minute passes, and what is due is run."""


@dataclasses.dataclass(frozen=True)
class Look:
    """The queue is looked at."""


@dataclasses.dataclass(frozen=True)
class End:
    """One of what is at work ends."""

    which: int
    how: How


@dataclasses.dataclass(frozen=True)
class Trigger:
    """It is triggered."""

    policy: OverlapPolicy | None


@dataclasses.dataclass(frozen=True)
class Backfill:
    """Minutes before now are backfilled, from some on, so many."""

    ago: int
    count: int
    policy: OverlapPolicy


@dataclasses.dataclass(frozen=True)
class Pause:
    """It is paused, or goes on."""


@dataclasses.dataclass(frozen=True)
class Change:
    """It has another policy from now on."""

    policy: OverlapPolicy


Deed = Tick | Look | End | Trigger | Backfill | Pause | Change

DEEDS = st.lists(
    st.one_of(
        st.builds(Tick),
        st.builds(Tick),
        st.builds(Look),
        st.builds(Look),
        st.builds(End, st.integers(0, 5), st.sampled_from(["done", "failed", "gone"])),
        st.builds(Trigger, st.one_of(st.none(), st.sampled_from(POLICIES))),
        st.builds(
            Backfill,
            st.integers(1, 9),
            st.integers(1, 4),
            st.sampled_from([it for it in POLICIES if it is not OverlapPolicy.CANCEL_PREVIOUS]),
        ),
        st.builds(Pause),
        st.builds(Change, st.sampled_from(POLICIES)),
    ),
    max_size=25,
)


class Model:
    """Where each run is, by its instant: a word of ScheduleRunState."""

    def __init__(self, policy: OverlapPolicy, now: dt.datetime) -> None:
        self.policy = policy
        self.paused = False
        self.next = now + MINUTE
        self.states: dict[dt.datetime, str] = {}
        self.queue: dict[dt.datetime, tuple[OverlapPolicy, bool]] = {}
        """By the instant: the policy, and whether it is of a backfill."""

    @property
    def at_work(self) -> list[dt.datetime]:
        return sorted(it for it, state in self.states.items() if state == "running")

    def run(self, instant: dt.datetime, policy: OverlapPolicy, cause: ScheduleRunCause) -> None:
        has_queued = not all(is_backfill for _, is_backfill in self.queue.values())
        match decide(policy, cause, is_at_work=bool(self.at_work), has_queued=has_queued):
            case Decision.START:
                if policy is OverlapPolicy.CANCEL_PREVIOUS:
                    self.states |= dict.fromkeys(self.at_work, "cancelled")
                self.states[instant] = "running"
            case Decision.QUEUE:
                self.queue[instant] = (policy, False)
                self.states[instant] = "queued"
            case Decision.SKIP:
                self.states[instant] = "skipped"

    def look(self) -> None:
        if not self.queue:
            return
        instant = min(self.queue)
        policy, _ = self.queue[instant]
        decision = decide_queued(policy, is_at_work=bool(self.at_work))
        if decision is not Decision.QUEUE:
            del self.queue[instant]
            self.states[instant] = "running" if decision is Decision.START else "skipped"

    def backfill(self, instants: list[dt.datetime], policy: OverlapPolicy) -> None:
        for each in instants:
            if self.states.get(each) in {None, "skipped"}:
                self.states[each] = "queued"
                self.queue[each] = (policy, True)


class Play:
    """The same deeds, done to both."""

    def __init__(self, timetable: ScheduleStore, clock: ManualClock, schedule: Schedule) -> None:
        self.timetable, self.clock, self.schedule = timetable, clock, schedule
        self.model = Model(schedule.spec.timing.overlap_policy, clock.now())

    async def do(self, deed: Deed) -> None:  # noqa: C901  one case for each deed
        timetable, model, key = self.timetable, self.model, self.schedule.key
        match deed:
            case Tick():
                self.clock.advance(model.next - self.clock.now())
                await timetable.run_due()
                if not model.paused:
                    model.run(model.next, model.policy, ScheduleRunCause.TIME)
                model.next += MINUTE
            case Look():
                await timetable.look_at_queue()
                model.look()
            case End(which, how):
                if model.at_work:
                    await self._end(model.at_work[which % len(model.at_work)], how)
            case Trigger(policy):
                self.clock.advance(dt.timedelta(milliseconds=1))
                await timetable.schedule_runs.trigger(key, policy=policy, idempotency_key=None)
                model.run(self.clock.now(), policy or model.policy, ScheduleRunCause.TRIGGER)
            case Backfill(ago, count, policy):
                past = model.next - (ago + 1) * MINUTE
                instants = [past - n * MINUTE for n in range(count)]
                schedule = await timetable.schedules.get(key)
                upcoming = [Upcoming(it, it) for it in instants]
                await timetable.schedules.backfill(schedule, upcoming, policy)
                model.backfill(instants, policy)
            case Pause():
                change = timetable.schedules.resume if model.paused else timetable.schedules.pause
                await change(key, note="", expected_revision=0)
                model.paused = not model.paused
            case Change(policy):
                spec = a_spec(overlap_policy=policy)
                await timetable.schedules.update(key, spec, expected_revision=0)
                model.policy = policy

    async def _end(self, instant: dt.datetime, how: How) -> None:
        store = self.timetable.store
        [run] = [it for it in await self.runs() if it.instant == instant]
        key = process_key("orders", run.process_id or "")
        if how == "gone":
            await store.writes.remove(key)
        else:
            [claimed] = await store.claim(key, run.task_id)
            await store.settled(
                claimed.task, success(Complete(result=b"")) if how == "done" else BROKEN
            )
        self.model.states[instant] = how

    async def runs(self) -> list[ScheduleRun]:
        return list(await self.timetable.last(self.schedule))

    async def judge(self) -> None:
        runs = await self.runs()
        assert {it.instant: it.state.value for it in runs} == dict(
            sorted(self.model.states.items())
        )
        started = [it.task_id for it in runs if it.task_id is not None]
        assert len(set(started)) == len(started)
        schedule = await self.timetable.schedules.get(self.schedule.key)
        assert schedule.started_count == len(started)
        assert (schedule.upcoming is None) is self.model.paused


async def run(database: str, policy: OverlapPolicy, deeds: list[Deed]) -> None:
    clock = ManualClock()
    async with running_stores(database, clock=clock) as (store,):
        timetable = schedule_store(store)
        schedule = await timetable.create(a_spec(overlap_policy=policy))
        play = Play(timetable, clock, schedule)
        for deed in deeds:
            await play.do(deed)
            await play.judge()


def test_every_run_is_where_the_model_has_it(database: str) -> None:
    create_namespace(database)
    with psycopg.connect(database, autocommit=True) as observer:

        @settings(settings())
        @given(policy=st.sampled_from(POLICIES), deeds=DEEDS)
        def agrees(policy: OverlapPolicy, deeds: list[Deed]) -> None:
            empty(observer, keep=("namespaces", "replicas"))
            asyncio.run(run(database, policy, deeds))

        agrees()
