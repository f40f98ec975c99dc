"""Policies on the wire, for both codecs: with the bounds and defaults of their proto comments."""

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from google.protobuf import duration_pb2

from progressor import errors
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.v1 import namespace_service_pb2
from progressor.wire import fields as wire
from progressor.wire.shapes import Shape

ATTEMPTS_MAX = 1_000_000
INTERVAL_MAX = dt.timedelta(days=365)
REASONS_MAX = 100
REASON_BYTES_MAX = 256

ZOMBIE_POLICY_TO_WIRE: Mapping[ZombiePolicy, namespace_service_pb2.ZombiePolicy.ValueType] = (
    MappingProxyType(
        {
            ZombiePolicy.RETRY: namespace_service_pb2.ZOMBIE_POLICY_RETRY,
            ZombiePolicy.FAIL: namespace_service_pb2.ZOMBIE_POLICY_FAIL,
        }
    )
)
ZOMBIE_POLICY_FROM_WIRE: Mapping[int, ZombiePolicy] = MappingProxyType(
    {number: policy for policy, number in ZOMBIE_POLICY_TO_WIRE.items()}
)

_DEFAULTS = RetryPolicy()


def retry_policy_from_wire(message: namespace_service_pb2.RetryPolicy, field: str) -> RetryPolicy:
    """Return a policy; zeros take the defaults.

    Raises:
        InvalidRequestError: With all that is wrong with it.
    """
    found: list[errors.FieldViolation] = []
    coefficient = message.coefficient or _DEFAULTS.coefficient
    if not (math.isfinite(coefficient) and coefficient >= 1):
        found.append(_violation(f"{field}.coefficient", f"{coefficient} is not 1 or more"))
    jitter = message.jitter if message.HasField("jitter") else _DEFAULTS.jitter
    if not 0 <= jitter <= 1:
        found.append(_violation(f"{field}.jitter", f"{jitter} is not in 0 .. 1"))
    attempts_max = message.attempts_max or _DEFAULTS.attempts_max
    if not 1 <= attempts_max <= ATTEMPTS_MAX:
        description = f"{attempts_max} is not in 1 .. {ATTEMPTS_MAX}"
        found.append(_violation(f"{field}.attempts_max", description))
    # An absent duration reads as zero, and zero takes the default as well.
    initial = _interval_of(message.initial_interval, f"{field}.initial_interval", found)
    longest = _interval_of(message.interval_max, f"{field}.interval_max", found)
    elapsed_max = _duration_of(message.elapsed_max, f"{field}.elapsed_max", found)
    reasons = _reasons_of(message.non_retryable_reasons, f"{field}.non_retryable_reasons", found)
    if found:
        raise errors.InvalidRequestError(*found)
    return RetryPolicy(
        initial_interval=initial or _DEFAULTS.initial_interval,
        coefficient=coefficient,
        interval_max=longest or _DEFAULTS.interval_max,
        jitter=jitter,
        attempts_max=attempts_max,
        elapsed_max=elapsed_max or None,
        non_retryable_reasons=reasons,
    )


retry_policy_to_wire = Shape(RetryPolicy, namespace_service_pb2.RetryPolicy).message
"""Return a policy as a message, every default written out."""


def _interval_of(
    message: duration_pb2.Duration, field: str, found: list[errors.FieldViolation]
) -> dt.timedelta | None:
    interval = _duration_of(message, field, found)
    if interval is not None and interval > INTERVAL_MAX:
        found.append(_violation(field, f"{interval} is more than {INTERVAL_MAX}"))
    return interval


def _duration_of(
    message: duration_pb2.Duration, field: str, found: list[errors.FieldViolation]
) -> dt.timedelta | None:
    try:
        value = wire.duration_to_timedelta(message, field)
    except errors.InvalidRequestError as error:
        found += error.violations
        return None
    if value < dt.timedelta(0):
        found.append(_violation(field, f"{value.total_seconds()} s is below 0"))
    return value


def _reasons_of(
    messages: Sequence[str], field: str, found: list[errors.FieldViolation]
) -> tuple[str, ...]:
    if len(messages) > REASONS_MAX:
        found.append(_violation(field, f"{len(messages)} are more than {REASONS_MAX}"))
    for index, reason in enumerate(messages[:REASONS_MAX]):
        size = len(reason.encode())
        if "\0" in reason:
            found.append(_violation(f"{field}[{index}]", "has a NUL character"))
        if size > REASON_BYTES_MAX:
            description = f"{size} bytes are more than {REASON_BYTES_MAX}"
            found.append(_violation(f"{field}[{index}]", description))
    return tuple(messages)


def _violation(field: str, description: str) -> errors.FieldViolation:
    return errors.FieldViolation(field, description)
