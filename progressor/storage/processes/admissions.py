"""Admissions: requests become tasks, in batches.

The rules are in ``domain/processes/admission.py``; ``priv/functions/admission`` applies them under
the locks of the processes.
"""

import asyncio
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, LiteralString, NamedTuple

from progressor.domain import values
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Admission, Request, Verdict
from progressor.domain.processes.process import JobOptions, Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import (
    FINAL_STATUSES,
    RunningTask,
    TaskError,
    TaskResult,
    TaskType,
)
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    CommitContext,
    GroupCommit,
    GroupCommits,
    Insistence,
    WriteKind,
)
from progressor.storage.postgres import attempt
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, before_sending
from progressor.storage.postgres.rows.documents import (
    HISTORY_COLUMNS,
    constraints_text,
    history_columns,
    json_text,
    options_text,
)
from progressor.storage.postgres.rows.effects import NO_EFFECTS, Effects, gate_effects
from progressor.storage.postgres.rows.records import reader


@values.dataclass(frozen=True, slots=True)
class Entry:
    """A request, whether a worker is reserved for it, and how long its step may then take.

    ``expires_after`` is the namespace's step timeout and grace together. ``on_sent`` is called when
    the batch with it is sent. A start is refused if its namespace has ``open_max`` processes that
    have not finished.
    ``audit``: see `attempt`.
    """

    request: Request
    run: bool
    expires_after: dt.timedelta
    on_sent: Callable[[], None] | None = dataclasses.field(default=None, compare=False)
    open_max: int | None = None
    audit: str | None = dataclasses.field(default_factory=attempt.current, compare=False)


Admitted = tuple[Admission, Effects]

# Clients send no messages.
_OPTIONAL = (
    "caller_context", "trace_context", *HISTORY_COLUMNS, "idempotency_key", "fingerprint", "sender",
)  # fmt: skip


class _MissingGate(NamedTuple):
    item: int
    gate: str


class _Row(NamedTuple):
    """The verdict on a request; or, without an item, effects on gates."""

    item: int | None
    verdict: str
    admitted_at: dt.datetime
    task_id: int | None
    token: int | None
    effects: list[Any] | None
    row: Sequence[Any]
    free: bool | None = True


class _Seen(NamedTuple):
    error: TaskError | None
    process: Process | None = None


class _Function(Direct[_Row]):
    """A function that admits. What its file does not take, or return, its requests do not have."""

    def __init__(self, functions: Functions, name: LiteralString, *, is_audited: bool) -> None:
        function = (functions.audited if is_audited else functions.call)(name, _Row)
        super().__init__(function)
        self.is_gated = "constraints" in function.arguments
        self.names_gates = self.is_gated or "led_by" in function.arguments
        self.known = reader(TaskResult, function.columns, prefix="task_")
        self.seen = reader(_Seen, function.columns, "key")


