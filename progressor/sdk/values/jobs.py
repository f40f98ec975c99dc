"""Jobs as clients and leaders see them.

Instants are aware datetimes in UTC. Payloads (args, result) are decoded.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, Generic

from typing_extensions import TypeForm

from progressor import errors
from progressor.domain.jobs.roles import NodeCounts
from progressor.sdk.codec.codecs import Codec, Payload, decoded
from progressor.sdk.codec.kinds import Decoded
from progressor.sdk.codec.wire import WireEnum, payload
from progressor.sdk.values.constraints import CONSTRAINTS, Constraints
from progressor.sdk.values.replies import TaskError
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2 as nodes
from progressor.wire.shapes import UNSENT, Field, Shape


class JobState(WireEnum):
    """The state of a job. UNSPECIFIED: a state that only a newer SDK knows.

    RUNNING: it has not ended. DONE: its leader has finished. FAILED: its leader is in error.
    CANCELLED: `Jobs.cancel` ended it.
    """

    UNSPECIFIED = "unspecified"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended; a failed one can be retried."""
        return self in {JobState.DONE, JobState.FAILED, JobState.CANCELLED}


class NodeState(WireEnum):
    """The state of a node. UNSPECIFIED: a state that only a newer SDK knows.

    WAITING: a predecessor is not done. READY: all predecessors are done, and the node is about to
    be started. RUNNING: its process has been started. DONE: its process has finished. FAILED: its
    process is in error or could not be started. SKIPPED: a predecessor has failed. CANCELLED: its
    job ended first.
    """

    UNSPECIFIED = "unspecified"
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether the node has ended; a retry of its job can start it again."""
        return self in _ENDED


_ENDED = frozenset({NodeState.DONE, NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job without its nodes.

    ``detail``: why it failed. ``led_by_engine``: whether the engine leads it, not a processor.
    ``deadline``: when it fails if it has not ended. ``schedule_id``: the schedule that started it;
    "": none. ``revision`` counts its changes, from 1.
    """

    namespace: str
    job_id: str
    state: JobState
    detail: str
    led_by_engine: bool
    counts: NodeCounts
    created_at: dt.datetime
    updated_at: dt.datetime
    ended_at: dt.datetime | None
    deadline: dt.datetime | None
    schedule_id: str
    revision: int
    retry_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node(Generic[Decoded]):
    """A node of a job; ``namespace`` and ``process_id`` are those of its process.

    ``skipped_because_of``: the failed node that it was skipped for; "": none. ``ready_at``: when
    its predecessors were done. ``attempt``: 1, plus 1 for each retry. ``revision``: the job's at
    the node's last change. ``args`` and ``result`` are None if payloads were left out.
    """

    name: str
    state: NodeState
    namespace: str
    process_id: str
    after: tuple[str, ...]
    skipped_because_of: str
    args: Payload
    result: Decoded | None
    error: TaskError | None
    target: str
    constraints: Constraints | None
    created_at: dt.datetime | None
    ready_at: dt.datetime | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    attempt: int
    revision: int
    replica_id: int | None = None
    updated_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobView(Generic[Decoded]):
    """A job with its nodes, or those that have changed, in the order in which they were added.

    ``payloads_left_out``: the payloads did not fit into a message.
    """

    job: Job
    nodes: tuple[Node[Decoded], ...]
    payloads_left_out: bool = False

    def __getitem__(self, name: str) -> Node[Decoded]:
        """Return the node of this name.

        Raises:
            KeyError: The job has no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried:
    """A resumed job, and the names of the nodes that start again."""

    job: Job
    nodes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """The outcome of a node, for the join handler of a leader or for a successor.

    ``result`` is decoded without a type; `Step.results_as` checks one. ``skipped_because_of``: the
    failed node that it was skipped for; "": none.
    """

    name: str
    state: NodeState
    result: Payload = None
    error: TaskError | None = None
    skipped_because_of: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the node is done, with or without a result."""
        return self.state is NodeState.DONE


class JobFailedError(errors.ProgressorError):
    """The job failed; ``job`` is the job as it ended."""

    reason = "JOB_FAILED"

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.job_id!r} failed: {job.detail}")


class JobCancelledError(errors.ProgressorError):
    """The job was cancelled; ``job`` is the job as it ended."""

    reason = "JOB_CANCELLED"

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.job_id!r} was cancelled")


def checked(job: Job) -> Job:
    """Return a job that is done; raise `JobFailedError` or `JobCancelledError` for another."""
    match job.state:
        case JobState.FAILED:
            raise JobFailedError(job)
        case JobState.CANCELLED:
            raise JobCancelledError(job)
        case _:
            return job


_JOB = Shape(Job, pb.Job)
_OUTCOME = Shape(NodeOutcome, nodes.NodeOutcome, result=payload("result"))
_NODE: Shape[Node[Any], pb.Node] = Shape(
    Node,
    pb.Node,
    after="predecessors",
    args=payload("args"),
    result=Field(read=lambda message, _path, typed: typed.codec.decode(message.result, typed.kind)),
    constraints=CONSTRAINTS,
)

_VIEW: Shape[JobView[Any], pb.GetJobResponse] = Shape(JobView, pb.GetJobResponse, nodes=_NODE)
_CHANGE: Shape[JobView[Any], pb.WatchJobResponse] = Shape(
    JobView, pb.WatchJobResponse, nodes=_NODE, payloads_left_out=UNSENT
)

read_job = _JOB.read
read_node = _NODE.read
read_view = _VIEW.read
read_change = _CHANGE.read


def read_outcome(message: nodes.NodeOutcome, codec: Codec) -> NodeOutcome:
    """Return the outcome of a node, its result decoded."""
    return _OUTCOME.read(message, context=codec)


def outcome_to_wire(outcome: NodeOutcome, codec: Codec) -> nodes.NodeOutcome:
    """Return the outcome of a node as a message, its result encoded."""
    return _OUTCOME.message(outcome, codec)


def results_of(
    outcomes: Mapping[str, nodes.NodeOutcome], codec: Codec, kind: TypeForm[Decoded]
) -> dict[str, Decoded]:
    """Return the results of the nodes that are done, by name, each decoded as a `kind`."""
    results: dict[str, Decoded] = {}
    for name, outcome in outcomes.items():
        if outcome.state == nodes.NODE_STATE_DONE:
            try:
                results[name] = decoded(codec, outcome.result, kind)
            except ValueError as error:
                message = f"the result of node {name!r} cannot be read: {error}"
                raise ValueError(message) from error
    return results
