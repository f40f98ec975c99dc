"""Admissions: requests become tasks, in batches.

The rules are in ``domain/processes/admission.py``; ``priv/functions/admission`` applies them under
the locks of the processes.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Admission, Request, Verdict
from progressor.domain.processes.process import JobOptions, Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import FINAL_STATUSES, RunningTask, TaskType
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    CommitContext,
    GroupCommit,
    Insistence,
    Waiting,
    Write,
    WriteKind,
)
from progressor.storage.postgres.arrays import (
    BoolColumn,
    ByteaColumn,
    Column,
    Float8Column,
    Int2Column,
    Int4Column,
    Int8Column,
    JsonbColumn,
    JsonColumn,
    TextColumn,
)
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.locks import Concern, find_blocked, find_locked
from progressor.storage.postgres.pools import Connection, before_sending
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.constraints import constraints_text
from progressor.storage.rows.effects import NO_EFFECTS, Effects, gate_effects
from progressor.storage.rows.job_membership import options_text, part_of
from progressor.storage.rows.tasks import AdmittedRow, AdmittedStartRow


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A request, whether a worker is reserved for it, and how long its step may then take.

    ``expires_after`` is the namespace's step timeout and grace together. ``on_sent`` is called when
    the batch with it is sent.
    """

    request: Request
    run: bool
    expires_after: dt.timedelta
    on_sent: Callable[[], None] | None = dataclasses.field(default=None, compare=False)


Admitted = tuple[Admission, Effects]


class _MissingGate(NamedTuple):
    item: int
    gate: str


