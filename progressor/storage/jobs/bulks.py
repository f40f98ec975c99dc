"""Bulk operations: start, snapshot, chunks, and reads; see ``priv/functions/processes/bulk``."""

import builtins
import dataclasses
import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from psycopg.types.json import Json

from progressor import errors
from progressor.domain.processes import reply
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskError
from progressor.domain.views.bulk import (
    OPERATIONS,
    REQUESTING,
    BulkItem,
    BulkKind,
    BulkOperation,
    BulkRequest,
    applicable,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.effects import (
    FAILED_PRECONDITION,
    NO_EFFECTS,
    Effects,
    cancellations,
    gate_effects,
)
from progressor.storage.postgres.rows.filters import EXAMINED_MAX, filter_document

_SQL = statements.load("jobs/bulks")

_log = logging.getLogger(__name__)

MATCHED_MAX = 5_000
"""Processes that one transaction reads for a snapshot."""

FOLLOWED_MAX = 1_000_000
"""Processes after which an operation stops to follow."""

ATTEMPTS_MAX = 600
"""How often the lock of a process is tried, after which it fails; about a minute."""

OUTCOMES_MAX = 100_000
"""Processes whose outcomes are counted."""

DELETED_MAX = 5_000
"""Items that one transaction deletes."""


class _StartedRow(NamedTuple):
    verdict: str
    task_id: int | None


class _AppliedRow(NamedTuple):
    namespace: str
    process_id: str
    result: str | None
    removed: bool | None
    leads: bool | None
    cancelled: builtins.list[Any] | None
    effects: builtins.list[Any] | None
    error: str | None


class _OutcomesRow(NamedTuple):
    error_count: int
    waiting_count: int


class Bulks:
    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._start = context.functions.call("start_bulk", _StartedRow)
        self._match = context.functions.call("match_bulk", bool)
        self._apply = context.functions.call("apply_bulk", _AppliedRow)
        self._delete = context.functions.call("delete_bulk", int)

    async def start(
        self, request: BulkRequest, trace_context: Mapping[str, str]
    ) -> tuple[bool, Effects]:
        """Start an operation, whose namespace exists; return whether the same was started before.

        Raises:
            OperationAlreadyExistsError: Its id is that of another operation.
        """
        key = process_key(OPERATIONS, request.operation_id)
        [started] = await self._context.call(
            self._start,
            slot=key.slot,
            namespace=OPERATIONS,
            operation_id=request.operation_id,
            fingerprint=request.fingerprint(),
            trace_context=Json(dict(trace_context)) if trace_context else None,
            kind=request.kind.value,
            filter=filter_document(applicable(request.kind, request.filter)),
            args=request.args,
            reason=request.reason,
            author=request.author,
            rate_max=request.rate_max,
            failed_share_max=request.failed_share_max,
            failed_window=request.failed_window,
            follow=request.follow,
        )
        if started.verdict not in {Verdict.ACCEPTED, Verdict.DUPLICATE}:
            raise errors.OperationAlreadyExistsError(key.process_id)
        if started.verdict == Verdict.DUPLICATE or started.task_id is None:
            return True, NO_EFFECTS
        return False, Effects(due=((key, started.task_id),))

    async def match(self, operation_id: str) -> bool:
        """Add the next processes that match to its items; return whether all have been read."""
        [is_all] = await self._context.call(
            self._match, namespace=OPERATIONS, operation_id=operation_id, limit=MATCHED_MAX,
            examined_max=EXAMINED_MAX, followed_max=FOLLOWED_MAX,
        )  # fmt: skip
        return is_all

    async def apply(self, bulk: BulkOperation, *, limit: int) -> tuple[int, Effects]:
        """Apply an operation to at most `limit` processes; return to how many.

        Those that are locked are left for later. With a limit of 1, what PostgreSQL refuses is
        recorded as the result of its process.
        """
        rows = await self._context.call(
            self._apply, operation_id=bulk.operation_id, limit=limit, attempts_max=ATTEMPTS_MAX
        )
        effects = NO_EFFECTS
        for row in rows:
            effects |= _effects_of(bulk, row)
            if row.error:
                place = {"namespace": row.namespace, "process_id": row.process_id}
                _log.error(
                    "process not changed",
                    extra={"operation_id": bulk.operation_id, "why": row.error} | place,
                )
        return sum(row.result is not None for row in rows), effects

    async def get(self, operation_id: str) -> BulkOperation:
        """Read an operation. Raises OperationNotFoundError if there is none."""
        found = await self._read(operation_id, None, limit=1)
        if not found:
            raise errors.OperationNotFoundError(operation_id)
        return found[0]

    async def count_outcomes(self, bulk: BulkOperation) -> BulkOperation:
        """Return an operation with what has become of the steps that it requested."""
        if bulk.kind not in REQUESTING:
            return bulk
        [counts] = await self._context.read(
            _OutcomesRow, _SQL["count_outcomes"], operation_id=bulk.operation_id,
            limit=OUTCOMES_MAX, holds=bulk.kind is BulkKind.NOTIFY,
        )  # fmt: skip
        return dataclasses.replace(bulk, **counts._asdict())

    async def list(
        self, *, after: tuple[dt.datetime, str] | None, limit: int
    ) -> tuple[BulkOperation, ...]:
        return await self._read(None, after, limit=limit)

    async def stop(self, operation_id: str, reason: str) -> BulkOperation:
        """Stop an operation, unless it has ended, and return it."""
        await self._context.execute(_SQL["stop_bulk"], operation_id=operation_id, reason=reason)
        return await self.get(operation_id)

    async def note_delay(self, operation_id: str, why: str) -> None:
        """Note why an operation does not get on, until its next chunk."""
        await self._context.execute(_SQL["note_delay"], operation_id=operation_id, why=why)

    async def delete(self) -> bool:
        """Delete some items of an operation without a process; return whether there was one."""
        [count] = await self._context.call(self._delete, namespace=OPERATIONS, limit=DELETED_MAX)
        return count > 0

    async def items(
        self, operation_id: str, *, failed: bool, after: int, limit: int
    ) -> tuple[BulkItem, ...]:
        await self.get(operation_id)
        return await self._context.read(
            BulkItem, _SQL["list_items"], operation_id=operation_id, failed=failed, after=after,
            limit=limit,
        )  # fmt: skip

    async def _read(
        self, operation_id: str | None, after: tuple[dt.datetime, str] | None, *, limit: int
    ) -> tuple[BulkOperation, ...]:
        before_at, before_id = after or (None, None)
        async with self._context.connection(reads_only=True) as connection:
            columns, rows = await self._context.fetch_on(
                connection, _SQL["read_bulk"], namespace=OPERATIONS, operation_id=operation_id,
                before_at=before_at, before_id=before_id, limit=limit,
            )  # fmt: skip
        found = (dict(zip(columns, row, strict=True)) for row in rows)
        return tuple(msgspec.convert(it, BulkOperation, strict=False) for it in found)


def _effects_of(bulk: BulkOperation, row: _AppliedRow) -> Effects:
    effects = gate_effects(row.effects) if row.effects else NO_EFFECTS
    if row.leads:
        effects |= Effects(upkeep=(process_key(row.namespace, row.process_id),))
    if row.cancelled:
        error = TaskError(
            code=FAILED_PRECONDITION, reason=reply.PROCESS_FINISHED, message=bulk.reason
        )
        is_terminated = bulk.kind is BulkKind.TERMINATE
        ended = cancellations(
            row.namespace, row.cancelled, error=error if is_terminated else None,
            removed=bool(row.removed),
        )  # fmt: skip
        effects |= Effects(cancelled=ended)
    return effects
