"""``client.bulk``: one operation on many processes.

::

    preview = await client.bulk.preview(BulkKind.RETRY, failure_id="0f3c…")
    bulk = await client.bulk.start(BulkKind.RETRY, failure_id="0f3c…", reason="bank is back")
    while not bulk.has_ended:
        await asyncio.sleep(1)
        bulk = await client.bulk.get(bulk.operation_id)
"""

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any, Unpack

from progressor.sdk.client.filters import FilterOptions, filter_to_wire
from progressor.sdk.client.resource import Resource, blocking, iterated, listing_of, sent
from progressor.sdk.codec.codecs import Payload, Typed, for_request
from progressor.sdk.codec.kinds import ANYTHING
from progressor.sdk.codec.wire import Seconds, WireEnum
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, Result
from progressor.sdk.values.processes import Process, ProcessStatus, read_process
from progressor.v1 import bulk_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.wire.shapes import Shape


class BulkKind(WireEnum):
    """What an operation does to each process: as the method of the same name of the client.

    CANCEL cancels the task that runs, or else the one that comes first. UNSPECIFIED: a kind that
    only a newer SDK knows.
    """

    UNSPECIFIED = "unspecified"
    RETRY = "retry"
    SIMPLE_REPAIR = "simple_repair"
    REPAIR = "repair"
    NOTIFY = "notify"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    REMOVE = "remove"


class BulkState(WireEnum):
    """The state of an operation. UNSPECIFIED: a state that only a newer SDK knows.

    MATCHING: the engine notes which processes match. STOPPED: on request, or because too many
    processes failed. FAILED: its own process is in error, and can be retried. FOLLOWING: each
    process has a result, and the engine looks for more that match.
    """

    UNSPECIFIED = "unspecified"
    MATCHING = "matching"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    FOLLOWING = "following"


class BulkResult(WireEnum):
    """The result for one process. UNSPECIFIED: one that only a newer SDK knows.

    DONE: of a retry, repair or notification, that it was requested; the step may end later, or
    fail. SKIPPED: the process was not as it had matched. FAILED: it was refused, as the single
    request would have been.
    """

    UNSPECIFIED = "unspecified"
    PENDING = "pending"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkFilter:
    """The filter of an operation; the fields are those of `FilterOptions`. "" is not restricted."""

    namespace: str
    statuses: tuple[ProcessStatus, ...]
    created_from: dt.datetime | None
    created_to: dt.datetime | None
    metadata: dict[str, Any] | None
    failure_id: str
    failure_reason: str
    broken_from: dt.datetime | None
    broken_to: dt.datetime | None
    id_prefix: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """An operation and its progress.

    ``rate_max``: processes per second; None: unlimited. ``stop_reason``: why it stopped or failed,
    or why its last step is run again. ``follow``: it also takes up what matches later.
    ``matched_count`` grows while it is MATCHING or follows. A process has one of the three results,
    or none yet.

    Of a retry, repair or notification, done means requested. ``error_count``: how many of these
    processes are in error now; ``waiting_count``: of how many others the requested step has not
    ended. Both cover the last 100,000 processes, and are None unless `Bulk.get` is asked to count.
    """

    operation_id: str
    kind: BulkKind
    state: BulkState
    filter: BulkFilter
    reason: str
    author: str
    rate_max: int | None
    failed_share_max: float
    failed_window: int
    follow: bool
    stop_reason: str
    created_at: dt.datetime
    updated_at: dt.datetime
    ended_at: dt.datetime | None
    matched_count: int
    done_count: int
    skipped_count: int
    failed_count: int
    error_count: int | None
    waiting_count: int | None

    @property
    def has_ended(self) -> bool:
        """Whether it will do nothing more; a failed one continues after a retry."""
        return self.state in {BulkState.DONE, BulkState.STOPPED, BulkState.FAILED}

    @property
    def ended_count(self) -> int:
        """How many processes have a result."""
        return self.done_count + self.skipped_count + self.failed_count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """One process of an operation, and its result.

    ``reason``: why it was skipped or failed. ``task_id``: the task that was created, run again or
    cancelled.
    """

    item: int
    namespace: str
    process_id: str
    result: BulkResult
    reason: str
    task_id: int | None
    ended_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkPreview:
    """What an operation would match, and the newest ten of them.

    ``is_estimate``: there are more than 100,000, and the count is the planner's estimate.
    """

    matched_count: int
    is_estimate: bool
    sample: tuple[Process, ...]


_read_item = Shape(BulkItem, pb.BulkItem).read
_read_operation = Shape(
    BulkOperation, pb.BulkOperation, filter=Shape(BulkFilter, types_pb2.ProcessFilter)
).read


def _read_preview(message: pb.PreviewBulkResponse, path: str, context: Typed) -> BulkPreview:
    return BulkPreview(
        matched_count=message.matched_count,
        is_estimate=message.is_estimate,
        sample=tuple(read_process(it, path, context) for it in message.sample),
    )


