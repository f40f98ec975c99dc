"""A schedule: starts a process, calls one or submits a job on time. Source: DESIGN, section 9.

A *run* is one instant of a schedule. What it starts, its record and the schedule's step to the
next instant are one transaction under the lock of the schedule's row: neither a lease nor a key
alone would ensure that it runs once, since a process may have been removed, by itself or by
retention, before a slow replica reaches the same instant again.
``priv/functions/schedules/run_schedules.sql`` does it; `decide` is its table.

================  ===========  ============================  =====================================
overlap policy    none at      an earlier one is at work     it is, and a run is queued
                  work
================  ===========  ============================  =====================================
skip              started      skipped                       skipped
queue one         started      queued                        skipped (in a backfill: queued)
allow             started      started                       started
cancel previous   started      the earlier ones are          as before; what was queued goes on
                               cancelled, then started       waiting
================  ===========  ============================  =====================================

The scan starts a queued run once no other run is at work. If none is at work and one is queued,
that one is about to start, and a new run is decided as if it had started.
"""

import dataclasses
import datetime as dt
import enum
import hashlib
import itertools
from collections.abc import Iterator, Mapping

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskError, TaskType
from progressor.domain.schedules.cron import CronClock

SCHEDULE_ID_BYTES_MAX = 128
NOTE_BYTES_MAX = 1024
INTERVAL_MIN = dt.timedelta(seconds=1)
INTERVAL_MAX = dt.timedelta(days=366 * 10)
JITTER_MAX = dt.timedelta(days=1)
CATCH_UP_MIN = dt.timedelta(seconds=1)
CATCH_UP_MAX = dt.timedelta(days=366)
CATCH_UP_DEFAULT = dt.timedelta(days=1)
"""So a daily run survives a downtime of hours."""

BACKFILL_MAX = 1000
"""Instants of one backfill."""

BACKFILL_SPAN_MAX = dt.timedelta(days=366 * 10)
"""The span of one backfill, from first to last instant: its cost grows with each day."""

NEXT_HORIZON = dt.timedelta(days=366 * 10)
"""How far ahead next instants are shown. Finding one takes a look at each day up to it:
2,800 years for a hundred leap days that are Sundays."""

MISSED_PER_PASS_MAX = 1000
"""Instants that one look counts as missed; what is more is counted by the next."""

TEMPLATE_DEFAULT = "{schedule_id}/{instant}"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_SHARES = 2**32


