"""Bulk operations: one operation on each of the processes that matched a filter.

An operation is a process of the namespace OPERATIONS, whose steps the engine runs itself. They
first note which processes match, and then apply the operation to these, a chunk at a time.
"""

import dataclasses
import datetime as dt
import enum
import hashlib
from collections.abc import Mapping

from progressor.domain.processes.namespace import HistoryMode, Namespace
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.views.filter import ProcessFilter

OPERATIONS = "progressor.operations"
"""The namespace of the operations."""

RETENTION = dt.timedelta(days=30)
"""How long an operation that has ended is kept, with the result of each process."""

RATE_DEFAULT = 100
RATE_MAX = 1_000_000

FAILED_SHARE_DEFAULT = 0.1
FAILED_WINDOW_DEFAULT = 100
FAILED_WINDOW_MAX = 10_000

NAMESPACE = Namespace(
    name=OPERATIONS,
    processor_targets=(),
    history_mode=HistoryMode.NONE,
    finished_process_retention=RETENTION,
    task_retention=dt.timedelta(hours=1),  # an operation that follows has a step every few seconds
)


class BulkKind(enum.StrEnum):
    """What is done to each process: as by the RPC of the same name."""

    RETRY = "retry"
    SIMPLE_REPAIR = "simple_repair"
    REPAIR = "repair"
    NOTIFY = "notify"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    REMOVE = "remove"


class BulkState(enum.StrEnum):
    """Where an operation is.

    FOLLOWING: each process has a result, and it waits for more that match. FAILED: its own process
    is in error, and can be retried.
    """

    MATCHING = "matching"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    FOLLOWING = "following"


class BulkResult(enum.StrEnum):
    """How a process fared. SKIPPED: it was not as it had matched, so nothing was done to it."""

    PENDING = "pending"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


_BROKEN = (ProcessStatus.ERROR,)
_UNFINISHED = (ProcessStatus.INIT, ProcessStatus.RUNNING, ProcessStatus.ERROR)

TAKEN_BY: Mapping[BulkKind, tuple[ProcessStatus, ...]] = {
    BulkKind.RETRY: _BROKEN,
    BulkKind.SIMPLE_REPAIR: _BROKEN,
    BulkKind.REPAIR: _BROKEN,
    BulkKind.NOTIFY: (ProcessStatus.INIT, ProcessStatus.RUNNING),
    BulkKind.CANCEL: _UNFINISHED,
    BulkKind.TERMINATE: _UNFINISHED,
    BulkKind.REMOVE: (),
}
"""The statuses of processes that take it; none: any status."""

REQUESTING = frozenset({BulkKind.RETRY, BulkKind.SIMPLE_REPAIR, BulkKind.REPAIR, BulkKind.NOTIFY})
"""What requests a step, whose outcome comes later."""

WITH_ARGS = frozenset({BulkKind.REPAIR, BulkKind.NOTIFY})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkFilter(ProcessFilter):
    """What an operation acts on. ``has_task``: only processes with a task to cancel."""

    has_task: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """An operation to be started. ``rate_max`` is in processes per second; None: unlimited.

    It stops when more than ``failed_share_max`` of the last ``failed_window`` processes failed.
    ``follow``: it also takes up what matches later, each process once, until it is stopped.
    """

    operation_id: str
    kind: BulkKind
    filter: ProcessFilter
    args: bytes = b""
    reason: str = ""
    author: str = ""
    rate_max: int | None = RATE_DEFAULT
    failed_share_max: float = FAILED_SHARE_DEFAULT
    failed_window: int = FAILED_WINDOW_DEFAULT
    follow: bool = False

    def fingerprint(self) -> bytes:
        return hashlib.blake2b(repr(self).encode(), digest_size=16).digest()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """An operation and how far it is. ``stop_reason`` is set where it does not go on.

    ``created_at`` is the instant of the snapshot; ``updated_at`` that of the last progress.
    ``phase`` is the state as if its process were not in error. ``error_count``: of the processes
    that are done, those in error now; ``waiting_count``: others whose requested step has not ended.
    """

    operation_id: str
    kind: BulkKind
    state: BulkState
    filter: ProcessFilter
    reason: str
    author: str
    rate_max: int | None
    failed_share_max: float
    failed_window: int
    follow: bool
    stop_reason: str
    created_at: dt.datetime
    updated_at: dt.datetime
    ended_at: dt.datetime | None
    matched_count: int
    done_count: int
    skipped_count: int
    failed_count: int
    phase: BulkState
    error_count: int | None = None
    waiting_count: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in {BulkState.DONE, BulkState.STOPPED}

    @property
    def ended_count(self) -> int:
        return self.done_count + self.skipped_count + self.failed_count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """One process of an operation. ``reason`` is that of the error of the single RPC.

    ``task_id``: the task that was created, run again or cancelled, or is to be cancelled.
    """

    item: int
    namespace: str
    process_id: str
    result: BulkResult
    reason: str
    task_id: int | None
    ended_at: dt.datetime | None


def applicable(kind: BulkKind, processes: ProcessFilter) -> BulkFilter:
    """Return what an operation matches: without statuses, those that it applies to."""
    fields = {it.name: getattr(processes, it.name) for it in dataclasses.fields(processes)}
    return BulkFilter(
        **fields | {"statuses": processes.statuses or TAKEN_BY[kind]},
        has_task=kind is BulkKind.CANCEL,
    )
