"""``client.processes``: the processes of a namespace, for either client."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.kinds import ANYTHING, Asked
from progressor.sdk.codec.wire import Seconds, optional_instant_to_wire, optional_timedelta
from progressor.sdk.sending.exchange import Exchange, Listing, Page
from progressor.sdk.sending.sending import (
    BlockingResource,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.constraints import Constraints, constraints_to_wire
from progressor.sdk.values.processes import (
    Accepted,
    Answer,
    HistoryRange,
    NewEvent,
    NewTimer,
    Process,
    ProcessStatus,
    SimpleRepaired,
    Snapshot,
    TaskAnswer,
    TaskType,
    Trace,
    WaitCause,
)
from progressor.sdk.values.requests import (
    event_to_wire,
    metadata_to_wire,
    range_to_wire,
    timer_to_wire,
)
from progressor.sdk.values.results import (
    read_accepted,
    read_answer,
    read_process,
    read_snapshot,
    read_task_answer,
    read_trace,
)
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types

_UNSPECIFIED = ProcessStatus.UNSPECIFIED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRequests:
    """Builds requests; what every method takes is said here.

    Args:
        args: The payload for the processor, encoded by the codec.
        idempotency_key: Makes the request safe to repeat, and so it is, while no engine can be
            reached; "": every request is new.
        context: Pairs handed through to the processor as they are.
        history: How much history the processor gets; None: the namespace's choice.
        constraints: What the task must pass before it may run; None: nothing.
        response_type, state_type: What the codec decodes to, as in ``response_type=Receipt``. An
            empty response is refused, as a ValueError, unless that admits None: ``Receipt | None``.
        timeout: Seconds or a timedelta; None: the client's. The task outlives it.
        namespace: "": the client's.
    """

    namespace: str
    codec: Codec

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
        response_type: TypeForm[Asked] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Answer[Asked]]:
        """Create a process, run its init task and return the processor's answer.

        With `accept_only` it returns as soon as the task is durable; `await_task` has the answer.

        Raises:
            ProcessAlreadyExistsError: The id is taken, by a request without this key.
            RejectedError: The processor refused; the process was not created.
            ProcessFailedError: The init task broke the process.
        """
        return Exchange(
            rpc="Start",
            request=pb.StartRequest(
                **self._task_fields(process_id, args, idempotency_key, context, history, namespace),
                metadata=metadata_to_wire(metadata),
                constraints=constraints_to_wire(constraints),
                accept_only=accept_only,
            ),
            parse=lambda message: read_answer(
                message, self.codec, response_type, accept_only=accept_only
            ),
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
        )

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
        response_type: TypeForm[Asked] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Answer[Asked]]:
        """Run a call on a process and return the processor's answer.

        Raises:
            RejectedError: The processor refused; the process is as it was.
            ProcessFailedError, ProcessFinishedError: The process takes no calls, or went there.
        """
        return Exchange(
            rpc="Call",
            request=pb.CallRequest(
                **self._task_fields(process_id, args, idempotency_key, context, history, namespace),
                constraints=constraints_to_wire(constraints),
                accept_only=accept_only,
            ),
            parse=lambda message: read_answer(
                message, self.codec, response_type, accept_only=accept_only
            ),
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
        )

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
    ) -> Exchange[Accepted]:
        """Leave a call without an answer with the process; return once it is durable."""
        return Exchange(
            rpc="Notify",
            request=pb.NotifyRequest(
                **self._task_fields(process_id, args, idempotency_key, context, history, namespace),
                constraints=constraints_to_wire(constraints),
            ),
            parse=read_accepted,
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
        )

    def repair(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        args: Payload = None,
        *,
        idempotency_key: str = "",
        context: Mapping[str, str] | None = None,
        history: HistoryRange | None = None,
        accept_only: bool = False,
        response_type: TypeForm[Asked] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Answer[Asked]]:
        """Ask the processor to bring a broken process back, and return its answer.

        Raises:
            RepairFailedError: The process is in error exactly as it was.
            ProcessIsRunningError: There is nothing to repair.
        """
        return Exchange(
            rpc="Repair",
            request=pb.RepairRequest(
                **self._task_fields(process_id, args, idempotency_key, context, history, namespace),
                accept_only=accept_only,
            ),
            parse=lambda message: read_answer(
                message, self.codec, response_type, accept_only=accept_only
            ),
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
        )

    def simple_repair(
        self, process_id: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[SimpleRepaired]:
        """Bring a broken process back without asking; a timer that broke it runs again."""
        return Exchange(
            rpc="SimpleRepair",
            request=pb.SimpleRepairRequest(
                namespace=namespace or self.namespace, process_id=process_id
            ),
            parse=lambda message: SimpleRepaired(
                task_id=message.task_id if message.HasField("task_id") else None
            ),
            repeatable=False,
            timeout=optional_timedelta(timeout),
        )

    def get(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        *,
        history: HistoryRange | None = None,
        await_init: bool = False,
        without_state: bool = False,
        state_type: TypeForm[Asked] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Snapshot[Asked]]:
        """Return a process with its history, its timer and what its tasks wait for.

        `history` None is all of it, as far as an answer holds it: see `Snapshot.next_after`. With
        `await_init` it waits until the process has left init. With `without_state` state and result
        are left out, as for the further pages of a history.
        """
        return Exchange(
            rpc="Get",
            request=pb.GetRequest(
                namespace=namespace or self.namespace,
                process_id=process_id,
                history_range=range_to_wire(history),
                await_init=await_init,
                without_state=without_state,
            ),
            parse=lambda message: read_snapshot(message, self.codec, state_type),
            repeatable=True,
            timeout=optional_timedelta(timeout),
        )

    def put(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        process_id: str,
        *,
        status: ProcessStatus = ProcessStatus.RUNNING,
        state: Payload = None,
        metadata: Mapping[str, Payload] | None = None,
        history: Sequence[NewEvent] = (),
        timer: NewTimer | None = None,
        detail: str = "",
        result: Payload = None,
        previous_status: ProcessStatus = _UNSPECIFIED,
        corrupted_by_type: TaskType = TaskType.UNSPECIFIED,
        created_at: dt.datetime | None = None,
        status_changed_at: dt.datetime | None = None,
        idempotency_key: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Accepted]:
        """Import a process in a given state, without asking the processor.

        Only a running one can have a `timer`, only one in error `detail` and `corrupted_by_type`,
        only a finished one a `result`.
        """
        return Exchange(
            rpc="Put",
            request=pb.PutRequest(
                namespace=namespace or self.namespace,
                process_id=process_id,
                status=types.ProcessStatus.ValueType(status.number),
                detail=detail,
                aux_state=self.codec.encode(state),
                metadata=metadata_to_wire(metadata),
                previous_status=types.ProcessStatus.ValueType(previous_status.number),
                created_at=optional_instant_to_wire(created_at),
                status_changed_at=optional_instant_to_wire(status_changed_at),
                history=[event_to_wire(event, self.codec) for event in history],
                timer=None if timer is None else timer_to_wire(timer, self.codec),
                corrupted_by_type=types.TaskType.ValueType(corrupted_by_type.number),
                result=self.codec.encode(result),
                idempotency_key=idempotency_key,
            ),
            parse=read_accepted,
            repeatable=bool(idempotency_key),
            timeout=optional_timedelta(timeout),
        )

    def remove(
        self, process_id: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[None]:
        """Delete a process in any status with all that belongs to it."""
        return Exchange(
            rpc="Remove",
            request=pb.RemoveRequest(namespace=namespace or self.namespace, process_id=process_id),
            parse=lambda _message: None,
            repeatable=False,
            timeout=optional_timedelta(timeout),
        )

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

        Who waits for it gets TaskCancelledError. With an init task its process goes, which has
        never been: ProcessRemovedError.

        Raises:
            ValueError: Neither an id nor a key is given, or both.
            TaskNotFoundError: The process has no such task.
            TaskIsRunningError, TaskHasEndedError: It is too late.
        """
        return Exchange(
            rpc="Cancel",
            request=pb.CancelRequest(
                namespace=namespace or self.namespace,
                process_id=process_id,
                **_task_named(task_id, idempotency_key),
            ),
            parse=_cancelled_task,
            # One that took effect, and whose answer was lost, would be told that it had ended.
            repeatable=False,
            timeout=optional_timedelta(timeout),
        )

    def trace(
        self,
        process_id: str,
        *,
        page_size: int = 100,
        page_token: str = "",
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Trace]:
        """Return a page of the tasks of a process, in the order of their ids."""
        return Exchange(
            rpc="Trace",
            request=pb.TraceRequest(
                namespace=namespace or self.namespace,
                process_id=process_id,
                page_size=page_size,
                page_token=page_token,
            ),
            parse=lambda message: read_trace(message, self.codec),
            repeatable=True,
            timeout=optional_timedelta(timeout),
        )

    def list(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        *,
        statuses: Sequence[ProcessStatus] = (),
        causes: Sequence[WaitCause] = (),
        created_from: dt.datetime | None = None,
        created_to: dt.datetime | None = None,
        metadata: Mapping[str, Payload] | None = None,
        page_size: int = 100,
        timeout: Seconds | None = None,
        namespace: str = "",
        all_namespaces: bool = False,
    ) -> Listing[Process]:
        """Go through the processes of a namespace, or of all, newest first, page after page.

        Without `statuses` of any status; with `causes` those whose first task waits for any of
        them; with `metadata` those whose metadata contains all of it; created at or after
        `created_from` and before `created_to`. `timeout` is for one page.
        """

        def page(token: str) -> Exchange[Page[Process]]:
            return Exchange(
                rpc="List",
                request=pb.ListRequest(
                    namespace="" if all_namespaces else namespace or self.namespace,
                    statuses=[types.ProcessStatus.ValueType(it.number) for it in statuses],
                    causes=[types.WaitCause.ValueType(it.number) for it in causes],
                    created_from=optional_instant_to_wire(created_from),
                    created_to=optional_instant_to_wire(created_to),
                    metadata=metadata_to_wire(metadata),
                    page_size=page_size,
                    page_token=token,
                ),
                parse=lambda message: Page(
                    items=tuple(read_process(it, self.codec) for it in message.processes),
                    next_page_token=message.next_page_token,
                ),
                repeatable=True,
                timeout=optional_timedelta(timeout),
            )

        return Listing(page=page)

    def await_task(  # the wire's own options, keyword-only
        self,
        process_id: str,
        *,
        task_id: int | None = None,
        idempotency_key: str | None = None,
        response_type: TypeForm[Asked] = ANYTHING,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[TaskAnswer[Asked]]:
        """Wait for a task, named by id or by key; end as the request that made it would have.

        Raises:
            ValueError: Neither is given, or both.
            TaskNotFoundError: The process has no such task.
        """
        return Exchange(
            rpc="AwaitTask",
            request=pb.AwaitTaskRequest(
                namespace=namespace or self.namespace,
                process_id=process_id,
                **_task_named(task_id, idempotency_key),
            ),
            parse=lambda message: read_task_answer(message, self.codec, response_type),
            repeatable=True,
            timeout=optional_timedelta(timeout),
        )

    def _task_fields(  # private, and always called with all of them
        self,
        process_id: str,
        args: Payload,
        idempotency_key: str,
        context: Mapping[str, str] | None,
        history: HistoryRange | None,
        namespace: str,
    ) -> dict[str, Any]:
        return {
            "namespace": namespace or self.namespace,
            "process_id": process_id,
            "args": self.codec.encode(args),
            "caller_context": context,
            "idempotency_key": idempotency_key,
            "history_range": range_to_wire(history),
        }


def _cancelled_task(message: pb.CancelResponse) -> int:
    return message.task_id


def _task_named(task_id: int | None, idempotency_key: str | None) -> dict[str, Any]:
    """Return the field that names a task, by its id or by its key."""
    if (task_id is None) == (idempotency_key is None):
        message = "a task is named by either `task_id` or `idempotency_key`"
        raise ValueError(message)
    return {"idempotency_key": idempotency_key} if task_id is None else {"task_id": task_id}


class Processes(Resource[ProcessRequests]):
    """What a program asks of processes; `ProcessRequests` explains each method's arguments."""

    start = sent(ProcessRequests.start)
    call = sent(ProcessRequests.call)
    notify = sent(ProcessRequests.notify)
    repair = sent(ProcessRequests.repair)
    simple_repair = sent(ProcessRequests.simple_repair)
    get = sent(ProcessRequests.get)
    put = sent(ProcessRequests.put)
    remove = sent(ProcessRequests.remove)
    trace = sent(ProcessRequests.trace)
    list = iterated(ProcessRequests.list)
    cancel = sent(ProcessRequests.cancel)
    await_task = sent(ProcessRequests.await_task)


class SyncProcesses(BlockingResource[ProcessRequests]):
    """`Processes` for programs without an event loop: blocking, and safe in any thread."""

    start = blocking_sent(ProcessRequests.start)
    call = blocking_sent(ProcessRequests.call)
    notify = blocking_sent(ProcessRequests.notify)
    repair = blocking_sent(ProcessRequests.repair)
    simple_repair = blocking_sent(ProcessRequests.simple_repair)
    get = blocking_sent(ProcessRequests.get)
    put = blocking_sent(ProcessRequests.put)
    remove = blocking_sent(ProcessRequests.remove)
    trace = blocking_sent(ProcessRequests.trace)
    list = blocking_iterated(ProcessRequests.list)
    cancel = blocking_sent(ProcessRequests.cancel)
    await_task = blocking_sent(ProcessRequests.await_task)
