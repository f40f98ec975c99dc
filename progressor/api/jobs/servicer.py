"""JobService: each method decodes, asks a collaborator, encodes."""

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from progressor import errors
from progressor.api.calls.deadlines import seconds_left
from progressor.api.calls.interceptors import Method, Watch
from progressor.api.calls.ports import Backend, CallContext
from progressor.api.calls.trace_context import trace_context_of
from progressor.api.jobs import codec as job_codec
from progressor.clock import Clock
from progressor.domain.jobs.graph import namespaces_of
from progressor.domain.jobs.job import Job, JobState
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.telemetry.logs import fields as log_fields
from progressor.v1 import job_service_pb2 as messages

WATCHERS_MAX = 1000
"""Calls of WatchJob in one replica at a time: each looks at its job once a second, or more."""

WATCH_SECONDS_MIN = 0.05
WATCH_SECONDS_MAX = 1.0
WATCH_GROWTH = 1.5

_RETRY_AFTER = dt.timedelta(seconds=1)

_log = logging.getLogger(__name__)


class JobServicer:
    """What clients and operators do with jobs; raises the `errors` that become statuses."""

    def __init__(
        self,
        backend: Callable[[], Backend],
        *,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._pause = pause
        self._watcher_count = 0

    def methods(self) -> Mapping[str, Method]:
        """Return the unary methods by their names on the wire."""
        return {
            "SubmitJob": self.submit,
            "GetJob": self.get,
            "ListJobs": self.list,
            "CancelJob": self.cancel,
            "RetryJob": self.retry,
        }

    def watches(self) -> Mapping[str, Watch]:
        """Return the methods that answer with a stream."""
        return {"WatchJob": self.watch}

    async def submit(
        self, message: messages.SubmitJobRequest, context: CallContext
    ) -> messages.SubmitJobResponse:
        """Start a job that the engine leads, and return once its nodes are there."""
        timeout = seconds_left(context)
        submission = job_codec.submit_from_wire(message, now=self._clock.now())
        await self._backend().namespaces.lookup(submission.key.namespace)
        names = namespaces_of(submission.key, submission.action)
        request = job_codec.request_of(
            submission, await self._lookup(names), trace_context_of(context)
        )
        answer = await self._backend().requests.ask(request, timeout=timeout)
        return messages.SubmitJobResponse(task_id=answer.task_id, deduplicated=answer.deduplicated)

    async def get(
        self, message: messages.GetJobRequest, context: CallContext
    ) -> messages.GetJobResponse:
        """Return a job with its graph."""
        seconds_left(context)
        key = job_codec.key_of_request(message)
        await self._backend().namespaces.lookup(key.namespace)
        page = await self._backend().jobs.read(key, payloads=not message.without_payloads)
        return job_codec.get_to_wire(page)

    async def list(
        self, message: messages.ListJobsRequest, context: CallContext
    ) -> messages.ListJobsResponse:
        """Return a page of the jobs of a namespace."""
        seconds_left(context)
        listing = job_codec.list_from_wire(message)
        await self._backend().namespaces.lookup(listing.namespace)
        # One more than requested shows whether there is a next page.
        found = await self._backend().jobs.list(
            listing.namespace, listing.wanted, after=listing.after, limit=listing.limit + 1
        )
        return job_codec.list_to_wire(found, page_size=listing.limit)

    async def cancel(
        self, message: messages.CancelJobRequest, context: CallContext
    ) -> messages.CancelJobResponse:
        """End a job."""
        seconds_left(context)
        cancellation = job_codec.cancel_from_wire(message)
        await self._backend().namespaces.lookup(cancellation.key.namespace)
        job = await self._backend().job_control.cancel(cancellation.key, cancellation.reason)
        _log_change("job cancelled", cancellation.key, context)
        return messages.CancelJobResponse(job=job_codec.job_to_wire(job))

    async def retry(
        self, message: messages.RetryJobRequest, context: CallContext
    ) -> messages.RetryJobResponse:
        """Go on with a failed job."""
        seconds_left(context)
        retrial = job_codec.retry_from_wire(message, now=self._clock.now())
        await self._backend().namespaces.lookup(retrial.key.namespace)
        job, nodes = await self._backend().job_control.retry(
            retrial.key, deadline=retrial.deadline, timeout=retrial.timeout
        )
        _log_change("job retried", retrial.key, context, node_count=len(nodes))
        return messages.RetryJobResponse(job=job_codec.job_to_wire(job), nodes=nodes)

    async def watch(
        self, message: messages.WatchJobRequest, context: CallContext
    ) -> AsyncGenerator[messages.WatchJobResponse, None]:
        """Yield a job as it changes, until it has ended and so have its nodes."""
        seconds_left(context)
        watching = job_codec.watch_from_wire(message)
        await self._backend().namespaces.lookup(watching.key.namespace)
        if self._watcher_count >= WATCHERS_MAX:
            raise errors.OverloadedError(f"{WATCHERS_MAX} watch jobs", _RETRY_AFTER)
        self._watcher_count += 1
        try:
            async with contextlib.aclosing(self._changes(watching)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._watcher_count -= 1

    async def _changes(
        self, watching: job_codec.Watching
    ) -> AsyncGenerator[messages.WatchJobResponse, None]:
        sent, seconds, is_first = watching.after_revision, WATCH_SECONDS_MIN, True
        while True:
            job, nodes = await self._backend().jobs.changes(watching.key, sent)
            if is_first or job.revision != sent:
                for response in job_codec.changes_to_wire(job, nodes, sent_revision=sent):
                    yield response
                sent, seconds, is_first = job.revision, WATCH_SECONDS_MIN, False
            if _is_over(job):
                return
            await self._pause(seconds)
            seconds = min(seconds * WATCH_GROWTH, WATCH_SECONDS_MAX)

    async def _lookup(self, names: tuple[str, ...]) -> Mapping[str, Namespace]:
        """Return the namespaces of these names, up to the first that is not there."""
        found: dict[str, Namespace] = {}
        for name in names:
            try:
                found[name] = await self._backend().namespaces.lookup(name)
            except errors.NamespaceNotFoundError:
                break
        return found


def _is_over(job: Job) -> bool:
    """Return whether a job can no longer change unless it is retried."""
    return job.state is not JobState.RUNNING and not job.counts.unfinished


def _log_change(change: str, key: ProcessKey, context: CallContext, **facts: object) -> None:
    """Write the line of a change that no step makes."""
    _log.info(change, extra={**log_fields.of_process(key, trace_context_of(context)), **facts})
