"""The steps of bulk operations, which the engine runs itself.

A step first completes the snapshot of what matched, then applies the operation to it, a chunk at a
time, and ends after STEP_SECONDS with a timer for the next step. One that follows then looks for
what matches later. All progress is in the tables, in
the transactions that make it: a step that is lost with its replica is simply run again.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging

from progressor import errors
from progressor.domain.processes.intent import (
    Complete,
    Failed,
    Intent,
    Outcome,
    Rejected,
    Released,
    SetTimer,
    Succeeded,
)
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.domain.views.bulk import BulkOperation, BulkState
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.jobs.bulks import Bulks

_log = logging.getLogger(__name__)

STEP_SECONDS = 2.0
"""How long a step works: a drain waits for it, and a stop or a pause takes effect after it."""

CHUNK_MAX = 100
"""Processes of one transaction, which keeps them locked; 10 ms at the most, as a rule."""

_CHUNKS_PER_SECOND = 5
"""With a limited rate, so that the processes are spread over each second."""

_LOCKED_SECONDS = 0.1

FOLLOW_SECONDS = 2.0
"""Between two searches for what matches later."""

_FOLLOW_PAUSE = 20.0
"""After a search, as a multiple of its time: a large filter costs a twentieth of a connection."""

_UNIMPLEMENTED = 12
_INTERNAL = 13


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkSteps:
    bulks: Bulks
    effects: EffectDispatcher
    context: Context

    async def run(self, task: RunningTask) -> Outcome:
        if task.task_type in {TaskType.CALL, TaskType.NOTIFY}:
            return _rejected("a bulk operation takes no calls: use BulkService")
        try:
            return await self._work(task.key.process_id)
        except errors.OperationNotFoundError:
            return _rejected("processes of this namespace are started by BulkService alone")
        except errors.StorageUnavailableError as error:
            name = task.key.process_id
            _log.warning("bulk step is run again", extra={"operation_id": name, "why": str(error)})
            with contextlib.suppress(errors.StorageError):
                await self.bulks.note_delay(name, str(error))
            return Released()
        except errors.StorageRefusedError as error:
            message = "PostgreSQL cannot find out which processes match; its log has the reason"
            _log.error("bulk step failed", extra={"why": str(error)})
            return Failed(code=_INTERNAL, reason=error.reason, message=message, retryable=False)

    async def _work(self, operation_id: str) -> Outcome:
        monotonic = self.context.clock.monotonic
        ends_at = monotonic() + STEP_SECONDS
        pause = 0.0
        bulk = await self.bulks.get(operation_id)
        if bulk.phase is BulkState.MATCHING and not bulk.matched_count:
            _log.info("bulk operation started", extra=_facts(bulk))
        while not bulk.has_ended:
            if monotonic() >= ends_at:
                return _continues(0.0)
            begun_at = monotonic()
            if bulk.phase is BulkState.MATCHING:
                await self.bulks.match(operation_id)
            elif bulk.phase is BulkState.FOLLOWING:
                if pause:
                    return _continues(pause)
                is_all = await self.bulks.match(operation_id)
                pause = _FOLLOW_PAUSE * (monotonic() - begun_at) + FOLLOW_SECONDS * is_all
            else:
                count, seconds = await self._apply(bulk)
                # Also before the step ends, or the next one would begin too early.
                await asyncio.sleep(max(0.0, begun_at + seconds - monotonic()))
                self.context.observers.tell("bulk_chunk", operation_id=operation_id, count=count)
            bulk = await self.bulks.get(operation_id)
        self.context.metrics.bulks_ended.add(1, (bulk.kind.value, bulk.state.value))
        log = _log.info if bulk.state is BulkState.DONE else _log.warning
        log("bulk operation ended", extra=_facts(bulk) | {
            "state": bulk.state.value, "why": bulk.stop_reason, "matched": bulk.matched_count,
            "done": bulk.done_count, "skipped": bulk.skipped_count, "failed": bulk.failed_count,
        })  # fmt: skip
        return Succeeded(Intent(action=Complete()))

    async def _apply(self, bulk: BulkOperation) -> tuple[int, float]:
        """Apply a chunk; return its size, and how long it has to take at the operation's rate."""
        limit = CHUNK_MAX
        if bulk.rate_max is not None:
            limit = min(CHUNK_MAX, max(1, bulk.rate_max // _CHUNKS_PER_SECOND))
        try:
            count = await self._apply_some(bulk, limit)
        except errors.StorageRefusedError:
            # One of them cannot be applied: the others must not fail with it.
            count = sum([await self._apply_some(bulk, 1) for _ in range(limit)])
        if not count:
            return 0, _LOCKED_SECONDS
        return count, 0.0 if bulk.rate_max is None else count / bulk.rate_max

    async def _apply_some(self, bulk: BulkOperation, limit: int) -> int:
        count, effects = await self.bulks.apply(bulk, limit=limit)
        self.effects.apply(effects)
        self.context.metrics.bulk_processes.add(count, (bulk.kind.value,))
        return count


def _continues(pause: float) -> Succeeded:
    return Succeeded(Intent(timer=SetTimer(after=dt.timedelta(seconds=pause))))


def _rejected(message: str) -> Rejected:
    return Rejected(code=_UNIMPLEMENTED, reason="RESERVED_NAMESPACE", message=message)


def _facts(bulk: BulkOperation) -> dict[str, object]:
    return {
        "operation_id": bulk.operation_id,
        "kind": bulk.kind.value,
        "author": bulk.author,
        "reason": bulk.reason,
    }
