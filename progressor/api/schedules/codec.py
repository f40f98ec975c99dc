"""Requests of ScheduleService from protobuf to domain, and schedules back."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    at_least_0,
    check_id,
    check_namespace_name,
    text_of,
)
from progressor.api.schedules.spec_codec import SPEC
from progressor.api.schedules.spec_codec import Reading as SpecReading
from progressor.domain.schedules.schedule import (
    BACKFILL_SPAN_MAX,
    NOTE_BYTES_MAX,
    SCHEDULE_ID_BYTES_MAX,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleSpec,
    Upcoming,
    schedule_key,
)
from progressor.v1 import schedule_service_pb2 as messages
from progressor.wire import fields as wire
from progressor.wire.nodes import TASK_ERROR
from progressor.wire.shapes import UNSENT, Field, Shape, between, flat

NEXT_DEFAULT, LAST_DEFAULT = 5, 10
COUNT_MAX = 100
"""Runs of each kind that one GetSchedule returns at most."""

_NEXT = Shape(Upcoming, messages.NextRun)
_SCHEDULE = Shape(
    Schedule,
    messages.Schedule,
    key=flat(Shape(ScheduleKey, messages.Schedule, slot=UNSENT)),
    spec=SPEC,
    upcoming=flat(Shape(Upcoming, messages.Schedule, instant="next_instant", due_at="next_at")),
)
run_to_wire = Shape(ScheduleRun, messages.ScheduleRun, error=TASK_ERROR).message


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
    """A GetSchedule: how many runs to come, and of the past."""

    key: ScheduleKey
    next_count: int = NEXT_DEFAULT
    last_count: int = LAST_DEFAULT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A DeleteSchedule, PauseSchedule or ResumeSchedule; the note is empty for the first."""

    key: ScheduleKey
    expected_revision: int
    note: str = ""


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
    policy: OverlapPolicy = OverlapPolicy.ALLOW


def create_from_wire(
    message: messages.CreateScheduleRequest, *, payload_bytes_max: int
) -> Creation:
    """Return a CreateSchedule."""
    return _CREATION.read(message, context=payload_bytes_max)


def update_from_wire(message: messages.UpdateScheduleRequest, *, payload_bytes_max: int) -> Update:
    """Return an UpdateSchedule."""
    return _UPDATE.read(message, context=payload_bytes_max)


def change_from_wire(
    message: messages.DeleteScheduleRequest
    | messages.PauseScheduleRequest
    | messages.ResumeScheduleRequest,
) -> Change:
    """Return a DeleteSchedule, PauseSchedule or ResumeSchedule."""
    if isinstance(message, messages.DeleteScheduleRequest):
        return _DELETION.read(message)
    return _CHANGE.read(message)


def backfill_from_wire(message: messages.BackfillScheduleRequest, *, now: dt.datetime) -> Backfill:
    """Return a BackfillSchedule, of what is past at `now`."""
    return _BACKFILL.read(message, context=now)


def _key_of(message: Keyed, path: str, _context: object) -> ScheduleKey:
    violations, schedule_id = Violations(), message.schedule_id
    violations.attempt(check_namespace_name, message.namespace, f"{path}namespace")
    violations.attempt(check_id, schedule_id, f"{path}schedule_id")
    size = len(schedule_id.encode())
    if SCHEDULE_ID_BYTES_MAX < size <= wire.ID_BYTES_MAX:
        violations.add(f"{path}schedule_id", wire.too_large(size, SCHEDULE_ID_BYTES_MAX))
    violations.raise_any()
    return schedule_key(message.namespace, schedule_id)


def _spec_of(
    message: messages.CreateScheduleRequest | messages.UpdateScheduleRequest,
    path: str,
    payload_bytes_max: int,
) -> ScheduleSpec:
    key = schedule_key(message.namespace, message.schedule_id)
    reading = SpecReading(key=key, payload_bytes_max=payload_bytes_max)
    return SPEC.read(message.spec, f"{path}spec.", reading)


def _check_past(backfill: Mapping[str, Any], path: str, now: dt.datetime) -> None:
    violations = Violations()
    since, until = backfill.get("since"), backfill.get("until")
    if backfill.get("policy") is OverlapPolicy.CANCEL_PREVIOUS:
        description = "must not be CANCEL_PREVIOUS, which would cancel its own runs"
        violations.add(f"{path}overlap_policy", description)
    if since is not None and until is not None:
        if since >= until:
            violations.add(f"{path}until", "must be after since")
        if until > now:
            violations.add(f"{path}until", "must not be in the future")
        if until - since > BACKFILL_SPAN_MAX:
            days = BACKFILL_SPAN_MAX.days
            violations.add(f"{path}since", f"must be at most {days} days before until")
    violations.raise_any()


_NOTE = text_of(NOTE_BYTES_MAX)
_KEY = Field(read=_key_of)
_COUNT = between(0, COUNT_MAX)
_CREATION = Shape(
    Creation,
    messages.CreateScheduleRequest,
    key=_KEY,
    spec=Field(read=_spec_of),
    note=_NOTE,
)
_UPDATE = Shape(
    Update,
    messages.UpdateScheduleRequest,
    key=_KEY,
    spec=Field(read=_spec_of),
    expected_revision=at_least_0,
)
_READING = Shape(
    Reading, messages.GetScheduleRequest, key=_KEY, next_count=_COUNT, last_count=_COUNT
)
_CHANGE: Shape[Change, messages.PauseScheduleRequest | messages.ResumeScheduleRequest] = Shape(
    Change, messages.PauseScheduleRequest, key=_KEY, note=_NOTE, expected_revision=at_least_0
)
_DELETION = Shape(
    Change,
    messages.DeleteScheduleRequest,
    key=_KEY,
    note=UNSENT,
    expected_revision=at_least_0,
)
_TRIGGERING = Shape(
    Triggering,
    messages.TriggerScheduleRequest,
    key=_KEY,
    policy="overlap_policy",
    idempotency_key=check_id,
)
_BACKFILL = Shape(
    Backfill,
    messages.BackfillScheduleRequest,
    _check_past,
    key=_KEY,
    since=Field(given=True),
    until=Field(given=True),
    policy="overlap_policy",
)

get_from_wire = _READING.read
list_from_wire = page_tokens.SCHEDULES.listing(messages.ListSchedulesRequest).read
trigger_from_wire = _TRIGGERING.read


def schedule_to_wire(schedule: Schedule, *, with_payloads: bool = True) -> messages.Schedule:
    """Return a schedule as a message."""
    return _SCHEDULE.message(schedule, with_payloads)


def view_to_wire(
    schedule: Schedule, following: Sequence[Upcoming], last: tuple[ScheduleRun, ...]
) -> messages.GetScheduleResponse:
    """Return a schedule with its runs to come, and of the past."""
    return messages.GetScheduleResponse(
        schedule=schedule_to_wire(schedule),
        next_runs=map(_NEXT.message, following),
        last_runs=map(run_to_wire, last),
    )


def page_to_wire(
    schedules: tuple[Schedule, ...], *, page_size: int
) -> messages.ListSchedulesResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page, token = page_tokens.SCHEDULES.page(
        schedules, page_size, lambda schedule: schedule.key.schedule_id
    )
    return messages.ListSchedulesResponse(
        schedules=(schedule_to_wire(each, with_payloads=False) for each in page),
        next_page_token=token,
    )
