"""Turns a gRPC status into an error of `progressor.errors`, chosen by its ErrorInfo alone."""

import dataclasses
import datetime as dt
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from progressor import access_errors, errors, job_errors

_CODES = {it.value[0]: it for it in grpc.StatusCode}
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
    rich = _rich_status(error)
    rich.message = rich.message or error.details() or ""
    return _described(rich, target, error.code())


def _described(rich: status_pb2.Status, target: str, code: grpc.StatusCode | None) -> Status:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.BadRequest()
    has_retry = False
    for detail in rich.details:
        has_retry |= detail.Unpack(retry)
        detail.Unpack(info)
        detail.Unpack(request)
    return Status(
        target=target,
        code=code or grpc.StatusCode.UNKNOWN,
        message=rich.message,
        domain=info.domain,
        reason=info.reason,
        metadata=dict(info.metadata),
        retry_after=retry.retry_delay.ToTimedelta() if has_retry else None,
        violations=tuple(
            errors.FieldViolation(it.field, it.description) for it in request.field_violations
        ),
    )


def error_for(status: Status) -> errors.ProgressorError:
    """Return the error of a status, with its fields."""
    if status.domain == _PROCESSOR_DOMAIN:
        code, reason = status.code.value[0], status.reason
        return errors.RejectedError(
            status.message, code=code, processor_reason=reason, metadata=status.metadata
        )
    if status.domain == _ENGINE_DOMAIN and status.reason == errors.InvalidRequestError.reason:
        whole = errors.FieldViolation("request", status.message)
        return errors.InvalidRequestError(*(status.violations or (whole,)))
    if status.domain == _ENGINE_DOMAIN and status.reason in _KINDS:
        return _known(_KINDS[status.reason], status)
    if status.is_lost or status.code is grpc.StatusCode.UNAVAILABLE:
        return EngineUnavailableError(status.target, status.message)
    if status.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineExceededError(None)
    return UnexpectedStatusError(status.code, status.message, status.reason)


def error_of_status(status: status_pb2.Status) -> errors.ProgressorError:
    """Return the error of a status that came in a message."""
    return error_for(_described(status, "the engine", _CODES.get(status.code)))


def _rich_status(error: grpc.Call | grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                # A proxy corrupted the details; use the plain status.
                break
    return status_pb2.Status()


_ARGUMENTS: Mapping[str, Callable[[Status], Any]] = {
    "detail": lambda it: it.detail,
    "why": lambda it: it.detail,
    "what": lambda it: it.metadata.get("what", it.detail),
    "retry_after": lambda it: it.retry_pause,
    "failure": lambda it: errors.StepFailure(
        broken_by=it.number("broken_by") or None,
        code=it.number("failure_code") or None,
        reason=it.metadata.get("failure_reason"),
    ),
    "task": lambda it: it.metadata.get("idempotency_key") or it.number("task_id"),
}
"""The arguments of errors that are not in the metadata under their own names."""


def _known(kind: type[errors.ProgressorError], status: Status) -> errors.ProgressorError:
    arguments: dict[str, Any] = {}
    for name, it in inspect.signature(kind).parameters.items():
        if name in _ARGUMENTS:
            arguments[name] = _ARGUMENTS[name](status)
        elif it.annotation is bool:
            default = str(it.default).lower()
            arguments[name] = status.metadata.get(name, default) == "true"
        elif it.annotation is str:
            arguments[name] = status.metadata.get(name, "")
        else:
            arguments[name] = status.number(name) or (0 if it.annotation is int else None)
    return kind(**arguments)


_KINDS: Mapping[str, type[errors.ProgressorError]] = {
    it.reason: it
    for module in (errors, job_errors, access_errors)
    for it in vars(module).values()
    if inspect.isclass(it)
    and issubclass(it, errors.RequestError)
    and "reason" in vars(it)
    and it not in {errors.InvalidRequestError, errors.RejectedError}
} | {errors.StorageUnavailableError.reason: errors.StorageUnavailableError}
"""The errors of the engine by their reasons; most arguments are in the metadata by name."""
