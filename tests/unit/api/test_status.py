"""Errors on the wire: one table, details that clients can read, no internals."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from progressor import access_errors, errors, job_errors
from progressor.api.calls import status
from tests.support.api.sent_errors import RETRY, SENT_ERRORS


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
        if kind.__module__ in {it.__name__ for it in (errors, job_errors, access_errors)}
    }

    assert ours == set(status.CODES)


@pytest.mark.parametrize(("error", "code", "metadata"), SENT_ERRORS)
def test_an_error_is_sent_with_its_code_reason_and_fields(
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

    assert told == {type(error) for error, _, _ in SENT_ERRORS} | special


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
def test_a_transient_error_says_when_to_retry(error: errors.ProgressorError) -> None:
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


def test_the_drivers_message_is_not_sent_to_clients() -> None:
    error = errors.StorageUnavailableError("password authentication failed for user at 10.0.0.1")
    end = status.status_of(error, subject={})

    assert end.message == "storage is unavailable, try again"
    assert b"password" not in rich(end).SerializeToString()


def test_a_bug_is_reported_by_an_id_alone() -> None:
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
