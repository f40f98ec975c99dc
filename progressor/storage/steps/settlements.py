"""Settlements: outcomes become durable, in batches, fenced by the token of the lease.

What is written for an outcome is decided in ``domain/processes/settlement.py`` and written by
``priv/functions/settlement/settle_tasks.sql``. The processor has already acted on it, so it is
written again until PostgreSQL answers, and an answer that was lost is found again by its token
(`_recall`).
"""

import asyncio
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from progressor.domain import values
from progressor.domain.jobs.graph import NodePlan
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.intent import Complete, SetTimer
from progressor.domain.processes.process import Leadership, Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    CommitContext,
    GroupCommit,
    GroupCommits,
    Insistence,
    WriteKind,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, before_sending
from progressor.storage.postgres.rows.documents import part_of
from progressor.storage.postgres.rows.effects import (
    NO_EFFECTS,
    Cancelled,
    Effects,
    cancelled,
    gate_effects,
    job_effects,
)
from progressor.storage.postgres.rows.records import members, reader
from progressor.storage.steps.settlement_columns import columns, error_of, job_columns
from progressor.telemetry.metrics.registry import Metrics

_SQL = statements.load("steps/settlements")


@values.dataclass(frozen=True, slots=True, kw_only=True)
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


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    key: ProcessKey
    task_id: int
    due_at: dt.datetime


@values.dataclass(frozen=True, slots=True, kw_only=True)
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
    due: Due | None = None
    reply_to: tuple[int, ...] = ()
    cancelled: tuple[Cancelled, ...] = ()
    effects: Effects = NO_EFFECTS


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease is lost or the process was deleted: nothing was changed. Not an error."""


Outcome = Written | LeaseLost


class _Row(NamedTuple):
    """A written settlement, with the next task of its worker if any.

    Other rows have one of three columns: ``started``, the follower that the worker of the item runs
    next; ``effects`` on gates; or ``job_effects``. The last two have no item.
    """

    item: int | None
    settled_at: dt.datetime
    process_status: Any
    status_changed_at: dt.datetime
    last_event_id: int
    reply_to: list[int] | None
    cancelled: list[Any] | None
    timer_task_id: int | None
    timer_due_at: dt.datetime
    next_task_id: int | None
    effects: list[Any] | None
    job_effects: dict[str, Any] | None
    started: list[Any] | None
    row: Sequence[Any]


@dataclasses.dataclass(slots=True)
class _Sums:
    """Of one namespace in one batch; in bytes but for the first."""

    event_count: int = 0
    events: int = 0
    response: int = 0
    aux_state: int = 0
    args: int = 0
    result: int = 0

    def add(self, settlement: Settlement) -> None:
        if isinstance(settlement, Remove):
            self.response += len(settlement.response)
        if not isinstance(settlement, Finish):
            return
        intent = settlement.intent
        self.event_count += len(intent.events)
        for event in intent.events:
            self.events += len(event.payload)
        self.response += len(intent.response)
        self.aux_state += len(intent.aux_state or b"")
        if isinstance(intent.timer, SetTimer):
            self.args += len(intent.timer.args)
        for timer in intent.timers.values():
            if isinstance(timer, SetTimer):
                self.args += len(timer.args)
        if isinstance(intent.action, Complete):
            self.result += len(intent.action.result)


class Payloads:
    """Counts a batch at a time, since most are of one namespace."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def add(self, written: Iterable[tuple[str, Settlement]]) -> None:
        by_namespace: dict[str, _Sums] = {}
        for namespace, settlement in written:
            sums = by_namespace.get(namespace)
            if sums is None:
                sums = by_namespace[namespace] = _Sums()
            sums.add(settlement)
        for namespace, sums in by_namespace.items():
            if sums.event_count:
                self._metrics.events_written.add(sums.event_count, (namespace,))
            for kind in ("events", "response", "aux_state", "args", "result"):
                amount = getattr(sums, kind)
                if amount:
                    self._metrics.bytes_written.add(amount, (namespace, kind))


