"""Processes as people see them, and the rare writes: put, remove, repair."""

import asyncio
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from psycopg.types.json import Json, Jsonb

from progressor import errors
from progressor.domain.jobs.roles import JobRole
from progressor.domain.processes import reply
from progressor.domain.processes.admission import Import, Verdict
from progressor.domain.processes.event import NO_HISTORY, Direction, Event, HistoryRange
from progressor.domain.processes.process import Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskError
from progressor.domain.views import why
from progressor.domain.views.process import HistoryPage, ProcessView, Replies, Timer
from progressor.domain.views.wait import UnfinishedTask, Wait
from progressor.storage.commit.group_read import GroupRead, ReadBounds
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres import attempt, statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.pools import Connection
from progressor.storage.postgres.rows.documents import failure_text, json_text, timers_text
from progressor.storage.postgres.rows.effects import (
    FAILED_PRECONDITION,
    Effects,
    Later,
    cancellations,
    gate_effects,
)
from progressor.storage.postgres.rows.records import reader
from progressor.storage.processes.histories import Histories, Traces
from progressor.storage.processes.listings import Listings, task_of
from progressor.storage.replicas.status import Watch

_SQL = statements.load("processes/processes")

WAITS_MAX = 100

# The largest item of a batch. A larger one is read alone: its neighbours would wait for it,
# and sixty-four of them have to fit in memory.
STATE_BYTES_MAX = 64 * 1024
BATCH_EVENTS_MAX = 100
BATCH_EVENT_BYTES_MAX = 64 * 1024
REPEATS = ReadBounds(reader_count=1, waiting_max=1_000)
"""Look-ups of requests over a quota: a flood of them must not take the connections of others."""

