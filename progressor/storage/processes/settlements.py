"""Settlements: outcomes become durable, in batches, fenced by the token of the lease.

What is written for an outcome is decided in ``domain/processes/settlement.py`` and written by
``priv/functions/settlement/settle_tasks.sql``. The processor has already acted on it, so it is
written again until PostgreSQL answers, and an answer that was lost is found again by its token
(`_recall`).
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from progressor.domain.jobs.graph import NodePlan
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.process import Leadership, Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    CommitContext,
    GroupCommit,
    Insistence,
    Waiting,
    Write,
    WriteKind,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, before_sending
from progressor.storage.processes.payloads import Payloads
from progressor.storage.rows import job_columns, settlement_columns
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.effects import (
    NO_EFFECTS,
    Cancelled,
    Effects,
    cancelled,
    gate_effects,
    job_effects,
)
from progressor.storage.rows.job_membership import part_of
from progressor.storage.rows.tasks import SettledRow
from progressor.telemetry.metrics.registry import Metrics

_SQL = statements.load("processes/settlements")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A settlement to write.

    ``process`` is None for a zombie, whose step cannot continue; ``continues`` says that the
    worker goes on with the next task of the process, for `expires_after` unless that has a timeout
    of its own. ``trace_context`` goes with a timer that the step sets. ``on_sent`` is called when
    the batch with it is sent. ``part`` is the process's in jobs, ``plan`` what the step adds to
    one. ``is_gated`` says that the task had constraints.
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
    part: Part | None = None
    plan: NodePlan | None = None
    is_gated: bool = False
    on_sent: Callable[[], None] | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A task that waits for its time: a timer, or a retry."""

    key: ProcessKey
    task_id: int
    due_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The settlement is durable.

    ``next`` continues in the same worker: on the same process or, where that was a node of a job
    and has ended, on another node of it. ``due`` is what the process waits for if nothing runs.
    ``process`` is as the settlement left it, None after a removal or for a zombie. ``reply_to`` are
    the replicas where callers wait for this task, ``cancelled`` the tasks of the process that will
    never run. ``effects`` are those of the whole batch, with one of its settlements.
    """

    settled_at: dt.datetime
    process: Process | None
    next: RunningTask | None
    due: Due | None
    reply_to: tuple[int, ...]
    cancelled: tuple[Cancelled, ...]
    effects: Effects = NO_EFFECTS


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease is lost or the process was deleted: nothing was changed. Not an error."""


Outcome = Written | LeaseLost