class Settlements(GroupCommits[Entry, Outcome]):
    def __init__(
        self,
        context: StorageContext,
        *,
        settings: Commit,
        commit: CommitContext,
        step_grace: dt.timedelta,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(context, settings=settings, commit=commit)
        functions, statement_timeout = context.functions, context.statement_timeout
        self._payloads = Payloads(metrics or Metrics())
        self._step_grace = step_grace.total_seconds()
        settle_tasks = functions.call("settle_tasks", _Row)
        settle_job_tasks = functions.call("settle_job_tasks", _Row)
        assert settle_tasks.columns == settle_job_tasks.columns, "both return the same"
        self._settle_tasks = Direct(settle_tasks)
        self._settle_job_tasks = Direct(settle_job_tasks)
        self._next = reader(
            RunningTask, settle_tasks.columns, "process", "started_at", prefix="next_"
        )

        def group(name: str, function: Direct[_Row]) -> GroupCommit[Entry, Outcome]:
            families = function is self._settle_job_tasks
            return self._group(
                WriteKind(
                    name=name,
                    write=functools.partial(self._write, function),
                    key=lambda entry: entry.key,
                    size=bytes_of,
                    insistence=Insistence.INSIST,
                    find_locked=find_locked(functions, statement_timeout, families=families),
                    find_blocked=find_blocked(
                        functions, statement_timeout, lambda entry: Concern(entry.key)
                    ),
                )
            )

        self._plain = group("settle_tasks", self._settle_tasks)
        self._of_jobs = group("settle_job_tasks", self._settle_job_tasks)
        # Many of them may wait for one gate: tasks without gates are not in a batch with them.
        self._gated = group("settle_gated_tasks", self._settle_tasks)
        self._gated_of_jobs = group("settle_gated_job_tasks", self._settle_job_tasks)

    def submit(self, entry: Entry) -> asyncio.Future[Outcome]:
        if entry.part is None and entry.plan is None:
            return (self._gated if entry.is_gated else self._plain).submit(entry)
        return (self._gated_of_jobs if entry.is_gated else self._of_jobs).submit(entry)

    async def _write(
        self,
        function: Direct[_Row],
        connection: Connection,
        batch: Sequence[Entry],
        again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Outcome]:
        with before_sending():
            arguments = self._arguments(function, batch)
        results: list[Outcome] = [_LEASE_LOST] * len(batch)
        effects, started = NO_EFFECTS, []
        for row in await function.execute(connection, arguments):
            if row.started is not None:
                started.append(row)
            elif row.item is not None:
                results[row.item - 1] = self._written(batch[row.item - 1], row)
            elif row.job_effects is not None:
                effects |= job_effects(row.job_effects)
            else:
                effects |= gate_effects(row.effects)
        if again:
            await self._recall(connection, batch, results)
        self._payloads.add(
            (entry.key.namespace, entry.settlement)
            for entry, result in zip(batch, results, strict=True)
            if result is not _LEASE_LOST
        )
        for row in started:
            assert row.item is not None, "a follower is started for the worker of an item"
            results[row.item - 1] = self._with_next_node(results[row.item - 1], row)
        if effects is not NO_EFFECTS:
            _give_effects(results, effects)
        return results

    def _arguments(self, function: Direct[_Row], batch: Sequence[Entry]) -> list[Any]:
        for entry in batch:
            if entry.on_sent is not None:
                entry.on_sent()
        given = self._context.own_arguments() | {"grace": self._step_grace} | columns(batch)
        if function is self._settle_job_tasks:
            given |= job_columns(batch)
        return function.bind_some(given)

    async def _recall(
        self, connection: Connection, batch: Sequence[Entry], results: list[Outcome]
    ) -> None:
        """Distinguish a lost lease from one that the first, unanswered attempt has settled."""
        for position, entry in enumerate(batch):
            if not isinstance(results[position], LeaseLost):
                continue
            error = error_of(entry.settlement)
            found = await self._context.read_on(
                connection,
                Written,
                _SQL["recall_settlement"],
                entry.key,
                task_id=entry.task_id,
                token=entry.token,
                status=_ENDS[type(entry.settlement)],
                error_reason=error and error.reason,
            )
            if found:
                results[position] = found[0]

    def _written(self, entry: Entry, row: _Row) -> Written:
        # The process of a zombie is unknown, and a removed one has no status.
        process = following = due = None
        if entry.process is not None and row.process_status is not None:
            process = _moved(entry.process, entry.task_id, entry.settlement, row)
            if row.next_task_id is not None:
                following = self._next(row.row, process, row.settled_at)
        if row.timer_task_id is not None:
            due = Due(key=entry.key, task_id=row.timer_task_id, due_at=row.timer_due_at)
        return Written(
            settled_at=row.settled_at,
            process=process,
            next=following,
            due=due,
            reply_to=() if row.reply_to is None else tuple(row.reply_to),
            cancelled=() if row.cancelled is None else cancelled(row.cancelled),
        )

    def _with_next_node(self, written: Outcome, row: _Row) -> Written:
        """Return a settlement after which the worker goes on with another node of the job."""
        assert isinstance(written, Written), "a worker goes on from a lease that was lost"
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
            part=part_of([None, *part]),
        )
        # Field by field: dataclasses.replace takes three times as long.
        return Written(
            settled_at=written.settled_at,
            process=written.process,
            next=self._next(row.row, process, row.settled_at),
            due=written.due,
            reply_to=written.reply_to,
            cancelled=written.cancelled,
        )


