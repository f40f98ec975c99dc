"""ScheduleService."""

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Annotated, Any, TypeVar

from progressor import errors
from progressor.api.calls import page_tokens
from progressor.api.calls.page_tokens import Listing
from progressor.api.calls.servicer import Backend, Servicer, reading, seconds_left
from progressor.api.calls.traces import CallContext, trace_context_of
from progressor.api.calls.validation import (
    Revision,
    check_id,
    check_namespace_name,
    check_own_namespace,
    text_of,
)
from progressor.api.schedules.spec import SPEC, SpecContext
from progressor.clock import Clock
from progressor.domain.jobs.graph import GraphError, check_places, namespaces_of
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.process import process_key
from progressor.domain.schedules.schedule import (
    BACKFILL_MAX,
    BACKFILL_SPAN_MAX,
    NOTE_BYTES_MAX,
    SCHEDULE_ID_BYTES_MAX,
    Calendar,
    JobTarget,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleSpec,
    Upcoming,
    schedule_key,
)
from progressor.v1 import schedule_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire.nodes import TASK_ERROR
from progressor.wire.shapes import UNSENT, Field, Shape, Violations, between, flat

NEXT_DEFAULT, LAST_DEFAULT = 5, 10
COUNT_MAX = 100
"""Runs of each kind that one GetSchedule returns at most."""

_log = logging.getLogger(__name__)

C = TypeVar("C", bound="Creation | Update")


def _key_of(message: Any, path: str, _context: object) -> ScheduleKey:  # noqa: ANN401  # of many
    violations, schedule_id = Violations(), message.schedule_id
    violations.attempt(check_namespace_name, message.namespace, f"{path}namespace")
    violations.attempt(check_id, schedule_id, f"{path}schedule_id")
    size = len(schedule_id.encode())
    if SCHEDULE_ID_BYTES_MAX < size <= wire.ID_BYTES_MAX:
        violations.add(f"{path}schedule_id", wire.too_large(size, SCHEDULE_ID_BYTES_MAX))
    violations.raise_any()
    return schedule_key(message.namespace, schedule_id)


def _spec_of(
    message: pb.CreateScheduleRequest | pb.UpdateScheduleRequest,
    path: str,
    payload_bytes_max: int,
) -> ScheduleSpec:
    key = schedule_key(message.namespace, message.schedule_id)
    return SPEC.read(message.spec, f"{path}spec.", SpecContext(key, payload_bytes_max))


