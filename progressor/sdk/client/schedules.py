"""``client.schedules``: the schedules of a namespace.

::

    at_night = Cron("30 2 * * *", "Europe/Berlin")
    nightly = ScheduleSpec(times=at_night, target=ScheduledStart("sales"))
    await client.schedules.create("nightly", nightly)
    run = await client.schedules.trigger("nightly")
"""

import datetime as dt

from progressor.sdk.codec.wire import Seconds, instant_to_wire
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.transport.methods import (
    BlockingResource,
    RequestBuilder,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.schedule_wire import (
    policy_to_wire,
    read_backfilled,
    read_run,
    read_schedule,
    read_view,
    spec_to_wire,
)
from progressor.sdk.values.schedules import (
    Backfilled,
    OverlapPolicy,
    Schedule,
    ScheduleRun,
    ScheduleSpec,
    ScheduleView,
)
from progressor.v1 import schedule_service_pb2 as pb


class ScheduleRequests(RequestBuilder):
    """Builds requests.

    `timeout` is in seconds or a timedelta; None: the client's. `namespace` "": the client's. With
    an `expected_revision`, a schedule is changed only at that revision; 0: at any.
    """

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
        """Create a schedule and return it; it first runs at its next instant from now on.

        Args:
            schedule_id: Unique within the namespace.
            spec: What it starts, and when; the client's codec encodes the args.
            paused: Create it paused; it does not run until it is resumed.
            note: For operators, at most 1,024 bytes.
            timeout: Of the request.
            namespace: Of the schedule and of what it starts.

        Raises:
            ScheduleAlreadyExistsError: The id is taken.
            InvalidRequestError: The expression, the time zone or a node is invalid.
        """
        return Exchange(
            pb.CreateScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                spec=spec_to_wire(spec, self.codec),
                paused=paused,
                note=note,
            ),
            self._read,
            timeout,
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
        """Replace the whole spec of a schedule, and return the schedule.

        To change one field: ``replace((await client.schedules.get(id)).schedule.spec,
        jitter=60)``, with its revision as `expected_revision`.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
            ScheduleChangedError: The schedule is at another revision.
        """
        return Exchange(
            pb.UpdateScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                spec=spec_to_wire(spec, self.codec),
                expected_revision=expected_revision,
            ),
            self._read,
            timeout,
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
        """Return a schedule with its next and its last runs.

        `next_count` and `last_count` are at most 100; None: 5 next and 10 last runs.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
        """
        return Exchange(
            pb.GetScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                next_count=next_count,
                last_count=last_count,
            ),
            lambda message: read_view(message, self.codec),
            timeout,
            repeatable=True,
        )

    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None, namespace: str = ""
    ) -> Listing[Schedule]:
        """Iterate over the schedules of a namespace in the order of their ids, page by page.

        `timeout` applies to each page.
        """
        return Listing(
            pb.ListSchedulesRequest(namespace=namespace or self.namespace, page_size=page_size),
            lambda message: [read_schedule(it, self.codec) for it in message.schedules],
            timeout,
        )

    def delete(
        self,
        schedule_id: str,
        *,
        expected_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[None]:
        """Delete a schedule and the record of its runs; what it started continues.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
            ScheduleChangedError: The schedule is at another revision.
        """
        return Exchange(
            pb.DeleteScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                expected_revision=expected_revision,
            ),
            nothing,
            timeout,
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
        """Pause a schedule until it is resumed, and return it.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
            ScheduleChangedError: The schedule is at another revision.
        """
        return Exchange(
            pb.PauseScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                note=note,
                expected_revision=expected_revision,
            ),
            self._read,
            timeout,
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
        """Let a schedule run again, from its next instant on, and return it.

        Instants during the pause are not made up for; see `backfill`.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
            ScheduleChangedError: The schedule is at another revision.
        """
        return Exchange(
            pb.ResumeScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                note=note,
                expected_revision=expected_revision,
            ),
            self._read,
            timeout,
        )

    def trigger(
        self,
        schedule_id: str,
        *,
        overlap_policy: OverlapPolicy = OverlapPolicy.UNSPECIFIED,
        idempotency_key: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[ScheduleRun]:
        """Run a schedule now, even if it is paused, and return the run.

        The run may be queued, skipped or refused, as its state says. `overlap_policy` replaces
        the schedule's own, unless it is UNSPECIFIED. The request is repeated only with an
        idempotency key.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
        """
        return Exchange(
            pb.TriggerScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                overlap_policy=policy_to_wire(overlap_policy),
                idempotency_key=idempotency_key,
            ),
            lambda message: read_run(message.run),
            timeout,
            repeatable=bool(idempotency_key),
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
        """Run the past instants of a range that have not run yet.

        Args:
            schedule_id: The id of the schedule.
            since: The start of the range, inclusive; an aware datetime.
            until: The end of the range, exclusive; not in the future. At most 1,000 instants lie
                in the range.
            overlap_policy: Any but CANCEL_PREVIOUS; UNSPECIFIED: ALLOW.
            timeout: Of the request.
            namespace: Of the schedule.

        Raises:
            ScheduleNotFoundError: The schedule does not exist.
            ValueError: A datetime has no time zone.
        """
        return Exchange(
            pb.BackfillScheduleRequest(
                namespace=namespace or self.namespace,
                schedule_id=schedule_id,
                since=instant_to_wire(since),
                until=instant_to_wire(until),
                overlap_policy=policy_to_wire(overlap_policy),
            ),
            read_backfilled,
            timeout,
            # An instant runs only once, even if it is requested again.
            repeatable=True,
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
    """The requests about schedules; `ScheduleRequests` documents the arguments."""

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
    """`Schedules` for programs without an event loop: blocking, safe in any thread."""

    create = blocking_sent(ScheduleRequests.create)
    update = blocking_sent(ScheduleRequests.update)
    get = blocking_sent(ScheduleRequests.get)
    list = blocking_iterated(ScheduleRequests.list)
    delete = blocking_sent(ScheduleRequests.delete)
    pause = blocking_sent(ScheduleRequests.pause)
    resume = blocking_sent(ScheduleRequests.resume)
    trigger = blocking_sent(ScheduleRequests.trigger)
    backfill = blocking_sent(ScheduleRequests.backfill)
