"""Schedules as clients see them: what is done, when, and what became of it.

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
    """What a firing does while what an earlier one started has not ended.

    SKIP: it starts nothing; QUEUE_ONE: it waits for the end, and is the only one to wait; ALLOW: it
    starts; CANCEL_PREVIOUS: it has the earlier ones cancelled, and starts. UNSPECIFIED: SKIP, or
    where it stands in for another one: that.
    """

    UNSPECIFIED = "unspecified"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


class FiringState(WireEnum):
    """Where a firing is. UNSPECIFIED: a state that only a newer SDK knows.

    QUEUED: it waits for an earlier one; RUNNING: what it started has not ended; DONE, FAILED,
    CANCELLED: how that has; GONE: that was removed; SKIPPED: it started nothing, by its overlap
    policy; MISSED: it was older than the catch-up window; REFUSED: it could not start anything.
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
        """Whether nothing more happens to it."""
        return self not in {FiringState.UNSPECIFIED, FiringState.QUEUED, FiringState.RUNNING}


class FiringCause(WireEnum):
    """What made a firing. UNSPECIFIED: a cause that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    TIME = "time"
    TRIGGER = "trigger"
    BACKFILL = "backfill"


@dataclasses.dataclass(frozen=True, slots=True)
class Cron:
    """Instants by a clock on the wall, as in ``Cron("30 2 * * mon", "Europe/Berlin")``.

    ``expression``: minute, hour, day of month, month, day of week; or six fields, the first of them
    seconds; or @hourly, @daily and so on. ``time_zone``: of the IANA database; "": UTC. What
    becomes of hours that clocks leave out or repeat, schedule_service.proto says.
    """

    expression: str
    time_zone: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Every:
    """Instants at equal distances, 1 s or more, whatever clocks on the wall do.

    ``anchor``: one of them, from which the others are counted; None: the epoch.
    """

    interval: Seconds
    anchor: dt.datetime | None = None


Times: TypeAlias = Cron | Every


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledStart:
    """Each firing starts a process.

    ``process_id_template``: its id, with {instant}, which must be there, and {schedule_id} to be
    filled in; "": "{schedule_id}/{instant}".
    """

    args: Payload = None
    process_id_template: str = dataclasses.field(default="", kw_only=True)
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    metadata: Mapping[str, Payload] | None = dataclasses.field(default=None, kw_only=True)
    history: HistoryRange | None = dataclasses.field(default=None, kw_only=True)
    constraints: Constraints | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledCall:
    """Each run calls a process. No caller waits for the response, which is kept with the task."""

    process_id: str
    args: Payload = None
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    history: HistoryRange | None = dataclasses.field(default=None, kw_only=True)
    constraints: Constraints | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledNotify:
    """Each firing notifies a process."""

    process_id: str
    args: Payload = None
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    history: HistoryRange | None = dataclasses.field(default=None, kw_only=True)
    constraints: Constraints | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledJob:
    """Each firing submits a job; its nodes cannot choose the ids of their processes.

    ``job_id_template``: as that of `ScheduledStart`. ``timeout``: when the job fails if it has not
    ended, seconds or a timedelta from the firing on; None: never.
    """

    graph: Graph
    job_id_template: str = dataclasses.field(default="", kw_only=True)
    timeout: Seconds | None = dataclasses.field(default=None, kw_only=True)
    context: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    metadata: Mapping[str, Payload] | None = dataclasses.field(default=None, kw_only=True)


Target: TypeAlias = ScheduledStart | ScheduledCall | ScheduledNotify | ScheduledJob


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """What a schedule does, and when.

    ``jitter``: each firing comes up to so much later than its instant. ``start_at``, ``end_at``: no
    instant before, and after; None: any. ``catch_up_window``: how late a firing may be after a
    downtime; later ones are missed, and counted.
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
    """A schedule as it stands; ``revision`` counts its changes, from 1.

    ``next_instant``: without jitter; ``next_at``: when that is due. None: there is none, or it is
    paused. The counts are of firings since it was made. Where List made it, its target is without
    args and nodes.
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
class Firing:
    """One firing: its ``instant`` and its schedule are its identity.

    ``due_at``: the instant and its jitter; ``fired_at``: when it was recorded; ``started_at``: when
    it started something, None: it did not; ``ended_at``: when its end was noticed.
    ``process_id``, ``task_id``: what it started or called, "" and None for nothing. Of missed ones
    ``missed_count`` tells how many, and ``missed_until`` the last.
    """

    instant: dt.datetime
    cause: FiringCause
    state: FiringState
    due_at: dt.datetime | None
    fired_at: dt.datetime | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    process_id: str
    task_id: int | None
    error: TaskError | None
    missed_count: int
    missed_until: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NextFiring:
    """A firing to come: its instant, and when it is due, with its jitter."""

    instant: dt.datetime
    due_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule, its firings to come, in order, and those of the past, the latest first."""

    schedule: Schedule
    next_firings: tuple[NextFiring, ...]
    last_firings: tuple[Firing, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """How many instants a span has, and how many of them are queued by this."""

    instant_count: int
    queued_count: int
