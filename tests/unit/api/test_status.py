"""Errors on the wire: one table, details that clients can read, nothing of our insides."""

import datetime as dt
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import (
    error_details_pb2,
    status_pb2,
)

from progressor import errors, job_errors
from progressor.api.calls import status

FAILURE = errors.StepFailure(broken_by=2, code=13, reason="NO_STOCK")
FAILURE_TOLD = {"broken_by": "2", "failure_code": "13", "failure_reason": "NO_STOCK"}
RETRY = dt.timedelta(milliseconds=1500)
TOLD = [
    (
        errors.NamespaceNotFoundError("n"),
        "NOT_FOUND",
        {"namespace": "n"},
    ),
    (
        errors.ProcessNotFoundError("n", "p"),
        "NOT_FOUND",
        {"namespace": "n", "process_id": "p"},
    ),
    (errors.EventNotFoundError("p", 9), "NOT_FOUND", {"process_id": "p", "event_id": "9"}),
    (errors.TaskNotFoundError("p", 9), "NOT_FOUND", {"process_id": "p", "task_id": "9"}),
    (
        errors.TaskNotFoundError("p", "k"),
        "NOT_FOUND",
        {"process_id": "p", "idempotency_key": "k"},
    ),
    (
        errors.ProcessAlreadyExistsError("n", "p"),
        "ALREADY_EXISTS",
        {"namespace": "n", "process_id": "p"},
    ),
    (errors.NamespaceAlreadyExistsError("n"), "ALREADY_EXISTS", {"namespace": "n"}),
    (errors.NamespaceNotEmptyError("n"), "FAILED_PRECONDITION", {"namespace": "n"}),
    (
        errors.NamespaceChangedError("n", 1, 2),
        "ABORTED",
        {"namespace": "n", "expected": "1", "actual": "2"},
    ),
    (errors.GateNotFoundError("n", "g"), "NOT_FOUND", {"namespace": "n", "gate": "g"}),
    (job_errors.JobNotFoundError("n", "j"), "NOT_FOUND", {"namespace": "n", "job_id": "j"}),
    (
        job_errors.JobNotFailedError("n", "j"),
        "FAILED_PRECONDITION",
        {"namespace": "n", "job_id": "j"},
    ),
    (job_errors.LedByEngineError("n", "j"), "UNIMPLEMENTED", {"namespace": "n", "job_id": "j"}),
    (job_errors.JobEndedError("n", "j"), "FAILED_PRECONDITION", {"namespace": "n", "job_id": "j"}),
    (errors.GateInUseError("n", "g"), "FAILED_PRECONDITION", {"namespace": "n", "gate": "g"}),
    (
        job_errors.ScheduleNotFoundError("n", "s"),
        "NOT_FOUND",
        {"namespace": "n", "schedule_id": "s"},
    ),
    (
        job_errors.ScheduleAlreadyExistsError("n", "s"),
        "ALREADY_EXISTS",
        {"namespace": "n", "schedule_id": "s"},
    ),
    (
        job_errors.ScheduleChangedError("s", 1, 2),
        "ABORTED",
        {"schedule_id": "s", "expected": "1", "actual": "2"},
    ),
    (
        errors.GateChangedError("g", 1, 2),
        "ABORTED",
        {"gate": "g", "expected": "1", "actual": "2"},
    ),
    (
        errors.TaskIsRunningError("p", 3),
        "FAILED_PRECONDITION",
        {"process_id": "p", "task_id": "3"},
    ),
    (
        errors.TaskHasEndedError("p", 3),
        "FAILED_PRECONDITION",
        {"process_id": "p", "task_id": "3"},
    ),
    (
        errors.IdempotencyKeyReusedError("p", "k"),
        "INVALID_ARGUMENT",
        {"process_id": "p", "idempotency_key": "k"},
    ),
    (
        errors.ProcessFailedError("p", "why", own=True, task_id=3, failure=FAILURE),
        "FAILED_PRECONDITION",
        {"process_id": "p", "detail": "why", "own": "true", "task_id": "3", **FAILURE_TOLD},
    ),
    (
        errors.ProcessFailedError("p", "why"),
        "FAILED_PRECONDITION",
        {"process_id": "p", "detail": "why", "own": "false"},
    ),
    (errors.ProcessIsRunningError("p"), "FAILED_PRECONDITION", {"process_id": "p"}),
    (errors.ProcessFinishedError("p"), "FAILED_PRECONDITION", {"process_id": "p"}),
    (
        errors.RepairFailedError("p", "why", 3, FAILURE),
        "FAILED_PRECONDITION",
        {"process_id": "p", "detail": "why", "own": "true", "task_id": "3", **FAILURE_TOLD},
    ),
    (
        errors.TaskFailedError("p", "why", 3, errors.StepFailure(code=14, reason="AWAY")),
        "FAILED_PRECONDITION",
        {
            "process_id": "p",
            "detail": "why",
            "own": "true",
            "task_id": "3",
            "failure_code": "14",
            "failure_reason": "AWAY",
        },
    ),
    (errors.ProcessRemovedError("p"), "ABORTED", {"process_id": "p"}),
    (errors.TaskCancelledError("p", 3), "ABORTED", {"process_id": "p", "task_id": "3"}),
    (errors.OverloadedError("callers", RETRY), "RESOURCE_EXHAUSTED", {"what": "callers"}),
    (errors.ShuttingDownError(RETRY), "UNAVAILABLE", {}),
    (errors.ReplicaStoppedError(RETRY), "UNAVAILABLE", {}),
    (errors.DeadlineExceededError(3), "DEADLINE_EXCEEDED", {"task_id": "3"}),
    (errors.DeadlineExceededError(None), "DEADLINE_EXCEEDED", {}),
    (errors.StorageUnavailableError("host=db", RETRY), "UNAVAILABLE", {}),
    (errors.StorageConflictError("deadlock", RETRY), "UNAVAILABLE", {}),
    (errors.StorageLockedError("its process is locked", RETRY), "UNAVAILABLE", {}),
    (errors.StorageReadOnlyError("it stands by", RETRY), "UNAVAILABLE", {}),
    (errors.StorageSchemaError("no such function", RETRY), "UNAVAILABLE", {}),
    (errors.StorageOverloadedError("1,000 wait", RETRY), "RESOURCE_EXHAUSTED", {}),
]