class Admissions:
    """The group commits of admission: starts, and requests to existing processes.

    Those with constraints go by themselves, so that the others pay nothing for them.
    """

    def __init__(
        self,
        context: StorageContext,
        *,
        settings: Commit,
        commit: CommitContext,
    ) -> None:
        functions, statement_timeout = context.functions, context.statement_timeout
        self._context = context
        self._admit_starts = Direct(functions.call("admit_starts", AdmittedStartRow))
        self._admit_requests = Direct(functions.call("admit_requests", AdmittedRow))
        self._admit_jobs = Direct(functions.call("admit_jobs", AdmittedStartRow))
        self._admit_gated_starts = Direct(functions.call("admit_gated_starts", AdmittedStartRow))
        self._admit_gated_requests = Direct(functions.call("admit_gated_requests", AdmittedRow))
        self._find_missing_gates = Direct(functions.call("find_missing_gates", _MissingGate))

        locked = find_locked(functions, statement_timeout)
        blocked = find_blocked(functions, statement_timeout, _concern)

        def group(
            name: str,
            write: Write[Entry, Admitted],
            conflict_key: Callable[[Entry], Hashable | None] | None = None,
        ) -> GroupCommit[Entry, Admitted]:
            kind = WriteKind(
                name=name,
                write=write,
                key=_key,
                conflict_key=conflict_key,
                size=_bytes_of,
                insistence=Insistence.GIVE_UP,
                find_locked=locked,
                find_blocked=blocked,
            )
            return GroupCommit(
                kind,
                pool=context.pool,
                settings=settings,
                statement_timeout=statement_timeout,
                context=commit,
            )

        self._starts = group("admit_starts", self._write_starts)
        self._requests = group("admit_requests", self._write_requests, _equal_requests)
        self._gated_starts = group("admit_gated_starts", self._write_gated_starts)
        self._gated_requests = group(
            "admit_gated_requests", self._write_gated_requests, _equal_requests
        )
        self._jobs = group("admit_jobs", self._write_jobs)
        self._groups = (
            self._starts, self._requests, self._gated_starts, self._gated_requests, self._jobs,
        )  # fmt: skip

    def submit(self, entry: Entry) -> asyncio.Future[Admitted]:
        """Queue a request; see GroupCommit.submit. One admission has the effects of its batch."""
        starts = entry.request.task_type is TaskType.INIT
        if entry.request.constraints is not None:
            return (self._gated_starts if starts else self._gated_requests).submit(entry)
        if entry.request.led_by is not None:
            return self._jobs.submit(entry)
        return (self._starts if starts else self._requests).submit(entry)

    def waiting(self) -> Sequence[Waiting]:
        """Return what is in line, from any thread."""
        return [group.waiting for group in self._groups]

    def is_waiting(self, key: ProcessKey) -> bool:
        """Tell whether a request to a process is in line, or under way."""
        return any(group.is_waiting(key) for group in self._groups)

    async def run(self) -> None:
        """Admit until `close`."""
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                tasks.create_task(group.run(), name=group.name)

    def close(self) -> None:
        """Take no more requests."""
        for group in self._groups:
            group.close()

    async def _write_starts(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        _again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Admitted]:
        with before_sending():
            arguments = self._admit_starts.bind(**self._start_arguments(batch))
        found = await self._admit_starts.execute(connection, arguments)
        return _complete(self._started(batch, found))

    async def _write_jobs(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        _again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Admitted]:
        results = await self._without_node_gates(connection, batch)
        places = [place for place, result in enumerate(results) if result is None]
        if not places:
            return _complete(results)
        entries = [batch[place] for place in places]
        requests = [entry.request for entry in entries]
        with before_sending():
            arguments = self._admit_jobs.bind(
                **self._start_arguments(entries),
                led_by=TextColumn([request.led_by for request in requests]),
                options=JsonColumn(
                    [it.job_options and options_text(it.job_options) for it in requests]
                ),
            )
        found = await self._admit_jobs.execute(connection, arguments)
        for place, admission in zip(places, self._started(entries, found), strict=True):
            results[place] = admission
        return _complete(results)

    def _start_arguments(self, batch: Sequence[Entry]) -> dict[str, Any]:
        requests = [entry.request for entry in batch]
        _tell_sent(batch)
        return {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            **_request_columns(requests),
            "metadata": JsonbColumn([rows.json_text(request.metadata) for request in requests]),
            **_run_columns(batch),
        }

    @staticmethod
    def _started(
        batch: Sequence[Entry], found: Sequence[AdmittedStartRow]
    ) -> list[Admission | None]:
        results: list[Admission | None] = [None] * len(batch)
        for row in found:
            assert row.item is not None, "nothing here has effects on gates"
            entry = batch[row.item - 1]
            new = None
            if row.token is not None:
                assert row.task_id is not None, "a lease is of a task"
                new = _new_process(entry.request, at=row.admitted_at, init_task_id=row.task_id)
            results[row.item - 1] = _admission(entry, row, process=new, free=True)
        return results

    async def _write_requests(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        _again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Admitted]:
        requests = [entry.request for entry in batch]
        with before_sending():
            _tell_sent(batch)
            arguments = self._admit_requests.bind(
                now=self._context.clock.pinned(),
                replica_id=self._context.replica_id,
                head=Int4Column(_heads(requests)),
                task_type=TextColumn([request.task_type for request in requests]),
                **_request_columns(requests),
                **_run_columns(batch),
            )
        found = await self._admit_requests.execute(connection, arguments)
        results: list[Admission | None] = [None] * len(batch)
        for row in found:
            assert row.item is not None, "nothing here has effects on gates"
            entry = batch[row.item - 1]
            results[row.item - 1] = _admission(
                entry, row, process=_process(entry, row), free=bool(row.free)
            )
        return _complete(results)

    async def _write_gated_starts(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        _again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Admitted]:
        results = await self._without_gates(connection, batch)
        places = [place for place, result in enumerate(results) if result is None]
        if not places:
            return _complete(results)
        entries = [batch[place] for place in places]
        requests = [entry.request for entry in entries]
        with before_sending():
            _tell_sent(entries)
            arguments = self._admit_gated_starts.bind(
                **self._gated_arguments(requests),
                metadata=JsonbColumn([rows.json_text(request.metadata) for request in requests]),
            )
        effects = NO_EFFECTS
        for row in await self._admit_gated_starts.execute(connection, arguments):
            if row.item is None:
                effects |= gate_effects(row.effects)
                continue
            place = places[row.item - 1]
            results[place] = _admission(batch[place], row, process=None, free=False)
        return _complete(results, effects)

    async def _write_gated_requests(
        self,
        connection: Connection,
        batch: Sequence[Entry],
        _again: bool,  # noqa: FBT001  as the group commit calls it
    ) -> list[Admitted]:
        results = await self._without_gates(connection, batch)
        places = [place for place, result in enumerate(results) if result is None]
        if not places:
            return _complete(results)
        entries = [batch[place] for place in places]
        requests = [entry.request for entry in entries]
        with before_sending():
            _tell_sent(entries)
            arguments = self._admit_gated_requests.bind(
                **self._gated_arguments(requests),
                head=Int4Column(_heads(requests)),
                task_type=TextColumn([request.task_type for request in requests]),
            )
        effects = NO_EFFECTS
        for row in await self._admit_gated_requests.execute(connection, arguments):
            if row.item is None:
                effects |= gate_effects(row.effects)
                continue
            place = places[row.item - 1]
            process = _process(batch[place], row)
            results[place] = _admission(batch[place], row, process=process, free=False)
        return _complete(results, effects)

    def _gated_arguments(self, requests: Sequence[Request]) -> dict[str, Any]:
        return {
            "now": self._context.clock.pinned(),
            "replica_id": self._context.replica_id,
            "starvation_timeout": self._context.starvation_timeout.total_seconds(),
            **_request_columns(requests),
            "waits": BoolColumn([request.waits for request in requests]),
            "constraints": _constraints_column(requests),
        }

    async def _without_gates(
        self, connection: Connection, batch: Sequence[Entry]
    ) -> list[Admission | None]:
        """Refuse the requests that name a gate which is not there, and give it no capacity."""
        results: list[Admission | None] = [None] * len(batch)
        requests = [entry.request for entry in batch]
        with before_sending():
            is_any_required = any(
                None in request.constraints.gates.values()
                for request in requests
                if request.constraints is not None
            )
        if is_any_required:
            with before_sending():
                arguments = self._find_missing_gates.bind(
                    namespace=TextColumn([request.key.namespace for request in requests]),
                    constraints=_constraints_column(requests),
                )
            found = await self._find_missing_gates.execute(connection, arguments)
            for item, gate in found:
                results[item - 1] = Admission(verdict=Verdict.GATE_NOT_FOUND, gate=gate)
        return results

    async def _without_node_gates(
        self, connection: Connection, batch: Sequence[Entry]
    ) -> list[Admission | None]:
        """Refuse the jobs whose nodes name a gate which is not there, and give it no capacity."""
        results: list[Admission | None] = [None] * len(batch)
        named = [
            (place, namespace, Constraints(gates=dict.fromkeys(gates)))
            for place, entry in enumerate(batch)
            for namespace, gates in entry.request.node_gates.items()
        ]
        if named:
            with before_sending():
                arguments = self._find_missing_gates.bind(
                    namespace=TextColumn([namespace for _, namespace, _ in named]),
                    constraints=JsonColumn(
                        [constraints_text(constraints) for _, _, constraints in named]
                    ),
                )
            for item, gate in await self._find_missing_gates.execute(connection, arguments):
                place, namespace, _ = named[item - 1]
                results[place] = Admission(
                    verdict=Verdict.GATE_NOT_FOUND, gate=gate, gate_namespace=namespace
                )
        return results


