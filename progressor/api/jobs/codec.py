"""Requests of JobService from protobuf to domain, and jobs back."""

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    PAGE_SIZE,
    at_least_0,
    check_caller_context,
    check_id,
    check_namespace_name,
    read_key,
    text_of,
)
from progressor.api.processes.responses import PAGE_BYTES_MAX
from progressor.domain.jobs.graph import (
    GRAPH_BYTES_MAX,
    GraphError,
    check_places,
    encode_graph,
    gates_required,
    plan_nodes,
)
from progressor.domain.jobs.job import Job, JobState, Node, NodeSpec, StartNodes
from progressor.domain.jobs.view import JobFilter, JobPage
from progressor.domain.processes.admission import Request
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, Namespace
from progressor.domain.processes.process import Leadership, ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.v1 import job_service_pb2
from progressor.wire import fields as wire
from progressor.wire.nodes import (
    CONSTRAINTS,
    TASK_ERROR,
    check_node_count,
    check_timeout,
    node_spec_from_wire,
)
from progressor.wire.shapes import UNSENT, Field, Shape, any_of, flat, read_each

REASON_BYTES_MAX = 1024
"""The size of the reason of a cancellation, which is kept with each node that it ends."""

_JOB = Shape(
    Job,
    job_service_pb2.Job,
    key=flat(Shape(ProcessKey, job_service_pb2.Job, slot=UNSENT, process_id="job_id")),
    led_by=Field(
        write=lambda message, led_by, _: setattr(
            message, "led_by_engine", led_by is Leadership.ENGINE
        )
    ),
    deadline_at="deadline",
)
_NODE = Shape(
    Node,
    job_service_pb2.Node,
    ordinal=UNSENT,
    follower=flat(Shape(ProcessKey, job_service_pb2.Node, slot=UNSENT)),
    error=TASK_ERROR,
    constraints=CONSTRAINTS,
)

