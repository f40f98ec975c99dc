"""Retry policies: what is wrong with one is named, all of it at once."""

import pytest
from google.protobuf import duration_pb2

from progressor import errors
from progressor.domain.processes.policy import RetryPolicy
from progressor.v1 import namespace_service_pb2 as pb
from progressor.wire.policies import (
    REASON_BYTES_MAX,
    retry_policy_from_wire,
)

YEAR = 365 * 86_400


def duration(seconds: int, nanos: int = 0) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=seconds, nanos=nanos)


def test_a_policy_that_says_nothing_has_the_defaults() -> None:
    assert retry_policy_from_wire(pb.RetryPolicy(), "p") == RetryPolicy()


def test_everything_wrong_with_a_policy_is_told_at_once() -> None:
    message = pb.RetryPolicy(
        initial_interval=duration(YEAR + 1),
        coefficient=0.5,
        interval_max=duration(1, -1),
        jitter=2,
        attempts_max=-1,
        elapsed_max=duration(-1),
        non_retryable_reasons=["ok", "x" * (REASON_BYTES_MAX + 1), "\0"],
    )

    with pytest.raises(errors.InvalidRequestError) as caught:
        retry_policy_from_wire(message, "p")
    assert [(it.field, it.description) for it in caught.value.violations] == [
        ("p.initial_interval", "must be 0 s to 365 days, got 31536001 s"),
        ("p.coefficient", "must be at least 1, got 0.5"),
        ("p.interval_max", "nanos must be less than 1 s, with the sign of 1 s, got -1"),
        ("p.jitter", "must be 0 to 1, got 2.0"),
        ("p.attempts_max", "must be 1 to 1000000, got -1"),
        ("p.elapsed_max", "must not be negative, got -1 s"),
        ("p.non_retryable_reasons[1]", "must be at most 256 bytes, got 257"),
        ("p.non_retryable_reasons[2]", "must not contain a NUL character"),
    ]
