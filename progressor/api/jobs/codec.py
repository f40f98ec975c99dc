"""Requests of JobService from protobuf to domain, and jobs back."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    caller_context_from_wire,
    check_id,
    check_namespace_name,
    check_text,
    idempotency_key_from_wire,
    metadata_from_wire,
    page_size_from_wire,
)
from progressor.api.processes.answers import PAGE_BYTES_MAX
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
from progressor.domain.processes.process import Leadership, ProcessKey, process_key
from progressor.domain.processes.task import TaskType
from progressor.v1 import job_service_pb2, nodes_pb2
from progressor.wire import fields as wire
from progressor.wire.nodes import (
    CONSTRAINTS,
    TASK_ERROR,
    check_node_count,
    due_from_wire,
    node_spec_from_wire,
)
from progressor.wire.shapes import UNSENT, Field, Shape, flat

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

JOB_STATE_TO_WIRE: Mapping[JobState, job_service_pb2.JobState.ValueType] = MappingProxyType(
    {
        JobState.RUNNING: job_service_pb2.JOB_STATE_RUNNING,
        JobState.DONE: job_service_pb2.JOB_STATE_DONE,
        JobState.FAILED: job_service_pb2.JOB_STATE_FAILED,
        JobState.CANCELLED: job_service_pb2.JOB_STATE_CANCELLED,
    }
)
_JOB_STATE_FROM_WIRE: Mapping[int, JobState] = MappingProxyType(
    {number: state for state, number in JOB_STATE_TO_WIRE.items()}
)

Keyed = (
    job_service_pb2.GetJobRequest
    | job_service_pb2.SubmitJobRequest
    | job_service_pb2.CancelJobRequest
    | job_service_pb2.RetryJobRequest
    | job_service_pb2.WatchJobRequest
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A SubmitJob, whose graph is in order but for the places where its nodes are to run."""

    key: ProcessKey
    action: StartNodes
    idempotency_key: str | None
    caller_context: Mapping[str, str]
    metadata: Mapping[str, object] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A ListJobs: at most `limit` behind the one that `after` tells, by creation and id."""

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


def submit_from_wire(message: job_service_pb2.SubmitJobRequest, *, now: dt.datetime) -> Submission:
    """Return a SubmitJob.

    A deadline that has passed is refused, unless a key says that the request may be a repetition.
    """
    violations = Violations()
    key = _key_of(message, violations)
    nodes = violations.attempt(_nodes_of, message.nodes)
    due = _due_of(message, violations, now=None if message.idempotency_key else now)
    caller_context = caller_context_from_wire(message.caller_context, violations)
    idempotency_key = idempotency_key_from_wire(message.idempotency_key, violations)
    metadata = None
    if message.HasField("metadata"):
        metadata = metadata_from_wire(message.metadata, "metadata", violations)
    violations.raise_any()
    assert nodes is not None, "nodes that are none are a violation"
    action = StartNodes(nodes=nodes, deadline=due[0], timeout=due[1])
    try:
        plan_nodes(key, action, {})
    except GraphError as error:
        wire.refuse(error.field, error.description)
    return Submission(
        key=key,
        action=action,
        idempotency_key=idempotency_key,
        caller_context=caller_context,
        metadata=metadata,
    )


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
        wire.refuse("nodes", f"{len(graph)} bytes are more than {GRAPH_BYTES_MAX}")
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
    violations = Violations()
    key = _key_of(message, violations)
    violations.raise_any()
    return key


def list_from_wire(message: job_service_pb2.ListJobsRequest) -> Listing:
    """Return a ListJobs."""
    violations = Violations()
    check_namespace_name(message.namespace, "namespace", violations)
    states = _states_of(message.states, violations)
    if message.schedule_id:
        check_id(message.schedule_id, "schedule_id", violations)
    limit = page_size_from_wire(message.page_size, violations)
    after = page_tokens.job_of_token(message.page_token, violations)
    violations.raise_any()
    return Listing(
        namespace=message.namespace,
        wanted=JobFilter(states=states, schedule_id=message.schedule_id or None),
        after=after,
        limit=limit,
    )


def cancel_from_wire(message: job_service_pb2.CancelJobRequest) -> Cancellation:
    """Return a CancelJob."""
    violations = Violations()
    key = _key_of(message, violations)
    check_text(message.reason, "reason", REASON_BYTES_MAX, violations)
    violations.raise_any()
    return Cancellation(key=key, reason=message.reason)


def retry_from_wire(message: job_service_pb2.RetryJobRequest, *, now: dt.datetime) -> Retrial:
    """Return a RetryJob; a deadline that has passed is refused."""
    violations = Violations()
    key = _key_of(message, violations)
    deadline, timeout = _due_of(message, violations, now=now)
    violations.raise_any()
    return Retrial(key=key, deadline=deadline, timeout=timeout)


def watch_from_wire(message: job_service_pb2.WatchJobRequest) -> Watching:
    """Return a WatchJob."""
    violations = Violations()
    key = _key_of(message, violations)
    if message.after_revision < 0:
        violations.add("after_revision", f"{message.after_revision} is below 0")
    violations.raise_any()
    return Watching(key=key, after_revision=message.after_revision)


def list_to_wire(jobs: tuple[Job, ...], *, page_size: int) -> job_service_pb2.ListJobsResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page = jobs[:page_size]
    has_next = len(jobs) > page_size
    return job_service_pb2.ListJobsResponse(
        jobs=map(job_to_wire, page),
        next_page_token=page_tokens.token_of_job(page[-1]) if has_next else "",
    )


def changes_to_wire(
    job: Job, nodes: Sequence[Node], *, told: int
) -> Iterator[job_service_pb2.WatchJobResponse]:
    """Yield the changes of a job in messages that a client can read, one at least.

    All but the last tell the revision `told` instead of the job's: who goes on from it loses none.
    """
    last = job_to_wire(job)
    partial = job_service_pb2.Job()
    partial.CopyFrom(last)
    partial.revision = told
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


def _key_of(message: Keyed, violations: Violations) -> ProcessKey:
    check_namespace_name(message.namespace, "namespace", violations)
    check_id(message.job_id, "job_id", violations)
    return process_key(message.namespace, message.job_id)


def _nodes_of(messages: Sequence[nodes_pb2.NodeSpec]) -> tuple[NodeSpec, ...]:
    """Return nodes; of a payload it is checked later what its own namespace allows."""
    check_node_count(messages, "nodes")
    violations = Violations()
    nodes = [
        violations.attempt(node_spec_from_wire, node, f"nodes[{place}]", PAYLOAD_BYTES_CEILING)
        for place, node in enumerate(messages)
    ]
    violations.raise_any()
    return tuple(node for node in nodes if node is not None)


def _due_of(
    message: job_service_pb2.SubmitJobRequest | job_service_pb2.RetryJobRequest,
    violations: Violations,
    *,
    now: dt.datetime | None,
) -> tuple[dt.datetime | None, dt.timedelta | None]:
    deadline, timeout = violations.attempt(due_from_wire, message, "") or (None, None)
    if now is not None and deadline is not None and deadline <= now:
        violations.add("deadline", f"{deadline.isoformat()} has passed")
    return deadline, timeout


def _states_of(numbers: Iterable[int], violations: Violations) -> tuple[JobState, ...]:
    states: dict[JobState, None] = {}
    takes_any = False
    for index, number in enumerate(numbers):
        state = _JOB_STATE_FROM_WIRE.get(number)
        takes_any = takes_any or number == job_service_pb2.JOB_STATE_UNSPECIFIED
        if state is not None:
            states[state] = None
        elif number:
            violations.add(f"states[{index}]", f"{number} is not a state")
    return () if takes_any else tuple(states)
