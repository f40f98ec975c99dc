"""ProcessService: each method decodes, asks a collaborator, encodes."""

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from progressor import errors
from progressor.api.calls.deadlines import seconds_left
from progressor.api.calls.interceptors import Method
from progressor.api.calls.ports import Backend, CallContext
from progressor.api.calls.trace_context import trace_context_of
from progressor.api.calls.turns import Turns
from progressor.api.processes import codec, put_codec, responses
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, is_namespace_name
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.views.process import HistoryPage, ProcessView
from progressor.telemetry.logs import fields as log_fields
from progressor.v1 import process_service_pb2 as messages
from progressor.wire import processes as process_wire

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ProcessServicer:
    """What clients do with processes.

    Cancelling a method (the caller hung up) never cancels a task. Every method raises the
    `errors` that the interceptor makes into statuses.
    """

    def __init__(
        self,
        backend: Callable[[], Backend],
        *,
        turns: Turns | None = None,
    ) -> None:
        self._backend = backend
        self._turns = turns or Turns()

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by their names on the wire."""
        return {
            "Start": self.start,
            "Call": self.call,
            "Notify": self.notify,
            "Repair": self.repair,
            "SimpleRepair": self.simple_repair,
            "Get": self.get,
            "Put": self.put,
            "Remove": self.remove,
            "Cancel": self.cancel,
            "Trace": self.trace,
            "List": self.list,
            "AwaitTask": self.await_task,
        }

    async def start(
        self, message: messages.StartRequest, context: CallContext
    ) -> messages.StartResponse:
        """Create a process and return the response of its init task."""
        return await self._ask(message, TaskType.INIT, messages.StartResponse, context)

    async def call(
        self, message: messages.CallRequest, context: CallContext
    ) -> messages.CallResponse:
        """Return the response of a call."""
        return await self._ask(message, TaskType.CALL, messages.CallResponse, context)

    async def notify(
        self, message: messages.NotifyRequest, context: CallContext
    ) -> messages.NotifyResponse:
        """Return once a notify is durable."""
        seconds_left(context)
        request = await self._request_of(message, TaskType.NOTIFY, context)
        receipt = await self._backend().requests.accept(request)
        return messages.NotifyResponse(task_id=receipt.task_id, deduplicated=receipt.deduplicated)

    async def repair(
        self, message: messages.RepairRequest, context: CallContext
    ) -> messages.RepairResponse:
        """Return the response of a repair."""
        return await self._ask(message, TaskType.REPAIR, messages.RepairResponse, context)

    async def simple_repair(
        self, message: messages.SimpleRepairRequest, context: CallContext
    ) -> messages.SimpleRepairResponse:
        """Bring a broken process back without asking its processor."""
        seconds_left(context)
        key = codec.key_of_request(message)
        await self._backend().namespaces.lookup(key.namespace)
        task_id = await self._backend().requests.simple_repair(key)
        if task_id is None:
            # Otherwise the timer repairs it, and its settlement is logged.
            _log_change("process repaired", key, context)
        return messages.SimpleRepairResponse(task_id=task_id)

    async def get(self, message: messages.GetRequest, context: CallContext) -> messages.GetResponse:
        """Return a process with a part of its history."""
        timeout = seconds_left(context)
        reading = codec.get_from_wire(message)
        await self._backend().namespaces.lookup(reading.key.namespace)
        view, page = await self._read(reading, context)
        if reading.await_init and view.process.status is ProcessStatus.INIT:
            await self._await_init(view, timeout)
            view, page = await self._read(reading, context)
        after = reading.history_range.after
        if after > view.process.last_event_id:
            raise errors.EventNotFoundError(reading.key.process_id, after)
        return responses.get_to_wire(view, page, without_state=message.without_state)

    async def put(self, message: messages.PutRequest, context: CallContext) -> messages.PutResponse:
        """Import a process."""
        seconds_left(context)

        def decode(limit: int) -> Import:
            return put_codec.put_from_wire(
                message, trace_context_of(context), payload_bytes_max=limit
            )

        imported = await self._decoded(message.namespace, decode)
        receipt = await self._backend().requests.put(imported)
        if not receipt.deduplicated:
            _log_change("process imported", imported.key, context)
        return messages.PutResponse(task_id=receipt.task_id, deduplicated=receipt.deduplicated)

    async def remove(
        self, message: messages.RemoveRequest, context: CallContext
    ) -> messages.RemoveResponse:
        """Delete a process."""
        seconds_left(context)
        key = codec.key_of_request(message)
        await self._backend().namespaces.lookup(key.namespace)
        await self._backend().requests.remove(key)
        _log_change("process removed", key, context)
        return messages.RemoveResponse()

    async def cancel(
        self, message: messages.CancelRequest, context: CallContext
    ) -> messages.CancelResponse:
        """Cancel a task that waits."""
        seconds_left(context)
        named = codec.task_from_wire(message)
        await self._backend().namespaces.lookup(named.key.namespace)
        task_id = await self._backend().requests.cancel(named.key, named.task)
        _log_change("task cancelled", named.key, context, task_id=task_id)
        return messages.CancelResponse(task_id=task_id)

    async def trace(
        self, message: messages.TraceRequest, context: CallContext
    ) -> messages.TraceResponse:
        """Return a page of the tasks of a process."""
        seconds_left(context)
        tracing = codec.trace_from_wire(message)
        await self._backend().namespaces.lookup(tracing.key.namespace)
        async with self._turns.of(context) as turn:
            # One more than requested shows whether there is a next page.
            traces = await self._backend().processes.trace(
                tracing.key, after=tracing.after, limit=tracing.limit + 1
            )
            turn.weigh(sum(map(responses.size_of_trace, traces)))
        return responses.trace_to_wire(traces, page_size=tracing.limit)

    async def list(
        self, message: messages.ListRequest, context: CallContext
    ) -> messages.ListResponse:
        """Return a page of the processes of a namespace, or of all."""
        seconds_left(context)
        query = codec.list_from_wire(message)
        if query.namespace:
            await self._backend().namespaces.lookup(query.namespace)
        return responses.list_to_wire(await self._backend().processes.page(query))

    async def await_task(
        self, message: messages.AwaitTaskRequest, context: CallContext
    ) -> messages.AwaitTaskResponse:
        """Return the response of a task that an earlier request created."""
        timeout = seconds_left(context)
        named = codec.task_from_wire(message)
        await self._backend().namespaces.lookup(named.key.namespace)
        answer = await self._backend().requests.await_task(named.key, named.task, timeout=timeout)
        return messages.AwaitTaskResponse(
            task_id=answer.task_id,
            type=process_wire.TASK_TYPE_TO_WIRE[answer.task_type],
            response=answer.response,
        )

    async def _ask(
        self,
        message: codec.Admitted,
        task_type: TaskType,
        respond: Callable[..., T],
        context: CallContext,
    ) -> T:
        """Return the response once the task is durable, or, if the caller waits, has ended."""
        timeout = seconds_left(context)
        request = await self._request_of(message, task_type, context)
        if not request.waits:
            receipt = await self._backend().requests.accept(request)
            return respond(task_id=receipt.task_id, deduplicated=receipt.deduplicated)
        reply = await self._backend().requests.ask(request, timeout=timeout)
        return respond(
            task_id=reply.task_id, response=reply.response, deduplicated=reply.deduplicated
        )

    async def _request_of(
        self, message: codec.Admitted, task_type: TaskType, context: CallContext
    ) -> Request:
        def decode(limit: int) -> Request:
            return codec.request_from_wire(
                message, task_type, trace_context_of(context), payload_bytes_max=limit
            )

        return await self._decoded(message.namespace, decode)

    async def _decoded(self, namespace: str, decode: Callable[[int], T]) -> T:
        """Return a request, decoded with the payload limit of its namespace.

        What is wrong with the request itself goes before a namespace that is not there.
        """
        if not is_namespace_name(namespace):
            return decode(PAYLOAD_BYTES_CEILING)
        try:
            found = await self._backend().namespaces.lookup(namespace)
        except errors.NamespaceNotFoundError:
            decode(PAYLOAD_BYTES_CEILING)
            raise
        return decode(found.payload_bytes_max)

    async def _await_init(self, view: ProcessView, seconds: float | None) -> None:
        """Return when the init task has ended, however it has."""
        key, task_id = view.process.key, view.process.init_task_id
        try:
            await self._backend().requests.await_task(key, task_id, timeout=seconds)
        except (errors.DeadlineExceededError, errors.OverloadedError, errors.ShuttingDownError):
            # These say that the wait is over, not the task.
            raise
        except errors.RequestError:
            return

    async def _read(
        self, reading: codec.Reading, context: CallContext
    ) -> tuple[ProcessView, HistoryPage]:
        async with self._turns.of(context) as turn:
            view, page = await self._backend().processes.read(
                reading.key, reading.history_range, bytes_max=responses.PAGE_BYTES_MAX
            )
            turn.weigh(responses.size_of_get(view, page))
            return view, page


def _log_change(change: str, key: ProcessKey, context: CallContext, **facts: object) -> None:
    """Log a change that no step makes; settlement logs the others."""
    _log.info(change, extra={**log_fields.of_process(key, trace_context_of(context)), **facts})
