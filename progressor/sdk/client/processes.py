"""``client.processes``: the processes of a namespace."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from typing_extensions import TypeForm

from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.process import EXACT_MAX_DEFAULT, ProcessCount
from progressor.sdk.client.filters import FilterOptions, filter_to_wire
from progressor.sdk.client.resource import (
    RequestOptions,
    Resource,
    blocking,
    exchange,
    iterated,
    listing,
    listing_of,
    sent,
)
from progressor.sdk.codec.codecs import Payload, Typed, decoded, for_request
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.codec.wire import Seconds, instant_to_wire, object_to_wire, optional
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, Result, nothing
from progressor.sdk.values import processes as values
from progressor.sdk.values.constraints import Constraints, constraints_to_wire
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2


class TaskOptions(RequestOptions, total=False):
    """Options of the requests that become tasks, and those of `RequestOptions`.

    ``idempotency_key``: makes the request safe to repeat; the client repeats it while it cannot
    reach an engine. "": the request is not repeated. ``context``: passed to the processor
    unchanged. ``history``: how much history the processor receives; None: as the namespace is
    configured. The task continues after the timeout.
    """

    idempotency_key: str
    context: Mapping[str, str] | None
    history: HistoryRange | None


class Processes(Resource[Connection]):
    """The requests about processes.

    These arguments are the same in several methods.

    Args:
        args: The payload for the processor, encoded by the codec.
        constraints: What must hold before the task may run; None: nothing.
        accept_only: Return as soon as the task is durable; `await_task` returns the answer.
        response_type, state_type: The type that the codec decodes to, as in
            ``response_type=Receipt``. An empty response raises ValueError, unless the type admits
            None: ``Receipt | None``.
        options: See `TaskOptions` and `RequestOptions`.
    """

    @sent
    def start(
        self,
        process_id: str,
        args: Payload = None,
        *,
        constraints: Constraints | None = None,
        metadata: Mapping[str, Payload] | None = None,
        accept_only: bool = False,
        response_type: TypeForm[Decoded] = ANYTHING,
        **options: Unpack[TaskOptions],
    ) -> Exchange[values.Reply[Decoded]]:
        """Create a process, run its init task and return the processor's answer.

        Raises:
            ProcessAlreadyExistsError: The id is taken, and not by a request with this key.
            RejectedError: The processor rejected the request; the process was not created.
            ProcessFailedError: The init task broke the process.
        """
        request = pb.StartRequest(
            metadata=optional(object_to_wire, metadata),
            constraints=optional(constraints_to_wire, constraints),
            accept_only=accept_only,
        )
        return _asked(self, request, response_type, process_id, args, **options)

    @sent
    def call(
        self,
        process_id: str,
        args: Payload = None,
        *,
        constraints: Constraints | None = None,
        accept_only: bool = False,
        response_type: TypeForm[Decoded] = ANYTHING,
        **options: Unpack[TaskOptions],
    ) -> Exchange[values.Reply[Decoded]]:
        """Run a call on a process and return the processor's answer.

        Raises:
            RejectedError: The processor rejected the call; the process is unchanged.
            ProcessFailedError: The process is in error, or broke before the call ended.
            ProcessFinishedError: The process is finished, or finished before the call ran.
        """
        request = pb.CallRequest(
            constraints=optional(constraints_to_wire, constraints), accept_only=accept_only
        )
        return _asked(self, request, response_type, process_id, args, **options)

    @sent
    def notify(
        self,
        process_id: str,
        args: Payload = None,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[TaskOptions],
    ) -> Exchange[values.Receipt]:
        """Send a process a notification, a call without an answer; return once it is durable."""
        request = pb.NotifyRequest(constraints=optional(constraints_to_wire, constraints))
        return _task(self, request, values.read_receipt, process_id, args, **options)

    @sent
    def repair(
        self,
        process_id: str,
        args: Payload = None,
        *,
        accept_only: bool = False,
        response_type: TypeForm[Decoded] = ANYTHING,
        **options: Unpack[TaskOptions],
    ) -> Exchange[values.Reply[Decoded]]:
        """Run the processor's repair handler on a broken process, and return its answer.

        Raises:
            RepairFailedError: The repair failed; the process is in error as before.
            ProcessIsRunningError: The process is not in error.
        """
        request = pb.RepairRequest(accept_only=accept_only)
        return _asked(self, request, response_type, process_id, args, **options)

    @sent
    def retry(self, process_id: str, **options: Unpack[RequestOptions]) -> Exchange[values.Retried]:
        """Run the task that broke a process again, with all its attempts.

        It keeps its id and its idempotency key, which then stand for its new outcome. If it
        succeeds, the process is running, and what was held on it goes on, oldest first.

        Raises:
            ProcessIsRunningError: The process is not in error, or its recovery is under way.
            NothingToRetryError: No task broke the process.
        """
        request = pb.RetryRequest(process_id=process_id)
        return exchange(self, request, values.read_retried, **options)

    @sent
    def simple_repair(
        self, process_id: str, **options: Unpack[RequestOptions]
    ) -> Exchange[values.SimpleRepaired]:
        """Resume a broken process without a repair handler; a timer that broke it runs again.

        Any other task is left behind, and the process is running at once, with what was held on it.
        """
        request = pb.SimpleRepairRequest(process_id=process_id)
        return exchange(self, request, values.read_simple_repaired, **options)

    @sent
    def get(
        self,
        process_id: str,
        *,
        history: HistoryRange | None = None,
        await_init: bool = False,
        without_state: bool = False,
        state_type: TypeForm[Decoded] = ANYTHING,
        **options: Unpack[RequestOptions],
    ) -> Exchange[values.Snapshot[Decoded]]:
        """Return a process with its history, its timer and what its tasks wait for.

        Args:
            process_id: The id of the process.
            history: Which events to return; None: all, as many as fit into a message, see
                `Snapshot.next_after`.
            await_init: Wait until the process has left the status init.
            without_state: Leave out state and result, for further pages of a history.
            state_type: The type of the state; see `Processes`.
            options: See `RequestOptions`.

        Raises:
            ProcessNotFoundError: The process does not exist.
            EventNotFoundError: The history has no event with the id `history.after`.
        """
        request = pb.GetRequest(
            process_id=process_id,
            history_range=optional(values.range_to_wire, history),
            await_init=await_init,
            without_state=without_state,
        )
        return exchange(
            self, request, values.read_snapshot, kind=state_type, repeatable=True, **options
        )

    @sent
    def put(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        *,
        status: values.ProcessStatus = values.ProcessStatus.RUNNING,
        state: Payload = None,
        metadata: Mapping[str, Payload] | None = None,
        history: Sequence[values.NewEvent] = (),
        timer: values.NewTimer | None = None,
        timers: Mapping[str, values.NewTimer | values.Timer] | None = None,
        detail: str = "",
        result: Payload = None,
        previous_status: values.ProcessStatus = values.ProcessStatus.UNSPECIFIED,
        corrupted_by_type: values.TaskType = values.TaskType.UNSPECIFIED,
        created_at: dt.datetime | None = None,
        status_changed_at: dt.datetime | None = None,
        idempotency_key: str = "",
        state_version: int = 0,
        **options: Unpack[RequestOptions],
    ) -> Exchange[values.Receipt]:
        """Import a process with its state, without running a task.

        A `timer`, and `timers` by their names, require the status running, `detail` and
        `corrupted_by_type` error, and `result` finished. `timers` may be those of a snapshot, which
        have no args; the one of the name "" is the timer without a name. `state_version` is the
        version of the state for the processor's upgrades.

        Raises:
            ValueError: The timer without a name is given twice.
            ProcessAlreadyExistsError: The id is taken, and not by a request with this key.
        """
        namespace = options.get("namespace") or self.namespace
        codec = for_request(self.codec, idempotency_key, namespace, process_id)
        unnamed, named = values.timers_to_wire(timer, timers or {}, codec)
        request = pb.PutRequest(
            process_id=process_id,
            status=status.number,
            detail=detail,
            aux_state=codec.encode(state),
            metadata=optional(object_to_wire, metadata),
            previous_status=previous_status.number,
            created_at=optional(instant_to_wire, created_at),
            status_changed_at=optional(instant_to_wire, status_changed_at),
            history=[values.event_to_wire(event, codec) for event in history],
            timer=unnamed,
            named_timers=named,
            corrupted_by_type=corrupted_by_type.number,
            result=codec.encode(result),
            idempotency_key=idempotency_key,
            state_version=state_version,
        )
        return exchange(
            self, request, values.read_receipt, repeatable=bool(idempotency_key), **options
        )

    @sent
    def remove(self, process_id: str, **options: Unpack[RequestOptions]) -> Exchange[None]:
        """Delete a process, in any status, with all its tasks and events."""
        request = pb.RemoveRequest(process_id=process_id)
        return exchange(self, request, nothing, **options)

    @sent
    def terminate(
        self, process_id: str, reason: str, **options: Unpack[RequestOptions]
    ) -> Exchange[None]:
        """End a process in any status as finished, and keep its record.

        What waits on it is cancelled, and a running step loses its lease. The `reason` is required;
        it is shown as the detail of the process.

        Raises:
            ProcessFinishedError: The process is finished already.
        """
        request = pb.TerminateRequest(process_id=process_id, reason=reason)
        return exchange(self, request, nothing, **options)

    @sent
    def cancel(
        self,
        process_id: str,
        *,
        task_id: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> Exchange[int]:
        """Cancel a task that has not ended, and return its id.

        Its callers get TaskCancelledError, and the process goes on without it. The processor of a
        running task is notified; it may have acted, which the record of the task says. Cancelling
        an init task also deletes the process; its callers get ProcessRemovedError. A task that
        broke its process and runs again leaves the process in error.

        Raises:
            ValueError: Not exactly one of `task_id` and `idempotency_key` is given.
            TaskNotFoundError: The process has no such task.
            TaskHasEndedError: The task has ended.
        """
        request = pb.CancelRequest(process_id=process_id, **_task_named(task_id, idempotency_key))
        # If the answer to the first was lost, a repeat would end with TaskHasEndedError.
        return exchange(self, request, _read_task_id, **options)

    @sent
    def trace(
        self,
        process_id: str,
        *,
        page_size: int = 100,
        page_token: str = "",
        newest_first: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Exchange[values.Trace]:
        """Return a page of the tasks of a process, in the order of their ids or `newest_first`.

        `page_token` is `Trace.next_page_token` of the page before; "": the first page.
        """
        request = pb.TraceRequest(process_id=process_id, page_size=page_size, page_token=page_token)
        if newest_first:
            request.direction = types_pb2.DIRECTION_BACKWARD
        return exchange(self, request, values.read_trace, repeatable=True, **options)

    @iterated
    def list(
        self,
        *,
        causes: Sequence[values.WaitCause] = (),
        page_size: int = 100,
        **options: Unpack[FilterOptions],
    ) -> Listing[values.Process]:
        """Iterate over processes, the newest first, page by page.

        Args:
            causes: Only processes whose first task waits for one of these causes.
            page_size: Processes per request, 1 to 1,000.
            options: See `FilterOptions` and `RequestOptions`.
        """
        request = pb.ListRequest(
            filter=filter_to_wire(self.namespace, **options),
            causes=[it.number for it in causes],
            page_size=page_size,
        )
        return listing_of(self, request, values.read_process, "processes", options.get("timeout"))

    @sent
    def count(
        self, *, exact_max: int = EXACT_MAX_DEFAULT, **options: Unpack[FilterOptions]
    ) -> Exchange[ProcessCount]:
        """Return how many processes match; an estimate if more than `exact_max` must be examined.

        With no more than namespaces and statuses the count is exact however many there are, and
        `ProcessCount.namespaces` has it by namespace and status.

        Args:
            exact_max: Up to how many are examined one by one, 1 to 1,000,000.
            options: See `FilterOptions` and `RequestOptions`.
        """
        request = pb.CountRequest(
            filter=filter_to_wire(self.namespace, **options), exact_max=exact_max
        )
        return Exchange(request, values.read_count, options.get("timeout"), repeatable=True)

    @iterated
    def failures(
        self,
        *,
        failure_id: str = "",
        broken_only: bool = False,
        all_namespaces: bool = False,
        page_size: int = 100,
        **options: Unpack[RequestOptions],
    ) -> Listing[values.FailureGroup]:
        """Iterate over the groups of failures, those with most broken processes first.

        Args:
            failure_id: Only the group with this id, as in `Process.failure_id`.
            broken_only: Only groups with a process that is in error now.
            all_namespaces: The groups of all namespaces.
            page_size: Groups per request, 1 to 1,000.
            options: See `RequestOptions`.
        """
        request = pb.ListFailuresRequest(
            failure_id=failure_id, broken_only=broken_only, page_size=page_size
        )
        listed = listing(self, request, values.read_failure, "failures", **options)
        if all_namespaces:
            request.namespace = ""
        return listed

    @sent
    def await_task(
        self,
        process_id: str,
        *,
        task_id: int | None = None,
        idempotency_key: str | None = None,
        response_type: TypeForm[Decoded] = ANYTHING,
        **options: Unpack[RequestOptions],
    ) -> Exchange[values.TaskReply[Decoded]]:
        """Wait for a task, given by its id or its key, and end as the request for it would have.

        Raises:
            ValueError: Not exactly one of `task_id` and `idempotency_key` is given.
            TaskNotFoundError: The process has no such task.
        """
        request = pb.AwaitTaskRequest(
            process_id=process_id, **_task_named(task_id, idempotency_key)
        )
        return exchange(
            self, request, values.read_task_reply, kind=response_type, repeatable=True, **options
        )

    @sent
    def result(
        self,
        process_id: str,
        *,
        type: TypeForm[Decoded] = ANYTHING,  # noqa: A002  # reads as `result(..., type=Order)`
        until_finished: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Decoded]:
        """Wait for a process to complete, and return its result.

        Give a `timeout` that is as long as the process may take; by default it is the client's.

        Args:
            process_id: The id of the process.
            type: The type that the codec decodes the result to.
            until_finished: Keep waiting while the process is in error, since it may be repaired.
                False: raise ProcessFailedError as soon as it is in error.
            options: See `RequestOptions`.

        Raises:
            ProcessFailedError: The process is in error.
            ProcessTerminatedError: The process was terminated; `detail` is the reason.
            ProcessRemovedError: The process was removed while this waited.
            ProcessNotFoundError: The process does not exist.
            DeadlineExceededError: The process has not ended within the timeout.
            ValueError: The result is not a `type`.
        """
        request = pb.AwaitProcessRequest(process_id=process_id, until_finished=until_finished)
        awaited = f"process {process_id!r}"
        return exchange(
            self, request, _read_result, kind=type, repeatable=True, awaited=awaited, **options
        )


def _asked(
    resource: Resource[Any],
    request: pb.StartRequest | pb.CallRequest | pb.RepairRequest,
    kind: TypeForm[Decoded],
    process_id: str,
    args: Payload,
    **options: Unpack[TaskOptions],
) -> Exchange[values.Reply[Decoded]]:
    def parse(message: pb.CallResponse) -> values.Reply[Decoded]:
        return values.read_reply(message, resource.codec, kind, accept_only=request.accept_only)

    return _task(resource, request, parse, process_id, args, **options)


def _task(  # noqa: PLR0913  # what all requests that become tasks have
    resource: Resource[Any],
    request: pb.StartRequest | pb.CallRequest | pb.NotifyRequest | pb.RepairRequest,
    parse: Callable[[Any], Result],
    process_id: str,
    args: Payload,
    *,
    idempotency_key: str = "",
    context: Mapping[str, str] | None = None,
    history: HistoryRange | None = None,
    timeout: Seconds | None = None,
    namespace: str = "",
) -> Exchange[Result]:
    request.namespace = namespace or resource.namespace
    request.process_id = process_id
    codec = for_request(resource.codec, idempotency_key, request.namespace, process_id)
    request.args = codec.encode(args)
    if idempotency_key:
        request.idempotency_key = idempotency_key
    if context:
        request.caller_context.update(context)
    if history is not None:
        request.history_range.CopyFrom(values.range_to_wire(history))
    return Exchange(request, parse, timeout, repeatable=bool(idempotency_key))


def _read_task_id(message: pb.CancelResponse, _path: str, _context: object) -> int:
    return message.task_id


def _read_result(message: pb.AwaitProcessResponse, _path: str, context: Typed) -> Any:  # noqa: ANN401  # of the type asked for
    return decoded(context.codec, message.result, context.kind)


def _task_named(task_id: int | None, idempotency_key: str | None) -> dict[str, Any]:
    if (task_id is None) == (idempotency_key is None):
        message = "exactly one of `task_id` and `idempotency_key` must be given"
        raise ValueError(message)
    return {"idempotency_key": idempotency_key} if task_id is None else {"task_id": task_id}


class SyncProcesses(Resource[BlockingConnection]):
    """`Processes` for programs without an event loop: blocking, safe in any thread."""

    start = blocking(Processes.start)
    call = blocking(Processes.call)
    notify = blocking(Processes.notify)
    repair = blocking(Processes.repair)
    retry = blocking(Processes.retry)
    simple_repair = blocking(Processes.simple_repair)
    get = blocking(Processes.get)
    put = blocking(Processes.put)
    remove = blocking(Processes.remove)
    trace = blocking(Processes.trace)
    list = blocking(Processes.list)
    count = blocking(Processes.count)
    failures = blocking(Processes.failures)
    cancel = blocking(Processes.cancel)
    await_task = blocking(Processes.await_task)
    terminate = blocking(Processes.terminate)
    result = blocking(Processes.result)