class Settlements:
    """The group commit of settlements."""

    def __init__(
        self,
        context: StorageContext,
        *,
        settings: Commit,
        commit: CommitContext,
        step_grace: dt.timedelta,
        metrics: Metrics | None = None,
    ) -> None:
        functions, statement_timeout = context.functions, context.statement_timeout
        self._context = context
        self._payloads = Payloads(metrics or Metrics())
        self._step_grace = step_grace.total_seconds()
        self._settle_tasks = Direct(functions.call("settle_tasks", SettledRow))
        self._settle_job_tasks = Direct(functions.call("settle_job_tasks", SettledRow))

        def group(
            name: str, write: Write[Entry, Outcome], *, families: bool
        ) -> GroupCommit[Entry, Outcome]:
            kind = WriteKind(
                name=name,
                write=write,
                key=lambda entry: entry.key,
                size=_bytes_of,
                insistence=Insistence.INSIST,
                find_locked=find_locked(functions, statement_timeout, families=families),
                find_blocked=find_blocked(
                    functions, statement_timeout, lambda entry: Concern(entry.key)
                ),
            )
            return GroupCommit(
                kind,
                pool=context.pool,
                settings=settings,
                statement_timeout=statement_timeout,
                context=commit,
            )

        self._plain = group("settle_tasks", self._write, families=False)
        self._of_jobs = group("settle_job_tasks", self._write_of_jobs, families=True)
        # Many of them may wait for one gate: tasks without gates are not in a batch with them.
        self._gated = group("settle_gated_tasks", self._write, families=False)
        self._gated_of_jobs = group("settle_gated_job_tasks", self._write_of_jobs, families=True)
        self._groups = (self._plain, self._of_jobs, self._gated, self._gated_of_jobs)

    def submit(self, entry: Entry) -> asyncio.Future[Outcome]:
        """Put a settlement in line; it is written whatever becomes of the future."""
        if entry.part is None and entry.plan is None:
            return (self._gated if entry.is_gated else self._plain).submit(entry)
        return (self._gated_of_jobs if entry.is_gated else self._of_jobs).submit(entry)

    def waiting(self) -> Sequence[Waiting]:
        """Return what is in line, from any thread."""
        return [group.waiting for group in self._groups]

    def is_waiting(self, key: ProcessKey) -> bool:
        """Tell whether a settlement of a process is in line, or under way."""
        return any(group.is_waiting(key) for group in self._groups)

    async def run(self) -> None:
        """Write until `close`, and then until nothing is left."""
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                tasks.create_task(group.run(), name=group.name)

    def close(self) -> None:
        """Take no more settlements."""
        for group in self._groups:
            group.close()

    async def _write(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Outcome]:
        with before_sending():
            arguments = self._settle_tasks.bind(**self._arguments(batch))
        found = await self._settle_tasks.execute(connection, arguments)
        results, effects = await self._outcomes(connection, batch, found, again=again)
        return _with_effects(results, effects)

    async def _write_of_jobs(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Outcome]:
        with before_sending():
            arguments = self._settle_job_tasks.bind(
                **self._arguments(batch), **job_columns.columns(batch)
            )
        found = await self._settle_job_tasks.execute(connection, arguments)
        of_tasks = [row for row in found if row.started is None and row.job_effects is None]
        results, effects = await self._outcomes(connection, batch, of_tasks, again=again)
        for row in found:
            if row.job_effects is not None:
                effects |= job_effects(row.job_effects)
            if row.started is None:
                continue
            assert row.item is not None, "a follower is started for the worker of an item"
            written = results[row.item - 1]
            assert isinstance(written, Written), "a worker goes on from a lease that was lost"
            # Field by field: dataclasses.replace takes three times as long.
            results[row.item - 1] = Written(
                settled_at=written.settled_at,
                process=written.process,
                next=_next_node(row),
                due=written.due,
                reply_to=written.reply_to,
                cancelled=written.cancelled,
            )
        return _with_effects(results, effects)

    def _arguments(self, batch: Sequence[Entry]) -> dict[str, Any]:
        for entry in batch:
            if entry.on_sent is not None:
                entry.on_sent()
        return {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "grace": self._step_grace,
            **settlement_columns.columns(batch),
            "starvation_timeout": self._context.starvation_timeout.total_seconds(),
            "timer_constraints": settlement_columns.timer_constraints(batch),
        }

    async def _outcomes(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        found: Sequence[SettledRow],
        *,
        again: bool,
    ) -> tuple[list[Outcome], Effects]:
        results: list[Outcome] = [_LEASE_LOST] * len(batch)
        effects = NO_EFFECTS
        for row in found:
            if row.item is None:
                effects |= gate_effects(row.effects)
                continue
            position = row.item - 1
            results[position] = _written(batch[position], row)
        if again:
            await self._recall(connection, batch, results)
        self._payloads.add(
            (entry.key.namespace, entry.settlement)
            for entry, result in zip(batch, results, strict=True)
            if result is not _LEASE_LOST
        )
        return results, effects

    async def _recall(
        self, connection: Connection, batch: Sequence[Entry], results: list[Outcome]
    ) -> None:
        """Tell a lease that is lost from one that the first, unanswered try has settled."""
        for position, entry in enumerate(batch):
            if not isinstance(results[position], LeaseLost):
                continue
            error = settlement_columns.error_of(entry.settlement)
            parameters = dataclasses.asdict(entry.key) | {
                "task_id": entry.task_id,
                "token": entry.token,
                "replica_id": self._context.replica_id,
                "status": _ENDS[type(entry.settlement)],
                "error_reason": error and error.reason,
            }
            cursor = await connection.execute(_SQL["recall_settlement"], parameters, binary=True)
            row = await cursor.fetchone()
            if row is not None:
                results[position] = _recalled(entry, row)


def _with_effects(results: list[Outcome], effects: Effects) -> list[Outcome]:
    """Give the effects of a batch to one of its settlements; without one there are none."""
    if effects is not NO_EFFECTS:
        for position, result in enumerate(results):
            if isinstance(result, Written):
                results[position] = dataclasses.replace(result, effects=effects)
                break
    return results


def _bytes_of(entry: Entry) -> int:
    settlement = entry.settlement
    if not isinstance(settlement, Finish):
        return 0
    intent = settlement.intent
    size = len(intent.response or b"") + len(intent.aux_state or b"")
    for event in intent.events:
        size += len(event.payload)
    return size


