"""ScheduleService: each method decodes, asks the keeper of schedules, encodes."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from progressor import errors
from progressor.api.calls.ports import Backend, CallContext
from progressor.api.calls.servicer import Servicer, seconds_left
from progressor.api.calls.traces import trace_context_of
from progressor.api.calls.validation import check_namespace_name
from progressor.api.schedules import codec as schedule_codec
from progressor.clock import Clock
from progressor.domain.jobs.graph import GraphError, check_places
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import process_key
from progressor.domain.schedules.schedule import (
    BACKFILL_MAX,
    Calendar,
    JobTarget,
    ScheduleKey,
    ScheduleSpec,
    Upcoming,
)
from progressor.v1 import schedule_service_pb2 as messages
from progressor.wire import fields as wire

_log = logging.getLogger(__name__)


class ScheduleServicer(Servicer):
    """What clients and operators do with schedules; raises the `errors` that become statuses."""

    def __init__(
        self,
        backend: Callable[[], Backend],
        *,
        clock: Clock,
    ) -> None:
        super().__init__(backend)
        self._clock = clock
        # One thread: several at once would only take the interpreter from the event loop.
        self._calendars = futures.ThreadPoolExecutor(1, thread_name_prefix="calendars")

    def method(self, rpc: str) -> Any:  # noqa: ANN401  # as of the base
        """Return the method that serves an RPC."""
        return {
            "CreateSchedule": self.create,
            "UpdateSchedule": self.update,
            "GetSchedule": self.get,
            "ListSchedules": self.list,
            "DeleteSchedule": self.delete,
            "PauseSchedule": self.pause,
            "ResumeSchedule": self.resume,
            "TriggerSchedule": self.trigger,
            "BackfillSchedule": self.backfill,
        }[rpc]

    async def create(
        self, message: messages.CreateScheduleRequest, context: CallContext
    ) -> messages.CreateScheduleResponse:
        """Make a schedule."""
        seconds_left(context)
        namespace = await self._namespace_of(message.namespace)
        creation = schedule_codec.create_from_wire(
            message, payload_bytes_max=namespace.payload_bytes_max
        )
        await self._check_places(creation.key, creation.spec)
        schedule = await self._backend().schedules.create(
            creation.key, creation.spec, paused=creation.paused, note=creation.note
        )
        _log_change("schedule created", creation.key)
        return messages.CreateScheduleResponse(schedule=schedule_codec.schedule_to_wire(schedule))

    async def update(
        self, message: messages.UpdateScheduleRequest, context: CallContext
    ) -> messages.UpdateScheduleResponse:
        """Replace the spec of a schedule."""
        seconds_left(context)
        namespace = await self._namespace_of(message.namespace)
        update = schedule_codec.update_from_wire(
            message, payload_bytes_max=namespace.payload_bytes_max
        )
        await self._check_places(update.key, update.spec)
        schedule = await self._backend().schedules.update(
            update.key, update.spec, expected_revision=update.expected_revision
        )
        _log_change("schedule updated", update.key)
        return messages.UpdateScheduleResponse(schedule=schedule_codec.schedule_to_wire(schedule))

    async def get(
        self, message: messages.GetScheduleRequest, context: CallContext
    ) -> messages.GetScheduleResponse:
        """Return a schedule with its runs to come, and of the past."""
        seconds_left(context)
        reading = schedule_codec.get_from_wire(message)
        await self._backend().namespaces.lookup(reading.key.namespace)
        schedule = await self._backend().schedules.get(reading.key)
        last = await self._backend().schedule_runs.last(reading.key, limit=reading.last_count)
        following: Sequence[Upcoming] = ()
        if schedule.upcoming is not None and reading.next_count:
            first = schedule.upcoming
            calendar = Calendar(schedule.key, schedule.spec.timing)
            following = await self._computed(lambda: calendar.next(first, reading.next_count))
        return schedule_codec.view_to_wire(schedule, following, last)

    async def list(
        self, message: messages.ListSchedulesRequest, context: CallContext
    ) -> messages.ListSchedulesResponse:
        """Return a page of the schedules of a namespace."""
        seconds_left(context)
        listing = schedule_codec.list_from_wire(message)
        await self._backend().namespaces.lookup(listing.namespace)
        # One more than requested shows whether there is a next page.
        found = await self._backend().schedules.list(
            listing.namespace, after=listing.after, limit=listing.limit + 1
        )
        return schedule_codec.page_to_wire(found, page_size=listing.limit)

    async def delete(
        self, message: messages.DeleteScheduleRequest, context: CallContext
    ) -> messages.DeleteScheduleResponse:
        """Delete a schedule."""
        seconds_left(context)
        change = schedule_codec.change_from_wire(message)
        await self._backend().namespaces.lookup(change.key.namespace)
        await self._backend().schedules.delete(
            change.key, expected_revision=change.expected_revision
        )
        _log_change("schedule deleted", change.key)
        return messages.DeleteScheduleResponse()

    async def pause(
        self, message: messages.PauseScheduleRequest, context: CallContext
    ) -> messages.PauseScheduleResponse:
        """Have a schedule run no more."""
        seconds_left(context)
        change = schedule_codec.change_from_wire(message)
        await self._backend().namespaces.lookup(change.key.namespace)
        schedule = await self._backend().schedules.pause(
            change.key, note=change.note, expected_revision=change.expected_revision
        )
        _log_change("schedule paused", change.key)
        return messages.PauseScheduleResponse(schedule=schedule_codec.schedule_to_wire(schedule))

    async def resume(
        self, message: messages.ResumeScheduleRequest, context: CallContext
    ) -> messages.ResumeScheduleResponse:
        """Have a schedule run again."""
        seconds_left(context)
        change = schedule_codec.change_from_wire(message)
        await self._backend().namespaces.lookup(change.key.namespace)
        schedule = await self._backend().schedules.resume(
            change.key, note=change.note, expected_revision=change.expected_revision
        )
        _log_change("schedule resumed", change.key)
        return messages.ResumeScheduleResponse(schedule=schedule_codec.schedule_to_wire(schedule))

    async def trigger(
        self, message: messages.TriggerScheduleRequest, context: CallContext
    ) -> messages.TriggerScheduleResponse:
        """Run a schedule now."""
        seconds_left(context)
        triggering = schedule_codec.trigger_from_wire(message)
        await self._backend().namespaces.lookup(triggering.key.namespace)
        run = await self._backend().schedule_runs.trigger(
            triggering.key,
            policy=triggering.policy,
            idempotency_key=triggering.idempotency_key,
            trace_context=trace_context_of(context),
        )
        _log_change("schedule triggered", triggering.key)
        return messages.TriggerScheduleResponse(run=schedule_codec.run_to_wire(run))

    async def backfill(
        self, message: messages.BackfillScheduleRequest, context: CallContext
    ) -> messages.BackfillScheduleResponse:
        """Run what is past."""
        seconds_left(context)
        asked = schedule_codec.backfill_from_wire(message, now=self._clock.now())
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
        return messages.BackfillScheduleResponse(
            instant_count=len(instants), queued_count=queued_count
        )

    async def _computed(self, work: Callable[[], Sequence[Upcoming]]) -> Sequence[Upcoming]:
        """Return instants, which may take some ms of CPU, computed beside the event loop.

        A request whose client disconnects while it waits is not computed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._calendars, work)

    async def _namespace_of(self, name: str) -> Namespace:
        check_namespace_name(name, "namespace")
        return await self._backend().namespaces.lookup(name)

    async def _check_places(self, key: ScheduleKey, spec: ScheduleSpec) -> None:
        """Refuse a job with a node that has no place to run."""
        target = spec.target
        if not isinstance(target, JobTarget):
            return
        known: dict[str, Namespace] = {}
        for name in {node.namespace or key.namespace for node in target.nodes}:
            try:
                known[name] = await self._backend().namespaces.lookup(name)
            except errors.NamespaceNotFoundError:
                continue
        try:
            leader = process_key(key.namespace, key.schedule_id)
            check_places(leader, StartNodes(nodes=target.nodes), known)
        except GraphError as error:
            wire.refuse(f"spec.job.{error.field}", error.description)


def _log_change(what: str, key: ScheduleKey) -> None:
    _log.info(what, extra={"namespace": key.namespace, "schedule_id": key.schedule_id})
