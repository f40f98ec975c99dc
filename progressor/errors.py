"""Every error of progressor, in one tree, branched by who can act.

    ProgressorError
      RequestError      the caller must change the request, or learn that it cannot be
        NotFoundError   ...of a namespace, process, event, task or gate (more: job_errors)
        StateError      ...in this state of the process
      StorageError      try again later
      ConfigError       the operator must change the configuration

Errors carry fields; no caller parses their text. ``reason`` is the word on the wire, that is,
ErrorInfo.reason.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import ClassVar

_NO_METADATA: Mapping[str, str] = {}


class ProgressorError(Exception):
    """Anything that progressor raises on purpose."""

    reason: ClassVar[str] = "INTERNAL"


class RequestError(ProgressorError):
    """The caller must change the request."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a request and what is wrong with it.

    ``field`` is a path in the request, as in ``history_range.limit``; ``description`` names the
    offending value where it is short.
    """

    field: str
    description: str


class InvalidRequestError(RequestError):
    """One or more fields of the request cannot be right, whatever is stored."""

    reason = "INVALID_REQUEST"

    def __init__(self, *violations: FieldViolation) -> None:
        self.violations = violations
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))


class NotFoundError(RequestError):
    """Something that the request names does not exist."""


class NamespaceNotFoundError(NotFoundError):
    """No namespace of this name."""

    reason = "NAMESPACE_NOT_FOUND"

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"namespace {namespace!r} does not exist")


class ProcessNotFoundError(NotFoundError):
    """No process of this id in the namespace."""

    reason = "PROCESS_NOT_FOUND"

    def __init__(self, namespace: str, process_id: str) -> None:
        self.namespace, self.process_id = namespace, process_id
        super().__init__(f"process {process_id!r} does not exist in namespace {namespace!r}")


class EventNotFoundError(NotFoundError):
    """The history has no event with the id that a range starts after."""

    reason = "EVENT_NOT_FOUND"

    def __init__(self, process_id: str, event_id: int) -> None:
        self.process_id, self.event_id = process_id, event_id
        super().__init__(f"process {process_id!r} has no event {event_id}")


class TaskNotFoundError(NotFoundError):
    """The process has no task with this id or idempotency key."""

    reason = "TASK_NOT_FOUND"

    def __init__(self, process_id: str, task: int | str) -> None:
        self.process_id, self.task = process_id, task
        by = "task" if isinstance(task, int) else "task with idempotency key"
        super().__init__(f"process {process_id!r} has no {by} {task!r}")


class GateNotFoundError(NotFoundError):
    """No gate of this key in the namespace, and no capacity to make it with."""

    reason = "GATE_NOT_FOUND"

    def __init__(self, namespace: str, gate: str) -> None:
        self.namespace, self.gate = namespace, gate
        super().__init__(f"gate {gate!r} does not exist in namespace {namespace!r}")


class OperationNotFoundError(NotFoundError):
    """No bulk operation of this id."""

    reason = "OPERATION_NOT_FOUND"

    def __init__(self, operation_id: str) -> None:
        self.operation_id = operation_id
        super().__init__(f"bulk operation {operation_id!r} does not exist")


class StateError(RequestError):
    """The state of the process, task or namespace does not allow the request."""


class ProcessAlreadyExistsError(StateError):
    """Start or Put of an id that is taken."""

    reason = "PROCESS_ALREADY_EXISTS"

    def __init__(self, namespace: str, process_id: str) -> None:
        self.namespace, self.process_id = namespace, process_id
        super().__init__(f"process {process_id!r} already exists in namespace {namespace!r}")


class NamespaceAlreadyExistsError(StateError):
    """Creation of a namespace whose name is taken."""

    reason = "NAMESPACE_ALREADY_EXISTS"

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"namespace {namespace!r} already exists")


class NamespaceNotEmptyError(StateError):
    """Deletion of a namespace that still has processes."""

    reason = "NAMESPACE_NOT_EMPTY"

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"namespace {namespace!r} still has processes; remove them first")


class NamespaceChangedError(StateError):
    """An update that expected another revision of the namespace."""

    reason = "NAMESPACE_CHANGED"

    def __init__(self, namespace: str, expected: int, actual: int) -> None:
        self.namespace, self.expected, self.actual = namespace, expected, actual
        super().__init__(f"namespace {namespace!r} is at revision {actual}, not {expected}")


class NamespacePausedError(StateError):
    """The namespace is paused and refuses new requests until it is resumed.

    ``detail`` is the reason of the pause; nothing was admitted.
    """

    reason = "NAMESPACE_PAUSED"

    def __init__(self, namespace: str, detail: str, retry_after: dt.timedelta) -> None:
        self.namespace, self.detail, self.retry_after = namespace, detail, retry_after
        super().__init__(f"namespace {namespace!r} is paused and refuses requests: {detail}")


class GateChangedError(StateError):
    """A change that expected another revision of the gate."""

    reason = "GATE_CHANGED"

    def __init__(self, gate: str, expected: int, actual: int) -> None:
        self.gate, self.expected, self.actual = gate, expected, actual
        super().__init__(f"gate {gate!r} is at revision {actual}, not {expected}")


class IdempotencyKeyReusedError(StateError):
    """The idempotency key belongs to another request on this process."""

    reason = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, process_id: str, idempotency_key: str) -> None:
        self.process_id, self.idempotency_key = process_id, idempotency_key
        super().__init__(
            f"idempotency key {idempotency_key!r} of process {process_id!r} "
            "belongs to a different request"
        )


class OperationAlreadyExistsError(StateError):
    """The id of a new bulk operation is that of another one."""

    reason = "OPERATION_ALREADY_EXISTS"

    def __init__(self, operation_id: str) -> None:
        self.operation_id = operation_id
        super().__init__(f"bulk operation {operation_id!r} exists already, and is another one")


class StepFailedError(StateError):
    """A step failed, or broke its process: the step of the request, or an earlier one.

    Attributes:
        process_id: The process.
        own: The step that failed is that of this request. False: the process was broken by
            something else, and the request's step was not begun, or its outcome was not saved.
        task_id: The request's own task; None: it has none.
        broken_by: The task that broke the process; None: none did, or a job that ended or an
            import put it into error.
        failure_code: The gRPC status code of the failed step, from 1; None: no step failed.
        failure_reason: Its reason, the processor's own or the engine's; None: no step failed.
        detail: Why it failed, in words.
    """

    text: ClassVar[str]

    def __init__(
        self,
        process_id: str,
        detail: str,
        task_id: int | None = None,
        failure: "StepFailure | None" = None,
        *,
        own: bool = True,
    ) -> None:
        failure = failure or StepFailure()
        self.process_id, self.own, self.task_id = process_id, own, task_id
        self.broken_by = failure.broken_by
        self.failure_code, self.failure_reason = failure.code, failure.reason
        self.detail = detail
        super().__init__(self.text.format_map(vars(self)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """Which step failed, and how: see `StepFailedError`."""

    broken_by: int | None = None
    code: int | None = None
    reason: str | None = None


class ProcessFailedError(StepFailedError):
    """The process is in error, or went there while the request waited.

    ``own`` is True if the request's own step broke it.
    """

    reason = "PROCESS_FAILED"
    text = "process {process_id!r} is in error: {detail}"

    def __init__(
        self,
        process_id: str,
        detail: str,
        task_id: int | None = None,
        failure: StepFailure | None = None,
        *,
        own: bool = False,
    ) -> None:
        super().__init__(process_id, detail, task_id, failure, own=own)
        if own:
            broke = f"task {task_id} of this request broke process {process_id!r}"
            self.args = (f"{broke}: {detail}",)


class ProcessIsRunningError(StateError):
    """A retry or repair of a process that is not in error, or whose recovery is under way."""

    reason = "PROCESS_IS_RUNNING"

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        super().__init__(f"process {process_id!r} is not waiting for a repair")


class NothingToRetryError(StateError):
    """A retry of a process that is in error although no task broke it: repair it instead."""

    reason = "NOTHING_TO_RETRY"

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        super().__init__(f"process {process_id!r} was not broken by a task: repair it")


class ProcessFinishedError(StateError):
    """The process has completed, and takes no more requests."""

    reason = "PROCESS_FINISHED"

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        super().__init__(f"process {process_id!r} is finished")


class TaskHasEndedError(StateError):
    """The task has ended already."""

    reason = "TASK_HAS_ENDED"

    def __init__(self, process_id: str, task_id: int) -> None:
        self.process_id, self.task_id = process_id, task_id
        super().__init__(f"task {task_id} of process {process_id!r} has ended")


class LeaseLostError(StateError):
    """The step was given up, and its task may be running again: it can change nothing any more."""

    reason = "LEASE_LOST"

    def __init__(self, process_id: str = "", task_id: int | None = None) -> None:
        self.process_id, self.task_id = process_id, task_id
        of = "" if task_id is None else f" of task {task_id} of process {process_id!r}"
        super().__init__(f"the lease of the step{of} is lost")


class GateInUseError(StateError):
    """The gate is held, or tasks name it: it cannot be deleted."""

    reason = "GATE_IN_USE"

    def __init__(self, namespace: str, gate: str) -> None:
        self.namespace, self.gate = namespace, gate
        super().__init__(f"gate {gate!r} of namespace {namespace!r} is in use")


class RepairFailedError(StepFailedError):
    """The repair did not succeed; the process is in error exactly as it was.

    ``failure_code`` and ``failure_reason`` are the repair's; ``broken_by`` is the task before it
    that broke the process.
    """

    reason = "REPAIR_FAILED"
    text = "repair of process {process_id!r} failed: {detail}"


class TaskFailedError(StepFailedError):
    """The task failed alone: its attempts are spent and its process is as it was."""

    reason = "TASK_FAILED"
    text = "task {task_id} of process {process_id!r} failed: {detail}"


class ProcessRemovedError(StateError):
    """The process was removed while the request waited."""

    reason = "PROCESS_REMOVED"

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        super().__init__(f"process {process_id!r} was removed")


class ProcessTerminatedError(StateError):
    """The awaited process was terminated: it is finished without a result.

    ``detail`` is the reason that was given.
    """

    reason = "PROCESS_TERMINATED"

    def __init__(self, process_id: str, detail: str) -> None:
        self.process_id, self.detail = process_id, detail
        super().__init__(f"process {process_id!r} was terminated: {detail}")


class TaskCancelledError(StateError):
    """The task was cancelled while the request waited."""

    reason = "TASK_CANCELLED"

    def __init__(self, process_id: str, task_id: int) -> None:
        self.process_id, self.task_id = process_id, task_id
        super().__init__(f"task {task_id} of process {process_id!r} was cancelled")


class RejectedError(RequestError):
    """The processor refused the request; the process is as it was.

    ``code`` is a gRPC status code, 1 .. 16; ``processor_reason`` and ``metadata`` are the
    processor's own.
    """

    reason = "REJECTED"

    def __init__(
        self,
        message: str,
        *,
        code: int,
        processor_reason: str = "",
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> None:
        self.code, self.message = code, message
        self.processor_reason, self.metadata = processor_reason, metadata
        super().__init__(message)


class OverloadedError(RequestError):
    """A bound of the namespace or of the replica is reached; nothing was accepted."""

    reason = "OVERLOADED"

    def __init__(self, what: str, retry_after: dt.timedelta) -> None:
        self.what, self.retry_after = what, retry_after
        super().__init__(f"overloaded: {what}")


class QuotaExceededError(RequestError):
    """The namespace has used up a quota; nothing was accepted.

    ``quota`` is a field of the namespace's quotas, ``limit`` its value.
    """

    reason = "QUOTA_EXCEEDED"

    def __init__(self, namespace: str, quota: str, limit: int, retry_after: dt.timedelta) -> None:
        self.namespace, self.quota, self.limit = namespace, quota, limit
        self.retry_after = retry_after
        super().__init__(f"namespace {namespace!r} has used up its quota: {quota} is {limit}")


class ShuttingDownError(RequestError):
    """This replica is draining and did not accept the request; another one will."""

    reason = "SHUTTING_DOWN"

    def __init__(self, retry_after: dt.timedelta) -> None:
        self.retry_after = retry_after
        super().__init__("this replica is shutting down")


class ReplicaStoppedError(RequestError):
    """This replica stopped before it had the answer: whether it accepted the request is unknown."""

    reason = "REPLICA_STOPPED"

    def __init__(self, retry_after: dt.timedelta) -> None:
        self.retry_after = retry_after
        super().__init__("this replica stopped before it could reply; an accepted task continues")


class DeadlineExceededError(RequestError):
    """The caller's deadline passed; the task, where it has an id, continues.

    ``awaited``: what had not ended, such as "process 'order-1'"; "" if the caller did not wait for
    an end.
    """

    reason = "DEADLINE_EXCEEDED"

    def __init__(self, task_id: int | None, awaited: str = "") -> None:
        self.task_id, self.awaited = task_id, awaited
        tail = "no task is known" if task_id is None else f"task {task_id} continues"
        super().__init__(
            f"{awaited} had not ended when the deadline passed"
            if awaited
            else f"the deadline passed; {tail}"
        )


class StorageError(ProgressorError):
    """PostgreSQL, or the way to it, is at fault."""


class StorageUnavailableError(StorageError):
    """PostgreSQL is unreachable, or too busy to answer in time; the request may be repeated."""

    reason = "STORAGE_UNAVAILABLE"
    cell: str | None = None
    """The cell whose database it is; None: there is only one."""

    def __init__(self, why: str, retry_after: dt.timedelta = dt.timedelta(seconds=1)) -> None:
        self.why, self.retry_after = why, retry_after
        super().__init__(f"storage is unavailable: {why}")


class StorageConflictError(StorageUnavailableError):
    """PostgreSQL undid the write for the sake of another; it may be repeated at once."""


class StorageLockedError(StorageConflictError):
    """Another transaction holds a row locked for longer than a batch waits; nothing was written.

    ``row`` is the table and the place of that row; None if PostgreSQL does not name it.
    """

    row: tuple[str, str] | None = None


class StorageReadOnlyError(StorageUnavailableError):
    """PostgreSQL takes no writes: it was demoted, or is a standby. Its connections are dropped."""


class StorageIdentityError(StorageUnavailableError):
    """The database is not that of the cell for which it was configured."""


class StorageLineageError(StorageUnavailableError):
    """The database has another lineage than the one that this replica works on.

    It was restored, or a standby took over. What was acknowledged may be lost with the other one.
    """

    def __init__(self, known: int, found: int) -> None:
        self.known, self.found = known, found
        super().__init__(
            f"the database was restored or a standby took over: its epoch was {known}, and is "
            f"{found}; what was acknowledged may be lost"
        )


class StorageSchemaError(StorageUnavailableError):
    """PostgreSQL refuses the login, or what this release needs there is missing or forbidden.

    An operator has to correct that. An engine that starts ends with it. Later no request is at
    fault, so it is as if PostgreSQL were unavailable: what is decided waits.
    """


class StorageOverloadedError(StorageUnavailableError):
    """As many wait for a connection as may; nothing was done."""

    reason = "OVERLOADED"


class StorageRefusedError(StorageError):
    """PostgreSQL rejected a value: a bug of ours, isolated to one item of a batch.

    ``doubtful``: the cause may have been temporary, so another attempt is worthwhile.
    """

    reason = "INTERNAL"

    def __init__(self, why: str, *, doubtful: bool = False) -> None:
        self.doubtful = doubtful
        super().__init__(why)


class TooManyTimersError(StorageRefusedError):
    """A step would give its process more timers than a process can have."""


class MigrationError(StorageError):
    """The schema in the database is not one that this release can work with."""

    reason = "MIGRATION"


class EmbeddedPostgresError(StorageError):
    """The embedded PostgreSQL cannot be started; the message says what to do."""

    reason = "EMBEDDED_POSTGRES"


class ConfigError(ProgressorError):
    """A key of the configuration is unknown or its value is wrong."""

    reason = "CONFIGURATION"

    def __init__(self, key: str, description: str) -> None:
        self.key, self.description = key, description
        super().__init__(f"{key}: {description}")


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that ends here, and of all that it was raised from.

    A frame keeps its variables for as long as a traceback names it. Where one of them leads back to
    the error, as a future does that was awaited, only the garbage collector frees them, with
    whatever else they hold: the request, for one.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        left += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
