"""Requests of ScheduleService from protobuf to domain, and schedules back."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    check_namespace_name,
    check_text,
    idempotency_key_from_wire,
    instant_from_wire,
    page_size_from_wire,
)
from progressor.api.schedules.spec_codec import (
    SPEC,
    overlap_policy_from_wire,
    spec_from_wire,
)
from progressor.domain.schedules.schedule import (
    BACKFILL_SPAN_MAX,
    NOTE_BYTES_MAX,
    SCHEDULE_ID_BYTES_MAX,
    Firing,
    FiringCause,
    FiringState,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleSpec,
    Upcoming,
    schedule_key,
)
from progressor.v1 import schedule_service_pb2 as messages
from progressor.wire import fields as wire
from progressor.wire.nodes import TASK_ERROR
from progressor.wire.shapes import UNSENT, Shape, flat

NEXT_DEFAULT, LAST_DEFAULT = 5, 10
COUNT_MAX = 100
"""Firings that one GetSchedule tells of each kind."""

_NEXT = Shape(Upcoming, messages.NextFiring)
_SCHEDULE = Shape(
    Schedule,
    messages.Schedule,
    key=flat(Shape(ScheduleKey, messages.Schedule, slot=UNSENT)),
    spec=SPEC,
    upcoming=flat(Shape(Upcoming, messages.Schedule, instant="next_instant", due_at="next_at")),
)
firing_to_wire = Shape(Firing, messages.Firing, error=TASK_ERROR).message

FIRING_STATE_TO_WIRE: Mapping[FiringState, messages.FiringState.ValueType] = MappingProxyType(
    {
        FiringState.QUEUED: messages.FIRING_STATE_QUEUED,
        FiringState.RUNNING: messages.FIRING_STATE_RUNNING,
        FiringState.DONE: messages.FIRING_STATE_DONE,
        FiringState.FAILED: messages.FIRING_STATE_FAILED,
        FiringState.CANCELLED: messages.FIRING_STATE_CANCELLED,
        FiringState.GONE: messages.FIRING_STATE_GONE,
        FiringState.SKIPPED: messages.FIRING_STATE_SKIPPED,
        FiringState.MISSED: messages.FIRING_STATE_MISSED,
        FiringState.REFUSED: messages.FIRING_STATE_REFUSED,
    }
)
FIRING_CAUSE_TO_WIRE: Mapping[FiringCause, messages.FiringCause.ValueType] = MappingProxyType(
    {
        FiringCause.TIME: messages.FIRING_CAUSE_TIME,
        FiringCause.TRIGGER: messages.FIRING_CAUSE_TRIGGER,
        FiringCause.BACKFILL: messages.FIRING_CAUSE_BACKFILL,
    }
)

Keyed = (
    messages.CreateScheduleRequest
    | messages.UpdateScheduleRequest
    | messages.GetScheduleRequest
    | messages.DeleteScheduleRequest
    | messages.PauseScheduleRequest
    | messages.ResumeScheduleRequest
    | messages.TriggerScheduleRequest
    | messages.BackfillScheduleRequest
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A CreateSchedule; the places where the nodes of a job run are not checked yet."""

    key: ScheduleKey
    spec: ScheduleSpec
    paused: bool
    note: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An UpdateSchedule; revision 0: whatever it is at."""

    key: ScheduleKey
    spec: ScheduleSpec
    expected_revision: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A GetSchedule: how many firings to come, and of the past."""

    key: ScheduleKey
    next_count: int
    last_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A ListSchedules: at most `limit` with ids above `after`."""

    namespace: str
    after: str
    limit: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A DeleteSchedule, PauseSchedule or ResumeSchedule; the note is empty for the first."""

    key: ScheduleKey
    note: str
    expected_revision: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Triggering:
    """A TriggerSchedule; None: the schedule's own policy."""

    key: ScheduleKey
    policy: OverlapPolicy | None
    idempotency_key: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A BackfillSchedule, of instants from `since` to before `until`."""

    key: ScheduleKey
    since: dt.datetime
    until: dt.datetime
    policy: OverlapPolicy


def create_from_wire(
    message: messages.CreateScheduleRequest, *, payload_bytes_max: int
) -> Creation:
    """Return a CreateSchedule."""
    violations = Violations()
    key = _key_of(message, violations)
    spec = spec_from_wire(message.spec, key, violations, payload_bytes_max=payload_bytes_max)
    check_text(message.note, "note", NOTE_BYTES_MAX, violations)
    violations.raise_any()
    assert spec is not None, "a spec that is none is a violation"
    return Creation(key=key, spec=spec, paused=message.paused, note=message.note)


def update_from_wire(message: messages.UpdateScheduleRequest, *, payload_bytes_max: int) -> Update:
    """Return an UpdateSchedule."""
    violations = Violations()
    key = _key_of(message, violations)
    spec = spec_from_wire(message.spec, key, violations, payload_bytes_max=payload_bytes_max)
    _check_revision(message.expected_revision, violations)
    violations.raise_any()
    assert spec is not None, "a spec that is none is a violation"
    return Update(key=key, spec=spec, expected_revision=message.expected_revision)


def get_from_wire(message: messages.GetScheduleRequest) -> Reading:
    """Return a GetSchedule."""
    violations = Violations()
    key = _key_of(message, violations)
    next_count = message.next_count if message.HasField("next_count") else NEXT_DEFAULT
    last_count = message.last_count if message.HasField("last_count") else LAST_DEFAULT
    for field, count in (("next_count", next_count), ("last_count", last_count)):
        if not 0 <= count <= COUNT_MAX:
            violations.add(field, f"{count} is not in 0 .. {COUNT_MAX}")
    violations.raise_any()
    return Reading(key=key, next_count=next_count, last_count=last_count)


def list_from_wire(message: messages.ListSchedulesRequest) -> Listing:
    """Return a ListSchedules."""
    violations = Violations()
    check_namespace_name(message.namespace, "namespace", violations)
    limit = page_size_from_wire(message.page_size, violations)
    after = page_tokens.schedule_of_token(message.page_token, violations)
    violations.raise_any()
    return Listing(namespace=message.namespace, after=after, limit=limit)


def change_from_wire(
    message: messages.DeleteScheduleRequest
    | messages.PauseScheduleRequest
    | messages.ResumeScheduleRequest,
) -> Change:
    """Return a DeleteSchedule, PauseSchedule or ResumeSchedule."""
    violations = Violations()
    key = _key_of(message, violations)
    note = "" if isinstance(message, messages.DeleteScheduleRequest) else message.note
    check_text(note, "note", NOTE_BYTES_MAX, violations)
    _check_revision(message.expected_revision, violations)
    violations.raise_any()
    return Change(key=key, note=note, expected_revision=message.expected_revision)


def trigger_from_wire(message: messages.TriggerScheduleRequest) -> Triggering:
    """Return a TriggerSchedule."""
    violations = Violations()
    key = _key_of(message, violations)
    policy = overlap_policy_from_wire(message.overlap_policy, "overlap_policy", violations)
    idempotency_key = idempotency_key_from_wire(message.idempotency_key, violations)
    violations.raise_any()
    return Triggering(key=key, policy=policy, idempotency_key=idempotency_key)


def backfill_from_wire(message: messages.BackfillScheduleRequest, *, now: dt.datetime) -> Backfill:
    """Return a BackfillSchedule, of what is past at `now`."""
    violations = Violations()
    key = _key_of(message, violations)
    bounds: list[dt.datetime] = []
    for field in ("since", "until"):
        if not message.HasField(field):
            violations.add(field, "must be given")
            continue
        bound = instant_from_wire(getattr(message, field), field, violations)
        if bound is not None:
            bounds.append(bound)
    policy = overlap_policy_from_wire(message.overlap_policy, "overlap_policy", violations)
    if policy is OverlapPolicy.CANCEL_PREVIOUS:
        violations.add("overlap_policy", "cancels what the backfill itself has started")
    if len(bounds) == 2:  # noqa: PLR2004  both are there
        _check_past(bounds[0], bounds[1], now, violations)
    violations.raise_any()
    since, until = bounds
    return Backfill(key=key, since=since, until=until, policy=policy or OverlapPolicy.ALLOW)


def _check_past(
    since: dt.datetime, until: dt.datetime, now: dt.datetime, violations: Violations
) -> None:
    if since >= until:
        violations.add("until", "must be after since")
    if until > now:
        violations.add("until", "must not be in the future")
    if until - since > BACKFILL_SPAN_MAX:
        violations.add("since", f"must be at most {BACKFILL_SPAN_MAX.days} days before until")


def schedule_to_wire(schedule: Schedule, *, with_payloads: bool = True) -> messages.Schedule:
    """Return a schedule as a message."""
    return _SCHEDULE.message(schedule, with_payloads)


def view_to_wire(
    schedule: Schedule, following: Sequence[Upcoming], last: tuple[Firing, ...]
) -> messages.GetScheduleResponse:
    """Return a schedule with its firings to come, and of the past."""
    return messages.GetScheduleResponse(
        schedule=schedule_to_wire(schedule),
        next_firings=map(_NEXT.message, following),
        last_firings=map(firing_to_wire, last),
    )


def page_to_wire(
    schedules: tuple[Schedule, ...], *, page_size: int
) -> messages.ListSchedulesResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page = schedules[:page_size]
    has_next = len(schedules) > page_size
    return messages.ListSchedulesResponse(
        schedules=(schedule_to_wire(each, with_payloads=False) for each in page),
        next_page_token=(
            page_tokens.token_of_schedule(page[-1].key.schedule_id) if has_next else ""
        ),
    )


def _key_of(message: Keyed, violations: Violations) -> ScheduleKey:
    """Return the schedule of a request; worth nothing once there are violations."""
    check_namespace_name(message.namespace, "namespace", violations)
    schedule_id = message.schedule_id
    for fault in wire.id_faults(schedule_id):
        violations.add("schedule_id", fault)
    size = len(schedule_id.encode())
    if SCHEDULE_ID_BYTES_MAX < size <= wire.ID_BYTES_MAX:
        violations.add("schedule_id", f"{size} bytes are more than {SCHEDULE_ID_BYTES_MAX}")
    return schedule_key(message.namespace, schedule_id)


def _check_revision(revision: int, violations: Violations) -> None:
    if revision < 0:
        violations.add("expected_revision", f"{revision} is below 0")
