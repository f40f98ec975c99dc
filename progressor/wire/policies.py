"""Policies on the wire, with the limits and defaults documented in the protos."""

import datetime as dt
import math
from collections.abc import Mapping, Sequence

from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.v1 import namespace_service_pb2
from progressor.wire import fields as wire
from progressor.wire.shapes import Field, Shape, Violations, between, enum_numbers

ATTEMPTS_MAX = 1_000_000
INTERVAL_MAX = dt.timedelta(days=365)
REASONS_MAX = 100
REASON_BYTES_MAX = 256

ZOMBIE_POLICY_FROM_WIRE: Mapping[int, ZombiePolicy] = {
    number: it
    for it, number in enum_numbers(
        ZombiePolicy, namespace_service_pb2.ZombiePolicy.DESCRIPTOR
    ).items()
}


def _check_coefficient(value: float, field: str) -> None:
    if not (math.isfinite(value) and value >= 1):
        wire.refuse(field, f"must be at least 1, got {value}")


def check_not_negative(value: dt.timedelta, field: str) -> None:
    if value < dt.timedelta(0):
        wire.refuse(field, f"must not be negative, got {wire.duration_text(value)}")


def _check_reasons(reasons: Sequence[str], field: str) -> None:
    violations = Violations()
    if len(reasons) > REASONS_MAX:
        violations.add(field, wire.too_many(len(reasons), REASONS_MAX))
    for index, reason in enumerate(reasons[:REASONS_MAX]):
        place, size = f"{field}[{index}]", len(reason.encode())
        if "\0" in reason:
            violations.add(place, wire.NUL)
        if size > REASON_BYTES_MAX:
            violations.add(place, wire.too_large(size, REASON_BYTES_MAX))
    violations.raise_any()


_INTERVAL = Field(check=between(dt.timedelta(0), INTERVAL_MAX), zero_is_default=True)
RETRY_POLICY = Shape(
    RetryPolicy,
    namespace_service_pb2.RetryPolicy,
    initial_interval=_INTERVAL,
    coefficient=_check_coefficient,
    interval_max=_INTERVAL,
    jitter=between(0, 1),
    attempts_max=between(1, ATTEMPTS_MAX),
    elapsed_max=Field(check=check_not_negative, zero_is_default=True),
    non_retryable_reasons=_check_reasons,
)
retry_policy_to_wire = RETRY_POLICY.message


def retry_policy_from_wire(message: namespace_service_pb2.RetryPolicy, field: str) -> RetryPolicy:
    """Return a policy; zeros take the defaults."""
    return RETRY_POLICY.read(message, f"{field}.")
