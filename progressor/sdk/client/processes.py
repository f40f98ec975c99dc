"""``client.processes``: the processes of a namespace."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypeForm

from progressor.domain.processes.event import HistoryRange
from progressor.sdk.client.resource import Resource, blocking, blocking_iterated, iterated, sent
from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.codec.wire import Seconds, instant_to_wire, object_to_wire, optional
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.values import processes as values
from progressor.sdk.values.constraints import Constraints, constraints_to_wire
from progressor.v1 import process_service_pb2 as pb


class Processes(Resource[Connection]):
    """The requests about processes.

    These arguments are the same in several methods.

    Args:
        args: The payload for the processor, encoded by the codec.
        idempotency_key: Makes the request safe to repeat; the client repeats it while it cannot
            reach an engine. "": the request is not repeated.
        context: Passed to the processor unchanged.
        history: How much history the processor receives; None: as the namespace is configured.
        constraints: What must hold before the task may run; None: nothing.
        response_type, state_type: The type that the codec decodes to, as in
            ``response_type=Receipt``. An empty response raises ValueError, unless the type admits
            None: ``Receipt | None``.
        timeout: In seconds or a timedelta; None: the client's. The task continues after it.
        namespace: "": the client's.
    """

    @sent
    def start(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        args: Payload = None,
        *,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        history: HistoryRange | None = None,
        constraints: Constraints | None = None,
        metadata: Mapping[str, Payload] | None = None,
        accept_only: bool = False,
        response_type: TypeForm[Decoded] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Reply[Decoded]]:
        """Create a process, run its init task and return the processor's answer.

        With `accept_only` it returns as soon as the task is durable; `await_task` returns the
        answer.

        Raises:
            ProcessAlreadyExistsError: The id is taken, and not by a request with this key.
            RejectedError: The processor rejected the request; the process was not created.
            ProcessFailedError: The init task broke the process.
        """
        request = pb.StartRequest(
            **_task(self, process_id, args, idempotency_key, context, history, namespace),
            metadata=optional(object_to_wire, metadata),
            constraints=optional(constraints_to_wire, constraints),
            accept_only=accept_only,
        )
        return _asked(request, self.codec, response_type, timeout)

    @sent
    def call(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        args: Payload = None,
        *,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        history: HistoryRange | None = None,
        constraints: Constraints | None = None,
        accept_only: bool = False,
        response_type: TypeForm[Decoded] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Reply[Decoded]]:
        """Run a call on a process and return the processor's answer.

        Raises:
            RejectedError: The processor rejected the call; the process is unchanged.
            ProcessFailedError: The process is in error, or broke before the call ended.
            ProcessFinishedError: The process is finished, or finished before the call ran.
        """
        request = pb.CallRequest(
            **_task(self, process_id, args, idempotency_key, context, history, namespace),
            constraints=optional(constraints_to_wire, constraints),
            accept_only=accept_only,
        )
        return _asked(request, self.codec, response_type, timeout)

    @sent
    def notify(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        args: Payload = None,
        *,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        history: HistoryRange | None = None,
        constraints: Constraints | None = None,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Receipt]:
        """Send a process a notification, a call without an answer; return once it is durable."""
        request = pb.NotifyRequest(
            **_task(self, process_id, args, idempotency_key, context, history, namespace),
            constraints=optional(constraints_to_wire, constraints),
        )
        return Exchange(request, values.read_receipt, timeout, repeatable=bool(idempotency_key))

    @sent
    def repair(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        args: Payload = None,
        *,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        history: HistoryRange | None = None,
        accept_only: bool = False,
        response_type: TypeForm[Decoded] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Reply[Decoded]]:
        """Run the processor's repair handler on a broken process, and return its answer.

        Raises:
            RepairFailedError: The repair failed; the process is in error as before.
            ProcessIsRunningError: The process is not in error.
        """
        request = pb.RepairRequest(
            **_task(self, process_id, args, idempotency_key, context, history, namespace),
            accept_only=accept_only,
        )
        return _asked(request, self.codec, response_type, timeout)

    @sent
    def simple_repair(
        self, process_id: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[values.SimpleRepaired]:
        """Resume a broken process without its processor; a timer that broke it runs again."""
        request = pb.SimpleRepairRequest(
            namespace=namespace or self.namespace, process_id=process_id
        )
        return Exchange(request, values.read_simple_repaired, timeout)

    @sent
    def get(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        *,
        history: HistoryRange | None = None,
        await_init: bool = False,
        without_state: bool = False,
        state_type: TypeForm[Decoded] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Snapshot[Decoded]]:
        """Return a process with its history, its timer and what its tasks wait for.

        Args:
            process_id: The id of the process.
            history: Which events to return; None: all, as many as fit into a message, see
                `Snapshot.next_after`.
            await_init: Wait until the process has left the status init.
            without_state: Leave out state and result, for further pages of a history.
            state_type: The type of the state; see `Processes`.
            timeout: Of the request.
            namespace: Of the process.

        Raises:
            ProcessNotFoundError: The process does not exist.
            EventNotFoundError: The history has no event with the id `history.after`.
        """
        request = pb.GetRequest(
            namespace=namespace or self.namespace,
            process_id=process_id,
            history_range=optional(values.range_to_wire, history),
            await_init=await_init,
            without_state=without_state,
        )
        return Exchange(
            request,
            lambda message: values.read_snapshot(message, self.codec, state_type),
            timeout,
            repeatable=True,
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
        detail: str = "",
        result: Payload = None,
        previous_status: values.ProcessStatus = values.ProcessStatus.UNSPECIFIED,
        corrupted_by_type: values.TaskType = values.TaskType.UNSPECIFIED,
        created_at: dt.datetime | None = None,
        status_changed_at: dt.datetime | None = None,
        idempotency_key: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Receipt]:
        """Import a process with its state, without running a task.

        A `timer` requires the status running, `detail` and `corrupted_by_type` error, and `result`
        finished.

        Raises:
            ProcessAlreadyExistsError: The id is taken, and not by a request with this key.
        """
        request = pb.PutRequest(
            namespace=namespace or self.namespace,
            process_id=process_id,
            status=status.number,
            detail=detail,
            aux_state=self.codec.encode(state),
            metadata=optional(object_to_wire, metadata),
            previous_status=previous_status.number,
            created_at=optional(instant_to_wire, created_at),
            status_changed_at=optional(instant_to_wire, status_changed_at),
            history=[values.event_to_wire(event, self.codec) for event in history],
            timer=None if timer is None else values.timer_to_wire(timer, self.codec),
            corrupted_by_type=corrupted_by_type.number,
            result=self.codec.encode(result),
            idempotency_key=idempotency_key,
        )
        return Exchange(request, values.read_receipt, timeout, repeatable=bool(idempotency_key))

    @sent
    def remove(
        self, process_id: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[None]:
        """Delete a process, in any status, with all its tasks and events."""
        request = pb.RemoveRequest(namespace=namespace or self.namespace, process_id=process_id)
        return Exchange(request, nothing, timeout)

    @sent
    def cancel(
        self,
        process_id: str,
        *,
        task_id: int | None = None,
        idempotency_key: str | None = None,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[int]:
        """Cancel a task that waits or is available, and return its id.

        Its callers get TaskCancelledError. Cancelling an init task also deletes the process, which
        was never started; its callers get ProcessRemovedError.

        Raises:
            ValueError: Not exactly one of `task_id` and `idempotency_key` is given.
            TaskNotFoundError: The process has no such task.
            TaskIsRunningError: The task is running.
            TaskHasEndedError: The task has ended.
        """
        request = pb.CancelRequest(
            namespace=namespace or self.namespace,
            process_id=process_id,
            **_task_named(task_id, idempotency_key),
        )
        # If the answer to the first was lost, a repeat would end with TaskHasEndedError.
        return Exchange(request, lambda message: int(message.task_id), timeout)

    @sent
    def trace(
        self,
        process_id: str,
        *,
        page_size: int = 100,
        page_token: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.Trace]:
        """Return a page of the tasks of a process, in the order of their ids.

        `page_token` is `Trace.next_page_token` of the page before; "": the first page.
        """
        request = pb.TraceRequest(
            namespace=namespace or self.namespace,
            process_id=process_id,
            page_size=page_size,
            page_token=page_token,
        )
        return Exchange(
            request,
            lambda message: values.read_trace(message, self.codec),
            timeout,
            repeatable=True,
        )

    @iterated
    def list(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        *,
        statuses: Sequence[values.ProcessStatus] = (),
        causes: Sequence[values.WaitCause] = (),
        created_from: dt.datetime | None = None,
        created_to: dt.datetime | None = None,
        metadata: Mapping[str, Payload] | None = None,
        page_size: int = 100,
        timeout: Seconds | None = None,
        namespace: str = "",
        all_namespaces: bool = False,
    ) -> Listing[values.Process]:
        """Iterate over the processes of a namespace, or of all, the newest first, page by page.

        Args:
            statuses: Only processes in one of these; empty: in any.
            causes: Only processes whose first task waits for one of these causes.
            created_from: Only processes created at or after this instant.
            created_to: Only processes created before this instant.
            metadata: Only processes whose metadata contains all of this.
            page_size: Processes per request, 1 to 1,000.
            timeout: Of each page.
            namespace: Whose processes.
            all_namespaces: Those of all namespaces instead.
        """
        request = pb.ListRequest(
            namespace="" if all_namespaces else namespace or self.namespace,
            statuses=[it.number for it in statuses],
            causes=[it.number for it in causes],
            created_from=optional(instant_to_wire, created_from),
            created_to=optional(instant_to_wire, created_to),
            metadata=optional(object_to_wire, metadata),
            page_size=page_size,
        )
        return Listing(
            request,
            lambda message: [values.read_process(it, self.codec) for it in message.processes],
            timeout,
        )

    @sent
    def await_task(
        self,
        process_id: str,
        *,
        task_id: int | None = None,
        idempotency_key: str | None = None,
        response_type: TypeForm[Decoded] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[values.TaskReply[Decoded]]:
        """Wait for a task, given by its id or its key, and end as the request for it would have.

        Raises:
            ValueError: Not exactly one of `task_id` and `idempotency_key` is given.
            TaskNotFoundError: The process has no such task.
        """
        request = pb.AwaitTaskRequest(
            namespace=namespace or self.namespace,
            process_id=process_id,
            **_task_named(task_id, idempotency_key),
        )
        return Exchange(
            request,
            lambda message: values.read_task_reply(message, self.codec, response_type),
            timeout,
            repeatable=True,
        )


def _task(  # noqa: PLR0913, PLR0917  # always called with all arguments
    resource: Resource[Any],
    process_id: str,
    args: Payload,
    idempotency_key: str,
    context: Mapping[str, str] | None,
    history: HistoryRange | None,
    namespace: str,
) -> dict[str, Any]:
    return {
        "namespace": namespace or resource.namespace,
        "process_id": process_id,
        "args": resource.codec.encode(args),
        "caller_context": context,
        "idempotency_key": idempotency_key,
        "history_range": optional(values.range_to_wire, history),
    }


def _asked(
    request: pb.StartRequest | pb.CallRequest | pb.RepairRequest,
    codec: Codec,
    kind: TypeForm[Decoded],
    timeout: Seconds | None,
) -> Exchange[values.Reply[Decoded]]:
    return Exchange(
        request,
        lambda message: values.read_reply(message, codec, kind, accept_only=request.accept_only),
        timeout,
        repeatable=bool(request.idempotency_key),
    )


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
    simple_repair = blocking(Processes.simple_repair)
    get = blocking(Processes.get)
    put = blocking(Processes.put)
    remove = blocking(Processes.remove)
    trace = blocking(Processes.trace)
    list = blocking_iterated(Processes.list)
    cancel = blocking(Processes.cancel)
    await_task = blocking(Processes.await_task)
