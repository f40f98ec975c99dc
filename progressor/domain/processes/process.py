"""A process: one long-lived instance with a status, a state and a history."""

import dataclasses
import datetime as dt
import enum
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Self

from progressor.domain import values
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy

SLOT_COUNT = 1024
"""Slots over which processes are spread: the partition key, and the shard of the group commit."""


class ProcessStatus(enum.StrEnum):
    """Where a process is in its life. Members and order equal the SQL enum ``process_status``."""

    INIT = "init"
    RUNNING = "running"
    ERROR = "error"
    FINISHED = "finished"


@values.dataclass(frozen=True, slots=True)
class ProcessKey:
    """Which process. ``slot`` follows from the names; it leads every key in storage."""

    slot: int
    namespace: str
    process_id: str


def process_key(namespace: str, process_id: str) -> ProcessKey:
    """Return the key of a process, with its slot, 0 .. SLOT_COUNT - 1.

    The slot is a CRC-32 so that any language can compute it, and never changes.
    """
    digest = zlib.crc32(process_id.encode(), zlib.crc32(namespace.encode()))
    return ProcessKey(digest % SLOT_COUNT, namespace, process_id)


class Leadership(enum.StrEnum):
    ENGINE = "engine"
    PROCESSOR = "processor"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a process of a job has in place of what its namespace says.

    ``target`` is one of the namespace's processor targets, spelt as there; ``scheduled``: its job
    was started by a schedule, so that it is failed, not tried again, when its replica is lost.
    """

    takes_results: bool = False
    retry_policy: RetryPolicy | None = None
    zombie_policy: ZombiePolicy | None = None
    target: str | None = None
    scheduled: bool = False


NO_OPTIONS = JobOptions()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process's part in jobs: it leads one, follows in one, or both.

    ``leader`` and ``node``, its ordinal there from 1, are None for a process that has no leader.
    """

    led_by: Leadership | None = None
    leader: ProcessKey | None = None
    node: int | None = None
    options: JobOptions = NO_OPTIONS


NO_PART = Part()


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process without its history, as the last settlement left it.

    ``init_task_id`` distinguishes a process from a removed one with the same id. ``state_version``
    is of ``aux_state``, as the processor said; 0: it said none. Of a process in error,
    ``broken_at`` is when it broke last, ``failure_id`` its group of failures; only a read has them.
    """

    key: ProcessKey
    status: ProcessStatus
    previous_status: ProcessStatus | None
    detail: str | None
    aux_state: bytes
    metadata: Mapping[str, object] | None
    corrupted_by: int | None
    created_at: dt.datetime
    status_changed_at: dt.datetime
    last_event_id: int
    init_task_id: int
    result: bytes | None = None
    part: Part | None = None
    state_version: int = 0
    broken_at: dt.datetime | None = dataclasses.field(default=None, compare=False)
    failure_id: str = dataclasses.field(default="", compare=False)
    failure_reason: str = dataclasses.field(default="", compare=False)


EXACT_MAX_DEFAULT = 10_000
"""How many processes a count by a filter examines one by one; that takes less than 0.1 s."""

EXACT_MAX_CEILING = 1_000_000
"""The most that a caller may have it examine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounts:
    """How many processes a namespace has, by status.

    ``is_estimate``: a replica of a release that does not count runs, or ran until a short while
    ago.
    """

    namespace: str
    init_count: int = 0
    running_count: int = 0
    error_count: int = 0
    finished_count: int = 0
    is_estimate: bool = False

    @property
    def total(self) -> int:
        return self.init_count + self.running_count + self.error_count + self.finished_count

    def of(self, statuses: Collection[ProcessStatus]) -> Self:
        """Return the counts of these statuses, the others as 0; without any: of all."""
        others = set(ProcessStatus).difference(statuses) if statuses else ()
        nothing: Any = {f"{it}_count": 0 for it in others}
        return dataclasses.replace(self, **nothing)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCount:
    """How many processes a filter matches; ``is_estimate``: about so many.

    ``namespaces``: those of each namespace by status, if the filter has no more than a namespace
    and statuses.
    """

    count: int
    is_estimate: bool = False
    namespaces: tuple[ProcessCounts, ...] = ()