def _constraints_column(requests: Sequence[Request]) -> Column:
    return JsonColumn([constraints_text(request.constraints) for request in requests])


def _tell_sent(batch: Sequence[Entry]) -> None:
    for entry in batch:
        if entry.on_sent is not None:
            entry.on_sent()


def _key(entry: Entry) -> ProcessKey:
    return entry.request.key


def _concern(entry: Entry) -> Concern:
    constraints = entry.request.constraints
    if constraints is None:
        return Concern(entry.request.key)
    order = None if constraints.order is None else constraints.order.key
    return Concern(entry.request.key, tuple(constraints.gates), order)


def _bytes_of(entry: Entry) -> int:
    return len(entry.request.args)


def _equal_requests(entry: Entry) -> Hashable | None:
    """Return what one batch may hold once: an idempotency key of a process.

    The second must find the first one's task.
    """
    request = entry.request
    return None if request.idempotency_key is None else (request.key, request.idempotency_key)


def _heads(requests: Sequence[Request]) -> list[int]:
    """Return for each request the position of the first one on its process, from 1."""
    heads: dict[ProcessKey, int] = {}
    return [heads.setdefault(request.key, at) for at, request in enumerate(requests, start=1)]


def _request_columns(requests: Sequence[Request]) -> dict[str, Column]:
    keys = [request.key for request in requests]
    ranges = [rows.history_columns(request.history_range) for request in requests]
    return {
        "slot": Int2Column([key.slot for key in keys]),
        "namespace": TextColumn([key.namespace for key in keys]),
        "process_id": TextColumn([key.process_id for key in keys]),
        "args": ByteaColumn([request.args for request in requests]),
        "caller_context": JsonColumn([rows.json_text(it.caller_context) for it in requests]),
        "trace_context": JsonColumn([rows.json_text(it.trace_context) for it in requests]),
        "history_after": Int8Column([after for after, _, _ in ranges]),
        "history_limit": Int4Column([limit for _, limit, _ in ranges]),
        "history_backward": BoolColumn([backward for _, _, backward in ranges]),
        "idempotency_key": TextColumn([request.idempotency_key for request in requests]),
        "fingerprint": ByteaColumn(
            [
                request.fingerprint() if request.idempotency_key is not None else None
                for request in requests
            ]
        ),
    }