class Bulk(Resource[Connection]):
    """The requests about operations on many processes.

    The filter is that of `Client.list`, for the client's namespace unless ``namespace`` or
    ``all_namespaces`` is given. Without statuses, an operation matches the processes that it
    applies to: broken ones for retries and repairs, those that have not ended and are not broken
    for notifications, all that have not ended for cancellations and terminations.

    Raises:
        ProcessNotFoundError: The operation does not exist.
    """

    @sent
    def preview(self, kind: BulkKind, **options: Unpack[FilterOptions]) -> Exchange[BulkPreview]:
        """Return how many processes an operation would match, and some of them."""
        request = pb.PreviewBulkRequest(
            kind=kind.number, filter=filter_to_wire(self.namespace, **options)
        )
        return _exchange(self, request, _read_preview, "", options.get("timeout"), repeatable=True)

    @sent
    def start(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        kind: BulkKind,
        args: Payload = None,
        *,
        operation_id: str | None = None,
        reason: str = "",
        author: str = "",
        rate_max: int | None = 100,
        failed_share_max: float = 0.1,
        failed_window: int = 100,
        follow: bool = False,
        **options: Unpack[FilterOptions],
    ) -> Exchange[BulkOperation]:
        """Start an operation on all processes that match; return once it is durable.

        Args:
            kind: What is done to each.
            args: The payload for the processor; only for REPAIR and NOTIFY.
            operation_id: Makes the request safe to repeat; None: a random one.
            reason: Why; required for TERMINATE.
            author: Who, for the record.
            rate_max: Processes per second; None: unlimited.
            failed_share_max: Stop when more than this share of the last results are failures.
            failed_window: How many results are looked at for that.
            follow: Also take up processes that match later, each once, until it is stopped.
            options: See `FilterOptions` and `RequestOptions`.

        Raises:
            OperationAlreadyExistsError: The id is that of another operation.
            InvalidRequestError: A field is invalid; the error names it.
        """
        request = pb.StartBulkRequest(
            operation_id=operation_id or uuid.uuid4().hex,
            kind=kind.number,
            filter=filter_to_wire(self.namespace, **options),
            args=for_request(self.codec, operation_id or "").encode(args),
            reason=reason,
            author=author,
            rate_max=rate_max or 0,
            rate_unlimited=rate_max is None,
            failed_share_max=failed_share_max,
            failed_window=failed_window,
            follow=follow,
        )
        timeout = options.get("timeout")
        return _exchange(self, request, _read_operation, "operation", timeout, repeatable=True)

    @sent
    def get(
        self, operation_id: str, *, count_outcomes: bool = False, timeout: Seconds | None = None
    ) -> Exchange[BulkOperation]:
        """Return an operation with its progress.

        Args:
            operation_id: Its id.
            count_outcomes: Count what has become of the steps that it requested.
            timeout: As in `RequestOptions`.
        """
        request = pb.GetBulkRequest(operation_id=operation_id, count_outcomes=count_outcomes)
        return _exchange(self, request, _read_operation, "operation", timeout, repeatable=True)

    @sent
    def stop(
        self, operation_id: str, reason: str, *, timeout: Seconds | None = None
    ) -> Exchange[BulkOperation]:
        """Stop an operation, unless it has ended; at most 100 processes are completed."""
        request = pb.StopBulkRequest(operation_id=operation_id, reason=reason)
        return _exchange(self, request, _read_operation, "operation", timeout, repeatable=True)

    @iterated
    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None
    ) -> Listing[BulkOperation]:
        """Iterate over the operations, the newest first, page by page."""
        request = pb.ListBulksRequest(page_size=page_size)
        return listing_of(self, request, _read_operation, "operations", timeout)

    @iterated
    def results(
        self,
        operation_id: str,
        *,
        failed: bool = False,
        page_size: int = 100,
        timeout: Seconds | None = None,
    ) -> Listing[BulkItem]:
        """Iterate over the processes of an operation with their results; or over the `failed`."""
        request = pb.ListBulkResultsRequest(
            operation_id=operation_id, failed=failed, page_size=page_size
        )
        return listing_of(self, request, _read_item, "results", timeout)


class SyncBulk(Resource[BlockingConnection]):
    """`Bulk` for programs without an event loop: blocking, safe in any thread."""

    preview = blocking(Bulk.preview)
    start = blocking(Bulk.start)
    get = blocking(Bulk.get)
    stop = blocking(Bulk.stop)
    list = blocking(Bulk.list)
    results = blocking(Bulk.results)


def _exchange(  # how a request is sent and read
    resource: Resource[Any],
    request: Any,  # noqa: ANN401  # any message of the service
    read: Callable[[Any, str, Any], Result],
    field: str,
    timeout: Seconds | None,
    *,
    repeatable: bool,
) -> Exchange[Result]:
    context = Typed(resource.codec, ANYTHING)

    def parse(message: Any) -> Result:  # noqa: ANN401  # of any kind
        return read(getattr(message, field) if field else message, "", context)

    return Exchange(request, parse, timeout, repeatable=repeatable)