def _written(entry: Entry, row: SettledRow) -> Written:
    # A zombie's process is not known, a removed one has no status any more.
    process = None
    if entry.process is not None and row.process_status is not None:
        process = _moved(entry.process, entry.task_id, entry.settlement, row)
    due = None
    if row.timer_task_id is not None:
        due = Due(key=entry.key, task_id=row.timer_task_id, due_at=row.timer_due_at)
    return Written(
        settled_at=row.settled_at,
        process=process,
        next=None if process is None or row.next_task_id is None else _next(process, row),
        due=due,
        reply_to=() if row.reply_to is None else tuple(row.reply_to),
        cancelled=() if row.cancelled is None else cancelled(row.cancelled),
    )


def _moved(process: Process, task_id: int, settlement: Settlement, row: SettledRow) -> Process:
    """Return the process as the settlement left it: what is known needs no reading."""
    status = rows.PROCESS_STATUSES[row.process_status]
    detail, corrupted_by = process.detail, process.corrupted_by
    aux_state, metadata = process.aux_state, process.metadata
    match settlement:
        case Finish(intent):
            detail = corrupted_by = None
            aux_state = aux_state if intent.aux_state is None else intent.aux_state
            metadata = metadata if intent.metadata is None else intent.metadata
        case Break(error):
            detail, corrupted_by = error.message, task_id
        case Fail() | Retry() | Remove():
            pass
        case _:
            assert_never(settlement)
    # Field by field: dataclasses.replace takes three times as long.
    return Process(
        key=process.key,
        status=status,
        previous_status=process.previous_status if status is process.status else process.status,
        detail=detail,
        aux_state=aux_state,
        metadata=metadata,
        corrupted_by=corrupted_by,
        created_at=process.created_at,
        status_changed_at=row.status_changed_at,
        last_event_id=row.last_event_id,
        init_task_id=process.init_task_id,
        result=process.result,
        part=_part_after(process.part, settlement),
    )


def _part_after(part: Part | None, settlement: Settlement) -> Part | None:
    """Return a process's job membership: a process that starts nodes leads a job."""
    if isinstance(settlement, Finish) and isinstance(settlement.intent.action, StartNodes):
        if part is None:
            return Part(led_by=Leadership.PROCESSOR)
        if part.led_by is None:
            return dataclasses.replace(part, led_by=Leadership.PROCESSOR)
    return part


def _next_node(row: SettledRow) -> RunningTask:
    """Return the init of a node that a worker goes on with, and its process as it was created."""
    assert row.started is not None, "the row is of a follower"
    assert row.next_task_id is not None, "it goes on with its init"
    slot, namespace, process_id, *part = row.started
    process = Process(
        key=ProcessKey(slot, namespace, process_id),
        status=ProcessStatus.INIT,
        previous_status=None,
        detail=None,
        aux_state=b"",
        metadata=None,
        corrupted_by=None,
        created_at=row.settled_at,
        status_changed_at=row.settled_at,
        last_event_id=0,
        init_task_id=row.next_task_id,
        result=None,
        part=part_of([None, *part]),
    )
    return _next(process, row)


def _next(process: Process, row: SettledRow) -> RunningTask:
    assert row.next_task_id is not None, "the worker goes on"
    return RunningTask(
        process=process,
        task_id=row.next_task_id,
        task_type=rows.TASK_TYPES[row.next_task_type],
        attempt=row.next_attempt,
        token=row.next_token,
        args=row.next_args,
        caller_context=row.next_caller_context or {},
        trace_context=row.next_trace_context or {},
        history_range=rows.history_range(
            row.next_history_after, row.next_history_limit, backward=row.next_history_backward
        ),
        step_timeout=rows.seconds(row.next_step_timeout),
        scheduled_at=row.next_scheduled_at,
        started_at=row.settled_at,
        first_started_at=row.next_first_started_at,
    )


def _recalled(entry: Entry, row: rows.Row) -> Written:
    process = None if row[1] is None else rows.process(entry.key, row[1:11], part=part_of(row[25]))
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


_ENDS: Mapping[type[Settlement], str] = {
    Finish: "finished", Fail: "error", Retry: "waiting", Break: "error", Remove: "finished",
}  # fmt: skip
_LEASE_LOST = LeaseLost()