def _run_columns(batch: Sequence[Entry]) -> dict[str, Column]:
    return {
        "waits": BoolColumn([entry.request.waits for entry in batch]),
        "run": BoolColumn([entry.run for entry in batch]),
        "expires_after": Float8Column([entry.expires_after.total_seconds() for entry in batch]),
    }


def _process(entry: Entry, row: AdmittedRow) -> Process | None:
    if row.process_status is None:
        return None
    return rows.process_of(entry.request.key, row, part_of(row.part))


def _new_process(request: Request, *, at: dt.datetime, init_task_id: int) -> Process:
    """Return the process that a start has just created."""
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
        result=None,
        part=_part(request),
    )


def _part(request: Request) -> Part | None:
    if request.led_by is None and request.job_options is None:
        return None
    return Part(led_by=request.led_by, options=request.job_options or JobOptions())


def _admission(
    entry: Entry, row: AdmittedStartRow | AdmittedRow, *, process: Process | None, free: bool
) -> Admission:
    verdict, request, task_id = Verdict(row.verdict), entry.request, row.task_id
    if verdict is Verdict.DUPLICATE:
        known = rows.result_of(row)
        ended = known if known.status in FINAL_STATUSES else None
        return Admission(verdict=verdict, task_id=task_id, ended=ended)
    if verdict is not Verdict.ACCEPTED:
        failure = rows.error_of(row) if verdict is Verdict.PROCESS_FAILED else None
        return Admission(verdict=verdict, process=process, failure=failure)
    assert task_id is not None, "what is accepted is a task"
    if row.token is None:
        return Admission(verdict=verdict, task_id=task_id, due_now=free)
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


def _complete(results: Sequence[Admission | None], effects: Effects = NO_EFFECTS) -> list[Admitted]:
    """Return all results of a batch; the first one has its effects."""
    complete = [(result, NO_EFFECTS) for result in results if result is not None]
    assert len(complete) == len(results), "a batch came back with items missing"
    if effects is not NO_EFFECTS:
        complete[0] = (complete[0][0], effects)
    return complete
