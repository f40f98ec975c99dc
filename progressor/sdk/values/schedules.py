"""Schedules as clients see them: what they start, when, and what became of it.

::

    ScheduleSpec(
        times=Cron("30 2 * * *", "Europe/Berlin"),
        target=ScheduledStart({"report": "sales"}),
        overlap_policy=OverlapPolicy.SKIP,
    )

Instants are aware datetimes in UTC. Payloads (args) are decoded.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import TypeAlias

from progressor.sdk.codec.codecs import Payload
from progressor.sdk.codec.wire import Seconds, WireEnum
from progressor.sdk.values.constraints import Constraints
from progressor.sdk.values.graph import Graph
from progressor.sdk.values.processes import HistoryRange, TaskError

CATCH_UP_WINDOW_DEFAULT = dt.timedelta(days=1)


class OverlapPolicy(WireEnum):
    """What a run does while the process or job of an earlier one has not ended.

    SKIP: start nothing. QUEUE_ONE: wait for its end; at most one run waits. ALLOW: start.
    CANCEL_PREVIOUS: cancel the earlier ones, and start. UNSPECIFIED: SKIP; in a request, the
    policy of the schedule.
    """

    UNSPECIFIED = "unspecified"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


class ScheduleRunState(WireEnum):
    """The state of a run. UNSPECIFIED: a state that only a newer SDK knows.

    QUEUED: waits for an earlier one. RUNNING: what it started has not ended. DONE, FAILED,
    CANCELLED: how that ended. GONE: that was removed. SKIPPED: nothing was started, by the overlap
    policy. MISSED: it was older than the catch-up window. REFUSED: the start failed.
    """

    UNSPECIFIED = "unspecified"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self not in {
            ScheduleRunState.UNSPECIFIED,
            ScheduleRunState.QUEUED,
            ScheduleRunState.RUNNING,
        }


class ScheduleRunCause(WireEnum):
    """What caused a run. UNSPECIFIED: a cause that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    TIME = "time"
    TRIGGER = "trigger"
    BACKFILL = "backfill"


@dataclasses.dataclass(frozen=True, slots=True)
class Cron:
    """Instants by local time, as in ``Cron("30 2 * * mon", "Europe/Berlin")``.

    ``expression``: minute, hour, day of month, month, day of week; or six fields, beginning with
    seconds; or @hourly, @daily and so on. ``time_zone``: a name of the IANA database; "": UTC.
    schedule_service.proto documents the hours that a change of daylight saving time skips or
    repeats.
    """

    expression: str
    time_zone: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Every:
    """Instants at a fixed interval of at least 1 s, independent of local time.

    ``anchor``: one of the instants; None: the epoch.
    """

    interval: Seconds
    anchor: dt.datetime | None = None


Times: TypeAlias = Cron | Every


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledStart:
    """Each run starts a process.

    ``process_id_template``: the id of the process, with the placeholders {instant}, required, and
    {schedule_id}; "": "{schedule_id}/{instant}".
    """

    args: Payload = None
    process_id_template: str = dataclasses.field(default="", kw_only=True)
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    metadata: Mapping[str, Payload] | None = dataclasses.field(default=None, kw_only=True)
    history: HistoryRange | None = dataclasses.field(default=None, kw_only=True)
    constraints: Constraints | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledCall:
    """Each run calls a process. No caller waits for the response; the task stores it."""

    process_id: str
    args: Payload = None
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    history: HistoryRange | None = dataclasses.field(default=None, kw_only=True)
    constraints: Constraints | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledNotify:
    """Each run notifies a process."""

    process_id: str
    args: Payload = None
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    history: HistoryRange | None = dataclasses.field(default=None, kw_only=True)
    constraints: Constraints | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledJob:
    """Each run submits a job; its nodes cannot have a ``process_id``.

    ``job_id_template``: the id of the job, as `ScheduledStart.process_id_template`. ``timeout``:
    when the job fails if it has not ended, in seconds or a timedelta from the run; None: never.
    """

    graph: Graph
    job_id_template: str = dataclasses.field(default="", kw_only=True)
    timeout: Seconds | None = dataclasses.field(default=None, kw_only=True)
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    metadata: Mapping[str, Payload] | None = dataclasses.field(default=None, kw_only=True)


Target: TypeAlias = ScheduledStart | ScheduledCall | ScheduledNotify | ScheduledJob


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """What a schedule starts, and when.

    ``jitter``: the longest random delay of a run after its instant. ``start_at``, ``end_at``:
    the first and last possible instant; None: no limit. ``catch_up_window``: how late a run may
    be after a downtime; later ones are counted as missed.
    """

    times: Times
    target: Target
    jitter: Seconds = 0
    start_at: dt.datetime | None = None
    end_at: dt.datetime | None = None
    overlap_policy: OverlapPolicy = OverlapPolicy.SKIP
    catch_up_window: Seconds = CATCH_UP_WINDOW_DEFAULT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule; ``revision`` counts its changes, from 1.

    ``next_instant``: without jitter. ``next_at``: with jitter. Both are None if there is no next
    instant or the schedule is paused. The counts are of runs since it was created. In a list,
    its target has no args and no nodes.
    """

    namespace: str
    schedule_id: str
    spec: ScheduleSpec
    paused: bool
    note: str
    revision: int
    created_at: dt.datetime
    updated_at: dt.datetime
    next_instant: dt.datetime | None
    next_at: dt.datetime | None
    started_count: int
    skipped_count: int
    missed_count: int
    refused_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """A run of a schedule, identified by its ``instant``.

    ``due_at``: the instant with jitter. ``recorded_at``: when it was recorded. ``started_at``:
    when it started something; None: it did not. ``ended_at``: when the end of that was detected.
    ``process_id``, ``task_id``: what it started or called; "" and None: nothing. Consecutive missed
    runs are one record: ``missed_count`` is their number, ``missed_until`` the last instant.
    """

    instant: dt.datetime
    cause: ScheduleRunCause
    state: ScheduleRunState
    due_at: dt.datetime | None
    recorded_at: dt.datetime | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    process_id: str
    task_id: int | None
    error: TaskError | None
    missed_count: int
    missed_until: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """A future run; ``due_at`` is its instant with jitter."""

    instant: dt.datetime
    due_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule with its next runs, the earliest first, and its last ones, the latest first."""

    schedule: Schedule
    next_runs: tuple[NextRun, ...]
    last_runs: tuple[ScheduleRun, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """The number of instants in a range, and how many of them were queued."""

    instant_count: int
    queued_count: int
