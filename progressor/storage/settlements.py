"""Settlements: outcomes become durable, in batches, fenced by the token of the lease.

What is written for an outcome stands in ``domain/settlement.py``;
``priv/functions/settle_tasks.sql`` writes it. A settlement is decided: the processor has acted on
it. So it is written again until PostgreSQL answers, and an answer that was lost is found again by
its token (`_recall`).
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from progressor.clock import Clock
from progressor.domain.event import HistoryRange, NewEvent
from progressor.domain.intent import (
    Complete,
    Intent,
    KeepTimer,
    RemoveProcess,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.process import Process, ProcessKey
from progressor.domain.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.task import RunningTask, TaskError, TaskType
from progressor.settings.sections import Commit
from progressor.storage import arrays, rows, statements
from progressor.storage.functions import Functions
from progressor.storage.group_commit import GroupCommit, Insistence
from progressor.storage.pools import Connection, Pool

_SQL = statements.load("settlements")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A settlement to write.

    ``process`` is None for a zombie, whose step nobody can continue; ``continues`` says that the
    worker goes on with the next task of the process, for `expires_after` unless that has a timeout
    of its own. ``trace_context`` goes with a timer that the step sets.
    """

    key: ProcessKey
    task_id: int
    task_type: TaskType
    attempt: int
    token: int
    settlement: Settlement
    process: Process | None
    continues: bool
    expires_after: dt.timedelta
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A task that will never run, and the replicas where a caller may wait for it."""

    task_id: int
    task_type: TaskType
    reply_to: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A task that waits for its time: a timer, or a retry."""

    key: ProcessKey
    task_id: int
    due_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The settlement is durable.

    ``next`` continues in the same worker; ``due`` is what the process waits for if nothing runs.
    ``process`` is as the settlement left it, None after a removal or for a zombie. ``reply_to`` are
    the replicas where callers wait for this task, ``cancelled`` the tasks that will never run.
    """

    settled_at: dt.datetime
    process: Process | None
    next: RunningTask | None
    due: Due | None
    reply_to: tuple[int, ...]
    cancelled: tuple[Cancelled, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseLost:
    """Somebody else has the task, or the process is gone: nothing was changed. No error."""


Outcome = Written | LeaseLost


class Settlements:
    """The group commit of settlements."""

    def __init__(  # noqa: PLR0913  a composition root's business
        self,
        *,
        pool: Pool,
        functions: Functions,
        clock: Clock,
        replica_id: Callable[[], int],
        commit: Commit,
        step_grace: dt.timedelta,
        statement_timeout: dt.timedelta,
        on_batch: Callable[[str, int], None],
        crowd: Callable[[], int] = lambda: 0,
    ) -> None:
        """Open nothing."""
        self._clock = clock
        self._replica_id = replica_id
        self._step_grace = step_grace.total_seconds()
        self._settle_tasks = functions.call("settle_tasks", arguments=39)
        self._group: GroupCommit[Entry, Outcome] = GroupCommit(
            name="settle_tasks",
            write=self._write,
            key=lambda entry: entry.key,
            pool=pool,
            insistence=Insistence.INSIST,
            lane_count=commit.lane_count,
            batch_max=commit.batch_max,
            queue_max=commit.queue_max,
            statement_timeout=statement_timeout.total_seconds(),
            gather_max=commit.gather.total_seconds(),
            crowd=crowd,
            on_batch=on_batch,
        )

    def submit(self, entry: Entry) -> asyncio.Future[Outcome]:
        """Put a settlement in line; it is written whatever becomes of the future."""
        return self._group.submit(entry)

    async def run(self) -> None:
        """Write until `close`, and then until nothing is left."""
        await self._group.run()

    def close(self) -> None:
        """Take no more settlements."""
        self._group.close()

    async def _write(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        again: bool,  # noqa: FBT001
    ) -> list[Outcome]:
        arguments = [
            self._clock.pinned(),
            self._replica_id(),
            self._step_grace,
            *_columns(batch),
            *_event_columns(batch),
        ]
        cursor = await connection.execute(self._settle_tasks, arguments, binary=True)
        results: dict[int, Outcome] = {}
        for row in await cursor.fetchall():
            results[row[0] - 1] = _outcome(batch[row[0] - 1], row)
        if again:
            await self._recall(connection, batch, results)
        return [results[position] for position in range(len(batch))]

    async def _recall(
        self, connection: Connection, batch: Sequence[Entry], results: dict[int, Outcome]
    ) -> None:
        """Tell a lease that is lost from one that the first, unanswered try has settled."""
        for position, entry in enumerate(batch):
            if not isinstance(results[position], LeaseLost):
                continue
            error = _error(entry.settlement)
            parameters = dataclasses.asdict(entry.key) | {
                "task_id": entry.task_id,
                "token": entry.token,
                "replica_id": self._replica_id(),
                "status": _ENDS[type(entry.settlement)],
                "error_reason": error and error.reason,
            }
            cursor = await connection.execute(_SQL["recall_settlement"], parameters, binary=True)
            row = await cursor.fetchone()
            if row is not None:
                results[position] = _recalled(entry, row)


def _outcome(entry: Entry, row: rows.Row) -> Outcome:
    if row[1] == "lease_lost":
        return LeaseLost()
    settled_at, status = row[2], rows.PROCESS_STATUSES.get(row[3])
    process = entry.process
    if status is None:
        process = None
    elif process is not None:
        process = _moved(process, entry.task_id, entry.settlement, row)
    return Written(
        settled_at=settled_at,
        process=process,
        next=_next(process, row) if process is not None and row[10] is not None else None,
        due=None if row[8] is None else Due(key=entry.key, task_id=row[8], due_at=row[9]),
        reply_to=tuple(row[6] or ()),
        cancelled=cancelled(row[7]),
    )


def cancelled(tasks: Sequence[Any] | None) -> tuple[Cancelled, ...]:
    """Return the cancelled tasks of a function's jsonb column."""
    return tuple(
        Cancelled(task_id=task_id, task_type=TaskType(task_type), reply_to=tuple(reply_to))
        for task_id, task_type, reply_to in tasks or ()
    )


