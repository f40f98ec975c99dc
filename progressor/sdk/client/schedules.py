"""``client.schedules``: what schedules start, when, and what became of it.

::

    at_night = Cron("30 2 * * *", "Europe/Berlin")
    nightly = ScheduleSpec(
        times=at_night, target=ScheduledStart("sales"), overlap_policy=OverlapPolicy.SKIP
    )
    await client.schedules.create("nightly", nightly)
    run = await client.schedules.trigger("nightly")

Instants are aware datetimes in UTC. Payloads (args) are decoded.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, TypeAlias, Unpack

from progressor.domain.processes.event import HistoryRange
from progressor.sdk.client.resource import (
    RequestOptions,
    Resource,
    blocking,
    exchange,
    iterated,
    listing,
    sent,
)
from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import (
    Seconds,
    WireEnum,
    duration,
    duration_from_wire,
    instant,
    instant_to_wire,
    metadata,
    payload,
)
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.values.constraints import CONSTRAINTS, Constraints
from progressor.sdk.values.graph import Graph, graph_from_wire, nodes_to_wire
from progressor.sdk.values.processes import RANGE
from progressor.sdk.values.replies import TaskError
from progressor.v1 import schedule_service_pb2 as pb
from progressor.wire.shapes import Field, OneOf, Shape

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Scheduled:
    """What all runs of a schedule have."""

    context: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ScheduledTask(_Scheduled):
    """What runs that create a task have."""

    history: HistoryRange | None = None
    constraints: Constraints | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledStart(_ScheduledTask):
    """Each run starts a process.

    ``process_id_template``: the id of the process, with the placeholders {instant}, required, and
    {schedule_id}; "": "{schedule_id}/{instant}".
    """

    args: Payload = None
    _: dataclasses.KW_ONLY
    process_id_template: str = ""
    metadata: Mapping[str, Payload] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _ScheduledRequest(_ScheduledTask):
    """What runs that send a request to a process have."""

    process_id: str
    args: Payload = None


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledCall(_ScheduledRequest):
    """Each run calls a process. No caller waits for the response; the task stores it."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledNotify(_ScheduledRequest):
    """Each run notifies a process."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledJob(_Scheduled):
    """Each run submits a job; its nodes cannot have a ``process_id``.

    ``job_id_template``: the id of the job, as `ScheduledStart.process_id_template`. ``timeout``:
    when the job fails if it has not ended, in seconds or a timedelta from the run; None: never.
    """

    graph: Graph
    _: dataclasses.KW_ONLY
    job_id_template: str = ""
    timeout: Seconds | None = None
    metadata: Mapping[str, Payload] | None = None


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


def _write_graph(message: pb.ScheduledJob, graph: Graph, codec: Codec) -> None:
    if graph.present:
        text = f"the graph has no node {graph.present[0]!r}: each run submits a new job"
        raise ValueError(text)
    message.nodes.extend(nodes_to_wire(graph, codec))


_REQUEST: dict[str, Any] = {
    "args": payload("args"),
    "context": "caller_context",
    "history": RANGE,
    "constraints": CONSTRAINTS,
}
_SPEC = Shape(
    ScheduleSpec,
    pb.ScheduleSpec,
    times=OneOf(
        name="times",
        fallback="cron",
        shapes={
            "cron": Shape(Cron, pb.CronTimes),
            "interval": Shape(
                Every, pb.IntervalTimes, interval=duration("every"), anchor=instant("anchor")
            ),
        },
    ),
    target=OneOf(
        name="target",
        fallback="start",
        shapes={
            "start": Shape(
                ScheduledStart, pb.ScheduledStart, metadata=metadata("metadata"), **_REQUEST
            ),
            "call": Shape(ScheduledCall, pb.ScheduledCall, **_REQUEST),
            "notify": Shape(ScheduledNotify, pb.ScheduledNotify, **_REQUEST),
            "job": Shape(
                ScheduledJob,
                pb.ScheduledJob,
                graph=Field(
                    read=lambda message, _path, codec: graph_from_wire(message.nodes, codec),
                    write=_write_graph,
                ),
                timeout=duration("timeout"),
                context="caller_context",
                metadata=metadata("metadata"),
            ),
        },
    ),
    jitter=dataclasses.replace(
        duration("jitter"),
        # An engine leaves out none at all, which reads as a duration all the same.
        read=lambda message, _path, _codec: duration_from_wire(message.jitter),
    ),
    start_at=instant("start_at"),
    end_at=instant("end_at"),
    catch_up_window=duration("catch_up_window"),
)
_SCHEDULE = Shape(Schedule, pb.Schedule, spec=_SPEC)

spec_to_wire = _SPEC.message
read_spec = _SPEC.read
read_schedule = _SCHEDULE.read
read_view = Shape(ScheduleView, pb.GetScheduleResponse, schedule=_SCHEDULE).read
read_run = Shape(ScheduleRun, pb.ScheduleRun).read
read_backfilled = Shape(Backfilled, pb.BackfillScheduleResponse).read


class Schedules(Resource[Connection]):
    """The requests about schedules.

    With an `expected_revision`, a schedule is changed only at that revision; 0: at any.

    Raises:
        ScheduleNotFoundError: The schedule does not exist.
        ScheduleChangedError: The schedule is not at the expected revision.
    """

    @sent
    def create(
        self,
        schedule_id: str,
        spec: ScheduleSpec,
        *,
        paused: bool = False,
        note: str = "",
        **options: Unpack[RequestOptions],
    ) -> Exchange[Schedule]:
        """Create a schedule and return it; it first runs at its next instant from now on.

        Args:
            schedule_id: Unique within the namespace.
            spec: What it starts, and when; the client's codec encodes the args.
            paused: Create it paused; it does not run until it is resumed.
            note: For operators, at most 1,024 bytes.
            options: See `RequestOptions`; the namespace is also that of what it starts.

        Raises:
            ScheduleAlreadyExistsError: The id is taken.
            InvalidRequestError: The expression, the time zone or a node is invalid.
        """
        request = pb.CreateScheduleRequest(
            schedule_id=schedule_id, spec=spec_to_wire(spec, self.codec), paused=paused, note=note
        )
        return exchange(self, request, read_schedule, field="schedule", **options)

    @sent
    def update(
        self,
        schedule_id: str,
        spec: ScheduleSpec,
        *,
        expected_revision: int = 0,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Schedule]:
        """Replace the whole spec of a schedule, and return the schedule.

        To change one field: ``replace((await client.schedules.get(id)).schedule.spec,
        jitter=60)``, with its revision as `expected_revision`.
        """
        request = pb.UpdateScheduleRequest(
            schedule_id=schedule_id,
            spec=spec_to_wire(spec, self.codec),
            expected_revision=expected_revision,
        )
        return exchange(self, request, read_schedule, field="schedule", **options)

    @sent
    def get(
        self,
        schedule_id: str,
        *,
        next_count: int | None = None,
        last_count: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Exchange[ScheduleView]:
        """Return a schedule with its next and its last runs.

        `next_count` and `last_count` are at most 100; None: 5 next and 10 last runs.
        """
        request = pb.GetScheduleRequest(
            schedule_id=schedule_id, next_count=next_count, last_count=last_count
        )
        return exchange(self, request, read_view, repeatable=True, **options)

    @iterated
    def list(self, *, page_size: int = 100, **options: Unpack[RequestOptions]) -> Listing[Schedule]:
        """Iterate over the schedules of a namespace in the order of their ids, page by page."""
        request = pb.ListSchedulesRequest(page_size=page_size)
        return listing(self, request, read_schedule, "schedules", **options)

    @sent
    def delete(
        self,
        schedule_id: str,
        *,
        expected_revision: int = 0,
        **options: Unpack[RequestOptions],
    ) -> Exchange[None]:
        """Delete a schedule and the record of its runs; what it started continues."""
        request = pb.DeleteScheduleRequest(
            schedule_id=schedule_id, expected_revision=expected_revision
        )
        return exchange(self, request, nothing, **options)

    @sent
    def pause(
        self,
        schedule_id: str,
        *,
        note: str = "",
        expected_revision: int = 0,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Schedule]:
        """Pause a schedule until it is resumed, and return it."""
        request = pb.PauseScheduleRequest(
            schedule_id=schedule_id, note=note, expected_revision=expected_revision
        )
        return exchange(self, request, read_schedule, field="schedule", **options)

    @sent
    def resume(
        self,
        schedule_id: str,
        *,
        note: str = "",
        expected_revision: int = 0,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Schedule]:
        """Let a schedule run again, from its next instant on, and return it.

        Instants during the pause are not made up for; see `backfill`.
        """
        request = pb.ResumeScheduleRequest(
            schedule_id=schedule_id, note=note, expected_revision=expected_revision
        )
        return exchange(self, request, read_schedule, field="schedule", **options)

    @sent
    def trigger(
        self,
        schedule_id: str,
        *,
        overlap_policy: OverlapPolicy = OverlapPolicy.UNSPECIFIED,
        idempotency_key: str = "",
        **options: Unpack[RequestOptions],
    ) -> Exchange[ScheduleRun]:
        """Run a schedule now, even if it is paused, and return the run.

        The run may be queued, skipped or refused, as its state says. `overlap_policy` replaces
        the schedule's own, unless it is UNSPECIFIED. The request is repeated only with an
        idempotency key.
        """
        request = pb.TriggerScheduleRequest(
            schedule_id=schedule_id,
            overlap_policy=overlap_policy.number,
            idempotency_key=idempotency_key,
        )
        return exchange(
            self, request, read_run, field="run", repeatable=bool(idempotency_key), **options
        )

    @sent
    def backfill(
        self,
        schedule_id: str,
        since: dt.datetime,
        until: dt.datetime,
        *,
        overlap_policy: OverlapPolicy = OverlapPolicy.UNSPECIFIED,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Backfilled]:
        """Run the past instants of a range that have not run yet.

        Args:
            schedule_id: The id of the schedule.
            since: The start of the range, inclusive; an aware datetime.
            until: The end of the range, exclusive; not in the future. At most 1,000 instants lie
                in the range.
            overlap_policy: Any but CANCEL_PREVIOUS; UNSPECIFIED: ALLOW.
            options: See `RequestOptions`.

        Raises:
            ValueError: A datetime has no time zone.
        """
        request = pb.BackfillScheduleRequest(
            schedule_id=schedule_id,
            since=instant_to_wire(since),
            until=instant_to_wire(until),
            overlap_policy=overlap_policy.number,
        )
        # An instant runs only once, even if it is requested again.
        return exchange(self, request, read_backfilled, repeatable=True, **options)


class SyncSchedules(Resource[BlockingConnection]):
    """`Schedules` for programs without an event loop: blocking, safe in any thread."""

    create = blocking(Schedules.create)
    update = blocking(Schedules.update)
    get = blocking(Schedules.get)
    list = blocking(Schedules.list)
    delete = blocking(Schedules.delete)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)
    trigger = blocking(Schedules.trigger)
    backfill = blocking(Schedules.backfill)
