"""A job: a process, the leader, that owns a graph of nodes, each a process too, its followers.

Source: DESIGN, section 9. Every decision about a job is made under the lock of its leader's row, by
``priv/functions/settlement/settle_job_tasks.sql`` and ``maintain_job.sql``.

=========  =======================================================  ===============================
state      a node is in it                                          ends when
=========  =======================================================  ===============================
waiting    while a predecessor is not done                          the last of them is done
ready      once all are, until its follower is started              there is room for it
running    from then on until its follower has ended                its follower finishes, breaks
done       its follower has finished
failed     its follower is in error, or could not be started        a retry, a repair
skipped    a node that it depends on has failed                     that one begins again
cancelled  its job has ended without it                             a retry
=========  =======================================================  ===============================
"""

import dataclasses
import datetime as dt
import enum
from collections.abc import Iterable, Mapping

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.processes.process import JobOptions, Leadership, ProcessKey
from progressor.domain.processes.task import NodeState, TaskError

NODES_PER_STEP_MAX = 10_000
"""Nodes that one submission, or one step of a leader, may add."""

NODES_MAX = 50_000
"""Nodes of one job."""

EDGES_PER_STEP_MAX = 200_000
NAME_BYTES_MAX = 128
WINDOW = 512
"""Nodes of one job that may be started before their first steps are settled, so that a large job
does not fill the queue of its namespace."""


class JobState(enum.StrEnum):
    """Where a job is. Members and order equal the SQL enum ``job_state``."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_FAILED = frozenset({NodeState.FAILED, NodeState.CANCELLED})


def state_before_start(
    predecessors: Iterable[NodeState], ancestors: Iterable[NodeState]
) -> NodeState:
    """Return the state of a node of a running job that has not been started."""
    if not _FAILED.isdisjoint(ancestors):
        return NodeState.SKIPPED
    is_ready = all(it is NodeState.DONE for it in predecessors)
    return NodeState.READY if is_ready else NodeState.WAITING


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node to be added.

    Empty ``namespace``: the leader's; empty ``process_id``: made of its name.
    ``predecessors`` are names, of the same submission or of nodes that the job has.
    """

    name: str
    namespace: str = ""
    process_id: str = ""
    predecessors: tuple[str, ...] = ()
    args: bytes = b""
    constraints: Constraints | None = None
    options: JobOptions = dataclasses.field(default_factory=JobOptions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StartNodes:
    """The action that makes a process a leader, or adds to the job that it leads.

    At most one of ``deadline`` and ``timeout``, more than 0 from the settlement on, is given; none
    leaves the job's as it is. ``schedule_id`` only where a schedule submitted the job.
    """

    nodes: tuple[NodeSpec, ...]
    deadline: dt.datetime | None = None
    timeout: dt.timedelta | None = None
    schedule_id: str | None = None
    caller_context: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job without its nodes. ``ended_at`` is None while it runs."""

    key: ProcessKey
    state: JobState
    detail: str | None
    led_by: Leadership
    counts: NodeCounts
    created_at: dt.datetime
    updated_at: dt.datetime
    ended_at: dt.datetime | None
    deadline_at: dt.datetime | None
    schedule_id: str | None
    revision: int
    retry_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as it stands. ``follower`` names its process, whether or not that was started.

    ``replica_id`` runs a step of it, or ran its last one; None: none has, or it is not known.
    """

    ordinal: int
    name: str
    state: NodeState
    follower: ProcessKey
    predecessors: tuple[str, ...]
    skipped_because_of: str | None
    args: bytes
    result: bytes
    error: TaskError | None
    target: str | None
    constraints: Constraints | None
    created_at: dt.datetime
    ready_at: dt.datetime | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    attempt: int
    revision: int
    replica_id: int | None = None
    updated_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A job with its nodes, by their ordinals.

    ``payloads_left_out``: the args and results of some are empty here, since all would be too much.
    """

    job: Job
    nodes: tuple[Node, ...]
    payloads_left_out: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list is asked for; no ``states``: in any."""

    states: tuple[JobState, ...] = ()
    schedule_id: str | None = None
