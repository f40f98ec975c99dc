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

from progressor.clock import Clock
from progressor.domain.jobs.graph import NodePlan
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.process import Leadership, Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    GroupCommit,
    Insistence,
    OnBatch,
    Waiting,
    Write,
    tell_nobody,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.backoff import steady
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, Pool, before_sending
from progressor.storage.processes.payloads import Payloads
from progressor.storage.rows import job_columns, settlement_columns
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.cancelled import Cancelled, cancelled
from progressor.storage.rows.gate_effects import PATIENCE, OnPromoted, ignore, promoted
from progressor.storage.rows.job_effects import OnJobs, job_news, tell_no_job
from progressor.storage.rows.job_membership import part_of
from progressor.telemetry.metrics.registry import Metrics

_SQL = statements.load("processes/settlements")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A settlement to write.

    ``process`` is None for a zombie, whose step nobody can continue; ``continues`` says that the
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
    """The lease is lost or the process was deleted: nothing was changed. Not an error."""


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
        on_batch: OnBatch = tell_nobody,
        crowd: Callable[[], int] = lambda: 0,
        jitter: Callable[[], float] = steady,
        metrics: Metrics | None = None,
        patience: dt.timedelta = PATIENCE,
        on_promoted: OnPromoted = ignore,
        on_jobs: OnJobs = tell_no_job,
    ) -> None:
        """Open nothing; `on_promoted` and `on_jobs` hear what is told of gates and of jobs."""
        self._clock = clock
        self._payloads = Payloads(metrics or Metrics())
        self._replica_id = replica_id
        self._step_grace = step_grace.total_seconds()
        self._patience = patience.total_seconds()
        self._on_promoted = on_promoted
        self._on_jobs = on_jobs
        self._settle_tasks = Direct(functions.call("settle_tasks"))
        self._settle_job_tasks = Direct(functions.call("settle_job_tasks"))

        def group(
            name: str, write: Write[Entry, Outcome], *, families: bool
        ) -> GroupCommit[Entry, Outcome]:
            return GroupCommit(
                name=name,
                write=write,
                key=lambda entry: entry.key,
                size=_bytes_of,
                pool=pool,
                insistence=Insistence.INSIST,
                find_locked=find_locked(functions, statement_timeout, families=families),
                find_blocked=find_blocked(
                    functions, statement_timeout, lambda entry: Concern(entry.key)
                ),
                lane_count=commit.lane_count,
                batch_max=commit.batch_max,
                queue_max=commit.queue_max,
                statement_timeout=statement_timeout.total_seconds(),
                gather_max=commit.gather.total_seconds(),
                crowd=crowd,
                jitter=jitter,
                on_batch=on_batch,
            )

        self._plain = group("settle_tasks", self._write, families=False)
        self._of_jobs = group("settle_job_tasks", self._write_of_jobs, families=True)
        # Many of them may wait for one gate: whoever has none is not in a batch with them.
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
            arguments = self._arguments(batch)
        found = await self._settle_tasks.execute(connection, arguments)
        return await self._outcomes(connection, batch, found, again=again)

    async def _write_of_jobs(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Outcome]:
        with before_sending():
            arguments = [*self._arguments(batch), *job_columns.columns(batch)]
        found = await self._settle_job_tasks.execute(connection, arguments)
        of_tasks: list[rows.Row] = []
        of_jobs: list[rows.Row] = []
        for row in found:
            (of_jobs if row[0] is None or row[0] < 0 else of_tasks).append(row)
        results = await self._outcomes(connection, batch, of_tasks, again=again)
        for told in of_jobs:
            if told[0] is None:
                self._on_jobs(job_news(told[1], told[6]))
                continue
            written = results[-told[0] - 1]
            assert isinstance(written, Written), "a worker goes on from a lease that was lost"
            # Field by field: dataclasses.replace takes three times as long.
            results[-told[0] - 1] = Written(
                settled_at=written.settled_at,
                process=written.process,
                next=_next_node(told),
                due=written.due,
                reply_to=written.reply_to,
                cancelled=written.cancelled,
            )
        return results

    def _arguments(self, batch: Sequence[Entry]) -> list[Any]:
        for entry in batch:
            if entry.on_sent is not None:
                entry.on_sent()
        return [
            self._clock.pinned(),
            self._replica_id(),
            self._step_grace,
            *settlement_columns.columns(batch),
            self._patience,
            settlement_columns.timer_constraints(batch),
        ]

    async def _outcomes(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        found: Sequence[rows.Row],
        *,
        again: bool,
    ) -> list[Outcome]:
        results: list[Outcome] = [_LEASE_LOST] * len(batch)
        for row in found:
            if not row[0]:
                self._on_promoted(promoted(row[6]))
                continue
            position = row[0] - 1
            results[position] = _written(batch[position], row)
        if again:
            await self._recall(connection, batch, results)
        self._payloads.add(
            (entry.key.namespace, entry.settlement)
            for entry, result in zip(batch, results, strict=True)
            if result is not _LEASE_LOST
        )
        return results

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
                "replica_id": self._replica_id(),
                "status": _ENDS[type(entry.settlement)],
                "error_reason": error and error.reason,
            }
            cursor = await connection.execute(_SQL["recall_settlement"], parameters, binary=True)
            row = await cursor.fetchone()
            if row is not None:
                results[position] = _recalled(entry, row)


def _bytes_of(entry: Entry) -> int:
    settlement = entry.settlement
    if not isinstance(settlement, Finish):
        return 0
    intent = settlement.intent
    size = len(intent.response or b"") + len(intent.aux_state or b"")
    for event in intent.events:
        size += len(event.payload)
    return size


def _written(entry: Entry, row: rows.Row) -> Written:
    # A zombie's process is not known, a removed one has no status any more.
    process = None
    if entry.process is not None and row[2] is not None:
        process = _moved(entry.process, entry.task_id, entry.settlement, row)
    return Written(
        settled_at=row[1],
        process=process,
        next=None if process is None or row[9] is None else _next(process, row),
        due=None if row[7] is None else Due(key=entry.key, task_id=row[7], due_at=row[8]),
        reply_to=() if row[5] is None else tuple(row[5]),
        cancelled=() if row[6] is None else cancelled(row[6]),
    )


def _moved(process: Process, task_id: int, settlement: Settlement, row: rows.Row) -> Process:
    """Return the process as the settlement left it: what is known needs no reading."""
    status = rows.PROCESS_STATUSES[row[2]]
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
        status_changed_at=row[3],
        last_event_id=row[4],
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


def _next_node(row: rows.Row) -> RunningTask:
    """Return the init of a node that a worker goes on with, and its process as it was created."""
    slot, namespace, process_id, *part = row[6]
    process = Process(
        key=ProcessKey(slot, namespace, process_id),
        status=ProcessStatus.INIT,
        previous_status=None,
        detail=None,
        aux_state=b"",
        metadata=None,
        corrupted_by=None,
        created_at=row[1],
        status_changed_at=row[1],
        last_event_id=0,
        init_task_id=row[9],
        result=None,
        part=part_of([None, *part]),
    )
    return _next(process, row)


def _next(process: Process, row: rows.Row) -> RunningTask:
    return RunningTask(
        process=process,
        task_id=row[9],
        task_type=rows.TASK_TYPES[row[10]],
        attempt=row[11],
        token=row[12],
        args=row[13],
        caller_context=row[14] or {},
        trace_context=row[15] or {},
        history_range=rows.history_range(row[16], row[17], backward=row[18]),
        step_timeout=rows.seconds(row[19]),
        scheduled_at=row[20],
        started_at=row[1],
        first_started_at=row[21],
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
