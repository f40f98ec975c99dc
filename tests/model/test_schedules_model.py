"""Overlap policies on PostgreSQL against a model that knows nothing of transactions.

A course of deeds on one schedule: minutes pass, what was started ends in some way, the queue is
looked at, triggers and backfills come, the schedule is paused, resumed and given another policy.
After each deed every run is where the model has it, and each started exactly one process.
"""

import datetime as dt

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from progressor.domain.processes.intent import Complete
from progressor.domain.schedules.schedule import (
    Decision,
    OverlapPolicy,
    ScheduleRun,
    ScheduleRunCause,
    Upcoming,
    decide,
)
from tests.support.models.machine import StoredMachine
from tests.support.storage.schedules import MINUTE, a_spec, process_of, schedule_store
from tests.support.storage.store import BROKEN, empty, success

POLICIES = st.sampled_from(OverlapPolicy)
QUEUED_POLICIES = POLICIES.filter(lambda one: one is not OverlapPolicy.CANCEL_PREVIOUS)


class ScheduleMachine(StoredMachine):
    """One schedule; the model is where each run is, by its instant: a word of ScheduleRunState."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.machinery.clock
        self.timetable = schedule_store(self.machinery.stores[0])
        self.paused = False
        self.states: dict[dt.datetime, str] = {}
        self.queue: dict[dt.datetime, tuple[OverlapPolicy, bool]] = {}
        """By the instant: the policy, and whether it is of a backfill."""
        empty(self.machinery.observer, keep=("namespaces", "replicas"))

    @initialize(policy=POLICIES)
    def create(self, policy: OverlapPolicy) -> None:
        self.policy = policy
        self.schedule = self.do(self.timetable.create(a_spec(overlap_policy=policy)))
        assert self.schedule.upcoming is not None
        self.next = self.schedule.upcoming.instant

    @rule()
    def a_minute_passes(self) -> None:
        self.clock.advance(self.next - self.clock.now())
        self.do(self.timetable.run_due())
        if not self.paused:
            self._run(self.next, self.policy, ScheduleRunCause.TIME)
        self.next += MINUTE

    @rule()
    def another_minute_passes(self) -> None:
        self.a_minute_passes()

    @rule()
    def look_at_queue(self) -> None:
        self.do(self.timetable.look_at_queue())
        if not self.queue:
            return
        instant = min(self.queue)
        policy, _ = self.queue[instant]
        decision = decide(
            policy,
            ScheduleRunCause.BACKFILL,
            is_at_work=bool(self._at_work()),
            has_queued=False,
        )
        if decision is not Decision.QUEUE:
            del self.queue[instant]
            self.states[instant] = "running" if decision is Decision.START else "skipped"

    @rule(which=st.integers(0, 5), how=st.sampled_from(["done", "failed", "gone"]))
    def end(self, which: int, how: str) -> None:
        at_work = self._at_work()
        if not at_work:
            return
        instant, store = at_work[which % len(at_work)], self.timetable.store
        [run] = [each for each in self._runs() if each.instant == instant]
        if how == "gone":
            self.do(store.remove(process_of(run)))
        else:
            [claimed] = self.do(store.claim(process_of(run), run.task_id))
            outcome = success(Complete(result=b"")) if how == "done" else BROKEN
            self.do(store.settled(claimed.task, outcome))
        self.states[instant] = how

    @rule(policy=st.none() | POLICIES)
    def trigger(self, policy: OverlapPolicy | None) -> None:
        self.clock.advance(dt.timedelta(milliseconds=1))
        key = self.schedule.key
        self.do(self.timetable.schedule_runs.trigger(key, policy=policy, idempotency_key=None))
        self._run(self.clock.now(), policy or self.policy, ScheduleRunCause.TRIGGER)

    @rule(ago=st.integers(1, 9), count=st.integers(1, 4), policy=QUEUED_POLICIES)
    def backfill(self, ago: int, count: int, policy: OverlapPolicy) -> None:
        instants = [self.next - (ago + 1 + number) * MINUTE for number in range(count)]
        schedule = self.do(self.timetable.schedules.get(self.schedule.key))
        upcoming = [Upcoming(instant, instant) for instant in instants]
        self.do(self.timetable.schedules.backfill(schedule, upcoming, policy))
        for each in instants:
            if self.states.get(each) in {None, "skipped"}:
                self.states[each] = "queued"
                self.queue[each] = (policy, True)

    @rule()
    def pause_or_resume(self) -> None:
        schedules = self.timetable.schedules
        change = schedules.resume if self.paused else schedules.pause
        self.do(change(self.schedule.key, note="", expected_revision=0))
        self.paused = not self.paused

    @rule(policy=POLICIES)
    def change_policy(self, policy: OverlapPolicy) -> None:
        spec = a_spec(overlap_policy=policy)
        self.do(self.timetable.schedules.update(self.schedule.key, spec, expected_revision=0))
        self.policy = policy

    @invariant()
    def every_run_is_where_the_model_has_it(self) -> None:
        runs = self._runs()
        assert {run.instant: run.state.value for run in runs} == self.states
        started = [run.task_id for run in runs if run.task_id is not None]
        assert len(set(started)) == len(started)
        schedule = self.do(self.timetable.schedules.get(self.schedule.key))
        assert schedule.started_count == len(started)
        assert (schedule.upcoming is None) is self.paused

    def _run(self, instant: dt.datetime, policy: OverlapPolicy, cause: ScheduleRunCause) -> None:
        has_queued = not all(is_backfill for _, is_backfill in self.queue.values())
        at_work = self._at_work()
        match decide(policy, cause, is_at_work=bool(at_work), has_queued=has_queued):
            case Decision.START:
                if policy is OverlapPolicy.CANCEL_PREVIOUS:
                    self.states |= dict.fromkeys(at_work, "cancelled")
                self.states[instant] = "running"
            case Decision.QUEUE:
                self.queue[instant] = (policy, False)
                self.states[instant] = "queued"
            case Decision.SKIP:
                self.states[instant] = "skipped"

    def _at_work(self) -> list[dt.datetime]:
        return sorted(each for each, state in self.states.items() if state == "running")

    def _runs(self) -> list[ScheduleRun]:
        return list(self.do(self.timetable.last(self.schedule)))


def test_every_run_is_where_the_model_has_it(own_database: str) -> None:
    ScheduleMachine.check(own_database, steps=25)
