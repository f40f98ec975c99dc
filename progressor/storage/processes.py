"""Processes as people see them, and the rare writes: put, remove, simple repair."""

import asyncio
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg.types.json import Json, Jsonb

from progressor import errors
from progressor.clock import Clock
from progressor.domain import why
from progressor.domain.admission import Import, Verdict
from progressor.domain.event import NO_HISTORY, Direction, Event, HistoryRange
from progressor.domain.process import Process, ProcessKey, ProcessStatus
from progressor.domain.task import TaskType
from progressor.domain.view import HistoryPage, ProcessQuery, ProcessView, TaskTrace
from progressor.domain.wait import UnfinishedTask, Wait
from progressor.storage import arrays, rows, statements, views
from progressor.storage.functions import Functions
from progressor.storage.group_read import GroupRead
from progressor.storage.histories import Histories
from progressor.storage.namespaces import Namespaces
from progressor.storage.pools import Connection, Pool, connection_of
from progressor.storage.settlements import Cancelled, Due, cancelled
from progressor.storage.watch import Watch

_SQL = statements.load("processes")

WAITS_MAX = 100
TRACE_EVENTS_MAX = 1000

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
    """What became of an import; ``due`` is its timer, as of PostgreSQL's instant `told_at`."""

    verdict: Verdict
    task_id: int | None
    due: Due | None
    told_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimpleRepair:
    """What became of a simple repair; ``due`` is the timer that runs again, now."""

    verdict: Verdict
    due: Due | None


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a Get asks for."""

    key: ProcessKey
    history: HistoryRange


class Processes:
    """Reads of processes, and their rare writes."""

    def __init__(  # noqa: PLR0913  what it reads by, and how
        self,
        *,
        pool: Pool,
        functions: Functions,
        clock: Clock,
        replica_id: Callable[[], int],
        histories: Histories,
        namespaces: Namespaces,
        watch: Watch,
        statement_timeout: dt.timedelta,
    ) -> None:
        """Open nothing."""
        self._pool = pool
        self._clock = clock
        self._replica_id = replica_id
        self._histories = histories
        self._namespaces = namespaces
        self._watch = watch
        self._statement_timeout = statement_timeout.total_seconds()
        self._reads: GroupRead[Wanted, rows.Row | None] = GroupRead(
            name="processes",
            read=self._read_batch,
            pool=pool,
            reader_count=READER_COUNT,
            batch_max=BATCH_MAX,
            waiting_max=WAITING_MAX,
            statement_timeout=self._statement_timeout,
        )
        self._read_processes = functions.call("read_processes", arguments=11)
        self._read_first_waits = functions.call("read_first_waits", arguments=4)
        self._put_process = functions.call("put_process", arguments=29)
        self._remove_process = functions.call("remove_process", arguments=5)
        self._simple_repair = functions.call("simple_repair", arguments=5)

    async def run(self) -> None:
        """Carry the reads of `get` and `read`, until `close` and until nobody waits."""
        await self._reads.run()

    def close(self) -> None:
        """Take no more of those reads."""
        self._reads.close()

    async def get(self, key: ProcessKey) -> ProcessView:
        """Read a process, its timer and what its unfinished tasks wait for.

        Raises:
            ProcessNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
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
            StorageUnavailableError: PostgreSQL is away.
        """
        row = await self._row(Wanted(key, wanted))
        view, page = await self._view(key, row), views.page(row, wanted)
        if page is None:
            last_event_id = view.process.last_event_id
            page = await self.history(key, wanted, last_event_id=last_event_id, bytes_max=bytes_max)
        return view, page

    async def first_waits(
        self, namespace: str, keys: Sequence[ProcessKey]
    ) -> Mapping[ProcessKey, Wait]:
        """Read what the task waits for that runs, or else comes first, of processes of a namespace.

        Those without an unfinished task are left out. As of an instant after now.
        """
        if not keys:
            return {}
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(
                self._read_first_waits,
                [
                    self._clock.pinned(),
                    arrays.Int2Column(each.slot for each in keys),
                    arrays.TextColumn(each.namespace for each in keys),
                    arrays.TextColumn(each.process_id for each in keys),
                ],
                binary=True,
            )
            found = {keys[row[0] - 1]: views.task(row[1]) for row in await cursor.fetchall()}
        # Each stands for itself: in a line they would be behind each other.
        find = await self._whys(namespace)
        return {key: find([task])[0] for key, task in found.items()}

    async def _view(self, key: ProcessKey, row: rows.Row) -> ProcessView:
        return views.view(key, row, await self._waits(key.namespace, views.tasks(row)))

    async def _waits(self, namespace: str, tasks: Sequence[UnfinishedTask]) -> tuple[Wait, ...]:
        return (await self._whys(namespace))(tasks) if tasks else ()

    async def _whys(self, namespace: str) -> Callable[[Sequence[UnfinishedTask]], tuple[Wait, ...]]:
        """Return what finds causes, by what the replicas told last."""
        facts = await self._watch.facts()
        found = await self._namespaces.lookup(namespace)
        return functools.partial(why.waits, facts=facts, namespace=found)

    async def _row(self, wanted: Wanted) -> rows.Row:
        row = await self._reads.ask(wanted)
        if row is not None and not views.is_whole(row):
            async with (
                connection_of(self._pool) as connection,
                asyncio.timeout(self._statement_timeout),
            ):
                [row] = await self._read_rows(connection, [wanted], state_bytes_max=_NO_BOUND)
        if row is None:
            raise errors.ProcessNotFoundError(wanted.key.namespace, wanted.key.process_id)
        return row

    async def _read_batch(
        self, connection: Connection, batch: Sequence[Wanted]
    ) -> Sequence[rows.Row | None]:
        return await self._read_rows(connection, batch, state_bytes_max=STATE_BYTES_MAX)

    async def _read_rows(
        self, connection: Connection, batch: Sequence[Wanted], *, state_bytes_max: int
    ) -> list[rows.Row | None]:
        cursor = await connection.execute(
            self._read_processes,
            [
                self._clock.pinned(),
                state_bytes_max,
                BATCH_EVENTS_MAX,
                BATCH_EVENT_BYTES_MAX,
                WAITS_MAX,
                arrays.Int2Column(each.key.slot for each in batch),
                arrays.TextColumn(each.key.namespace for each in batch),
                arrays.TextColumn(each.key.process_id for each in batch),
                arrays.Int8Column(each.history.after for each in batch),
                arrays.Int4Column(each.history.limit for each in batch),
                arrays.BoolColumn(each.history.direction is Direction.BACKWARD for each in batch),
            ],
            binary=True,
        )
        found: list[rows.Row | None] = [None] * len(batch)
        for row in await cursor.fetchall():
            found[views.number(row)] = row
        return found

    async def history(
        self, key: ProcessKey, wanted: HistoryRange, *, last_event_id: int, bytes_max: int
    ) -> HistoryPage:
        """Read a range of a history; see Histories.read."""
        return await self._histories.read(
            key, wanted, last_event_id=last_event_id, bytes_max=bytes_max
        )

    async def list(self, query: ProcessQuery) -> tuple[Process, ...]:
        """Read one page of processes, newest first, without aux_state and result."""
        before_at, before_id = query.before or (None, None)
        parameters = {
            "namespace": query.namespace,
            "statuses": f"{{{','.join(query.statuses)}}}" if query.statuses else None,
            "failed": query.statuses == (ProcessStatus.ERROR,),
            "created_from": query.created_from,
            "created_to": query.created_to,
            "metadata": Jsonb(query.metadata) if query.metadata else None,
            "before_at": before_at,
            "before_id": before_id,
            "limit": query.page_size,
        }
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(_SQL["list_processes"], parameters, binary=True)
            found = await cursor.fetchall()
        return tuple(
            rows.process(ProcessKey(row[0], query.namespace, row[1]), row[2:12]) for row in found
        )

    async def trace(self, key: ProcessKey, *, after: int, limit: int) -> tuple[TaskTrace, ...]:
        """Read `limit` tasks of a process after a task id, in order, with their events.

        Raises:
            ProcessNotFoundError: There is no such process.
            StorageUnavailableError: PostgreSQL is away.
        """
        named: dict[str, Any] = dataclasses.asdict(key)
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(
                _SQL["trace_tasks"], named | {"after": after, "limit": limit}, binary=True
            )
            tasks = await cursor.fetchall()
            if not tasks:
                cursor = await connection.execute(_SQL["get_process"], named, binary=True)
                if await cursor.fetchone() is None:
                    raise errors.ProcessNotFoundError(key.namespace, key.process_id)
            own = [(row[17], min(row[18], TRACE_EVENTS_MAX)) for row in tasks if row[18]]
            events = await self._trace_events(connection, key, own) if own else {}
        if sum(len(events.get(row[0], ())) for row in tasks) < sum(count for _, count in own):
            # Removed since its tasks were read.
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        return tuple(_trace(row, tuple(events.get(row[0], ()))) for row in tasks)

    async def _trace_events(
        self, connection: Connection, key: ProcessKey, own: Sequence[tuple[int, int]]
    ) -> Mapping[int, Sequence[Event]]:
        """Read the events of tasks, given each one's first and how many; return them by task."""
        named: dict[str, Any] = dataclasses.asdict(key)
        named["first"] = arrays.Int8Column(first for first, _ in own)
        named["count"] = arrays.Int8Column(count for _, count in own)
        cursor = await connection.execute(_SQL["trace_events"], named, binary=True)
        found: dict[int, list[Event]] = {}
        for row in await cursor.fetchall():
            event = rows.event(row)
            found.setdefault(event.task_id, []).append(event)
        return found

    async def put(self, process: Import) -> Put:
        """Import a process; atomic. Raises StorageUnavailableError if PostgreSQL is away."""
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(
                self._put_process,
                [self._clock.pinned(), self._replica_id(), *_import_arguments(process)],
                binary=True,
            )
            row = await cursor.fetchone()
        assert row is not None, "put_process returns a row"
        due = None if row[2] is None else Due(key=process.key, task_id=row[2], due_at=row[3])
        return Put(verdict=Verdict(row[0]), task_id=row[1], due=due, told_at=row[4])

    async def remove(self, key: ProcessKey) -> tuple[Cancelled, ...]:
        """Delete a process with all its rows; return its unfinished tasks.

        If it is cancelled, whether this process was deleted is unknown; a later one is not.

        Raises:
            ProcessNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is away.
        """
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            which = [key.slot, key.namespace, key.process_id]
            found = await (await connection.execute(_SQL["find_init_task"], which)).fetchone()
            if found is None:
                raise errors.ProcessNotFoundError(key.namespace, key.process_id)
            cursor = await connection.execute(
                self._remove_process, [self._clock.pinned(), *which, found[0]], binary=True
            )
            row = await cursor.fetchone()
        assert row is not None, "remove_process returns a row"
        if not row[0]:
            # Somebody else was faster.
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        return cancelled(row[1])

    async def simple_repair(self, key: ProcessKey) -> SimpleRepair:
        """Bring a broken process back; see priv/functions/simple_repair.sql."""
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(
                self._simple_repair,
                [
                    self._clock.pinned(),
                    self._replica_id(),
                    key.slot,
                    key.namespace,
                    key.process_id,
                ],
                binary=True,
            )
            row = await cursor.fetchone()
        assert row is not None, "simple_repair returns a row"
        due = None if row[1] is None else Due(key=key, task_id=row[1], due_at=row[2])
        return SimpleRepair(verdict=Verdict(row[0]), due=due)


