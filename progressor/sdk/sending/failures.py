"""A gRPC status becomes an error of `progressor.errors`, told apart by its ErrorInfo alone."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from progressor import errors, job_errors

_ENGINE_DOMAIN = "progressor"
_PROCESSOR_DOMAIN = "processor"
DETAILS_KEY = "grpc-status-details-bin"
_RETRY_AFTER_DEFAULT = dt.timedelta(seconds=1)


class EngineUnavailableError(errors.ProgressorError):
    """No replica could be reached, or the connection broke or was closed while the request waited.

    Whether the request was accepted is unknown, unless it carried an idempotency key and is
    sent again with it.
    """

    reason = "ENGINE_UNAVAILABLE"

    def __init__(self, target: str, why: str) -> None:
        self.target, self.why = target, why
        super().__init__(f"no engine could be reached at {target}: {why}")


class UnexpectedStatusError(errors.ProgressorError):
    """A status that this SDK has no class for: a bug of the engine, a proxy, a newer release.

    ``code`` is the gRPC status; ``engine_reason`` the ErrorInfo's, "" where there was none.
    """

    def __init__(self, code: grpc.StatusCode, message: str, engine_reason: str) -> None:
        self.code, self.message, self.engine_reason = code, message, engine_reason
        super().__init__(f"{code.name} {engine_reason}: {message}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of a request that did not end with OK."""

    target: str
    code: grpc.StatusCode
    message: str
    domain: str = ""
    reason: str = ""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    retry_after: dt.timedelta | None = None
    violations: tuple[errors.FieldViolation, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether it is unknown what became of the request.

        A bare CANCELLED comes of a server that stops: gRPC ends what has reached it and was not
        taken up yet so.
        """
        is_bare = not self.domain
        return is_bare and self.code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}

    @property
    def namespace(self) -> str:
        """The namespace that the engine named."""
        return self.metadata.get("namespace", "")

    @property
    def process_id(self) -> str:
        """The process that the engine named."""
        return self.metadata.get("process_id", "")

    @property
    def gate(self) -> str:
        """The gate that the engine named."""
        return self.metadata.get("gate", "")

    @property
    def job_id(self) -> str:
        """The job that the engine named."""
        return self.metadata.get("job_id", "")

    @property
    def schedule_id(self) -> str:
        """The schedule that the engine named."""
        return self.metadata.get("schedule_id", "")

    @property
    def detail(self) -> str:
        """Why something failed: the processor's words, else the status message."""
        return self.metadata.get("detail", self.message)

    @property
    def retry_pause(self) -> dt.timedelta:
        """When to try again; a second where the engine did not say."""
        return _RETRY_AFTER_DEFAULT if self.retry_after is None else self.retry_after

    def number(self, key: str) -> int:
        """Return the whole number under `key`, 0 where there is none."""
        text = self.metadata.get(key, "")
        return int(text) if text.isdecimal() else 0


def read_status(error: grpc.RpcError, target: str) -> Status:
    """Return what a failed RPC says, with its rich details where it has them."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError), "gRPC raises calls as errors"
    code, message = error.code(), error.details() or ""
    rich = _rich_status(error)
    status = Status(target=target, code=code, message=rich.message or message)
    for detail in rich.details:
        status = _with_detail(status, detail)
    return status


def error_for(status: Status) -> errors.ProgressorError:
    """Return the error that `status` stands for, its fields filled."""
    if status.domain == _PROCESSOR_DOMAIN:
        return _rejected(status)
    if status.domain == _ENGINE_DOMAIN and status.reason in _BY_REASON:
        return _BY_REASON[status.reason](status)
    if status.is_lost or status.code is grpc.StatusCode.UNAVAILABLE:
        return EngineUnavailableError(status.target, status.message)
    if status.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineExceededError(None)
    return UnexpectedStatusError(status.code, status.message, status.reason)


def _rich_status(error: grpc.Call | grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                # A proxy on the way garbled it: the plain status still stands.
                break
    return status_pb2.Status()


def _with_detail(status: Status, detail: object) -> Status:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.BadRequest()
    assert hasattr(detail, "Unpack"), "google.rpc.Status carries Any messages only"
    if detail.Unpack(info):
        return dataclasses.replace(
            status, domain=info.domain, reason=info.reason, metadata=dict(info.metadata)
        )
    if detail.Unpack(retry):
        return dataclasses.replace(status, retry_after=retry.retry_delay.ToTimedelta())
    if detail.Unpack(request):
        violations = (
            errors.FieldViolation(violation.field, violation.description)
            for violation in request.field_violations
        )
        return dataclasses.replace(status, violations=tuple(violations))
    return status


def _rejected(status: Status) -> errors.RejectedError:
    return errors.RejectedError(
        status.message,
        code=status.code.value[0],
        processor_reason=status.reason,
        metadata=status.metadata,
    )


def _invalid_request(status: Status) -> errors.InvalidRequestError:
    whole = errors.FieldViolation("request", status.message)
    return errors.InvalidRequestError(*(status.violations or (whole,)))


def _process_failed(status: Status) -> errors.ProcessFailedError:
    return errors.ProcessFailedError(
        status.process_id,
        status.detail,
        own=status.metadata.get("own") == "true",
        task_id=status.number("task_id") or None,
        failure=_step_failure(status),
    )


def _step_failure(status: Status) -> errors.StepFailure:
    return errors.StepFailure(
        broken_by=status.number("broken_by") or None,
        code=status.number("failure_code") or None,
        reason=status.metadata.get("failure_reason"),
    )


def _task_not_found(status: Status) -> errors.TaskNotFoundError:
    key = status.metadata.get("idempotency_key")
    return errors.TaskNotFoundError(status.process_id, key or status.number("task_id"))


def _namespace_changed(status: Status) -> errors.NamespaceChangedError:
    return errors.NamespaceChangedError(
        status.namespace, status.number("expected"), status.number("actual")
    )


def _gate_changed(status: Status) -> errors.GateChangedError:
    return errors.GateChangedError(status.gate, status.number("expected"), status.number("actual"))


def _schedule_changed(status: Status) -> job_errors.ScheduleChangedError:
    return job_errors.ScheduleChangedError(
        status.schedule_id, status.number("expected"), status.number("actual")
    )


_BY_REASON: Mapping[str, Callable[[Status], errors.ProgressorError]] = {
    "INVALID_REQUEST": _invalid_request,
    "NAMESPACE_NOT_FOUND": lambda it: errors.NamespaceNotFoundError(it.namespace),
    "PROCESS_NOT_FOUND": lambda it: errors.ProcessNotFoundError(it.namespace, it.process_id),
    "EVENT_NOT_FOUND": lambda it: errors.EventNotFoundError(it.process_id, it.number("event_id")),
    "TASK_NOT_FOUND": _task_not_found,
    "JOB_NOT_FOUND": lambda it: job_errors.JobNotFoundError(it.namespace, it.job_id),
    "SCHEDULE_NOT_FOUND": lambda it: job_errors.ScheduleNotFoundError(it.namespace, it.schedule_id),
    "GATE_NOT_FOUND": lambda it: errors.GateNotFoundError(it.namespace, it.gate),
    "PROCESS_ALREADY_EXISTS": lambda it: errors.ProcessAlreadyExistsError(
        it.namespace, it.process_id
    ),
    "NAMESPACE_ALREADY_EXISTS": lambda it: errors.NamespaceAlreadyExistsError(it.namespace),
    "NAMESPACE_NOT_EMPTY": lambda it: errors.NamespaceNotEmptyError(it.namespace),
    "NAMESPACE_CHANGED": _namespace_changed,
    "GATE_IN_USE": lambda it: errors.GateInUseError(it.namespace, it.gate),
    "SCHEDULE_ALREADY_EXISTS": lambda it: job_errors.ScheduleAlreadyExistsError(
        it.namespace, it.schedule_id
    ),
    "SCHEDULE_CHANGED": _schedule_changed,
    "JOB_NOT_FAILED": lambda it: job_errors.JobNotFailedError(it.namespace, it.job_id),
    "LED_BY_ENGINE": lambda it: job_errors.LedByEngineError(it.namespace, it.job_id),
    "JOB_ENDED": lambda it: job_errors.JobEndedError(it.namespace, it.job_id),
    "GATE_CHANGED": _gate_changed,
    "IDEMPOTENCY_KEY_REUSED": lambda it: errors.IdempotencyKeyReusedError(
        it.process_id, it.metadata.get("idempotency_key", "")
    ),
    "PROCESS_FAILED": _process_failed,
    "PROCESS_IS_RUNNING": lambda it: errors.ProcessIsRunningError(it.process_id),
    "PROCESS_FINISHED": lambda it: errors.ProcessFinishedError(it.process_id),
    "TASK_IS_RUNNING": lambda it: errors.TaskIsRunningError(it.process_id, it.number("task_id")),
    "TASK_HAS_ENDED": lambda it: errors.TaskHasEndedError(it.process_id, it.number("task_id")),
    "REPAIR_FAILED": lambda it: errors.RepairFailedError(
        it.process_id, it.detail, it.number("task_id"), _step_failure(it)
    ),
    "TASK_FAILED": lambda it: errors.TaskFailedError(
        it.process_id, it.detail, it.number("task_id"), _step_failure(it)
    ),
    "PROCESS_REMOVED": lambda it: errors.ProcessRemovedError(it.process_id),
    "TASK_CANCELLED": lambda it: errors.TaskCancelledError(it.process_id, it.number("task_id")),
    "OVERLOADED": lambda it: errors.OverloadedError(
        it.metadata.get("what", it.detail), it.retry_pause
    ),
    "SHUTTING_DOWN": lambda it: errors.ShuttingDownError(it.retry_pause),
    "REPLICA_STOPPED": lambda it: errors.ReplicaStoppedError(it.retry_pause),
    "DEADLINE_EXCEEDED": lambda it: errors.DeadlineExceededError(it.number("task_id") or None),
    "STORAGE_UNAVAILABLE": lambda it: errors.StorageUnavailableError(it.detail, it.retry_pause),
}