class Admissions(GroupCommits[Entry, Admitted]):
    """The group commits of admission: starts, and requests to existing processes.

    Those with constraints go by themselves, so that the others pay nothing for them; and so do
    those with audit entries.
    """

    def __init__(self, context: StorageContext, *, settings: Commit, commit: CommitContext) -> None:
        super().__init__(context, settings=settings, commit=commit)
        functions, statement_timeout = context.functions, context.statement_timeout
        self._find_missing_gates = Direct(functions.call("find_missing_gates", _MissingGate))
        locked = find_locked(functions, statement_timeout)
        blocked = find_blocked(functions, statement_timeout, _concern)

        def group(name: LiteralString, *, is_audited: bool = False) -> GroupCommit[Entry, Admitted]:
            function = _Function(functions, name, is_audited=is_audited)
            return self._group(
                WriteKind(
                    name=f"{name}_audited" if is_audited else name,
                    write=functools.partial(self._write, function),
                    key=lambda entry: entry.request.key,
                    conflict_key=_equal_requests if "head" in function.arguments else None,
                    size=lambda entry: len(entry.request.args),
                    insistence=Insistence.GIVE_UP,
                    find_locked=locked,
                    find_blocked=blocked,
                )
            )

        self._starts = group("admit_starts")
        self._requests = group("admit_requests")
        self._gated_starts = group("admit_gated_starts")
        self._gated_requests = group("admit_gated_requests")
        self._jobs = group("admit_jobs")
        self._audited = {
            self._starts: group("admit_starts", is_audited=True),
            self._requests: group("admit_requests", is_audited=True),
            self._gated_starts: group("admit_gated_starts", is_audited=True),
            self._gated_requests: group("admit_gated_requests", is_audited=True),
            self._jobs: group("admit_jobs", is_audited=True),
        }

    def submit(self, entry: Entry) -> asyncio.Future[Admitted]:
        """Queue a request; see GroupCommit.submit. One admission has the effects of its batch."""
        group = self._group_for(entry.request)
        return (group if entry.audit is None else self._audited[group]).submit(entry)

    def _group_for(self, request: Request) -> GroupCommit[Entry, Admitted]:
        starts = request.task_type is TaskType.INIT
        if request.constraints is not None:
            return self._gated_starts if starts else self._gated_requests
        if request.led_by is not None:
            return self._jobs
        return self._starts if starts else self._requests

    async def _write(
        self,
        function: _Function,
        connection: Connection,
        batch: Sequence[Entry],
        _again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Admitted]:
        results: list[Admission | None] = [None] * len(batch)
        if function.names_gates:
            await self._refuse_missing_gates(connection, batch, results)
        places = [place for place, result in enumerate(results) if result is None]
        effects = NO_EFFECTS
        if places:
            with before_sending():
                arguments = self._arguments(function, [batch[place] for place in places])
            for row in await function.execute(connection, arguments):
                if row.item is None:
                    effects |= gate_effects(row.effects)
                else:
                    place = places[row.item - 1]
                    results[place] = _admission(function, batch[place], row)
        complete = [(result, NO_EFFECTS) for result in results if result is not None]
        assert len(complete) == len(results), "a batch came back with items missing"
        if effects is not NO_EFFECTS:
            complete[0] = (complete[0][0], effects)
        return complete

    def _arguments(self, function: _Function, batch: Sequence[Entry]) -> list[Any]:
        for entry in batch:
            if entry.on_sent is not None:
                entry.on_sent()
        columns = _columns(batch, function.arguments)
        if function.is_gated:
            return function.bind(**self._context.own_arguments(), **columns)
        context = self._context
        return function.bind(now=context.clock.pinned(), replica_id=context.replica_id, **columns)

    async def _refuse_missing_gates(
        self, connection: Connection, batch: Sequence[Entry], results: list[Admission | None]
    ) -> None:
        """Refuse requests that name a missing gate, for themselves or for nodes."""
        named = []
        with before_sending():
            for place, entry in enumerate(batch):
                request = entry.request
                if request.constraints and None in request.constraints.gates.values():
                    named.append((place, request.key.namespace, request.constraints))
                for namespace, gates in request.node_gates.items():
                    named.append((place, namespace, Constraints(gates=dict.fromkeys(gates))))
            if not named:
                return
            arguments = self._find_missing_gates.bind(
                namespace=[namespace for _, namespace, _ in named],
                constraints=[constraints_text(constraints) for *_, constraints in named],
            )
        for item, gate in await self._find_missing_gates.execute(connection, arguments):
            place, namespace, _ = named[item - 1]
            is_of_node = namespace in batch[place].request.node_gates
            results[place] = Admission(
                verdict=Verdict.GATE_NOT_FOUND,
                gate=gate,
                gate_namespace=namespace if is_of_node else None,
            )


def _concern(entry: Entry) -> Concern:
    constraints = entry.request.constraints
    if constraints is None:
        return Concern(entry.request.key)
    order = None if constraints.order is None else constraints.order.key
    return Concern(entry.request.key, tuple(constraints.gates), order)


def _equal_requests(entry: Entry) -> Hashable | None:
    """Return what one batch may hold once: an idempotency key of a process.

    The second must find the first one's task.
    """
    request = entry.request
    return None if request.idempotency_key is None else (request.key, request.idempotency_key)


def _heads(requests: Sequence[Request]) -> list[int]:
    heads: dict[ProcessKey, int] = {}
    return [heads.setdefault(request.key, at) for at, request in enumerate(requests, start=1)]