Key = Annotated[ScheduleKey, Field(read=_key_of)]
Spec = Annotated[ScheduleSpec, Field(read=_spec_of)]
Note = Annotated[str, text_of(NOTE_BYTES_MAX)]
Count = Annotated[int, between(0, COUNT_MAX)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A CreateSchedule; the places where the nodes of a job run are not checked yet."""

    key: Key
    spec: Spec
    paused: bool
    note: Note


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    key: Key
    spec: Spec
    expected_revision: Revision


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A GetSchedule: how many runs to come, and of the past."""

    key: Key
    next_count: Count = NEXT_DEFAULT
    last_count: Count = LAST_DEFAULT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    key: Key
    expected_revision: Revision


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change(Deletion):
    """A PauseSchedule or a ResumeSchedule."""

    note: Note


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Triggering:
    """A TriggerSchedule; None: the schedule's own policy."""

    key: Key
    policy: Annotated[OverlapPolicy | None, "overlap_policy"]
    idempotency_key: Annotated[str | None, check_id]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A BackfillSchedule, of instants from `since` to before `until`."""

    key: Key
    since: Annotated[dt.datetime, Field(given=True)]
    until: Annotated[dt.datetime, Field(given=True)]
    policy: Annotated[OverlapPolicy, "overlap_policy"] = OverlapPolicy.ALLOW


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


_CREATION = Shape(Creation, pb.CreateScheduleRequest)
_UPDATE = Shape(Update, pb.UpdateScheduleRequest)
_BACKFILL = Shape(Backfill, pb.BackfillScheduleRequest, _check_past)
_NEXT = Shape(Upcoming, pb.NextRun)
_SCHEDULE = Shape(
    Schedule,
    pb.Schedule,
    key=flat(Shape(ScheduleKey, pb.Schedule, slot=UNSENT)),
    spec=SPEC,
    upcoming=flat(Shape(Upcoming, pb.Schedule, instant="next_instant", due_at="next_at")),
)

get_from_wire = Shape(Reading, pb.GetScheduleRequest).read
list_from_wire = page_tokens.SCHEDULES.listing(pb.ListSchedulesRequest).read
delete_from_wire = Shape(Deletion, pb.DeleteScheduleRequest).read
change_from_wire = Shape(Change, pb.PauseScheduleRequest).read
trigger_from_wire = Shape(Triggering, pb.TriggerScheduleRequest).read
run_to_wire = Shape(ScheduleRun, pb.ScheduleRun, error=TASK_ERROR).message


def create_from_wire(message: pb.CreateScheduleRequest, *, payload_bytes_max: int) -> Creation:
    return _CREATION.read(message, context=payload_bytes_max)


def update_from_wire(message: pb.UpdateScheduleRequest, *, payload_bytes_max: int) -> Update:
    return _UPDATE.read(message, context=payload_bytes_max)


def backfill_from_wire(message: pb.BackfillScheduleRequest, *, now: dt.datetime) -> Backfill:
    return _BACKFILL.read(message, context=now)


def schedule_to_wire(schedule: Schedule, *, with_payloads: bool = True) -> pb.Schedule:
    return _SCHEDULE.message(schedule, with_payloads)


def view_to_wire(
    schedule: Schedule, following: Sequence[Upcoming], last: tuple[ScheduleRun, ...]
) -> pb.GetScheduleResponse:
    return pb.GetScheduleResponse(
        schedule=schedule_to_wire(schedule),
        next_runs=map(_NEXT.message, following),
        last_runs=map(run_to_wire, last),
    )


def page_to_wire(schedules: tuple[Schedule, ...], *, page_size: int) -> pb.ListSchedulesResponse:
    page, token = page_tokens.SCHEDULES.page(
        schedules, page_size, lambda schedule: schedule.key.schedule_id
    )
    return pb.ListSchedulesResponse(
        schedules=(schedule_to_wire(each, with_payloads=False) for each in page),
        next_page_token=token,
    )


class ScheduleServicer(Servicer):
    """What clients and operators do with schedules."""

    service = pb.DESCRIPTOR.services_by_name["ScheduleService"]

    def __init__(self, backend: Callable[[], Backend], *, clock: Clock) -> None:
        super().__init__(backend)
        self._clock = clock
        # One thread: several at once would only take the interpreter from the event loop.
        self._calendars = futures.ThreadPoolExecutor(1, thread_name_prefix="calendars")

    async def create_schedule(
        self, message: pb.CreateScheduleRequest, context: CallContext
    ) -> pb.CreateScheduleResponse:
        creation = await self._checked(message, context, create_from_wire)
        schedule = await self._backend().schedules.create(
            creation.key, creation.spec, paused=creation.paused, note=creation.note
        )
        _log_change("schedule created", creation.key)
        return pb.CreateScheduleResponse(schedule=schedule_to_wire(schedule))

    async def update_schedule(
        self, message: pb.UpdateScheduleRequest, context: CallContext
    ) -> pb.UpdateScheduleResponse:
        update = await self._checked(message, context, update_from_wire)
        schedule = await self._backend().schedules.update(
            update.key, update.spec, expected_revision=update.expected_revision
        )
        _log_change("schedule updated", update.key)
        return pb.UpdateScheduleResponse(schedule=schedule_to_wire(schedule))

    @reading(get_from_wire)
    async def get_schedule(self, asked: Reading, _: CallContext) -> pb.GetScheduleResponse:
        schedule = await self._backend().schedules.get(asked.key)
        last = await self._backend().schedule_runs.last(asked.key, limit=asked.last_count)
        following: Sequence[Upcoming] = ()
        if schedule.upcoming is not None and asked.next_count:
            first = schedule.upcoming
            calendar = Calendar(schedule.key, schedule.spec.timing)
            following = await self._computed(lambda: calendar.next(first, asked.next_count))
        return view_to_wire(schedule, following, last)

    @reading(list_from_wire)
    async def list_schedules(self, asked: Listing[str], _: CallContext) -> pb.ListSchedulesResponse:
        found = await self._backend().schedules.list(
            asked.namespace, after=asked.after, limit=asked.limit + 1
        )
        return page_to_wire(found, page_size=asked.limit)

    @reading(delete_from_wire)
    async def delete_schedule(self, asked: Deletion, _: CallContext) -> pb.DeleteScheduleResponse:
        await self._backend().schedules.delete(asked.key, expected_revision=asked.expected_revision)
        _log_change("schedule deleted", asked.key)
        return pb.DeleteScheduleResponse()

    @reading(change_from_wire)
    async def pause_schedule(self, asked: Change, _: CallContext) -> pb.PauseScheduleResponse:
        schedule = await self._backend().schedules.pause(
            asked.key, note=asked.note, expected_revision=asked.expected_revision
        )
        _log_change("schedule paused", asked.key)
        return pb.PauseScheduleResponse(schedule=schedule_to_wire(schedule))

    @reading(change_from_wire)
    async def resume_schedule(self, asked: Change, _: CallContext) -> pb.ResumeScheduleResponse:
        schedule = await self._backend().schedules.resume(
            asked.key, note=asked.note, expected_revision=asked.expected_revision
        )
        _log_change("schedule resumed", asked.key)
        return pb.ResumeScheduleResponse(schedule=schedule_to_wire(schedule))

    @reading(trigger_from_wire)
    async def trigger_schedule(
        self, asked: Triggering, context: CallContext
    ) -> pb.TriggerScheduleResponse:
        run = await self._backend().schedule_runs.trigger(
            asked.key,
            policy=asked.policy,
            idempotency_key=asked.idempotency_key,
            trace_context=trace_context_of(context),
        )
        _log_change("schedule triggered", asked.key)
        return pb.TriggerScheduleResponse(run=run_to_wire(run))

    async def backfill_schedule(
        self, message: pb.BackfillScheduleRequest, context: CallContext
    ) -> pb.BackfillScheduleResponse:
        seconds_left(context)
        asked = backfill_from_wire(message, now=self._clock.now())
        await self._backend().namespaces.lookup(asked.key.namespace)
        schedule = await self._backend().schedules.get(asked.key)
        calendar = Calendar(schedule.key, schedule.spec.timing)
        instants = await self._computed(
            lambda: calendar.between(asked.since, asked.until, BACKFILL_MAX + 1)
        )
        if len(instants) > BACKFILL_MAX:
            description = f"there are more than {BACKFILL_MAX} instants between since and until"
            raise errors.InvalidRequestError(errors.FieldViolation("until", description))
        queued_count = await self._backend().schedules.backfill(schedule, instants, asked.policy)
        _log_change("schedule backfilled", asked.key)
        return pb.BackfillScheduleResponse(instant_count=len(instants), queued_count=queued_count)

    async def _computed(self, work: Callable[[], Sequence[Upcoming]]) -> Sequence[Upcoming]:
        """Return instants, which may take some ms of CPU, computed beside the event loop.

        A request whose client disconnects while it waits is not computed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._calendars, work)

    async def _checked(self, message: Any, context: CallContext, read: Callable[..., C]) -> C:  # noqa: ANN401  # of two
        """Return a request with a spec; a node of its job that has no place to run is refused."""
        seconds_left(context)
        check_own_namespace(message.namespace, "namespace")
        namespace = await self._backend().namespaces.lookup(message.namespace)
        asked = read(message, payload_bytes_max=namespace.payload_bytes_max)
        target = asked.spec.target
        if isinstance(target, JobTarget):
            leader = process_key(asked.key.namespace, asked.key.schedule_id)
            nodes = StartNodes(nodes=target.nodes)
            try:
                check_places(leader, nodes, await self._known(namespaces_of(leader, nodes)))
            except GraphError as error:
                wire.refuse(f"spec.job.{error.field}", error.description)
        return asked


def _log_change(what: str, key: ScheduleKey) -> None:
    _log.info(what, extra={"namespace": key.namespace, "schedule_id": key.schedule_id})
