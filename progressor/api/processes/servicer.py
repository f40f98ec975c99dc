"""ProcessService: each method decodes, asks a collaborator, encodes."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from progressor import errors
from progressor.api.calls.servicer import Backend, Servicer, log_change, reading, seconds_left
from progressor.api.calls.traces import CallContext, caller_of, trace_context_of
from progressor.api.calls.turns import Turns
from progressor.api.processes import requests, responses
from progressor.api.processes.requests import (
    Admitted,
    Counting,
    NamedTask,
    Reading,
    Termination,
    Tracing,
)
from progressor.domain.access.rights import EVERYTHING, Right
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, is_namespace_name
from progressor.domain.processes.process import Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.views.failure import NOT_BROKEN, Broken, FailureQuery
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import HistoryPage, ProcessQuery, ProcessView
from progressor.v1 import process_service_pb2 as pb
from progressor.wire import processes as process_wire

T = TypeVar("T")

_NAMESPACES_MAX = 1000
"""Namespaces that are read at once."""

_log = logging.getLogger(__name__)


class ProcessServicer(Servicer):
    """What clients do with processes."""

    service = pb.DESCRIPTOR.services_by_name["ProcessService"]

    def __init__(self, backend: Callable[[], Backend], *, turns: Turns | None = None) -> None:
        super().__init__(backend)
        self._turns = turns or Turns()

    async def start(self, message: pb.StartRequest, context: CallContext) -> pb.StartResponse:
        return await self._ask(message, TaskType.INIT, pb.StartResponse, context)

    async def call(self, message: pb.CallRequest, context: CallContext) -> pb.CallResponse:
        return await self._ask(message, TaskType.CALL, pb.CallResponse, context)

    async def repair(self, message: pb.RepairRequest, context: CallContext) -> pb.RepairResponse:
        return await self._ask(message, TaskType.REPAIR, pb.RepairResponse, context)

    async def notify(self, message: pb.NotifyRequest, context: CallContext) -> pb.NotifyResponse:
        return await self._ask(message, TaskType.NOTIFY, pb.NotifyResponse, context)

    @reading(requests.key_of_request)
    async def retry(self, key: ProcessKey, context: CallContext) -> pb.RetryResponse:
        task_id = await self._backend().requests.recover(key, retries=True)
        log_change(_log, "process retried", key, context, task_id=task_id)
        return pb.RetryResponse(task_id=task_id)

    @reading(requests.key_of_request)
    async def simple_repair(self, key: ProcessKey, context: CallContext) -> pb.SimpleRepairResponse:
        task_id = await self._backend().requests.recover(key, retries=False)
        if task_id is None:
            # Otherwise the timer repairs it, and its settlement is logged.
            log_change(_log, "process repaired", key, context)
        return pb.SimpleRepairResponse(task_id=task_id)

    async def get(self, message: pb.GetRequest, context: CallContext) -> pb.GetResponse:
        """Return a process with a part of its history."""
        timeout = seconds_left(context)
        asked = requests.get_from_wire(message)
        await self._backend().namespaces.lookup(asked.key.namespace)
        view, page = await self._read(asked, context)
        if asked.await_init and view.process.status is ProcessStatus.INIT:
            await self._await_init(view, timeout)
            view, page = await self._read(asked, context)
        after = asked.history_range.after
        if after > view.process.last_event_id:
            raise errors.EventNotFoundError(asked.key.process_id, after)
        broken = await self._broken(view.process)
        return responses.get_to_wire(view, page, broken, without_state=message.without_state)

    async def put(self, message: pb.PutRequest, context: CallContext) -> pb.PutResponse:
        seconds_left(context)
        trace = trace_context_of(context)
        imported = await self._decoded(requests.put_from_wire, message, trace)
        receipt = await self._backend().requests.put(imported)
        if not receipt.deduplicated:
            log_change(_log, "process imported", imported.key, context)
        return pb.PutResponse(task_id=receipt.task_id, deduplicated=receipt.deduplicated)

    @reading(requests.key_of_request)
    async def remove(self, key: ProcessKey, context: CallContext) -> pb.RemoveResponse:
        await self._backend().requests.remove(key)
        log_change(_log, "process removed", key, context)
        return pb.RemoveResponse()

    @reading(requests.task_from_wire)
    async def cancel(self, named: NamedTask, context: CallContext) -> pb.CancelResponse:
        task_id = await self._backend().requests.cancel(named.key, named.task)
        log_change(_log, "task cancelled", named.key, context, task_id=task_id)
        return pb.CancelResponse(task_id=task_id)

    @reading(requests.termination_from_wire)
    async def terminate(self, asked: Termination, context: CallContext) -> pb.TerminateResponse:
        await self._backend().requests.terminate(asked.key, asked.reason)
        log_change(_log, "process terminated", asked.key, context)
        return pb.TerminateResponse()

    @reading(requests.trace_from_wire)
    async def trace(self, tracing: Tracing, context: CallContext) -> pb.TraceResponse:
        async with self._turns.of(context) as turn:
            # One more than requested shows whether there is a next page.
            traces = await self._backend().processes.trace(
                tracing.key,
                after=tracing.after,
                limit=tracing.limit + 1,
                direction=tracing.direction,
            )
            turn.weigh(sum(map(responses.size_of_trace, traces)))
        return responses.trace_to_wire(traces, page_size=tracing.limit)

    @reading(requests.list_from_wire)
    async def list(self, query: ProcessQuery, context: CallContext) -> pb.ListResponse:
        query = dataclasses.replace(query, filter=await self._filter(query.filter, context))
        return responses.list_to_wire(await self._backend().processes.page(query))

    @reading(requests.count_from_wire)
    async def count(self, asked: Counting, context: CallContext) -> pb.CountResponse:
        wanted = await self._filter(asked.filter, context)
        counted = await self._backend().counts.count(wanted, exact_max=asked.exact_max)
        return responses.count_to_wire(counted)

    @reading(requests.failures_from_wire)
    async def list_failures(
        self, query: FailureQuery, context: CallContext
    ) -> pb.ListFailuresResponse:
        seen = await self._seen(query.namespace, context)
        # One more than requested shows whether there is a next page.
        wanted = dataclasses.replace(query, page_size=query.page_size + 1, seen=seen)
        found = await self._backend().failures.list(wanted)
        return responses.failures_to_wire(found, page_size=query.page_size)

    async def _filter(self, wanted: ProcessFilter, context: CallContext) -> ProcessFilter:
        return dataclasses.replace(wanted, seen=await self._seen(wanted.namespace, context))

    async def _seen(self, namespace: str, context: CallContext) -> tuple[str, ...] | None:
        """Return the namespaces that a list is to show; None: it names one, or may show all."""
        caller = caller_of(context)
        if namespace or caller.may(Right.READ, EVERYTHING):
            return None
        seen, after = list[str](), ""
        while True:  # ends with the last namespace
            found = await self._backend().namespaces.list(after=after, limit=_NAMESPACES_MAX)
            seen.extend(it.name for it in found if caller.may(Right.READ, it.name))
            if len(found) < _NAMESPACES_MAX:
                return tuple(seen)
            after = found[-1].name

    async def await_task(
        self, message: pb.AwaitTaskRequest, context: CallContext
    ) -> pb.AwaitTaskResponse:
        """Return the response of a task that an earlier request created."""
        timeout = seconds_left(context)
        named = requests.task_from_wire(message)
        await self._backend().namespaces.lookup(named.key.namespace)
        answer = await self._backend().requests.await_task(named.key, named.task, timeout=timeout)
        return pb.AwaitTaskResponse(
            task_id=answer.task_id,
            type=process_wire.TASK_TYPE_TO_WIRE[answer.task_type],
            response=answer.response,
        )

    async def await_process(
        self, message: pb.AwaitProcessRequest, context: CallContext
    ) -> pb.AwaitProcessResponse:
        """Return the result of a process once it has ended."""
        timeout = seconds_left(context)
        key = requests.key_of_request(message)
        await self._backend().namespaces.lookup(key.namespace)
        result = await self._backend().requests.await_process(
            key, until_finished=message.until_finished, timeout=timeout
        )
        return pb.AwaitProcessResponse(result=result)

    async def _ask(
        self,
        message: Admitted,
        task_type: TaskType,
        respond: Callable[..., T],
        context: CallContext,
    ) -> T:
        """Return the response once the task is durable, or, if the caller waits, has ended."""
        timeout = seconds_left(context)
        trace = trace_context_of(context)
        request = await self._decoded(requests.request_from_wire, message, task_type, trace)
        if not request.waits:
            receipt = await self._backend().requests.accept(request)
            return respond(task_id=receipt.task_id, deduplicated=receipt.deduplicated)
        reply = await self._backend().requests.ask(request, timeout=timeout)
        return respond(
            task_id=reply.task_id, response=reply.response, deduplicated=reply.deduplicated
        )

    async def _decoded(self, decode: Callable[..., T], message: Any, *more: object) -> T:  # noqa: ANN401  # of many
        """Return a request, decoded with the payload limit of its namespace.

        Violations of the request are reported before an unknown namespace.
        """
        bytes_max = PAYLOAD_BYTES_CEILING
        if is_namespace_name(message.namespace):
            try:
                found = await self._backend().namespaces.lookup(message.namespace)
                bytes_max = found.payload_bytes_max
            except errors.NamespaceNotFoundError:
                decode(message, *more, payload_bytes_max=bytes_max)
                raise
        return decode(message, *more, payload_bytes_max=bytes_max)

    async def _broken(self, process: Process) -> Broken:
        """Return what has broken a process, and which repair has failed since."""
        if process.status is not ProcessStatus.ERROR:
            return NOT_BROKEN
        failures, group = self._backend().failures, None
        if process.failure_id:
            query = FailureQuery(namespace=process.key.namespace, failure_id=process.failure_id)
            group = next(iter(await failures.list(query)), None)
        return Broken(failure=group, failed_repair=await failures.last_repair(process))

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

    async def _read(self, asked: Reading, context: CallContext) -> tuple[ProcessView, HistoryPage]:
        async with self._turns.of(context) as turn:
            view, page = await self._backend().processes.read(
                asked.key, asked.history_range, bytes_max=responses.PAGE_BYTES_MAX
            )
            turn.weigh(responses.size_of_get(view, page))
            return view, page
