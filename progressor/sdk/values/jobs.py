"""Jobs as clients and leaders see them, and their form on the wire.

Instants are aware datetimes in UTC. Payloads (args, result) are decoded.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, Generic

from typing_extensions import TypeForm

from progressor import errors
from progressor.sdk.codec.codecs import Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Asked
from progressor.sdk.codec.wire import WireEnum
from progressor.sdk.values.constraints import Constraints, constraints_from_wire
from progressor.sdk.values.processes import TaskError
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2 as nodes
from progressor.wire.shapes import Field, Shape


class JobState(WireEnum):
    """Where a job is. UNSPECIFIED: a state that only a newer SDK knows.

    RUNNING: nodes are at work, or the leader is; DONE: its leader has finished; FAILED: its leader
    is in error; CANCELLED: by `cancel`.
    """

    UNSPECIFIED = "unspecified"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens, unless it is retried."""
        return self in {JobState.DONE, JobState.FAILED, JobState.CANCELLED}


class NodeState(WireEnum):
    """Where a node is. UNSPECIFIED: a state that only a newer SDK knows.

    WAITING: what it comes after is not done; READY: it is, and the node is in line to be started;
    RUNNING: its process has been started; DONE: that has finished; FAILED: that is in error, or
    could not be started; SKIPPED: what it comes after has failed; CANCELLED: its job has ended.
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
        """Whether nothing more happens to it, unless its job is retried."""
        return self in _ENDED


_ENDED = frozenset({NodeState.DONE, NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """How many nodes of a job are in which state."""

    waiting: int = 0
    ready: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job without its nodes.

    ``detail``: why it failed; ``led_by_engine``: whether the engine leads it, or a processor does;
    ``deadline``: when it fails if it has not ended by then; ``schedule_id``: which schedule started
    it, "" for none. ``revision`` counts its changes, from 1.
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
class Node(Generic[Asked]):
    """A node as it stands; ``namespace`` and ``process_id`` are of its process, its follower.

    ``skipped_because_of`` names the node that failed, "" if none did. ``ready_at``: when what it
    comes after was done. ``attempt``: 1, and one more for each retry. ``revision``: the job's when
    this node changed last. ``args`` and ``result`` are None where payloads were left out.
    """

    name: str
    state: NodeState
    namespace: str
    process_id: str
    after: tuple[str, ...]
    skipped_because_of: str
    args: Payload
    result: Asked | None
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
class JobView(Generic[Asked]):
    """A job with its nodes in the order in which they were added; or those that have changed.

    ``payloads_left_out``: they would have been more than a message holds.
    """

    job: Job
    nodes: tuple[Node[Asked], ...]
    payloads_left_out: bool = False

    def __getitem__(self, name: str) -> Node[Asked]:
        """Return the node of a name.

        Raises:
            KeyError: There is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A job that is durable; ``task_id`` is of its leader's first step.

    ``deduplicated``: an earlier request with the same idempotency key did the work.
    """

    task_id: int
    deduplicated: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried:
    """A job that goes on, and the names of the nodes that begin again."""

    job: Job
    nodes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """How a node has ended, as a leader's join hears of it, or a node that wants its results.

    ``result`` is decoded as it comes; `Step.results_as` checks a type. ``skipped_because_of`` names
    the node that failed, "" if none did.
    """

    name: str
    state: NodeState
    result: Payload = None
    error: TaskError | None = None
    skipped_because_of: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it has finished, with a result if it gave one."""
        return self.state is NodeState.DONE


class JobFailedError(errors.ProgressorError):
    """A job that was waited for has failed; ``job`` is how it stands."""

    reason = "JOB_FAILED"

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.job_id!r} has failed: {job.detail}")


class JobCancelledError(errors.ProgressorError):
    """A job that was waited for was cancelled; ``job`` is how it stands."""

    reason = "JOB_CANCELLED"

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.job_id!r} was cancelled")


def checked(job: Job) -> Job:
    """Return a job that is done.

    Raises:
        JobFailedError, JobCancelledError: It has ended otherwise.
    """
    match job.state:
        case JobState.FAILED:
            raise JobFailedError(job)
        case JobState.CANCELLED:
            raise JobCancelledError(job)
        case _:
            return job


def _payload(message: pb.Node | nodes.NodeOutcome, _path: str, codec: Codec) -> Payload:
    return codec.decode(message.result)


_JOB = Shape(Job, pb.Job)
_OUTCOME = Shape(NodeOutcome, nodes.NodeOutcome, result=Field(read=_payload))
_NODE: Shape[Node[Any], pb.Node] = Shape(
    Node,
    pb.Node,
    after="predecessors",
    args=Field(read=lambda message, _path, context: context[0].decode(message.args)),
    result=Field(
        read=lambda message, _path, context: context[0].decode(message.result, context[1])
    ),
    constraints=Field(
        read=lambda message, _path, _context: (
            constraints_from_wire(message.constraints) if message.HasField("constraints") else None
        )
    ),
)

read_job = _JOB.read


def read_node(message: pb.Node, codec: Codec, kind: TypeForm[Asked] = ANYTHING) -> Node[Asked]:
    """Return a Node message as its value, its result decoded as a `kind`."""
    return _NODE.read(message, context=(codec, kind))


def read_view(
    message: pb.GetJobResponse | pb.WatchJobResponse,
    codec: Codec,
    kind: TypeForm[Asked] = ANYTHING,
) -> JobView[Asked]:
    """Return a job with nodes, their results decoded as a `kind`."""
    left_out = isinstance(message, pb.GetJobResponse) and message.payloads_left_out
    return JobView(
        job=read_job(message.job),
        nodes=tuple(read_node(it, codec, kind) for it in message.nodes),
        payloads_left_out=left_out,
    )


def read_outcome(message: nodes.NodeOutcome, codec: Codec) -> NodeOutcome:
    """Return how a node has ended, its result decoded."""
    return _OUTCOME.read(message, context=codec)


def results_of(
    outcomes: Mapping[str, nodes.NodeOutcome], codec: Codec, kind: TypeForm[Asked]
) -> dict[str, Asked]:
    """Return the results of the nodes that are done, by name, each decoded as a `kind`.

    Raises:
        ValueError: A result is no `kind`; the message names the node.
    """
    results: dict[str, Asked] = {}
    for name, outcome in outcomes.items():
        if outcome.state == nodes.NODE_STATE_DONE:
            try:
                results[name] = decoded(codec, outcome.result, kind)
            except ValueError as error:
                message = f"the result of node {name!r} cannot be read: {error}"
                raise ValueError(message) from error
    return results
