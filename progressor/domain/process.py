"""A process: one long-lived instance with a status, a state and a history."""

import dataclasses
import datetime as dt
import enum
import zlib
from collections.abc import Mapping

SLOT_COUNT = 1024
"""Slots over which processes are spread: partition key, and lane of the group commit."""


class ProcessStatus(enum.StrEnum):
    """Where a process is in its life. Members and order equal the SQL enum ``process_status``."""

    INIT = "init"
    RUNNING = "running"
    ERROR = "error"
    FINISHED = "finished"


@dataclasses.dataclass(frozen=True, slots=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process without its history, as the last settlement left it.

    ``init_task_id`` tells a process from another one that had its id before a removal.
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
    result: bytes | None
