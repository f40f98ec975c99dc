"""Retry policies: what is wrong with one is named, all of it at once."""

import pytest
from google.protobuf import duration_pb2

from progressor import errors
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.v1 import namespace_service_pb2 as pb
from progressor.wire.policies import (
    REASON_BYTES_MAX,
    ZOMBIE_POLICY_FROM_WIRE,
    ZOMBIE_POLICY_TO_WIRE,
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
        ("p.coefficient", "0.5 is not 1 or more"),
        ("p.jitter", "2.0 is not in 0 .. 1"),
        ("p.attempts_max", "-1 is not in 1 .. 1000000"),
        ("p.initial_interval", "365 days, 0:00:01 is more than 365 days, 0:00:00"),
        ("p.interval_max", "nanos -1 do not fit 1 s"),
        ("p.elapsed_max", "-1.0 s is below 0"),
        ("p.non_retryable_reasons[1]", "257 bytes are more than 256"),
        ("p.non_retryable_reasons[2]", "has a NUL character"),
    ]


def test_both_policies_for_zombies_are_on_the_wire() -> None:
    assert set(ZOMBIE_POLICY_TO_WIRE) == set(ZombiePolicy)
    assert ZOMBIE_POLICY_FROM_WIRE == {
        pb.ZOMBIE_POLICY_RETRY: ZombiePolicy.RETRY,
        pb.ZOMBIE_POLICY_FAIL: ZombiePolicy.FAIL,
    }
