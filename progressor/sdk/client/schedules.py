"""``client.schedules``: the schedules of a namespace, for either client.

::

    at_night = Cron("30 2 * * *", "Europe/Berlin")
    nightly = ScheduleSpec(times=at_night, target=ScheduledStart("sales"))
    await client.schedules.create("nightly", nightly)
    firing = await client.schedules.trigger("nightly")
"""

import dataclasses
import datetime as dt

from progressor.sdk.codec.codecs import Codec
from progressor.sdk.codec.wire import Seconds, instant_to_wire, optional_timedelta
from progressor.sdk.sending.exchange import Exchange, Listing, Page, Service
from progressor.sdk.sending.sending import (
    BlockingResource,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.schedule_wire import (
    policy_to_wire,
    read_firing,
    read_schedule,
    read_view,
    spec_to_wire,
)
from progressor.sdk.values.schedules import (
    Backfilled,
    Firing,
    OverlapPolicy,
    Schedule,
    ScheduleSpec,
    ScheduleView,
)
from progressor.v1 import schedule_service_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequests:
    """Builds requests; `namespace` "" is the client's.

    `timeout` is how long the request may take, in seconds or as a timedelta; None: the client's.
    Where `expected_revision` is given, only that is changed; 0 takes any.
    """

    namespace: str
    codec: Codec

    def create(
        self,
        schedule_id: str,
        spec: ScheduleSpec,
        *,
        paused: bool = False,
        note: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Schedule]:
        """Make a schedule and return it; its first firing is the first instant from now on.

        Args:
            schedule_id: Unique within the namespace.
            spec: What it does, and when; args are encoded by the client's codec.
            paused: Made, but not to fire until it is resumed.
            note: For people, at most 1,024 bytes.
            timeout: Of the request.
            namespace: Of the schedule, and of what it starts.

        Raises:
            ScheduleAlreadyExistsError: The id is taken.
            InvalidRequestError: The expression, the time zone or a node cannot be as it is.
        """
        return Exchange(
            rpc="CreateSchedule",
            request=pb.CreateScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                spec=spec_to_wire(spec, self.codec),
                paused=paused,
                note=note,
            ),
            parse=self._read,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def update(
        self,
        schedule_id: str,
        spec: ScheduleSpec,
        *,
        expected_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Schedule]:
        """Replace what a schedule does, all of it, and return it.

        To change what is there: ``replace((await client.schedules.get(id)).schedule.spec,
        jitter=60)``, with its revision as `expected_revision`.

        Raises:
            ScheduleNotFoundError: There is none of this id.
            ScheduleChangedError: It is no longer at `expected_revision`.
        """
        return Exchange(
            rpc="UpdateSchedule",
            request=pb.UpdateScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                spec=spec_to_wire(spec, self.codec),
                expected_revision=expected_revision,
            ),
            parse=self._read,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def get(
        self,
        schedule_id: str,
        *,
        next_count: int | None = None,
        last_count: int | None = None,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[ScheduleView]:
        """Return a schedule with its firings to come and of the past, at most 100 of each.

        None: 5 to come, 10 of the past.

        Raises:
            ScheduleNotFoundError: There is none of this id.
        """
        return Exchange(
            rpc="GetSchedule",
            request=pb.GetScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                next_count=next_count,
                last_count=last_count,
            ),
            parse=lambda message: read_view(message, self.codec),
            repeatable=True,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None, namespace: str = ""
    ) -> Listing[Schedule]:
        """Go through the schedules of a namespace in the order of their ids, page after page."""

        def page(token: str) -> Exchange[Page[Schedule]]:
            return Exchange(
                rpc="ListSchedules",
                request=pb.ListSchedulesRequest(
                    namespace=namespace or self.namespace, page_size=page_size, page_token=token
                ),
                parse=lambda message: Page(
                    items=tuple(read_schedule(it, self.codec) for it in message.schedules),
                    next_page_token=message.next_page_token,
                ),
                repeatable=True,
                timeout=optional_timedelta(timeout),
                service=Service.SCHEDULES,
            )

        return Listing(page=page)

    def delete(
        self,
        schedule_id: str,
        *,
        expected_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[None]:
        """Delete a schedule and the record of its firings; what it has started goes on.

        Raises:
            ScheduleNotFoundError: There is none of this id.
            ScheduleChangedError: It is no longer at `expected_revision`.
        """
        return Exchange(
            rpc="DeleteSchedule",
            request=pb.DeleteScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                expected_revision=expected_revision,
            ),
            parse=lambda _message: None,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def pause(
        self,
        schedule_id: str,
        *,
        note: str = "",
        expected_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Schedule]:
        """Have a schedule fire no more until it is resumed, and return it.

        Raises:
            ScheduleNotFoundError: There is none of this id.
            ScheduleChangedError: It is no longer at `expected_revision`.
        """
        return Exchange(
            rpc="PauseSchedule",
            request=pb.PauseScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                note=note,
                expected_revision=expected_revision,
            ),
            parse=self._read,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def resume(
        self,
        schedule_id: str,
        *,
        note: str = "",
        expected_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Schedule]:
        """Have a schedule fire again, from the first instant after now, and return it.

        What fell into the pause is not made up for; see `backfill`.

        Raises:
            ScheduleNotFoundError: There is none of this id.
            ScheduleChangedError: It is no longer at `expected_revision`.
        """
        return Exchange(
            rpc="ResumeSchedule",
            request=pb.ResumeScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                note=note,
                expected_revision=expected_revision,
            ),
            parse=self._read,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def trigger(
        self,
        schedule_id: str,
        *,
        overlap_policy: OverlapPolicy = OverlapPolicy.UNSPECIFIED,
        idempotency_key: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Firing]:
        """Fire now, besides its own instants and also while it is paused; return the firing.

        Its state tells what became of it: it may be queued, skipped or refused. `overlap_policy`
        stands in for the schedule's, unless UNSPECIFIED. With an idempotency key it is safe to
        repeat, and so it is.

        Raises:
            ScheduleNotFoundError: There is none of this id.
        """
        return Exchange(
            rpc="TriggerSchedule",
            request=pb.TriggerScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                overlap_policy=policy_to_wire(overlap_policy),
                idempotency_key=idempotency_key,
            ),
            parse=lambda message: read_firing(message.firing),
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def backfill(
        self,
        schedule_id: str,
        since: dt.datetime,
        until: dt.datetime,
        *,
        overlap_policy: OverlapPolicy = OverlapPolicy.UNSPECIFIED,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Backfilled]:
        """Fire the instants of a span of the past that have not started anything yet.

        Args:
            schedule_id: Of the schedule.
            since: The first instant may be this one.
            until: Now or earlier; the last instant is before. At most 1,000 instants.
            overlap_policy: UNSPECIFIED: ALLOW. Not CANCEL_PREVIOUS.
            timeout: Of the request.
            namespace: Of the schedule.

        Raises:
            ScheduleNotFoundError: There is none of this id.
            ValueError: An instant has no time zone.
        """
        return Exchange(
            rpc="BackfillSchedule",
            request=pb.BackfillScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                since=instant_to_wire(since),
                until=instant_to_wire(until),
                overlap_policy=policy_to_wire(overlap_policy),
            ),
            parse=lambda message: Backfilled(
                instant_count=message.instant_count, queued_count=message.queued_count
            ),
            # An instant fires once, however often it is asked for.
            repeatable=True,
            timeout=optional_timedelta(timeout),
            service=Service.SCHEDULES,
        )

    def _read(
        self,
        message: pb.CreateScheduleResponse
        | pb.UpdateScheduleResponse
        | pb.PauseScheduleResponse
        | pb.ResumeScheduleResponse,
    ) -> Schedule:
        return read_schedule(message.schedule, self.codec)


class Schedules(Resource[ScheduleRequests]):
    """What a program asks of schedules; `ScheduleRequests` explains each method's arguments."""

    create = sent(ScheduleRequests.create)
    update = sent(ScheduleRequests.update)
    get = sent(ScheduleRequests.get)
    list = iterated(ScheduleRequests.list)
    delete = sent(ScheduleRequests.delete)
    pause = sent(ScheduleRequests.pause)
    resume = sent(ScheduleRequests.resume)
    trigger = sent(ScheduleRequests.trigger)
    backfill = sent(ScheduleRequests.backfill)


class SyncSchedules(BlockingResource[ScheduleRequests]):
    """`Schedules` for programs without an event loop: blocking, and safe in any thread."""

    create = blocking_sent(ScheduleRequests.create)
    update = blocking_sent(ScheduleRequests.update)
    get = blocking_sent(ScheduleRequests.get)
    list = blocking_iterated(ScheduleRequests.list)
    delete = blocking_sent(ScheduleRequests.delete)
    pause = blocking_sent(ScheduleRequests.pause)
    resume = blocking_sent(ScheduleRequests.resume)
    trigger = blocking_sent(ScheduleRequests.trigger)
    backfill = blocking_sent(ScheduleRequests.backfill)
