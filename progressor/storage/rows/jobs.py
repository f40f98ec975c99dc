"""Rows of jobs and their nodes on their way back: columns to the domain's words."""

import builtins
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from progressor.domain.jobs.job import Job, JobState, Node, NodeCounts
from progressor.domain.processes.process import Leadership, ProcessKey
from progressor.domain.processes.task import NodeOutcome, NodeState, TaskError
from progressor.storage.rows.constraints import constraints_of
from progressor.storage.rows.tasks import Enum

_NODE_STATES: Mapping[bytes | str, NodeState] = {
    spelling: state for state in NodeState for spelling in (state.value, state.encode())
}
_UNFINISHED = frozenset({NodeState.WAITING, NodeState.READY, NodeState.RUNNING})


class NodeRow(NamedTuple):
    """A node; ``job`` is in the first row only, which has a null ordinal if there are no nodes."""

    bytes: int
    job: dict[str, Any] | None
    led_by: str
    ordinal: int
    name: str
    state: Enum
    follower_slot: int
    follower_namespace: str
    follower_id: str
    predecessors: Sequence[int]
    skipped_because_of: int | None
    args: builtins.bytes
    result: builtins.bytes | None
    error_code: int | None
    error_reason: str | None
    error_message: str | None
    target: str | None
    constraints: dict[str, Any] | None
    created_at: dt.datetime
    ready_at: dt.datetime | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    attempt: int
    revision: int
    replica_id: int | None
    updated_at: dt.datetime


class OutcomeRow(NamedTuple):
    """How a node has ended, if it has; ``bytes`` is of all rows together."""

    bytes: int
    ordinal: int
    name: str
    state: Enum
    result: builtins.bytes | None
    error_code: int | None
    error_reason: str | None
    error_message: str | None
    skipped_because_of: int | None


def job(told: Mapping[str, Any], led_by: str) -> Job:
    """Return the job of a row of `jobs` as JSON; who leads it stands with its process."""
    unfinished = {name: told[name] for name in ("waiting", "ready", "running")}
    ended = {name: told[name] for name in ("failed", "skipped", "cancelled")}
    counted = sum(unfinished.values()) + sum(ended.values())
    return Job(
        key=ProcessKey(told["slot"], told["namespace"], told["process_id"]),
        state=JobState(told["state"]),
        detail=told["detail"],
        led_by=Leadership(led_by),
        counts=NodeCounts(done=told["node_count"] - counted, **unfinished, **ended),
        created_at=_instant(told["created_at"]),
        updated_at=_instant(told["updated_at"]),
        ended_at=_instant_or_none(told["ended_at"]),
        deadline_at=_instant_or_none(told["deadline_at"]),
        schedule_id=told["schedule_id"],
        revision=told["revision"],
        retry_count=told["retry_count"],
    )


def ordinals(row: NodeRow) -> Sequence[int]:
    """Return which nodes a row names beside its own, for whose names `node` asks."""
    if row.skipped_because_of is None:
        return row.predecessors
    return [*row.predecessors, row.skipped_because_of]


def node(row: NodeRow, names: Mapping[int, str]) -> Node:
    """Return the node of a row; ``names``: of those that it names."""
    caused_by = row.skipped_because_of
    return Node(
        ordinal=row.ordinal,
        name=row.name,
        state=_NODE_STATES[row.state],
        follower=ProcessKey(row.follower_slot, row.follower_namespace, row.follower_id),
        predecessors=tuple(names[each] for each in row.predecessors),
        skipped_because_of=None if caused_by is None else names[caused_by],
        args=row.args,
        result=row.result or b"",
        error=_error(row),
        target=row.target,
        constraints=constraints_of(row.constraints),
        created_at=row.created_at,
        ready_at=row.ready_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempt=row.attempt,
        revision=row.revision,
        replica_id=row.replica_id,
        updated_at=row.updated_at,
    )


def outcome(row: OutcomeRow, names: Mapping[int, str]) -> NodeOutcome | None:
    """Return how the node of a row has ended; None: it has not."""
    state = _NODE_STATES[row.state]
    if state in _UNFINISHED:
        return None
    caused_by = row.skipped_because_of
    return NodeOutcome(
        name=row.name,
        state=state,
        result=row.result or b"",
        error=_error(row),
        skipped_because_of=None if caused_by is None else names.get(caused_by),
    )


def _error(row: NodeRow | OutcomeRow) -> TaskError | None:
    if row.error_code is None:
        return None
    return TaskError(
        code=row.error_code, reason=row.error_reason or "", message=row.error_message or ""
    )


def _instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


def _instant_or_none(text: str | None) -> dt.datetime | None:
    return None if text is None else _instant(text)
