"""JobService."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated

from progressor import errors
from progressor.api.calls import page_tokens
from progressor.api.calls.servicer import Backend, Servicer, log_change, reading, seconds_left
from progressor.api.calls.traces import CallContext, trace_context_of
from progressor.api.calls.validation import (
    JobKey,
    NamespaceName,
    PageSize,
    Revision,
    check_id,
    text_of,
)
from progressor.api.processes.responses import PAGE_BYTES_MAX
from progressor.clock import Clock
from progressor.domain.jobs.graph import (
    GRAPH_BYTES_MAX,
    GraphError,
    check_places,
    encode_graph,
    gates_required,
    namespaces_of,
    plan_nodes,
)
from progressor.domain.jobs.job import Job, JobFilter, JobPage, JobState, Node, NodeSpec, StartNodes
from progressor.domain.processes.admission import Request
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, Namespace
from progressor.domain.processes.process import Leadership, ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.v1 import job_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire.nodes import (
    CONSTRAINTS,
    TASK_ERROR,
    check_node_count,
    check_timeout,
    node_spec_from_wire,
)
from progressor.wire.processes import check_caller_context, check_not_reserved
from progressor.wire.shapes import UNSENT, Field, Shape, any_of, flat, read_each

REASON_BYTES_MAX = 1024
"""The size of the reason of a cancellation, which is kept with each node that it ends."""

WATCHERS_MAX = 1000
"""Calls of WatchJob in one replica at a time: each looks at its job once a second, or more."""

WATCH_SECONDS_MIN = 0.05
WATCH_SECONDS_MAX = 1.0
WATCH_GROWTH = 1.5

_RETRY_AFTER = dt.timedelta(seconds=1)

_log = logging.getLogger(__name__)


def _nodes_of(message: pb.SubmitJobRequest, path: str, _context: object) -> tuple[NodeSpec, ...]:
    """Return nodes; of a payload it is checked later what its own namespace allows."""
    field = f"{path}nodes"
    check_node_count(message.nodes, field)
    nodes = read_each(enumerate(message.nodes), node_spec_from_wire, field, PAYLOAD_BYTES_CEILING)
    return tuple(nodes.values())


def _deadline_of(
    message: pb.SubmitJobRequest | pb.RetryJobRequest, path: str, now: dt.datetime | None
) -> dt.datetime | None:
    """Return the deadline; one that has passed is refused if `now` is given."""
    if not message.HasField("deadline"):
        return None
    deadline = wire.timestamp_to_datetime(message.deadline, f"{path}deadline")
    if now is not None and deadline <= now:
        wire.refuse(f"{path}deadline", f"must be in the future, got {deadline.isoformat()}")
    return deadline


_GRAPH = Shape(
    StartNodes,
    pb.SubmitJobRequest,
    nodes=Field(read=_nodes_of),
    deadline=Field(read=_deadline_of),
    timeout=check_timeout,
    schedule_id=UNSENT,
    caller_context=UNSENT,
)
_FILTER = Shape(
    JobFilter, pb.ListJobsRequest, states=any_of(JobState, "states"), schedule_id=check_id
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A SubmitJob, whose graph is in order but for the places where its nodes are to run."""

    key: JobKey
    action: Annotated[StartNodes, flat(_GRAPH)]
    caller_context: Annotated[Mapping[str, str], check_caller_context]
    idempotency_key: Annotated[str | None, check_id]
    metadata: Mapping[str, object] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    key: JobKey
    without_payloads: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobListing:
    """A ListJobs: at most `limit` after the job `after`, by creation and id."""

    namespace: NamespaceName
    wanted: Annotated[JobFilter, flat(_FILTER)]
    after: Annotated[tuple[dt.datetime, str] | None, page_tokens.JOBS.field]
    limit: PageSize


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    key: JobKey
    reason: Annotated[str, text_of(REASON_BYTES_MAX)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retrial:
    """A RetryJob, with at most one of deadline and timeout."""

    key: JobKey
    deadline: Annotated[dt.datetime | None, Field(read=_deadline_of)]
    timeout: Annotated[dt.timedelta | None, check_timeout]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """A WatchJob: what has changed after a revision, 0 or more."""

    key: JobKey
    after_revision: Revision


_SUBMISSION = Shape(Submission, pb.SubmitJobRequest)
_RETRIAL = Shape(Retrial, pb.RetryJobRequest)
_JOB = Shape(
    Job,
    pb.Job,
    key=flat(Shape(ProcessKey, pb.Job, slot=UNSENT, process_id="job_id")),
    led_by=Field(
        write=lambda message, led_by, _: setattr(
            message, "led_by_engine", led_by is Leadership.ENGINE
        )
    ),
    deadline_at="deadline",
)
_NODE = Shape(
    Node,
    pb.Node,
    ordinal=UNSENT,
    follower=flat(Shape(ProcessKey, pb.Node, slot=UNSENT)),
    error=TASK_ERROR,
    constraints=CONSTRAINTS,
)

get_from_wire = Shape(Reading, pb.GetJobRequest).read
list_from_wire = Shape(JobListing, pb.ListJobsRequest).read
cancel_from_wire = Shape(Cancellation, pb.CancelJobRequest).read
watch_from_wire = Shape(Watching, pb.WatchJobRequest).read
job_to_wire = _JOB.message
get_to_wire = Shape(JobPage, pb.GetJobResponse, job=_JOB, nodes=_NODE).message


def submit_from_wire(message: pb.SubmitJobRequest, *, now: dt.datetime) -> Submission:
    """Return a SubmitJob; a deadline that has passed is accepted of what may be a repetition."""
    check_not_reserved(message.namespace, "namespace")
    submission = _SUBMISSION.read(message, context=None if message.idempotency_key else now)
    try:
        plan_nodes(submission.key, submission.action, {})
    except GraphError as error:
        wire.refuse(error.field, error.description)
    return submission


def request_of(
    submission: Submission, namespaces: Mapping[str, Namespace], trace_context: Mapping[str, str]
) -> Request:
    """Return the request for the init of a job's leader; `namespaces` are those that exist.

    Raises:
        InvalidRequestError: A node cannot run where it is to, or all is too large.
    """
    try:
        check_places(submission.key, submission.action, namespaces)
    except GraphError as error:
        wire.refuse(error.field, error.description)
    graph = encode_graph(submission.action)
    if len(graph) > GRAPH_BYTES_MAX:
        wire.refuse("nodes", wire.too_large(len(graph), GRAPH_BYTES_MAX))
    return Request(
        key=submission.key,
        task_type=TaskType.INIT,
        args=graph,
        caller_context=submission.caller_context,
        trace_context=trace_context,
        idempotency_key=submission.idempotency_key,
        metadata=submission.metadata,
        led_by=Leadership.ENGINE,
        node_gates=gates_required(submission.key, submission.action),
    )


def retry_from_wire(message: pb.RetryJobRequest, *, now: dt.datetime) -> Retrial:
    return _RETRIAL.read(message, context=now)


def list_to_wire(jobs: tuple[Job, ...], *, page_size: int) -> pb.ListJobsResponse:
    page, token = page_tokens.JOBS.page(
        jobs, page_size, lambda job: (job.created_at, job.key.process_id)
    )
    return pb.ListJobsResponse(jobs=map(job_to_wire, page), next_page_token=token)


def changes_to_wire(
    job: Job, nodes: Sequence[Node], *, sent_revision: int
) -> Iterator[pb.WatchJobResponse]:
    """Yield the changes of a job in messages that a client can read, one at least.

    All but the last carry `sent_revision` instead of the job's revision, so that a client that
    resumes from it misses no node.
    """
    last = job_to_wire(job)
    response, room = pb.WatchJobResponse(job=last), PAGE_BYTES_MAX
    for node in nodes:
        message = _NODE.message(node)
        room -= message.ByteSize()
        if room < 0 and response.nodes:
            response.job.revision = sent_revision
            yield response
            response, room = pb.WatchJobResponse(job=last), PAGE_BYTES_MAX - message.ByteSize()
        response.nodes.append(message)
    yield response


class JobServicer(Servicer):
    """What clients and operators do with jobs."""

    service = pb.DESCRIPTOR.services_by_name["JobService"]

    def __init__(
        self,
        backend: Callable[[], Backend],
        *,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(backend)
        self._clock = clock
        self._pause = pause
        self._watcher_count = 0

    async def submit_job(
        self, message: pb.SubmitJobRequest, context: CallContext
    ) -> pb.SubmitJobResponse:
        """Start a job that the engine leads, and return once its nodes exist."""
        timeout = seconds_left(context)
        submission = submit_from_wire(message, now=self._clock.now())
        await self._backend().namespaces.lookup(submission.key.namespace)
        namespaces = await self._known(namespaces_of(submission.key, submission.action))
        request = request_of(submission, namespaces, trace_context_of(context))
        answer = await self._backend().requests.ask(request, timeout=timeout)
        return pb.SubmitJobResponse(task_id=answer.task_id, deduplicated=answer.deduplicated)

    @reading(get_from_wire)
    async def get_job(self, asked: Reading, _: CallContext) -> pb.GetJobResponse:
        payloads = not asked.without_payloads
        return get_to_wire(await self._backend().jobs.read(asked.key, payloads=payloads))

    @reading(list_from_wire)
    async def list_jobs(self, asked: JobListing, _: CallContext) -> pb.ListJobsResponse:
        found = await self._backend().jobs.list(
            asked.namespace, asked.wanted, after=asked.after, limit=asked.limit + 1
        )
        return list_to_wire(found, page_size=asked.limit)

    @reading(cancel_from_wire)
    async def cancel_job(self, asked: Cancellation, context: CallContext) -> pb.CancelJobResponse:
        job = await self._backend().job_control.cancel(asked.key, asked.reason)
        log_change(_log, "job cancelled", asked.key, context)
        return pb.CancelJobResponse(job=job_to_wire(job))

    async def retry_job(
        self, message: pb.RetryJobRequest, context: CallContext
    ) -> pb.RetryJobResponse:
        seconds_left(context)
        retrial = retry_from_wire(message, now=self._clock.now())
        await self._backend().namespaces.lookup(retrial.key.namespace)
        job, nodes = await self._backend().job_control.retry(
            retrial.key, deadline=retrial.deadline, timeout=retrial.timeout
        )
        log_change(_log, "job retried", retrial.key, context, node_count=len(nodes))
        return pb.RetryJobResponse(job=job_to_wire(job), nodes=nodes)

    async def watch_job(
        self, message: pb.WatchJobRequest, context: CallContext
    ) -> AsyncGenerator[pb.WatchJobResponse, None]:
        """Yield a job as it changes, until it has ended and so have its nodes."""
        seconds_left(context)
        watching = watch_from_wire(message)
        await self._backend().namespaces.lookup(watching.key.namespace)
        if self._watcher_count >= WATCHERS_MAX:
            raise errors.OverloadedError(f"{WATCHERS_MAX} watches of jobs are open", _RETRY_AFTER)
        self._watcher_count += 1
        try:
            async with contextlib.aclosing(self._changes(watching)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._watcher_count -= 1

    async def _changes(self, watching: Watching) -> AsyncGenerator[pb.WatchJobResponse, None]:
        sent, seconds, is_first = watching.after_revision, WATCH_SECONDS_MIN, True
        while True:
            job, nodes = await self._backend().jobs.changes(watching.key, sent)
            if is_first or job.revision != sent:
                for response in changes_to_wire(job, nodes, sent_revision=sent):
                    yield response
                sent, seconds, is_first = job.revision, WATCH_SECONDS_MIN, False
            if job.state is not JobState.RUNNING and not job.counts.unfinished:
                # It can no longer change unless it is retried.
                return
            await self._pause(seconds)
            seconds = min(seconds * WATCH_GROWTH, WATCH_SECONDS_MAX)