_NO_BOUND = 2**31 - 1
_NO_EVENTS = HistoryPage(events=(), next_after=None)
_NO_ROLE = JobRole(led=None, followed=None)
_NO_REPLIES = Replies()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    verdict: Verdict
    task_id: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What became of a simple repair or a retry; ``task_id`` is the task that runs again."""

    verdict: Verdict
    task_id: int | None


class _ProcessRow(NamedTuple):
    """A process with its timer, tasks, events and roles in jobs.

    Without ``is_whole`` it is too large for a batch, and is read alone.
    """

    number: int
    is_whole: bool
    timer: Timer | None
    waits: list[Any] | None
    event_count: int
    event_ids: list[int] | None
    occurred_at: list[dt.datetime]
    payloads: list[bytes]
    format_versions: list[int]
    event_metadata: list[Any]
    task_ids: list[int]
    job_role: JobRole | None
    timers: tuple[Timer, ...]
    replies: Replies | None
    row: Sequence[Any]

    def page(self, wanted: HistoryRange) -> HistoryPage | None:
        """Return the events in the order wanted; None: they are too many for a batch."""
        if self.event_count == 0:
            return _NO_EVENTS
        if self.event_ids is None or len(self.event_ids) < self.event_count:
            return None
        columns = (
            self.event_ids, self.occurred_at, self.payloads, self.format_versions,
            self.event_metadata, self.task_ids,
        )  # fmt: skip
        events = list(map(Event, *columns))
        if wanted.direction is Direction.BACKWARD:
            events.reverse()
        return HistoryPage(events=tuple(events), next_after=None)


class _Repeated(NamedTuple):
    is_known: bool


class _Row(NamedTuple):
    """What one of the rare writes did; each has some of the columns."""

    effects: list[Any] | None = None
    """On gates."""
    verdict: str = ""
    existed: bool = False
    cancelled: list[Any] | None = None
    task_id: int | None = None
    removed: bool = False
    leads: bool = False
    timer_task_id: int | None = None
    timer_due_at: dt.datetime | None = None
    told_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    key: ProcessKey
    history: HistoryRange


class Processes:
    def __init__(
        self,
        context: StorageContext,
        *,
        namespaces: Namespaces,
        watch: Watch,
    ) -> None:
        functions = context.functions
        self._context = context
        self._namespaces = namespaces
        self._watch = watch
        self._reads: GroupRead[Wanted, _ProcessRow | None] = GroupRead(
            name="processes",
            read=functools.partial(self._read_batch, state_bytes_max=STATE_BYTES_MAX),
            pool=context.pool,
            statement_timeout=context.statement_timeout.total_seconds(),
        )
        self._repeats: GroupRead[tuple[ProcessKey, str], bool] = GroupRead(
            name="repeated requests",
            read=self._read_repeats,
            pool=context.pool,
            statement_timeout=context.statement_timeout.total_seconds(),
            bounds=REPEATS,
        )
        listings = Listings(context, whys=self._whys)
        self.first_waits, self.list, self.page = (
            listings.first_waits, listings.list, listings.page,
        )  # fmt: skip
        self.history = Histories(context).read
        self.trace = Traces(context).read
        self._read_processes = functions.call("read_processes", _ProcessRow)
        self._process = reader(Process, self._read_processes.columns, "key", prefix="process_")
        self._put_process = functions.call("put_process", _Row)
        self._remove_process = functions.call("remove_process", _Row)
        self._halt_process = functions.call("halt_process", _Row)
        self._recover_process = functions.call("recover_process", _Row)
        self._cancel_task = functions.call("cancel_task", _Row)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reads.run(), name="read processes")
            group.create_task(self._repeats.run(), name="find repeated requests")

    def close(self) -> None:
        self._reads.close()
        self._repeats.close()

    async def has_task(self, key: ProcessKey, idempotency_key: str) -> bool:
        """Return whether a request with an idempotency key was admitted before."""
        return await self._repeats.ask((key, idempotency_key))

    async def get(self, key: ProcessKey) -> ProcessView:
        """Read a process, its timer and what its unfinished tasks wait for.

        Raises:
            ProcessNotFoundError: There is none.
        """
        return await self._view(key, await self._row(Wanted(key, NO_HISTORY)))

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, bytes_max: int
    ) -> tuple[ProcessView, HistoryPage]:
        """Read what `get` does, and a range of the history as of the same instant.

        A history is empty where the range begins behind it. What is larger than a batch should
        hold is read by statements of its own: the history as `history` does it.

        Raises:
            ProcessNotFoundError: There is none.
        """
        row = await self._row(Wanted(key, wanted))
        view, page = await self._view(key, row), row.page(wanted)
        if page is None:
            last_event_id = view.process.last_event_id
            page = await self.history(key, wanted, last_event_id=last_event_id, bytes_max=bytes_max)
        return view, page

    async def _view(self, key: ProcessKey, row: _ProcessRow) -> ProcessView:
        tasks = [task_of(columns) for columns in row.waits or ()]
        return ProcessView(
            process=self._process(row.row, key),
            timer=row.timers[0] if row.timers else row.timer,
            later_timers=row.timers[1:],
            waits=(await self._whys(key.namespace))(tasks) if tasks else (),
            # The job of a follower may be gone.
            role=None if row.job_role == _NO_ROLE else row.job_role,
            replies=row.replies or _NO_REPLIES,
        )

    async def _whys(self, namespace: str) -> Callable[[Sequence[UnfinishedTask]], tuple[Wait, ...]]:
        """Return the finder of wait causes, with the latest status of the replicas."""
        facts = await self._watch.facts()
        found = await self._namespaces.lookup(namespace)
        return functools.partial(why.waits, facts=facts, namespace=found)

    async def _row(self, wanted: Wanted) -> _ProcessRow:
        row = await self._reads.ask(wanted)
        if row is not None and not row.is_whole:
            async with self._context.connection(reads_only=True) as connection:
                [row] = await self._read_batch(connection, [wanted], state_bytes_max=_NO_BOUND)
        if row is None:
            raise errors.ProcessNotFoundError(wanted.key.namespace, wanted.key.process_id)
        return row

    async def _read_repeats(
        self, connection: Connection, batch: Sequence[tuple[ProcessKey, str]]
    ) -> Sequence[bool]:
        keys = [key for key, _ in batch]
        found = await self._context.read_on(
            connection,
            _Repeated,
            _SQL["find_repeated"],
            slot=[key.slot for key in keys],
            namespace=[key.namespace for key in keys],
            process_id=[key.process_id for key in keys],
            idempotency_key=[idempotency_key for _, idempotency_key in batch],
        )
        return [it.is_known for it in found]

    async def _read_batch(
        self, connection: Connection, batch: Sequence[Wanted], *, state_bytes_max: int
    ) -> list[_ProcessRow | None]:
        found: list[_ProcessRow | None] = [None] * len(batch)
        for row in await self._read_processes.rows(
            connection,
            now=self._context.clock.pinned(),
            starvation_timeout=self._context.starvation_timeout.total_seconds(),
            state_bytes_max=state_bytes_max,
            events_max=BATCH_EVENTS_MAX,
            event_bytes_max=BATCH_EVENT_BYTES_MAX,
            waits_max=WAITS_MAX,
            slot=[each.key.slot for each in batch],
            namespace=[each.key.namespace for each in batch],
            process_id=[each.key.process_id for each in batch],
            after=[each.history.after for each in batch],
            limit=[each.history.limit for each in batch],
            backward=[each.history.direction is Direction.BACKWARD for each in batch],
        ):
            found[row.number - 1] = row
        return found

    async def put(self, process: Import) -> tuple[Put, Effects]:
        [row] = await self._context.call(
            self._put_process, process.key, **_import_arguments(process)
        )
        effects = Effects()
        if row.timer_task_id is not None and row.timer_due_at and row.told_at:
            seconds = (row.timer_due_at - row.told_at).total_seconds()
            effects = Effects(upcoming=(Later(process.key, row.timer_task_id, seconds),))
        return Put(verdict=Verdict(row.verdict), task_id=row.task_id), effects

    async def remove(self, key: ProcessKey) -> Effects:
        """Delete a process with all its rows.

        If it is cancelled, whether this process was deleted is unknown; a later one is not.

        Raises:
            ProcessNotFoundError: There is none.
        """
        async with self._context.connection() as connection:
            found = await self._context.read_on(connection, int, _SQL["find_init_task"], key)
            if not found:
                raise errors.ProcessNotFoundError(key.namespace, key.process_id)
            [removed] = await self._remove_process.rows(
                connection,
                **self._context.own_arguments(),
                **dataclasses.asdict(key),
                init_task_id=found[0],
                audit=attempt.current(),
            )
        if not removed.existed:
            # Another transaction was faster.
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        ended = cancellations(key.namespace, removed.cancelled, removed=True)
        return gate_effects(removed.effects) | Effects(cancelled=ended)

    async def halt(
        self, key: ProcessKey, detail: str, status: ProcessStatus = ProcessStatus.ERROR
    ) -> Effects:
        """Put a process that has not ended into error; or finish one, also one in error.

        A running step loses its lease. If this is cancelled, whether it was done is unknown.

        Raises:
            ProcessNotFoundError: There is none.
            ProcessFinishedError: It has ended, one way or the other.
        """
        [halted] = await self._context.call(
            self._halt_process, key, detail=detail, status=str(status)
        )
        if halted.verdict == "process_not_found":
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        if halted.verdict == "process_has_ended":
            raise errors.ProcessFinishedError(key.process_id)
        finished = status is ProcessStatus.FINISHED
        reason = reply.PROCESS_FINISHED if finished else reply.PROCESS_FAILED
        error = TaskError(code=FAILED_PRECONDITION, reason=reason, message=detail)
        ended = cancellations(key.namespace, halted.cancelled, error=error)
        upkeep = (key,) if halted.leads else ()
        return gate_effects(halted.effects) | Effects(cancelled=ended, upkeep=upkeep)

    async def cancel(self, key: ProcessKey, task: int | str) -> tuple[int, Effects]:
        """Cancel a task that waits or runs, given its id or idempotency key, and return its id.

        With an init task its process is deleted, unless that is in error.

        Raises:
            ProcessNotFoundError: There is no such process.
            TaskNotFoundError: It has no such task.
            TaskHasEndedError: It has ended, or was cancelled.
        """
        by_id = isinstance(task, int)
        [found] = await self._context.call(
            self._cancel_task,
            key,
            task_id=task if by_id else None,
            idempotency_key=None if by_id else task,
        )
        if found.verdict == "process_not_found":
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        if found.verdict == "task_not_found" or found.task_id is None:
            raise errors.TaskNotFoundError(key.process_id, task)
        if found.verdict == "task_has_ended":
            raise errors.TaskHasEndedError(key.process_id, found.task_id)
        ended = cancellations(key.namespace, found.cancelled, removed=found.removed)
        return found.task_id, gate_effects(found.effects) | Effects(cancelled=ended)

    async def recover(self, key: ProcessKey, *, retries: bool) -> tuple[Recovery, Effects]:
        """Bring a broken process back; see recover_process.sql."""
        [found] = await self._context.call(self._recover_process, key, retries=retries)
        recovery = Recovery(verdict=Verdict(found.verdict), task_id=found.task_id)
        return recovery, gate_effects(found.effects)


def _failure_of(process: Import) -> Json | None:
    if process.detail is None:
        return None
    text = failure_text(process.detail, process.key.process_id, task_type=process.corrupted_by_type)
    return Json(text, dumps=bytes.decode)


def _import_arguments(process: Import) -> dict[str, Any]:
    timers = {**({} if process.timer is None else {"": process.timer}), **process.timers}
    history = process.history
    return {
        "status": str(process.status),
        "previous_status": process.previous_status and str(process.previous_status),
        "detail": process.detail,
        "corrupted_by_type": process.corrupted_by_type and str(process.corrupted_by_type),
        "aux_state": process.aux_state,
        "state_version": process.state_version,
        "metadata": None if process.metadata is None else Jsonb(process.metadata),
        "created_at": process.created_at,
        "status_changed_at": process.status_changed_at,
        "result": process.result,
        "idempotency_key": process.idempotency_key,
        "fingerprint": process.fingerprint() if process.idempotency_key is not None else None,
        "failure": _failure_of(process),
        "timers": (
            Json(timers_text(timers, process.trace_context), dumps=bytes.decode) if timers else None
        ),
        "e_payload": [event.payload for event in history],
        "e_format_version": [event.format_version for event in history],
        "e_metadata": [json_text(event.metadata) for event in history],
        "e_occurred_at": [event.occurred_at for event in history],
    }
