"""Processes as people see them, and the rare writes: put, remove, simple repair."""

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.types.json import Json, Jsonb

from progressor import errors
from progressor.domain.processes import reply
from progressor.domain.processes.admission import Import, Verdict
from progressor.domain.processes.event import NO_HISTORY, Direction, HistoryRange
from progressor.domain.processes.process import Process, ProcessKey
from progressor.domain.processes.task import TaskError, TaskType
from progressor.domain.views import why
from progressor.domain.views.process import (
    HistoryPage,
    ProcessPage,
    ProcessQuery,
    ProcessView,
    TaskTrace,
)
from progressor.domain.views.wait import UnfinishedTask, Wait
from progressor.storage.commit.group_read import GroupRead
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres import arrays, statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import Connection
from progressor.storage.processes.reads.histories import Histories
from progressor.storage.processes.reads.listings import Listings
from progressor.storage.processes.reads.traces import Traces
from progressor.storage.replicas.status import Watch
from progressor.storage.rows import processes as views
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.effects import (
    FAILED_PRECONDITION,
    Effects,
    Later,
    cancellations,
    gate_effects,
)

_SQL = statements.load("processes/processes")

WAITS_MAX = 100

READER_COUNT = 4
"""Batches of reads in flight at once."""
BATCH_MAX = 64
WAITING_MAX = 100_000

# What one item of a batch may carry. More, and it is read alone: its neighbours would wait for it,
# and sixty-four of them have to fit in memory.
STATE_BYTES_MAX = 64 * 1024
BATCH_EVENTS_MAX = 100
BATCH_EVENT_BYTES_MAX = 64 * 1024
_NO_BOUND = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """What became of an import; ``task_id`` is its init task."""

    verdict: Verdict
    task_id: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimpleRepair:
    """What became of a simple repair; ``task_id`` is the timer that runs again."""

    verdict: Verdict
    task_id: int | None


class _PutRow(NamedTuple):
    verdict: str
    task_id: int | None
    timer_task_id: int | None
    timer_due_at: dt.datetime
    told_at: dt.datetime


class _RemovedRow(NamedTuple):
    existed: bool
    cancelled: list[Any] | None
    effects: list[Any] | None


class _HaltedRow(NamedTuple):
    verdict: str
    cancelled: list[Any] | None
    effects: list[Any] | None


class _RepairedRow(NamedTuple):
    verdict: str
    task_id: int
    due_at: dt.datetime | None
    effects: list[Any] | None