class OverlapPolicy(enum.StrEnum):
    """What a run does while another is at work; equals the SQL enum ``overlap_policy``."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


class ScheduleRunCause(enum.StrEnum):
    """What made a run. Members and order equal the SQL enum ``schedule_run_cause``."""

    TIME = "time"
    TRIGGER = "trigger"
    BACKFILL = "backfill"


class ScheduleRunState(enum.StrEnum):
    """Where a run is. Members and order equal the SQL enum ``schedule_run_state``.

    QUEUED waits; RUNNING: what it started is not known to have ended. The others are final.
    """

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"


class Decision(enum.StrEnum):
    START = "start"
    QUEUE = "queue"
    SKIP = "skip"


@dataclasses.dataclass(frozen=True, slots=True)
class CronTimes:
    """Instants by the clock on the wall; see `cron.CronClock`."""

    expression: str
    time_zone: str


@dataclasses.dataclass(frozen=True, slots=True)
class IntervalTimes:
    """Instants at equal distances, INTERVAL_MIN or more, of which ``anchor`` is one."""

    every: dt.timedelta
    anchor: dt.datetime = EPOCH


Times = CronTimes | IntervalTimes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StartTarget:
    template: str = TEMPLATE_DEFAULT
    args: bytes = b""
    caller_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, object] | None = None
    history_range: HistoryRange | None = None
    constraints: Constraints | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallTarget:
    """Calls or notifies a process at each run; ``task_type`` is one of these two."""

    task_type: TaskType
    process_id: str
    args: bytes = b""
    caller_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    history_range: HistoryRange | None = None
    constraints: Constraints | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobTarget:
    """Submits a job at each run; ``template`` makes its id, ``timeout`` is counted from then."""

    nodes: tuple[NodeSpec, ...]
    template: str = TEMPLATE_DEFAULT
    timeout: dt.timedelta | None = None
    caller_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, object] | None = None


Target = StartTarget | CallTarget | JobTarget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule runs: all that its instants, and what is late, follow from."""

    times: Times
    jitter: dt.timedelta = dt.timedelta()
    start_at: dt.datetime | None = None
    end_at: dt.datetime | None = None
    overlap_policy: OverlapPolicy = OverlapPolicy.SKIP
    catch_up_window: dt.timedelta = CATCH_UP_DEFAULT

    def has_instants_of(self, other: "Timing") -> bool:
        """Return whether both run at the same instants, with the same jitter."""
        policy, window = other.overlap_policy, other.catch_up_window
        return dataclasses.replace(self, overlap_policy=policy, catch_up_window=window) == other


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    timing: Timing
    target: Target


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduleKey:
    """Which schedule. ``slot`` is that of a process with its id."""

    slot: int
    namespace: str
    schedule_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Upcoming:
    """An instant to come, and when it is due: ``jitter`` later at most, before the next instant."""

    instant: dt.datetime
    due_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as it stands. ``upcoming`` is None for one that is paused or has ended."""

    key: ScheduleKey
    spec: ScheduleSpec
    paused: bool
    note: str
    revision: int
    created_at: dt.datetime
    updated_at: dt.datetime
    upcoming: Upcoming | None
    started_count: int
    skipped_count: int
    missed_count: int
    refused_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    instant: dt.datetime
    cause: ScheduleRunCause
    state: ScheduleRunState
    due_at: dt.datetime
    recorded_at: dt.datetime
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    process_id: str | None = None
    task_id: int | None = None
    error: TaskError | None = None
    missed_count: int = 0
    missed_until: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Missed:
    """Instants at which no replica ran the schedule in time: the first, the last, the count."""

    first: Upcoming
    until: dt.datetime
    count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done with a schedule that is due, and what is due next; None: it has ended."""

    what: Upcoming | Missed
    then: Upcoming | None


def schedule_key(namespace: str, schedule_id: str) -> ScheduleKey:
    return ScheduleKey(process_key(namespace, schedule_id).slot, namespace, schedule_id)


