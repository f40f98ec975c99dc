"""What several pages show of the activity of an engine: what waits, and who reaches a processor."""

import dataclasses
import datetime as dt
from collections.abc import Sequence

from progressor import errors
from progressor.console.words.words import mark
from progressor.domain.views.activity import NamespaceQueue
from progressor.sdk.client.overview import Overview
from progressor.sdk.client.replicas import Activity, ReplicaState
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.sdk.values.processes import WaitCause

AWAY = (EngineUnavailableError, errors.DeadlineExceededError, errors.StorageError)
"""Errors of an engine that does not answer, or whose database does not."""

TIMEOUT_SECONDS = 5.0
"""Of a page that says so soon."""

_WORKER = (
    WaitCause.NO_FREE_WORKER,
    WaitCause.NO_REPLICA,
    WaitCause.PAUSED,
    WaitCause.PROCESSOR_UNREACHABLE,
)

_KINDS: Sequence[tuple[str, str, tuple[WaitCause, ...]]] = (
    ("due", mark("Due: waits for a worker, the processor or the end of a pause"), _WORKER),
    (
        "available",
        mark(
            "Ready: has its gates and order, waits for a worker, the processor or the end of "
            "a pause"
        ),
        _WORKER,
    ),
    ("timer", mark("Timers that are not due yet"), (WaitCause.TIMER,)),
    ("retry", mark("Waits for a retry"), (WaitCause.RETRY,)),
    ("behind", mark("Behind another task of its process"), (WaitCause.BEHIND_TASK,)),
    ("run_at", mark("Waits for its instant"), (WaitCause.RUN_AT,)),
    ("order", mark("Waits for a smaller version of its order"), (WaitCause.ORDER,)),
    ("gate", mark("Waits for a gate"), (WaitCause.GATE,)),
    ("process_failed", mark("Held: its process is in error"), (WaitCause.PROCESS_FAILED,)),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How many tasks wait in one way; ``causes`` find their processes in the list.

    ``is_exact``: otherwise there may be more. ``since``: of the oldest; None: it is not told.
    """

    kind: str
    word: str
    causes: tuple[WaitCause, ...]
    count: int
    is_exact: bool
    since: dt.datetime | None


def waiting_of(overview: Overview, queues: Sequence[NamespaceQueue]) -> tuple[Waiting, ...]:
    """Return what waits in some namespaces, without what there is none of; due is always told."""
    found = (_waiting(overview, queues, *it) for it in _KINDS)
    return tuple(it for it in found if it.count or it.kind == "due")


def _waiting(
    overview: Overview,
    queues: Sequence[NamespaceQueue],
    kind: str,
    word: str,
    causes: tuple[WaitCause, ...],
) -> Waiting:
    counts = [getattr(it, f"{kind}_count") for it in queues]
    ages = [age for it in queues if (age := getattr(it, f"{kind}_age", None)) is not None]
    return Waiting(
        kind=kind,
        word=word,
        causes=causes,
        count=sum(counts),
        is_exact=all(it < overview.exact_below for it in counts),
        since=overview.read_at - max(ages) if ages else None,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A namespace in one replica; ``unreachable_since`` None: its processor was reached."""

    replica: str
    replica_id: int
    busy_count: int
    worker_count: int
    unreachable_since: dt.datetime | None


def reaches_of(activity: Activity, namespace: str) -> tuple[Reach, ...]:
    """Return how each live replica that has run a step of a namespace reaches its processor."""
    return tuple(
        Reach(
            replica=replica.name,
            replica_id=replica.replica_id,
            busy_count=it.busy_count,
            worker_count=it.worker_count,
            unreachable_since=(
                None if it.unreachable_for is None else replica.heartbeat_at - it.unreachable_for
            ),
        )
        for replica in activity.replicas
        if replica.state is not ReplicaState.SILENT
        for it in replica.namespaces
        if it.namespace == namespace
    )