def _moved(process: Process, task_id: int, settlement: Settlement, row: rows.Row) -> Process:
    """Return the process as the settlement left it: what is known needs no reading."""
    status = rows.PROCESS_STATUSES[row[3]]
    changes: dict[str, Any] = {}
    match settlement:
        case Finish(intent):
            if intent.aux_state is not None:
                changes["aux_state"] = intent.aux_state
            if intent.metadata is not None:
                changes["metadata"] = intent.metadata
            changes |= {"detail": None, "corrupted_by": None}
        case Break(error):
            changes |= {"detail": error.message, "corrupted_by": task_id}
        case Fail() | Retry() | Remove():
            pass
        case _:
            assert_never(settlement)
    if status is not process.status:
        changes |= {"status": status, "previous_status": process.status}
    return dataclasses.replace(process, status_changed_at=row[4], last_event_id=row[5], **changes)


def _next(process: Process, row: rows.Row) -> RunningTask:
    return RunningTask(
        process=process,
        task_id=row[10],
        task_type=rows.TASK_TYPES[row[11]],
        attempt=row[12],
        token=row[13],
        args=row[14],
        caller_context=row[15] or {},
        trace_context=row[16] or {},
        history_range=rows.history_range(row[17], row[18], backward=row[19]),
        step_timeout=rows.seconds(row[20]),
        scheduled_at=row[21],
        started_at=row[2],
        first_started_at=row[22],
    )


def _recalled(entry: Entry, row: rows.Row) -> Written:
    process = None if row[1] is None else rows.process(entry.key, row[1:11])
    following = None
    if process is not None and row[11] is not None:
        following = RunningTask(
            process=process,
            task_id=row[11],
            task_type=rows.TASK_TYPES[row[12]],
            attempt=row[13],
            token=row[14],
            args=row[15],
            caller_context=row[16] or {},
            trace_context=row[17] or {},
            history_range=rows.history_range(row[18], row[19], backward=row[20]),
            step_timeout=rows.seconds(row[21]),
            scheduled_at=row[22],
            started_at=row[23],
            first_started_at=row[24],
        )
    return Written(
        settled_at=row[0], process=process, next=following, due=None, reply_to=(), cancelled=()
    )


_OUTCOMES: Mapping[type[Settlement], str] = {
    Finish: "finish", Fail: "fail", Retry: "retry", Break: "break", Remove: "remove",
}  # fmt: skip
_ENDS: Mapping[type[Settlement], str] = {
    Finish: "finished", Fail: "error", Retry: "waiting", Break: "error", Remove: "finished",
}  # fmt: skip
_NO_INTENT = Intent()


