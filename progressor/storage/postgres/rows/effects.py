"""Effects: what a write brings about besides its result.

A write returns them as a value; ``runtime/effects/dispatcher.py`` applies them. Every statement
that enters or leaves gates returns the same rows (see ``settle_gates.sql``), which `gate_effects`
reads; `job_effects` reads those of a settlement in a job.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from progressor.domain.jobs.job import JobState
from progressor.domain.processes import reply
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import TaskError, TaskType

BATCH_MAX = 100
"""Tasks that one statement promotes at most; the rest is reported for another pass."""

FAILED_PRECONDITION = 9

JOB_HAS_ENDED = TaskError(
    code=FAILED_PRECONDITION, reason=reply.PROCESS_FAILED, message="its job has ended"
)
"""Why the callers of a follower that was stopped get no result."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A gate, a queue or an order of a namespace to be looked at again: exactly one is set."""

    namespace: str
    gate: str | None = None
    queue: str | None = None
    order_key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Later:
    """A task that is due, or to be looked at, after so many seconds."""

    key: ProcessKey
    task_id: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class LoweredGate:
    """A gate whose capacity was lowered below what is held."""

    namespace: str
    gate: str


@dataclasses.dataclass(frozen=True, slots=True)
class AwaitedEnd:
    """A process that has ended, by its init task, and the replicas where callers wait for that."""

    init_task_id: int
    awaited_by: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RevokedLease:
    """The lease of a task that was cancelled while a replica ran it."""

    replica_id: int
    token: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A task that will never end otherwise, and the replicas where a caller may wait for it.

    ``lease``: it ran until then.
    """

    task_id: int
    task_type: TaskType
    reply_to: tuple[int, ...]
    lease: RevokedLease | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """A cancelled task and what its callers get: an error, or that its process was removed."""

    namespace: str
    task: Cancelled
    error: TaskError | None = None
    removed: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What came of a write besides its result."""

    due: tuple[tuple[ProcessKey, int], ...] = ()
    """Tasks that are due now."""
    upcoming: tuple[Later, ...] = ()
    """Tasks that are due later."""
    later: tuple[Later, ...] = ()
    """Tasks with constraints that have to be looked at later."""
    again: tuple[Again, ...] = ()
    """What the statement could not lock in order, and has to be looked at again."""
    lowered: tuple[LoweredGate, ...] = ()
    """Gates that have more holders than their new capacity."""
    cancelled: tuple[Cancellation, ...] = ()
    upkeep: tuple[ProcessKey, ...] = ()
    """Leaders of jobs that need upkeep."""
    ended: tuple[tuple[ProcessKey, JobState], ...] = ()
    """Jobs that were cancelled or failed as a whole."""
    gone: tuple[str, ...] = ()
    """Namespaces that were deleted."""
    process_ends: tuple[AwaitedEnd, ...] = ()
    """Awaited processes that have ended, or may have."""
    senders: tuple[ProcessKey, ...] = ()
    """Processes whose messages are to be delivered."""

    def __or__(self, other: "Effects") -> "Effects":
        if other is NO_EFFECTS:
            return self
        return Effects(**{name: getattr(self, name) + getattr(other, name) for name in _EFFECTS})


NO_EFFECTS = Effects()
_EFFECTS = tuple(field.name for field in dataclasses.fields(Effects))


class GateEffect(NamedTuple):
    """A task, or, without one, a gate, a queue or an order that another transaction held.

    With ``awaited_by``: the init task of a process that has ended. ``sends``: the process may have
    messages to be delivered.
    """

    namespace: str
    process_id: str
    task_id: int | None
    gate: str | None = None
    queue: str | None = None
    order_key: str | None = None
    wait_seconds: float | None = None
    due_seconds: float | None = None
    awaited_by: Sequence[int] | None = None
    sends: bool | None = None


def gate_effects(rows: Iterable[Sequence[Any]] | None) -> Effects:
    """Read the JSON of ``priv/functions/gates/settle_gates.sql``."""
    due, upcoming, later, again, ends, senders = [], [], [], [], [], []
    for row in itertools.starmap(GateEffect, rows or ()):
        if row.sends:
            senders.append(process_key(row.namespace, row.process_id))
            continue
        if row.task_id is None:
            again.append(
                Again(
                    namespace=row.namespace,
                    gate=row.gate,
                    queue=row.queue,
                    order_key=row.order_key,
                )
            )
            continue
        if row.awaited_by is not None:
            ends.append(AwaitedEnd(row.task_id, tuple(row.awaited_by)))
            continue
        key = process_key(row.namespace, row.process_id)
        if row.wait_seconds is not None:
            later.append(Later(key, row.task_id, float(row.wait_seconds)))
        elif row.due_seconds is not None:
            upcoming.append(Later(key, row.task_id, float(row.due_seconds)))
        else:
            due.append((key, row.task_id))
    # A task may be reported twice: as promoted, and as the first in its process's queue.
    return Effects(
        due=tuple(dict.fromkeys(due)),
        upcoming=tuple(upcoming),
        later=tuple(later),
        again=tuple(dict.fromkeys(again)),
        senders=tuple(senders),
        process_ends=tuple(ends),
    )


def job_effects(found: Mapping[str, Any]) -> Effects:
    """Read the jsonb of ``priv/functions/settlement/settle_job_tasks.sql``."""
    return Effects(
        due=tuple((ProcessKey(*key), task_id) for *key, task_id in found["due"] or ()),
        upkeep=keys_of(found["upkeep"]),
        cancelled=cancellations_of(found["cancelled"], JOB_HAS_ENDED),
        ended=tuple((key, JobState.FAILED) for key in keys_of(found["failed"])),
    )


def keys_of(rows: Sequence[Sequence[Any]] | None) -> tuple[ProcessKey, ...]:
    """Return the keys of a jsonb column."""
    return tuple(ProcessKey(*key) for key in rows or ())


def cancellations_of(
    rows: Sequence[Sequence[Any]] | None, error: TaskError
) -> tuple[Cancellation, ...]:
    """Read the keys of processes with their cancelled tasks from a jsonb column."""
    return tuple(
        cancellation
        for _, namespace, _, tasks in rows or ()
        for cancellation in cancellations(namespace, tasks, error=error)
    )


def cancelled(tasks: Sequence[Any] | None) -> tuple[Cancelled, ...]:
    return tuple(
        Cancelled(
            task_id=task_id,
            task_type=TaskType(task_type),
            reply_to=tuple(reply_to),
            lease=RevokedLease(*lease) if lease and lease[0] is not None else None,
        )
        for task_id, task_type, reply_to, *lease in tasks or ()
    )


def cancellations(
    namespace: str,
    tasks: Sequence[Any] | None,
    *,
    error: TaskError | None = None,
    removed: bool = False,
) -> tuple[Cancellation, ...]:
    """Read the same column, with the answer for the callers of all these tasks."""
    return tuple(
        Cancellation(namespace=namespace, task=task, error=error, removed=removed)
        for task in cancelled(tasks)
    )