job_to_wire = _JOB.message
get_to_wire = Shape(JobPage, job_service_pb2.GetJobResponse, job=_JOB, nodes=_NODE).message


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A SubmitJob, whose graph is in order but for the places where its nodes are to run."""

    key: ProcessKey
    action: StartNodes
    caller_context: Mapping[str, str]
    idempotency_key: str | None
    metadata: Mapping[str, object] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobListing:
    """A ListJobs: at most `limit` after the job `after`, by creation and id."""

    namespace: str
    wanted: JobFilter
    after: tuple[dt.datetime, str] | None
    limit: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """A CancelJob."""

    key: ProcessKey
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retrial:
    """A RetryJob, with at most one of deadline and timeout."""

    key: ProcessKey
    deadline: dt.datetime | None
    timeout: dt.timedelta | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """A WatchJob: what has changed after a revision, 0 or more."""

    key: ProcessKey
    after_revision: int


def _nodes_of(
    message: job_service_pb2.SubmitJobRequest, path: str, _context: object
) -> tuple[NodeSpec, ...]:
    """Return nodes; of a payload it is checked later what its own namespace allows."""
    field = f"{path}nodes"
    check_node_count(message.nodes, field)
    nodes = read_each(enumerate(message.nodes), node_spec_from_wire, field, PAYLOAD_BYTES_CEILING)
    return tuple(nodes.values())


def _deadline_of(
    message: job_service_pb2.SubmitJobRequest | job_service_pb2.RetryJobRequest,
    path: str,
    now: dt.datetime | None,
) -> dt.datetime | None:
    """Return the deadline; one that has passed is refused if `now` is given."""
    if not message.HasField("deadline"):
        return None
    deadline = wire.timestamp_to_datetime(message.deadline, f"{path}deadline")
    if now is not None and deadline <= now:
        wire.refuse(f"{path}deadline", f"must be in the future, got {deadline.isoformat()}")
    return deadline


_KEY = read_key("job_id")
_SUBMISSION = Shape(
    Submission,
    job_service_pb2.SubmitJobRequest,
    key=Field(read=_KEY),
    action=flat(
        Shape(
            StartNodes,
            job_service_pb2.SubmitJobRequest,
            nodes=Field(read=_nodes_of),
            deadline=Field(read=_deadline_of),
            timeout=check_timeout,
            schedule_id=UNSENT,
            caller_context=UNSENT,
        )
    ),
    caller_context=check_caller_context,
    idempotency_key=check_id,
)
_LISTING = Shape(
    JobListing,
    job_service_pb2.ListJobsRequest,
    namespace=check_namespace_name,
    wanted=flat(
        Shape(
            JobFilter,
            job_service_pb2.ListJobsRequest,
            states=any_of(JobState, "states"),
            schedule_id=check_id,
        )
    ),
    after=page_tokens.JOBS.field,
    limit=PAGE_SIZE,
)
_CANCELLATION = Shape(
    Cancellation,
    job_service_pb2.CancelJobRequest,
    key=Field(read=_KEY),
    reason=text_of(REASON_BYTES_MAX),
)
_RETRIAL = Shape(
    Retrial,
    job_service_pb2.RetryJobRequest,
    key=Field(read=_KEY),
    deadline=Field(read=_deadline_of),
    timeout=check_timeout,
)
_WATCHING = Shape(
    Watching,
    job_service_pb2.WatchJobRequest,
    key=Field(read=_KEY),
    after_revision=at_least_0,
)

list_from_wire = _LISTING.read
cancel_from_wire = _CANCELLATION.read
watch_from_wire = _WATCHING.read


def submit_from_wire(message: job_service_pb2.SubmitJobRequest, *, now: dt.datetime) -> Submission:
    """Return a SubmitJob.

    A deadline that has passed is refused, unless a key says that the request may be a repetition.
    """
    submission = _SUBMISSION.read(message, context=None if message.idempotency_key else now)
    try:
        plan_nodes(submission.key, submission.action, {})
    except GraphError as error:
        wire.refuse(error.field, error.description)
    return submission


def request_of(
    submission: Submission,
    namespaces: Mapping[str, Namespace],
    trace_context: Mapping[str, str],
) -> Request:
    """Return the request for the init of a job's leader.

    Args:
        submission: Of the job.
        namespaces: Those of its nodes that exist, by name.
        trace_context: Of the submission.

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


def key_of_request(message: job_service_pb2.GetJobRequest) -> ProcessKey:
    """Return the leader of the job that a GetJob is about."""
    return _KEY(message, "", None)


def retry_from_wire(message: job_service_pb2.RetryJobRequest, *, now: dt.datetime) -> Retrial:
    """Return a RetryJob; a deadline that has passed is refused."""
    return _RETRIAL.read(message, context=now)


def list_to_wire(jobs: tuple[Job, ...], *, page_size: int) -> job_service_pb2.ListJobsResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page, token = page_tokens.JOBS.page(
        jobs, page_size, lambda job: (job.created_at, job.key.process_id)
    )
    return job_service_pb2.ListJobsResponse(jobs=map(job_to_wire, page), next_page_token=token)


def changes_to_wire(
    job: Job, nodes: Sequence[Node], *, sent_revision: int
) -> Iterator[job_service_pb2.WatchJobResponse]:
    """Yield the changes of a job in messages that a client can read, one at least.

    All but the last carry `sent_revision` instead of the job's revision, so that a client that
    resumes from it misses no node.
    """
    last = job_to_wire(job)
    partial = job_service_pb2.Job()
    partial.CopyFrom(last)
    partial.revision = sent_revision
    response, room = job_service_pb2.WatchJobResponse(job=last), PAGE_BYTES_MAX
    for node in nodes:
        message = response.nodes.add()
        _NODE.write(node, message)
        room -= message.ByteSize()
        if room < 0 and len(response.nodes) > 1:
            del response.nodes[-1]
            response.job.CopyFrom(partial)
            yield response
            response, room = job_service_pb2.WatchJobResponse(job=last), PAGE_BYTES_MAX
            message = response.nodes.add()
            _NODE.write(node, message)
            room -= message.ByteSize()
    yield response