def _columns(batch: Sequence[Entry]) -> list[Any]:
    settlements = [entry.settlement for entry in batch]
    intents = [s.intent if isinstance(s, Finish) else _NO_INTENT for s in settlements]
    finished = [isinstance(s, Finish) for s in settlements]
    failures = [_error(s) for s in settlements]
    completions = [i.action if isinstance(i.action, Complete) else None for i in intents]
    retries = [s if isinstance(s, Retry) else None for s in settlements]
    return [
        arrays.Int2Column(entry.key.slot for entry in batch),
        arrays.TextColumn(entry.key.namespace for entry in batch),
        arrays.TextColumn(entry.key.process_id for entry in batch),
        arrays.Int8Column(entry.task_id for entry in batch),
        arrays.Int8Column(entry.token for entry in batch),
        arrays.TextColumn(_OUTCOMES[type(s)] for s in settlements),
        arrays.Int4Column(
            retry.attempt_count if retry is not None else entry.attempt
            for entry, retry in zip(batch, retries, strict=True)
        ),
        arrays.ByteaColumn(_response(s) for s in settlements),
        arrays.Int4Column(error and error.code for error in failures),
        arrays.TextColumn(error and error.reason for error in failures),
        arrays.TextColumn(error and error.message for error in failures),
        arrays.BoolColumn(error and error.rejected for error in failures),
        arrays.JsonColumn(error and rows.json_text(error.metadata) for error in failures),
        arrays.ByteaColumn(intent.aux_state for intent in intents),
        arrays.JsonbColumn(
            # An empty object is a value: it overwrites.
            None if i.metadata is None else rows.json_text(i.metadata) or b"{}"
            for i in intents
        ),
        arrays.BoolColumn(completion is not None for completion in completions),
        arrays.ByteaColumn(completion and completion.result for completion in completions),
        arrays.Float8Column(retry and retry.delay.total_seconds() for retry in retries),
        *_timer_columns(batch, intents, finished),
        arrays.BoolColumn(entry.continues for entry in batch),
        arrays.Float8Column(entry.expires_after.total_seconds() for entry in batch),
        arrays.Int4Column(len(intent.events) for intent in intents),
    ]


def _timer_columns(
    batch: Sequence[Entry], intents: Sequence[Intent], finished: Sequence[bool]
) -> list[Any]:
    timers = [i.action if isinstance(i.action, SetTimer) else None for i in intents]
    no_range: HistoryRange | None = None
    ranges = [rows.history_columns(timer.history_range if timer else no_range) for timer in timers]
    return [
        arrays.TextColumn(
            _timer_word(intent) if done else "keep"
            for intent, done in zip(intents, finished, strict=True)
        ),
        arrays.TextColumn(
            timer and (TaskType.REMOVE if timer.remove else TaskType.TIMEOUT) for timer in timers
        ),
        arrays.InstantColumn(timer and timer.at for timer in timers),
        arrays.Float8Column(
            timer.after.total_seconds() if timer is not None and timer.after is not None else None
            for timer in timers
        ),
        arrays.ByteaColumn(timer and timer.args for timer in timers),
        arrays.JsonColumn(
            rows.json_text(entry.trace_context) if timer is not None else None
            for entry, timer in zip(batch, timers, strict=True)
        ),
        arrays.Float8Column(
            timer.step_timeout.total_seconds() if timer and timer.step_timeout else None
            for timer in timers
        ),
        arrays.Int8Column(after for after, _, _ in ranges),
        arrays.Int4Column(limit for _, limit, _ in ranges),
        arrays.BoolColumn(backward for _, _, backward in ranges),
    ]


def _timer_word(intent: Intent) -> str:
    match intent.action:
        case KeepTimer():
            return "keep"
        case SetTimer():
            return "set"
        case UnsetTimer() | Complete() | RemoveProcess():
            return "unset"
        case _:
            assert_never(intent.action)


def _event_columns(batch: Sequence[Entry]) -> list[Any]:
    events: list[tuple[int, int, NewEvent]] = []
    for position, entry in enumerate(batch, start=1):
        if isinstance(entry.settlement, Finish):
            for ordinal, event in enumerate(entry.settlement.intent.events, start=1):
                events.append((position, ordinal, event))
    return [
        arrays.Int8Column(position for position, _, _ in events),
        arrays.Int4Column(ordinal for _, ordinal, _ in events),
        arrays.ByteaColumn(event.payload for _, _, event in events),
        arrays.Int4Column(event.format_version for _, _, event in events),
        arrays.JsonColumn(rows.json_text(event.metadata) for _, _, event in events),
    ]


def _error(settlement: Settlement) -> TaskError | None:
    match settlement:
        case Fail(error) | Break(error):
            return error
        case Retry() | Remove():
            return settlement.error
        case Finish():
            return None
        case _:
            assert_never(settlement)


def _response(settlement: Settlement) -> bytes | None:
    match settlement:
        case Finish(intent):
            return intent.response
        case Remove():
            return settlement.response
        case Fail() | Retry() | Break():
            return None
        case _:
            assert_never(settlement)