def _columns(batch: Sequence[Entry], wanted: Container[str]) -> dict[str, list[Any] | None]:
    requests = [entry.request for entry in batch]
    keys = [request.key for request in requests]
    columns: dict[str, list[Any] | None] = dict.fromkeys(_OPTIONAL)
    columns |= {
        "slot": [key.slot for key in keys],
        "namespace": [key.namespace for key in keys],
        "process_id": [key.process_id for key in keys],
        "args": [request.args for request in requests],
        "waits": [request.waits for request in requests],
        # What has constraints is claimed once it has passed them.
        "run": [entry.run and "constraints" not in wanted for entry in batch],
        "expires_after": [entry.expires_after.total_seconds() for entry in batch],
    }
    # An array of nulls costs PostgreSQL as much as one of values.
    if any(request.caller_context for request in requests):
        columns["caller_context"] = [json_text(request.caller_context) for request in requests]
    if any(request.trace_context for request in requests):
        columns["trace_context"] = [json_text(request.trace_context) for request in requests]
    if any(request.history_range for request in requests):
        ranges = [history_columns(request.history_range) for request in requests]
        columns |= zip(HISTORY_COLUMNS, map(list, zip(*ranges, strict=True)), strict=True)
    if any(request.idempotency_key is not None for request in requests):
        columns["idempotency_key"] = [request.idempotency_key for request in requests]
        columns["fingerprint"] = [
            request.fingerprint() if request.idempotency_key is not None else None
            for request in requests
        ]
    return columns | _more_columns(batch, requests, wanted)


def _more_columns(
    batch: Sequence[Entry], requests: Sequence[Request], wanted: Container[str]
) -> dict[str, list[Any] | None]:
    """Return the columns that only some of the functions take."""
    columns: dict[str, list[Any]] = {}
    if "open_max" in wanted:
        columns["open_max"] = [entry.open_max for entry in batch]
    if "head" in wanted:
        columns["head"] = _heads(requests)
        columns["task_type"] = [request.task_type for request in requests]
    if "metadata" in wanted:
        columns["metadata"] = [json_text(request.metadata) for request in requests]
    if "constraints" in wanted:
        columns["constraints"] = [constraints_text(request.constraints) for request in requests]
    if "audit" in wanted:
        columns["audit"] = [entry.audit for entry in batch]
    if "led_by" in wanted:
        columns["led_by"] = [request.led_by for request in requests]
        columns["options"] = [options_text(request.job_options) for request in requests]
    return {
        name: None if column.count(None) == len(column) else column
        for name, column in columns.items()
    }


def _new_process(request: Request, *, at: dt.datetime, init_task_id: int) -> Process:
    part = None
    if request.led_by is not None or request.job_options is not None:
        part = Part(led_by=request.led_by, options=request.job_options or JobOptions())
    return Process(
        key=request.key,
        status=ProcessStatus.INIT,
        previous_status=None,
        detail=None,
        aux_state=b"",
        metadata=request.metadata,
        corrupted_by=None,
        created_at=at,
        status_changed_at=at,
        last_event_id=0,
        init_task_id=init_task_id,
        part=part,
    )


def _admission(function: _Function, entry: Entry, row: _Row) -> Admission:
    verdict, request, task_id = Verdict(row.verdict), entry.request, row.task_id
    if verdict is Verdict.DUPLICATE:
        known = function.known(row.row)
        ended = known if known.status in FINAL_STATUSES else None
        return Admission(verdict=verdict, task_id=task_id, ended=ended)
    if verdict is not Verdict.ACCEPTED:
        seen = function.seen(row.row, request.key)
        failure = seen.error if verdict is Verdict.PROCESS_FAILED else None
        return Admission(verdict=verdict, process=seen.process, failure=failure)
    assert task_id is not None, "what is accepted is a task"
    if row.token is None:
        due_now = bool(row.free) and not function.is_gated
        return Admission(verdict=verdict, task_id=task_id, due_now=due_now)
    process: Process | None
    if request.task_type is TaskType.INIT:
        process = _new_process(request, at=row.admitted_at, init_task_id=task_id)
    else:
        process = function.seen(row.row, request.key).process
    assert process is not None, "a task was leased without its process"
    running = RunningTask(
        process=process,
        task_id=task_id,
        task_type=request.task_type,
        attempt=1,
        token=row.token,
        args=request.args,
        caller_context=request.caller_context,
        trace_context=request.trace_context,
        history_range=request.history_range,
        step_timeout=None,
        scheduled_at=row.admitted_at,
        started_at=row.admitted_at,
        first_started_at=row.admitted_at,
    )
    return Admission(verdict=verdict, task_id=task_id, running=running)