def _trace(row: rows.Row, events: tuple[Event, ...]) -> TaskTrace:
    return TaskTrace(
        task_id=row[0],
        task_type=rows.TASK_TYPES[row[1]],
        status=rows.TASK_STATUSES[row[2]],
        created_at=row[3],
        scheduled_at=row[4],
        started_at=row[5],
        finished_at=row[6],
        attempt_count=row[7],
        args=row[8],
        caller_context=row[9] or {},
        idempotency_key=row[10],
        response=row[11] or b"",
        error=rows.task_error(row[12:17]),
        events=events,
    )


def _import_arguments(process: Import) -> list[Any]:
    key, timer = process.key, process.timer
    after, limit, backward = rows.history_columns(timer.history_range if timer else None)
    timer_type = None
    if timer is not None:
        timer_type = TaskType.REMOVE if timer.remove else TaskType.TIMEOUT
    return [
        key.slot,
        key.namespace,
        key.process_id,
        str(process.status),
        None if process.previous_status is None else str(process.previous_status),
        process.detail,
        None if process.corrupted_by_type is None else str(process.corrupted_by_type),
        process.aux_state,
        None if process.metadata is None else Jsonb(process.metadata),
        process.created_at,
        process.status_changed_at,
        process.result,
        process.idempotency_key,
        process.fingerprint() if process.idempotency_key is not None else None,
        None if timer_type is None else str(timer_type),
        timer and timer.at,
        timer.after.total_seconds() if timer and timer.after is not None else None,
        timer and timer.args,
        timer.step_timeout.total_seconds() if timer and timer.step_timeout else None,
        Json(process.trace_context) if timer and process.trace_context else None,
        after,
        limit,
        backward,
        arrays.ByteaColumn(event.payload for event in process.history),
        arrays.Int4Column(event.format_version for event in process.history),
        arrays.JsonColumn(rows.json_text(event.metadata) for event in process.history),
        arrays.InstantColumn(event.occurred_at for event in process.history),
    ]