def _give_effects(results: list[Outcome], effects: Effects) -> None:
    """Give the effects of a batch to its first written settlement.

    If all leases were lost, the effects are left to the scans.
    """
    for place, result in enumerate(results):
        if isinstance(result, Written):
            results[place] = dataclasses.replace(result, effects=effects)
            return


def bytes_of(entry: Entry) -> int:
    settlement = entry.settlement
    if not isinstance(settlement, Finish):
        return 0
    intent = settlement.intent
    size = sum(len(message.args) for message in intent.messages) if intent.messages else 0
    size += len(intent.response or b"") + len(intent.aux_state or b"")
    for event in intent.events:
        size += len(event.payload)
    return size


def _moved(process: Process, task_id: int, settlement: Settlement, row: _Row) -> Process:
    """Return the process as the settlement left it: what is known needs no reading."""
    status = _STATUSES[row.process_status]
    detail, corrupted_by = process.detail, process.corrupted_by
    aux_state, metadata = process.aux_state, process.metadata
    state_version = process.state_version
    match settlement:
        case Finish(intent):
            detail = corrupted_by = None
            if intent.aux_state is not None:
                aux_state, state_version = intent.aux_state, intent.state_version
            metadata = metadata if intent.metadata is None else intent.metadata
        case Break(error):
            detail, corrupted_by = error.message, task_id
        case Fail() if status is not process.status:
            # It had broken the process before, and was run again.
            detail = corrupted_by = None
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
        state_version=state_version,
    )


def _part_after(part: Part | None, settlement: Settlement) -> Part | None:
    """Return a process's job membership: a process that starts nodes leads a job."""
    if isinstance(settlement, Finish) and isinstance(settlement.intent.action, StartNodes):
        if part is None:
            return Part(led_by=Leadership.PROCESSOR)
        if part.led_by is None:
            return dataclasses.replace(part, led_by=Leadership.PROCESSOR)
    return part


_ENDS: Mapping[type[Settlement], str] = {
    Finish: "finished", Fail: "error", Retry: "waiting", Break: "error", Remove: "finished",
}  # fmt: skip
_LEASE_LOST = LeaseLost()
_STATUSES = members(ProcessStatus)
