"""Rows of jobs and their nodes on their way back: columns to the domain's words."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from progressor.domain.jobs.job import Job, JobState, Node, NodeCounts
from progressor.domain.processes.process import Leadership, ProcessKey
from progressor.domain.processes.task import NodeOutcome, NodeState, TaskError
from progressor.storage.rows.constraints import constraints_of
from progressor.storage.rows.tasks import Row

_NODE_STATES: Mapping[bytes | str, NodeState] = {
    spelling: state for state in NodeState for spelling in (state.value, state.encode())
}
_UNFINISHED = frozenset({NodeState.WAITING, NodeState.READY, NodeState.RUNNING})


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


def ordinals(row: Row) -> Sequence[int]:
    """Return which nodes a row names beside its own, for whose names `node` asks."""
    return row[9] if row[10] is None else [*row[9], row[10]]


def node(row: Row, names: Mapping[int, str]) -> Node:
    """Return the node of a row of `read_job`; ``names``: of those that it names."""
    return Node(
        ordinal=row[3],
        name=row[4],
        state=_NODE_STATES[row[5]],
        follower=ProcessKey(*row[6:9]),
        predecessors=tuple(names[each] for each in row[9]),
        skipped_because_of=None if row[10] is None else names[row[10]],
        args=row[11],
        result=row[12] or b"",
        error=_error(row[13:16]),
        target=row[16],
        constraints=constraints_of(row[17]),
        created_at=row[18],
        ready_at=row[19],
        started_at=row[20],
        ended_at=row[21],
        attempt=row[22],
        revision=row[23],
        replica_id=row[24],
        updated_at=row[25],
    )


def outcome(row: Row, names: Mapping[int, str]) -> NodeOutcome | None:
    """Return how the node of a row of `read_outcomes` has ended; None: it has not."""
    state = _NODE_STATES[row[3]]
    if state in _UNFINISHED:
        return None
    return NodeOutcome(
        name=row[2],
        state=state,
        result=row[4] or b"",
        error=_error(row[5:8]),
        skipped_because_of=None if row[8] is None else names.get(row[8]),
    )


def _error(columns: Row) -> TaskError | None:
    code, reason, message = columns
    if code is None:
        return None
    return TaskError(code=code, reason=reason or "", message=message or "")


def _instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


def _instant_or_none(text: str | None) -> dt.datetime | None:
    return None if text is None else _instant(text)
