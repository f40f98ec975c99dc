"""Errors as gRPC statuses, with google.rpc details.

A client gets nothing of an internal error but an id that is in the log, nor what the driver said.
"""

import dataclasses
import datetime as dt
import itertools
import logging
import secrets
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from urllib.parse import quote

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from progressor import access_errors, errors, job_errors
from progressor.wire import fields as wire

_log = logging.getLogger(__name__)

DOMAIN = "progressor"
PROCESSOR_DOMAIN = "processor"
DETAILS_KEY = "grpc-status-details-bin"
STORAGE_UNAVAILABLE_MESSAGE = "storage is unavailable, try again"
INTERNAL_MESSAGE = "internal error"

# Of each class that has not the code of the one above it.
_OWN_CODES: Mapping[type[errors.ProgressorError], grpc.StatusCode] = {
    errors.ProgressorError: grpc.StatusCode.INTERNAL,
    errors.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    job_errors.ScheduleAlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    job_errors.ScheduleChangedError: grpc.StatusCode.ABORTED,
    errors.StateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProcessAlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.NamespaceAlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.OperationAlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.NamespaceChangedError: grpc.StatusCode.ABORTED,
    errors.GateChangedError: grpc.StatusCode.ABORTED,
    job_errors.LedByEngineError: grpc.StatusCode.UNIMPLEMENTED,
    errors.IdempotencyKeyReusedError: grpc.StatusCode.INVALID_ARGUMENT,
    access_errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    access_errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ProcessRemovedError: grpc.StatusCode.ABORTED,
    errors.ProcessTerminatedError: grpc.StatusCode.ABORTED,
    errors.TaskCancelledError: grpc.StatusCode.ABORTED,
    errors.LeaseLostError: grpc.StatusCode.ABORTED,
    # Replaces a code of the processor that gRPC does not know.
    errors.RejectedError: grpc.StatusCode.UNKNOWN,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QuotaExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ShuttingDownError: grpc.StatusCode.UNAVAILABLE,
    errors.ReplicaStoppedError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.StorageUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.StorageOverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


_MODULES = frozenset(it.__name__ for it in (errors, job_errors, access_errors))


def _codes(
    kind: type[errors.ProgressorError], above: grpc.StatusCode
) -> Iterator[tuple[type[errors.ProgressorError], grpc.StatusCode]]:
    code = _OWN_CODES.get(kind, above)
    yield kind, code
    for below in kind.__subclasses__():
        if below.__module__ in _MODULES:
            yield from _codes(below, code)


CODES = MappingProxyType(dict(_codes(errors.ProgressorError, grpc.StatusCode.INTERNAL)))
"""The code of every class of errors."""

# Error fields that are reported under their own names in ErrorInfo.metadata.
_METADATA_FIELDS = (
    "namespace", "process_id", "job_id", "own", "task_id", "broken_by", "failure_code",
    "failure_reason", "detail", "idempotency_key", "event_id", "gate", "schedule_id", "expected",
    "actual", "what", "operation_id", "principal", "right", "role", "token_id", "count_max",
    "quota", "limit", "cell",
)  # fmt: skip
_CODES_BY_NUMBER: Mapping[int, grpc.StatusCode] = MappingProxyType(
    {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
)

# gRPC clients refuse trailing metadata above 8 KiB, with an error that says nothing of ours.
_TRAILER_BYTES_MAX = 7 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class RichStatus:
    """The end of a call: what gRPC's abort takes."""

    code: grpc.StatusCode
    message: str
    details: bytes
    """A google.rpc.Status."""

    @property
    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return ((DETAILS_KEY, self.details),)


# Limits on the length of each text, and on the numbers of pairs and of violations. The first cuts
# off only what would not fit anyway.
_CLIPS = ((4096, 100), (1024, 64), (512, 16), (128, 8), (64, 0))


def code_of(error: errors.ProgressorError) -> grpc.StatusCode:
    """Return the code that an error's class, or the nearest one above it, has in the table."""
    if isinstance(error, errors.RejectedError):
        return _CODES_BY_NUMBER.get(error.code, CODES[errors.RejectedError])
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def is_internal(error: errors.ProgressorError) -> bool:
    """Return whether an error is a bug of the engine, of which a client gets only an id."""
    is_rejected = isinstance(error, errors.RejectedError)
    return not is_rejected and code_of(error) is grpc.StatusCode.INTERNAL


def status_of(error: errors.ProgressorError, *, subject: Mapping[str, str]) -> RichStatus:
    """Return how a non-internal error ends a call; `subject` fills in what it does not say."""
    if isinstance(error, errors.RejectedError):
        info = error_details_pb2.ErrorInfo(
            reason=error.processor_reason, domain=PROCESSOR_DOMAIN, metadata=error.metadata
        )
        return _bounded(code_of(error), error.message, info)
    message = str(error)
    if isinstance(error, errors.StorageUnavailableError):
        where = "" if error.cell is None else f"cell {error.cell}: "
        message = f"{where}{STORAGE_UNAVAILABLE_MESSAGE}"
    metadata = {**subject, **dict(_told(error))}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    return _bounded(code_of(error), message, info, error)


def internal_status(error_id: str) -> RichStatus:
    info = error_details_pb2.ErrorInfo(
        reason=errors.ProgressorError.reason, domain=DOMAIN, metadata={"error_id": error_id}
    )
    return _bounded(grpc.StatusCode.INTERNAL, f"{INTERNAL_MESSAGE} [{error_id}]", info)


def packed_status(error: errors.ProgressorError) -> bytes:
    """Return an error as a google.rpc.Status, for a step that asked for something."""
    if is_internal(error):
        error_id = secrets.token_hex(8)
        _log.error("call of a step failed", extra={"error_id": error_id}, exc_info=error)
        return internal_status(error_id).details
    return status_of(error, subject={}).details


def _told(error: errors.ProgressorError) -> Iterator[tuple[str, str]]:
    for field in _METADATA_FIELDS:
        value = getattr(error, field, None)
        if value is not None:
            yield field, str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(error, errors.TaskNotFoundError):
        field = "task_id" if isinstance(error.task, int) else "idempotency_key"
        yield field, str(error.task)


def _bounded(
    code: grpc.StatusCode,
    message: str,
    info: error_details_pb2.ErrorInfo,
    error: errors.ProgressorError | None = None,
) -> RichStatus:
    """Return the fullest status that a client's limit on metadata lets through."""
    text, data = "", b""
    for text_max, count_max in _CLIPS:
        text = _cut(message, text_max)
        status = status_pb2.Status(code=code.value[0], message=text)
        for detail in _details(info, error, text_max, count_max):
            status.details.add().Pack(detail)
        data = status.SerializeToString()
        # The message travels percent-encoded, the details in base64.
        if len(quote(text)) + len(data) * 4 // 3 <= _TRAILER_BYTES_MAX:
            break
    return RichStatus(code, text, data)


def _details(
    info: error_details_pb2.ErrorInfo,
    error: errors.ProgressorError | None,
    text_max: int,
    count_max: int,
) -> Iterator[Message]:
    pairs = itertools.islice(info.metadata.items(), count_max)
    yield error_details_pb2.ErrorInfo(
        reason=_cut(info.reason, text_max),
        domain=info.domain,
        metadata={_cut(k, text_max): _cut(v, text_max) for k, v in pairs},
    )
    if isinstance(error, errors.InvalidRequestError):
        bad = error_details_pb2.BadRequest()
        for it in error.violations[: max(1, count_max)]:
            bad.field_violations.add(
                field=_cut(it.field, text_max), description=_cut(it.description, text_max)
            )
        yield bad
    retry_after = getattr(error, "retry_after", None)
    if isinstance(retry_after, dt.timedelta):
        yield error_details_pb2.RetryInfo(retry_delay=wire.timedelta_to_duration(retry_after))


def _cut(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else text[: length_max - 1] + "…"
