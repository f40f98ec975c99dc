"""Groups of failures. Settlements note what breaks a process; here it is added up and read."""

import datetime as dt
from typing import NamedTuple

from progressor.domain.processes.process import Process
from progressor.domain.processes.task import TaskType
from progressor.domain.views.failure import (
    BROKEN_COUNT_MAX,
    FailedRepair,
    FailureGroup,
    FailureQuery,
)
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.documents import failure_text

GROUPS_MAX = 10_000
"""Groups of all namespaces."""

BATCH_MAX = 5_000
"""Rows that one transaction adds up."""

UNGROUPED_MAX = 500
"""Broken processes that one transaction gives a group."""


class _Ungrouped(NamedTuple):
    slot: int
    process_id: str
    broken_at: dt.datetime
    reason: str
    message: str
    task_type: TaskType | None


class Failures:
    def __init__(self, context: StorageContext, *, groups_max: int = GROUPS_MAX) -> None:
        functions = context.functions
        self._context, self._groups_max = context, groups_max
        self._add_failures = functions.call("add_failures")
        self._list_failures = functions.call("list_failures", FailureGroup)
        self._find_failed_repair = functions.call("find_failed_repair", FailedRepair)
        self._find_ungrouped = functions.call("find_ungrouped", _Ungrouped)
        self._group_processes = functions.call("group_processes")

    async def list(self, query: FailureQuery) -> list[FailureGroup]:
        """Read groups, those with most broken processes first."""
        count, at, failure_id = query.before or (None, None, None)
        async with self._context.connection(reads_only=True) as connection:
            return await self._list_failures.rows(
                connection,
                namespace=query.namespace,
                seen=None if query.seen is None else list(query.seen),
                failure_id=query.failure_id,
                broken_only=query.broken_only,
                count_max=BROKEN_COUNT_MAX,
                before_count=count,
                before_at=at,
                before_id=failure_id,
                limit=query.page_size,
            )

    async def last_repair(self, process: Process) -> FailedRepair | None:
        """Read the last repair of a process in error that has failed since it broke."""
        async with self._context.connection(reads_only=True) as connection:
            found = await self._find_failed_repair.rows(
                connection,
                slot=process.key.slot,
                namespace=process.key.namespace,
                process_id=process.key.process_id,
                broken_by=process.corrupted_by,
                broken_at=process.broken_at or process.status_changed_at,
            )
        return next(iter(found), None)

    async def add(self) -> bool:
        """Add up what was noted since, in any replica; return whether there may be more.

        Safe to repeat and to cancel.
        """
        [(count,)] = await self._context.call(
            self._add_failures, limit=BATCH_MAX, groups_max=self._groups_max
        )
        return bool(count >= BATCH_MAX)

    async def group(self, namespace: str) -> int:
        """Give broken processes a group that have none; return how many, at most UNGROUPED_MAX.

        Safe to repeat and to cancel, and to do in several replicas at once.
        """
        found = await self._context.call(
            self._find_ungrouped, namespace=namespace, limit=UNGROUPED_MAX
        )
        if not found:
            return 0
        [(count,)] = await self._context.call(
            self._group_processes,
            slot=[it.slot for it in found],
            namespace=[namespace] * len(found),
            process_id=[it.process_id for it in found],
            broken_at=[it.broken_at for it in found],
            reason=[it.reason for it in found],
            failure=[
                failure_text(it.message, it.process_id, task_type=it.task_type) for it in found
            ],
        )
        return int(count)
