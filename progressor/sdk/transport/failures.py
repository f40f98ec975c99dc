"""Turns a gRPC status into an error of `progressor.errors`, chosen by its ErrorInfo alone."""

import dataclasses
import datetime as dt
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from progressor import errors, job_errors

_ENGINE_DOMAIN = "progressor"
_PROCESSOR_DOMAIN = "processor"
DETAILS_KEY = "grpc-status-details-bin"
_RETRY_AFTER_DEFAULT = dt.timedelta(seconds=1)


class EngineUnavailableError(errors.ProgressorError):
    """No replica could be reached, or the connection broke or was closed during the request.

    It is unknown whether the request was accepted. A request with an idempotency key can be sent
    again with the same key.
    """

    reason = "ENGINE_UNAVAILABLE"

    def __init__(self, target: str, why: str) -> None:
        self.target, self.why = target, why
        super().__init__(f"no engine could be reached at {target}: {why}")


class UnexpectedStatusError(errors.ProgressorError):
    """A status without an error class in this SDK: from a proxy, a newer engine, or due to a bug.

    ``code`` is the gRPC status. ``engine_reason`` is the reason in its ErrorInfo, "" if it has
    none.
    """

    def __init__(self, code: grpc.StatusCode, message: str, engine_reason: str) -> None:
        self.code, self.message, self.engine_reason = code, message, engine_reason
        super().__init__(f"{code.name} {engine_reason}: {message}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a failed request, with its details."""

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
        """Whether it is unknown if the request was executed.

        A stopping gRPC server ends calls that it has not started with a bare CANCELLED.
        """
        is_bare = not self.domain
        return is_bare and self.code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}

    @property
    def detail(self) -> str:
        """The detail in the ErrorInfo, else the status message."""
        return self.metadata.get("detail", self.message)

    @property
    def retry_pause(self) -> dt.timedelta:
        """When to try again; a second if the engine did not say."""
        return _RETRY_AFTER_DEFAULT if self.retry_after is None else self.retry_after

    def number(self, key: str) -> int:
        """Return the non-negative integer under `key`, 0 if there is none."""
        text = self.metadata.get(key, "")
        return int(text) if text.isdecimal() else 0


def read_status(error: grpc.RpcError, target: str) -> Status:
    """Return the status of a failed RPC, with its rich details if it has any."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError), "gRPC raises calls as errors"
    code, message = error.code(), error.details() or ""
    rich = _rich_status(error)
    status = Status(target=target, code=code, message=rich.message or message)
    for detail in rich.details:
        status = _with_detail(status, detail)
    return status


def error_for(status: Status) -> errors.ProgressorError:
    """Return the error of a status, with its fields."""
    if status.domain == _PROCESSOR_DOMAIN:
        return _rejected(status)
    if status.domain == _ENGINE_DOMAIN and status.reason in _READERS:
        return _READERS[status.reason](status)
    if status.domain == _ENGINE_DOMAIN and status.reason in _BY_FIELDS:
        return _by_fields(_BY_FIELDS[status.reason], status)
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
                # A proxy corrupted the details; use the plain status.
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


def _by_fields(kind: type[errors.ProgressorError], status: Status) -> errors.ProgressorError:
    arguments: dict[str, Any] = {
        name: status.number(name) if it.annotation is int else status.metadata.get(name, "")
        for name, it in inspect.signature(kind).parameters.items()
    }
    return kind(**arguments)


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
        status.metadata.get("process_id", ""),
        status.detail,
        own=status.metadata.get("own") == "true",
        task_id=status.number("task_id") or None,
        failure=_step_failure(status),
    )


def _step_failed(
    kind: type[errors.RepairFailedError | errors.TaskFailedError],
) -> Callable[[Status], errors.ProgressorError]:
    return lambda status: kind(
        status.metadata.get("process_id", ""),
        status.detail,
        status.number("task_id"),
        _step_failure(status),
    )


def _step_failure(status: Status) -> errors.StepFailure:
    return errors.StepFailure(
        broken_by=status.number("broken_by") or None,
        code=status.number("failure_code") or None,
        reason=status.metadata.get("failure_reason"),
    )


def _task_not_found(status: Status) -> errors.TaskNotFoundError:
    key = status.metadata.get("idempotency_key")
    process_id = status.metadata.get("process_id", "")
    return errors.TaskNotFoundError(process_id, key or status.number("task_id"))


_READERS: Mapping[str, Callable[[Status], errors.ProgressorError]] = {
    "INVALID_REQUEST": _invalid_request,
    "TASK_NOT_FOUND": _task_not_found,
    "PROCESS_FAILED": _process_failed,
    "REPAIR_FAILED": _step_failed(errors.RepairFailedError),
    "TASK_FAILED": _step_failed(errors.TaskFailedError),
    "OVERLOADED": lambda it: errors.OverloadedError(
        it.metadata.get("what", it.detail), it.retry_pause
    ),
    "SHUTTING_DOWN": lambda it: errors.ShuttingDownError(it.retry_pause),
    "REPLICA_STOPPED": lambda it: errors.ReplicaStoppedError(it.retry_pause),
    "DEADLINE_EXCEEDED": lambda it: errors.DeadlineExceededError(it.number("task_id") or None),
    "STORAGE_UNAVAILABLE": lambda it: errors.StorageUnavailableError(it.detail, it.retry_pause),
}
"""Errors that take more than that, by their reason."""

_BY_FIELDS: Mapping[str, type[errors.ProgressorError]] = {
    it.reason: it
    for module in (errors, job_errors)
    for it in vars(module).values()
    if inspect.isclass(it)
    and issubclass(it, errors.RequestError)
    and it.reason not in {*_READERS, errors.RequestError.reason, errors.RejectedError.reason}
}
"""The other errors of requests: their arguments are the metadata, by the same names."""