class _CancelledRow(NamedTuple):
    verdict: str
    task_id: int
    task_type: str
    cancelled: list[Any] | None
    effects: list[Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a Get asks for."""

    key: ProcessKey
    history: HistoryRange


class Processes:
    """Reads of processes, and their rare writes."""

    def __init__(
        self,
        context: StorageContext,
        *,
        namespaces: Namespaces,
        watch: Watch,
    ) -> None:
        functions = context.functions
        self._context = context
        self._histories = Histories(context)
        self._namespaces = namespaces
        self._watch = watch
        self._reads: GroupRead[Wanted, rows.ProcessRow | None] = GroupRead(
            name="processes",
            read=self._read_batch,
            pool=context.pool,
            reader_count=READER_COUNT,
            batch_max=BATCH_MAX,
            waiting_max=WAITING_MAX,
            statement_timeout=context.statement_timeout.total_seconds(),
        )
        self._listings = Listings(context, whys=self._whys)
        self._traces = Traces(context)
        self._read_processes = functions.call("read_processes", rows.ProcessRow)
        self._put_process = functions.call("put_process", _PutRow)
        self._remove_process = functions.call("remove_process", _RemovedRow)
        self._halt_process = functions.call("halt_process", _HaltedRow)
        self._simple_repair = functions.call("simple_repair", _RepairedRow)
        self._cancel_task = functions.call("cancel_task", _CancelledRow)

    async def run(self) -> None:
        """Run the reads of `get` and `read`, until `close` and until no caller is waiting."""
        await self._reads.run()

    def close(self) -> None:
        """Take no more of those reads."""
        self._reads.close()

    async def get(self, key: ProcessKey) -> ProcessView:
        """Read a process, its timer and what its unfinished tasks wait for.

        Raises:
            ProcessNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        return await self._view(key, await self._row(Wanted(key, NO_HISTORY)))

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, bytes_max: int
    ) -> tuple[ProcessView, HistoryPage]:
        """Read what `get` does, and a range of the history as of the same instant.

        A history is empty where the range begins behind it. What is larger than a batch should
        carry is read by statements of its own: the history as `history` does it.

        Raises:
            ProcessNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        row = await self._row(Wanted(key, wanted))
        view, page = await self._view(key, row), views.page(row, wanted)
        if page is None:
            last_event_id = view.process.last_event_id
            page = await self.history(key, wanted, last_event_id=last_event_id, bytes_max=bytes_max)
        return view, page

    async def first_waits(
        self,
        keys: Sequence[ProcessKey],
        gated: Collection[ProcessKey] | None = None,
    ) -> Mapping[ProcessKey, Wait]:
        """Read what the first unfinished tasks wait for; see Listings.first_waits."""
        return await self._listings.first_waits(keys, gated)

    async def _view(self, key: ProcessKey, row: rows.ProcessRow) -> ProcessView:
        return views.view(key, row, await self._waits(key.namespace, views.tasks(row)))

    async def _waits(self, namespace: str, tasks: Sequence[UnfinishedTask]) -> tuple[Wait, ...]:
        return (await self._whys(namespace))(tasks) if tasks else ()

    async def _whys(self, namespace: str) -> Callable[[Sequence[UnfinishedTask]], tuple[Wait, ...]]:
        """Return what finds causes, by what the replicas told last."""
        facts = await self._watch.facts()
        found = await self._namespaces.lookup(namespace)
        return functools.partial(why.waits, facts=facts, namespace=found)

    async def _row(self, wanted: Wanted) -> rows.ProcessRow:
        row = await self._reads.ask(wanted)
        if row is not None and not row.is_whole:
            async with self._context.connection(reads_only=True) as connection:
                [row] = await self._read_rows(connection, [wanted], state_bytes_max=_NO_BOUND)
        if row is None:
            raise errors.ProcessNotFoundError(wanted.key.namespace, wanted.key.process_id)
        return row

    async def _read_batch(
        self, connection: Connection, batch: Sequence[Wanted]
    ) -> Sequence[rows.ProcessRow | None]:
        return await self._read_rows(connection, batch, state_bytes_max=STATE_BYTES_MAX)

    async def _read_rows(
        self, connection: Connection, batch: Sequence[Wanted], *, state_bytes_max: int
    ) -> list[rows.ProcessRow | None]:
        found: list[rows.ProcessRow | None] = [None] * len(batch)
        for row in await self._read_processes.rows(
            connection,
            now=self._context.clock.pinned(),
            starvation_timeout=self._context.starvation_timeout.total_seconds(),
            state_bytes_max=state_bytes_max,
            events_max=BATCH_EVENTS_MAX,
            event_bytes_max=BATCH_EVENT_BYTES_MAX,
            waits_max=WAITS_MAX,
            slot=arrays.Int2Column(each.key.slot for each in batch),
            namespace=arrays.TextColumn(each.key.namespace for each in batch),
            process_id=arrays.TextColumn(each.key.process_id for each in batch),
            after=arrays.Int8Column(each.history.after for each in batch),
            limit=arrays.Int4Column(each.history.limit for each in batch),
            backward=arrays.BoolColumn(
                each.history.direction is Direction.BACKWARD for each in batch
            ),
        ):
            found[row.number - 1] = row
        return found

    async def history(
        self, key: ProcessKey, wanted: HistoryRange, *, last_event_id: int, bytes_max: int
    ) -> HistoryPage:
        """Read a range of a history; see Histories.read."""
        return await self._histories.read(
            key, wanted, last_event_id=last_event_id, bytes_max=bytes_max
        )

    async def list(self, query: ProcessQuery) -> tuple[Process, ...]:
        """Read processes, newest first; see Listings.list."""
        return await self._listings.list(query)

    async def page(self, query: ProcessQuery) -> ProcessPage:
        """Read a page of processes with what each waits for; see Listings.page."""
        return await self._listings.page(query)

    async def trace(self, key: ProcessKey, *, after: int, limit: int) -> tuple[TaskTrace, ...]:
        """Read tasks of a process with their events; see Traces.read."""
        return await self._traces.read(key, after=after, limit=limit)

    async def put(self, process: Import) -> tuple[Put, Effects]:
        """Import a process in one transaction.

        Raises:
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        [row] = await self._context.call(
            self._put_process,
            now=self._context.clock.pinned(),
            replica_id=self._context.replica_id,
            **_import_arguments(process),
        )
        effects = Effects()
        if row.timer_task_id is not None:
            seconds = (row.timer_due_at - row.told_at).total_seconds()
            effects = Effects(upcoming=(Later(process.key, row.timer_task_id, seconds),))
        return Put(verdict=Verdict(row.verdict), task_id=row.task_id), effects

    async def remove(self, key: ProcessKey) -> Effects:
        """Delete a process with all its rows.

        If it is cancelled, whether this process was deleted is unknown; a later one is not.

        Raises:
            ProcessNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        async with self._context.connection() as connection:
            which = [key.slot, key.namespace, key.process_id]
            cursor = await connection.execute(_SQL["find_init_task"], which)
            init_task = await cursor.fetchone()
            if init_task is None:
                raise errors.ProcessNotFoundError(key.namespace, key.process_id)
            [removed] = await self._remove_process.rows(
                connection,
                **self._context.own_arguments(),
                **dataclasses.asdict(key),
                init_task_id=init_task[0],
            )
        if not removed.existed:
            # Another transaction was faster.
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        ended = cancellations(key.namespace, removed.cancelled, removed=True)
        return gate_effects(removed.effects) | Effects(cancelled=ended)

    async def halt(self, key: ProcessKey, detail: str) -> Effects:
        """Put a process that has not ended into error.

        A running step loses its lease. If this is cancelled, whether it was done is unknown.

        Raises:
            ProcessNotFoundError: There is none.
            ProcessFinishedError: It has ended, one way or the other.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        [halted] = await self._context.call(
            self._halt_process,
            **self._context.own_arguments(),
            **dataclasses.asdict(key),
            detail=detail,
        )
        if halted.verdict == "process_not_found":
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        if halted.verdict == "process_has_ended":
            raise errors.ProcessFinishedError(key.process_id)
        error = TaskError(code=FAILED_PRECONDITION, reason=reply.PROCESS_FAILED, message=detail)
        ended = cancellations(key.namespace, halted.cancelled, error=error)
        return gate_effects(halted.effects) | Effects(cancelled=ended)

    async def cancel(self, key: ProcessKey, task: int | str) -> tuple[int, Effects]:
        """Cancel a task that waits, given its id or idempotency key, and return its id.

        With an init task its process is deleted.

        Raises:
            ProcessNotFoundError: There is no such process.
            TaskNotFoundError: It has no such task.
            TaskIsRunningError: It runs.
            TaskHasEndedError: It has ended, or was cancelled.
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        by_id = isinstance(task, int)
        [found] = await self._context.call(
            self._cancel_task,
            **self._context.own_arguments(),
            **dataclasses.asdict(key),
            task_id=task if by_id else None,
            idempotency_key=None if by_id else task,
        )
        refusal = _refusal_to_cancel(found.verdict, key, task, found.task_id)
        if refusal is not None:
            raise refusal
        removed = TaskType(found.task_type) is TaskType.INIT
        ended = cancellations(key.namespace, found.cancelled, removed=removed)
        return found.task_id, gate_effects(found.effects) | Effects(cancelled=ended)

    async def simple_repair(self, key: ProcessKey) -> tuple[SimpleRepair, Effects]:
        """Bring a broken process back; see priv/functions/processes/simple_repair.sql."""
        [found] = await self._context.call(
            self._simple_repair, **self._context.own_arguments(), **dataclasses.asdict(key)
        )
        effects = gate_effects(found.effects)
        if found.due_at is not None:
            # It has no constraints, and is due now.
            effects |= Effects(due=((key, found.task_id),))
        return SimpleRepair(verdict=Verdict(found.verdict), task_id=found.task_id), effects


def _refusal_to_cancel(
    verdict: str, key: ProcessKey, task: int | str, task_id: int
) -> errors.RequestError | None:
    match verdict:
        case "process_not_found":
            return errors.ProcessNotFoundError(key.namespace, key.process_id)
        case "task_not_found":
            return errors.TaskNotFoundError(key.process_id, task)
        case "task_is_running":
            return errors.TaskIsRunningError(key.process_id, task_id)
        case "task_has_ended":
            return errors.TaskHasEndedError(key.process_id, task_id)
        case _:
            return None


def _import_arguments(process: Import) -> dict[str, Any]:
    key, timer = process.key, process.timer
    after, limit, backward = rows.history_columns(timer.history_range if timer else None)
    timer_type = None
    if timer is not None:
        timer_type = TaskType.REMOVE if timer.remove else TaskType.TIMEOUT
    history = process.history
    return {
        "slot": key.slot,
        "namespace": key.namespace,
        "process_id": key.process_id,
        "status": str(process.status),
        "previous_status": process.previous_status and str(process.previous_status),
        "detail": process.detail,
        "corrupted_by_type": process.corrupted_by_type and str(process.corrupted_by_type),
        "aux_state": process.aux_state,
        "metadata": None if process.metadata is None else Jsonb(process.metadata),
        "created_at": process.created_at,
        "status_changed_at": process.status_changed_at,
        "result": process.result,
        "idempotency_key": process.idempotency_key,
        "fingerprint": process.fingerprint() if process.idempotency_key is not None else None,
        "timer_type": timer_type and str(timer_type),
        "timer_at": timer and timer.at,
        "timer_after": timer.after.total_seconds() if timer and timer.after is not None else None,
        "timer_args": timer and timer.args,
        "timer_timeout": (
            timer.step_timeout.total_seconds() if timer and timer.step_timeout else None
        ),
        "timer_trace": Json(process.trace_context) if timer and process.trace_context else None,
        "history_after": after,
        "history_limit": limit,
        "history_backward": backward,
        "e_payload": arrays.ByteaColumn(event.payload for event in history),
        "e_format_version": arrays.Int4Column(event.format_version for event in history),
        "e_metadata": arrays.JsonColumn(rows.json_text(event.metadata) for event in history),
        "e_occurred_at": arrays.InstantColumn(event.occurred_at for event in history),
    }
