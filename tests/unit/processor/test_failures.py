"""What a gRPC status means for the step, whatever its origin."""

import dataclasses
import datetime as dt

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

from progressor.domain.processes.intent import Failed
from progressor.processor import failures


def status(
    code: grpc.StatusCode, text: str = "text", *, details: tuple[Message, ...] = ()
) -> aio.AioRpcError:
    packed = status_pb2.Status(code=code.value[0], message=text)
    for detail in details:
        packed.details.append(any_pb2.Any())
        packed.details[-1].Pack(detail)
    trailer = aio.Metadata(("grpc-status-details-bin", packed.SerializeToString()))
    return aio.AioRpcError(code, aio.Metadata(), trailer, details=text)


def retry_in(seconds: int, nanos: int = 0) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(
        retry_delay=duration_pb2.Duration(seconds=seconds, nanos=nanos)
    )


ERROR_INFO = error_details_pb2.ErrorInfo(reason="QUOTA", domain="shop")
NOT_OK = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


PATIENT = {"RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN"}
ENGINES = {
    "CANCELLED": "PROCESSOR_UNAVAILABLE",
    "DEADLINE_EXCEEDED": "STEP_TIMEOUT",
    "UNIMPLEMENTED": "PROCESSOR_UNAVAILABLE",
    "UNAUTHENTICATED": "PROCESSOR_UNAVAILABLE",
}
"""Reasons of the engine, whatever the processor says."""


@pytest.mark.parametrize("code", NOT_OK)
def test_reason_and_retry_follow_from_the_code_and_the_processor_may_give_its_own_reason(
    code: grpc.StatusCode,
) -> None:
    plain = failures.failure_of(status(code))
    explained = failures.failure_of(status(code, details=(ERROR_INFO,)))

    own = {"UNAVAILABLE": "PROCESSOR_UNAVAILABLE"} | ENGINES
    assert plain.reason == own.get(code.name, code.name)
    assert explained.reason == ENGINES.get(code.name, "QUOTA")
    assert plain.retryable == explained.retryable == (code.name in own.keys() | PATIENT)


SECOND = dt.timedelta(seconds=1)
STILL_RUNNING = failures.failure_of(
    status(
        grpc.StatusCode.ABORTED,
        "attempt 1 of task 7 is still running",
        details=(error_details_pb2.ErrorInfo(reason="STILL_RUNNING"),),
    )
)


@pytest.mark.parametrize(
    ("failed", "elapsed", "message"),
    [
        (failures.STEP_RAN_OUT, SECOND, "step timeout of 1 s exceeded"),
        (
            failures.failure_of(status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")),
            SECOND,
            "step timeout of 1 s exceeded",
        ),
        (
            failures.failure_of(status(grpc.StatusCode.DEADLINE_EXCEEDED, "the bank is slow")),
            SECOND,
            "the bank is slow",
        ),
        (
            STILL_RUNNING,
            SECOND,
            "step timeout of 1 s exceeded (attempt 1 of task 7 is still running)",
        ),
        (STILL_RUNNING, SECOND / 2, "attempt 1 of task 7 is still running"),
        (failures.processor_unavailable("gone"), SECOND, "gone"),
    ],
)
def test_a_step_that_ran_past_its_timeout_names_it(
    failed: Failed, elapsed: dt.timedelta, message: str
) -> None:
    timed = failures.out_of_time(failed, SECOND, elapsed)

    assert timed == dataclasses.replace(failed, message=message)


@pytest.mark.parametrize(
    "text",
    [
        "CLIENT: Sent message larger than max (5 vs. 4)",
        "SERVER: Received message larger than max (5 vs. 4)",
        "grpc: received message larger than max (5 vs. 4)",
        "gRPC message exceeds maximum size 4: 5",
    ],
)
def test_a_message_too_large_is_not_sent_again(text: str) -> None:
    failed = failures.failure_of(status(grpc.StatusCode.RESOURCE_EXHAUSTED, text))

    assert failed == Failed(code=8, reason="MESSAGE_TOO_LARGE", message=text, retryable=False)


def test_a_processor_that_explains_itself_is_not_taken_for_grpc() -> None:
    error = status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "order larger than max", details=(ERROR_INFO,)
    )

    assert failures.failure_of(error).retryable


@pytest.mark.parametrize(
    ("retry_info", "retry_after"),
    [
        (retry_in(3, 500_000_999), dt.timedelta(seconds=3.5)),
        (retry_in(-3, -1), dt.timedelta(0)),
        (retry_in(2**62), dt.timedelta(days=30)),
        (error_details_pb2.RetryInfo(), None),
    ],
)
def test_the_requested_retry_delay_is_bounded(
    retry_info: error_details_pb2.RetryInfo, retry_after: dt.timedelta | None
) -> None:
    error = status(grpc.StatusCode.UNAVAILABLE, details=(ERROR_INFO, retry_info))

    assert failures.failure_of(error).retry_after == retry_after


@pytest.mark.parametrize("code", NOT_OK)
def test_whatever_ends_a_stream_may_pass_for_each_of_its_steps(code: grpc.StatusCode) -> None:
    cut_off = failures.cut_off(status(code, details=(retry_in(7),)))

    assert (cut_off.code, cut_off.retryable) == (14, True)
    assert cut_off.reason == "PROCESSOR_UNAVAILABLE"
    assert cut_off.retry_after == (None if code.name == "CANCELLED" else dt.timedelta(seconds=7))
    said = failures.failure_of(status(code)).code == 14
    assert cut_off.message.endswith("text" if said else f"the stream ended with {code.name}: text")


def test_broken_details_do_not_hide_the_status() -> None:
    trailer = aio.Metadata(("grpc-status-details-bin", b"\xff\xff"))
    error = aio.AioRpcError(grpc.StatusCode.ABORTED, aio.Metadata(), trailer, details="")

    assert failures.failure_of(error) == Failed(
        code=10, reason="ABORTED", message="ABORTED", retryable=True
    )