def subclasses(kind: type[errors.ProgressorError]) -> Iterator[type[errors.ProgressorError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


def rich(end: status.RichStatus) -> status_pb2.Status:
    ((key, data),) = end.trailing_metadata
    assert key == "grpc-status-details-bin"
    assert isinstance(data, bytes)
    parsed = status_pb2.Status.FromString(data)
    assert (parsed.code, parsed.message) == (end.code.value[0], end.message)
    return parsed


def detail(end: status.RichStatus, kind: type[Message]) -> Message | None:
    for packed in rich(end).details:
        found = kind()
        if packed.Unpack(found):
            return found
    return None


def info_of(end: status.RichStatus) -> error_details_pb2.ErrorInfo:
    info = detail(end, error_details_pb2.ErrorInfo)
    assert info is not None
    return info


def test_every_error_class_has_a_row_in_the_table() -> None:
    ours = {
        kind
        for kind in subclasses(errors.ProgressorError)
        if kind.__module__ in {errors.__name__, job_errors.__name__}
    }

    assert ours == set(status.CODES)


@pytest.mark.parametrize(("error", "code", "metadata"), TOLD)
def test_an_error_is_told_by_code_reason_and_fields(
    error: errors.ProgressorError, code: str, metadata: dict[str, str]
) -> None:
    end = status.status_of(error, subject={})
    info = info_of(end)

    assert not status.is_internal(error)
    assert end.code is grpc.StatusCode[code]
    assert (info.reason, info.domain) == (error.reason, "progressor")
    assert dict(info.metadata) == metadata


def test_every_error_that_is_told_is_tried_above() -> None:
    special = {errors.InvalidRequestError, errors.RejectedError}
    above_others = {
        errors.RequestError, errors.NotFoundError, errors.StateError, errors.StepFailedError,
    }  # fmt: skip
    told = {
        kind
        for kind in status.CODES
        if kind not in above_others and status.CODES[kind] is not grpc.StatusCode.INTERNAL
    }

    assert told == {type(error) for error, _, _ in TOLD} | special


def test_the_subject_fills_in_what_the_error_does_not_say() -> None:
    subject = {"namespace": "n", "process_id": "other"}
    end = status.status_of(errors.ProcessFinishedError("p"), subject=subject)

    assert dict(info_of(end).metadata) == {"namespace": "n", "process_id": "p"}


@pytest.mark.parametrize(
    "error",
    [
        errors.OverloadedError("callers", RETRY),
        errors.ShuttingDownError(RETRY),
        errors.StorageUnavailableError("why", RETRY),
    ],
)
def test_what_passes_says_when_to_try_again(error: errors.ProgressorError) -> None:
    retry = detail(status.status_of(error, subject={}), error_details_pb2.RetryInfo)

    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta() == RETRY


def test_each_violation_is_named() -> None:
    error = errors.InvalidRequestError(
        errors.FieldViolation("args", "too long"), errors.FieldViolation("process_id", "is empty")
    )
    end = status.status_of(error, subject={})
    bad = detail(end, error_details_pb2.BadRequest)

    assert end.code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in bad.field_violations] == [
        ("args", "too long"),
        ("process_id", "is empty"),
    ]


def test_what_the_driver_said_of_storage_stays_here() -> None:
    error = errors.StorageUnavailableError("password authentication failed for user at 10.0.0.1")
    end = status.status_of(error, subject={})

    assert end.message == "storage is unavailable, try again"
    assert b"password" not in rich(end).SerializeToString()


def test_a_bug_is_told_by_an_id_alone() -> None:
    end = status.internal_status("0123abcd")

    assert end.code is grpc.StatusCode.INTERNAL
    assert end.message == "internal error [0123abcd]"
    assert info_of(end).reason == "INTERNAL"
    assert info_of(end).metadata["error_id"] == "0123abcd"


@pytest.mark.parametrize("code", range(1, 17))
def test_a_rejection_is_exactly_the_processors(code: int) -> None:
    error = errors.RejectedError(
        "残高\n不足", code=code, processor_reason="NO_MONEY", metadata={"a": "b"}
    )
    end = status.status_of(error, subject={"namespace": "n"})
    info = info_of(end)

    assert not status.is_internal(error)
    assert end.code.value[0] == code
    assert end.message == "残高\n不足"
    assert (info.domain, info.reason, dict(info.metadata)) == ("processor", "NO_MONEY", {"a": "b"})


@pytest.mark.parametrize("size", [100, 1_000, 10_000])
@pytest.mark.parametrize("letter", ["x", "残", "👩", "\n"])
def test_no_error_is_larger_than_the_metadata_that_clients_take(letter: str, size: int) -> None:
    text = letter * size
    violations = [errors.FieldViolation(text, text)] * 100
    rejection = errors.RejectedError(
        text, code=3, processor_reason=text, metadata={f"{i}{text}": text for i in range(64)}
    )
    ends = [
        status.status_of(errors.ProcessFailedError("p" * 256, text), subject={}),
        status.status_of(errors.InvalidRequestError(*violations), subject={}),
        status.status_of(rejection, subject={}),
    ]

    for end in ends:
        rich(end)
        assert len(end.trailing_metadata[0][1]) * 4 / 3 < 7168
        assert end.message
