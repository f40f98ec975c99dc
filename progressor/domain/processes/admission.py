"""Admission: a request meets a process.

==============  ==================  ==================  ==================  ================
request         no such process     init                running             error
==============  ==================  ==================  ==================  ================
start           accepted            already exists      already exists      already exists
call, notify    not found           accepted            accepted            failed
repair          not found           is running          is running          accepted
==============  ==================  ==================  ==================  ================

A finished process refuses all of them (start: already exists; the others: finished). What is
accepted runs at once if the process is free and a worker is reserved. An idempotency key that is
known already is looked at first: the same request joins the earlier task, another is refused. What
would be accepted is refused if its history range starts after an event that does not exist.
"""

import dataclasses
import datetime as dt
import enum
import hashlib
from collections.abc import Mapping

from progressor.domain import values
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.event import HistoryRange, NewEvent
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import (
    JobOptions,
    Leadership,
    Process,
    ProcessKey,
    ProcessStatus,
)
from progressor.domain.processes.task import RunningTask, TaskError, TaskResult, TaskType


class Verdict(enum.StrEnum):
    """The result of admission, in the words that the functions in ``priv`` return."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    KEY_REUSED = "key_reused"
    NAMESPACE_NOT_FOUND = "namespace_not_found"
    PROCESS_NOT_FOUND = "process_not_found"
    PROCESS_ALREADY_EXISTS = "process_already_exists"
    PROCESS_FAILED = "process_failed"
    PROCESS_IS_RUNNING = "process_is_running"
    PROCESS_FINISHED = "process_finished"
    EVENT_NOT_FOUND = "event_not_found"
    NOTHING_TO_RETRY = "nothing_to_retry"
    GATE_NOT_FOUND = "gate_not_found"
    QUOTA_EXCEEDED = "quota_exceeded"
    GONE = "gone"


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A start, call, notify or repair on its way to becoming a task.

    ``waits``: a caller waits for the answer in this replica. ``metadata`` only for init,
    ``constraints`` not for repair. ``led_by`` and ``job_options`` only for the init of a job's
    leader: the graph is its args; ``node_gates``: the gates, by namespace, that must be there for
    its nodes.
    """

    key: ProcessKey
    task_type: TaskType
    args: bytes = b""
    caller_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    idempotency_key: str | None = None
    history_range: HistoryRange | None = None
    metadata: Mapping[str, object] | None = None
    waits: bool = True
    constraints: Constraints | None = None
    led_by: Leadership | None = None
    job_options: JobOptions | None = None
    node_gates: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.args)

    def fingerprint(self) -> bytes:
        """Return 16 bytes that are equal for equal requests.

        The caller's context (trace ids, say) may differ between repetitions.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.task_type}\0{self.history_range}\0".encode())
        if self.metadata:
            digest.update(repr(_sorted(self.metadata)).encode() + b"\0")
        if self.constraints is not None:
            digest.update(f"{self.constraints}\0".encode())
        if self.led_by is not None:
            digest.update(f"led by {self.led_by}\0".encode())
        digest.update(self.args)
        return digest.digest()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A process to be put as it is: status running, error or finished.

    ``timer``, and ``timers`` by their names, only with running; ``detail`` and
    ``corrupted_by_type`` only with error; ``result`` only with finished. Instants None: now.
    ``trace_context`` goes with the timers.
    """

    key: ProcessKey
    status: ProcessStatus
    previous_status: ProcessStatus | None = None
    detail: str | None = None
    corrupted_by_type: TaskType | None = None
    aux_state: bytes = b""
    metadata: Mapping[str, object] | None = None
    created_at: dt.datetime | None = None
    status_changed_at: dt.datetime | None = None
    history: tuple[NewEvent, ...] = ()
    timer: SetTimer | None = None
    result: bytes | None = None
    idempotency_key: str | None = None
    # Not in the text of which fingerprints are made: it may differ between repetitions.
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    # The same: the text of a process without a version is that of earlier releases.
    state_version: int = dataclasses.field(default=0, repr=False)
    timers: Mapping[str, SetTimer] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def task_type(self) -> TaskType:
        """As what it counts: a start."""
        return TaskType.INIT

    @property
    def size(self) -> int:
        return len(self.aux_state) + sum(len(it.payload) for it in self.history)

    def fingerprint(self) -> bytes:
        plain = dataclasses.replace(self, metadata=None)
        text = f"{plain!r}\0{_sorted(self.metadata)!r}"
        if self.state_version:
            text += f"\0state version {self.state_version}"
        if self.timers:
            text += f"\0{sorted(self.timers.items(), key=lambda it: it[0])!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The result of a request.

    ``running`` is set where the task was leased to this replica at once, ``ended`` where a
    duplicate's task has ended already. ``due_now``: it waits for a worker. ``process`` is set for
    PROCESS_FAILED, and ``failure`` if a task broke it; ``gate`` for GATE_NOT_FOUND.
    """

    verdict: Verdict
    task_id: int | None = None
    running: RunningTask | None = None
    ended: TaskResult | None = None
    due_now: bool = False
    process: Process | None = None
    failure: TaskError | None = None
    gate: str | None = None
    gate_namespace: str | None = None


def decide(
    task_type: TaskType, status: ProcessStatus | None, *, after: int = 0, last_event_id: int = 0
) -> Verdict:
    """Return the verdict on a request without a known idempotency key.

    `status` is that of the process; None: it does not exist. Its history range starts `after` an
    event; 0: at the first, or the last.
    """
    verdict = _meet(task_type, status)
    beyond = verdict is Verdict.ACCEPTED and after > last_event_id
    return Verdict.EVENT_NOT_FOUND if beyond else verdict


def _meet(task_type: TaskType, status: ProcessStatus | None) -> Verdict:
    if task_type is TaskType.INIT:
        return Verdict.ACCEPTED if status is None else Verdict.PROCESS_ALREADY_EXISTS
    if status is None:
        return Verdict.PROCESS_NOT_FOUND
    if status is ProcessStatus.FINISHED:
        return Verdict.PROCESS_FINISHED
    if task_type is TaskType.REPAIR:
        broken = status is ProcessStatus.ERROR
        return Verdict.ACCEPTED if broken else Verdict.PROCESS_IS_RUNNING
    return Verdict.PROCESS_FAILED if status is ProcessStatus.ERROR else Verdict.ACCEPTED


def _sorted(value: object) -> object:
    """Return a JSON value whose text does not depend on the order of its keys."""
    if isinstance(value, Mapping):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    if isinstance(value, list | tuple):
        return [_sorted(each) for each in value]
    return value