class Calendar:
    __slots__ = ("_cron", "_key", "_timing")

    def __init__(self, key: ScheduleKey, timing: Timing) -> None:
        """Read the times; raises CronError if the expression or the time zone is invalid."""
        self._key = key
        self._timing = timing
        self._cron: CronClock | None = None
        if isinstance(timing.times, CronTimes):
            self._cron = CronClock(timing.times.expression, timing.times.time_zone)

    def upcoming(self, after: dt.datetime, until: dt.datetime | None = None) -> Upcoming | None:
        """Return the first instant after `after`, up to `until`, within start and end, if any."""
        start_at, end_at = self._timing.start_at, self._timing.end_at
        if start_at is not None:
            after = max(after, start_at - _MICROSECOND)
        if end_at is not None:
            until = end_at if until is None else min(until, end_at)
        instant = self._instant_after(after, until)
        return None if instant is None else self._with_jitter(instant)

    def following(self, after: dt.datetime, until: dt.datetime | None = None) -> Iterator[Upcoming]:
        """Yield what comes after `after`, in order; without end if neither it nor `until` ends."""
        upcoming = self.upcoming(after, until)
        while upcoming is not None:
            yield upcoming
            upcoming = self.upcoming(upcoming.instant, until)

    def next(self, first: Upcoming, count: int) -> list[Upcoming]:
        """Return `first` and at most `count` - 1 after it, within the horizon."""
        until = _later(first.instant, NEXT_HORIZON)
        return [first, *itertools.islice(self.following(first.instant, until), count - 1)]

    def between(self, since: dt.datetime, until: dt.datetime, limit: int) -> list[Upcoming]:
        """Return at most `limit` instants from `since` to before `until`, whatever its start."""
        found: list[Upcoming] = []
        last = until - _MICROSECOND
        instant = self._instant_after(since - _MICROSECOND, last)
        while instant is not None and len(found) < limit:
            found.append(self._with_jitter(instant))
            instant = self._instant_after(instant, last)
        return found

    def plan(self, due: Upcoming, now: dt.datetime) -> Plan:
        oldest = now - self._timing.catch_up_window
        if due.due_at >= oldest:
            return Plan(what=due, then=self.upcoming(due.instant))
        last, count = due.instant, 0
        then: Upcoming | None = due
        while then is not None and then.due_at < oldest and count < MISSED_PER_PASS_MAX:
            last, count = then.instant, count + 1
            then = self.upcoming(last)
        return Plan(what=Missed(due, last, count), then=then)

    def _instant_after(
        self, after: dt.datetime, until: dt.datetime | None = None
    ) -> dt.datetime | None:
        match self._timing.times:
            case IntervalTimes(every, anchor):
                instant = anchor + ((after - anchor) // every + 1) * every
                return None if until is not None and instant > until else instant
            case CronTimes():
                assert self._cron is not None, "a calendar by cron has a clock"
                return self._cron.after(after, until)

    def _with_jitter(self, instant: dt.datetime) -> Upcoming:
        jitter = self._timing.jitter
        if not jitter:
            return Upcoming(instant, instant)
        following = self._instant_after(instant, _later(instant, jitter))
        if following is not None:
            jitter = min(jitter, following - instant)
        return Upcoming(instant, instant + jitter * _share(self._key, instant))


def decide(
    policy: OverlapPolicy, cause: ScheduleRunCause, *, is_at_work: bool, has_queued: bool
) -> Decision:
    """Return what becomes of a new run; `run_schedules` is held to this by a test.

    `is_at_work`: what an earlier run started has not ended; `has_queued`: another run, not of a
    backfill, is queued. The oldest queued run is decided as that of a backfill with nothing else
    queued, whatever made it; QUEUE: it stays queued.
    """
    match policy:
        case OverlapPolicy.ALLOW | OverlapPolicy.CANCEL_PREVIOUS:
            return Decision.START
        case OverlapPolicy.SKIP:
            return Decision.SKIP if is_at_work else Decision.START
        case OverlapPolicy.QUEUE_ONE:
            if not is_at_work and not has_queued:
                return Decision.START
            if cause is ScheduleRunCause.BACKFILL or not (is_at_work and has_queued):
                return Decision.QUEUE
            return Decision.SKIP


def target_id(template: str, schedule_id: str, instant: dt.datetime) -> str:
    """Return the id that a template makes for a run; any other text stays as it is."""
    return template.replace("{instant}", instant_text(instant)).replace(
        "{schedule_id}", schedule_id
    )


def instant_text(instant: dt.datetime) -> str:
    """Return an instant as ids have it: UTC, with a fraction only where there is one."""
    return instant.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def run_key(schedule_id: str, instant: dt.datetime) -> str:
    """Return the idempotency key of a run, at most 170 bytes."""
    return f"schedule/{schedule_id}/{instant_text(instant)}"


def _later(instant: dt.datetime, by: dt.timedelta) -> dt.datetime:
    """Return a later instant, or the last one that can be represented."""
    return instant + min(by, _LAST - instant)


def _share(key: ScheduleKey, instant: dt.datetime) -> float:
    """Return a number from 0 to 1 that all replicas agree on."""
    text = f"{key.namespace}\0{key.schedule_id}\0{(instant - EPOCH) // _MICROSECOND}"
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest) / _SHARES
