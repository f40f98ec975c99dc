"""RetryPolicy, from protobuf to domain, with the bounds and defaults of its proto comments."""

import datetime as dt
import math

from progressor.api.validation import (
    Violations,
    check_range,
    check_text,
    duration_from_wire,
)
from progressor.domain.namespace import RetryPolicy
from progressor.v1 import namespace_service_pb2

ATTEMPTS_MAX = 1_000_000
INTERVAL_MAX = dt.timedelta(days=365)
REASONS_MAX = 100
REASON_BYTES_MAX = 256

_DEFAULTS = RetryPolicy()


def retry_policy_from_wire(
    message: namespace_service_pb2.RetryPolicy, field: str, violations: Violations
) -> RetryPolicy:
    """Return a policy; zeros take the defaults."""
    coefficient = message.coefficient or _DEFAULTS.coefficient
    if not (math.isfinite(coefficient) and coefficient >= 1):
        violations.add(f"{field}.coefficient", f"{coefficient} is not 1 or more")
    jitter = message.jitter if message.HasField("jitter") else _DEFAULTS.jitter
    if not 0 <= jitter <= 1:
        violations.add(f"{field}.jitter", f"{jitter} is not in 0 .. 1")
    attempts_max = message.attempts_max or _DEFAULTS.attempts_max
    check_range(attempts_max, f"{field}.attempts_max", ATTEMPTS_MAX, violations)
    # An absent duration reads as zero, and zero takes the default as well.
    initial = duration_from_wire(message.initial_interval, f"{field}.initial_interval", violations)
    longest = duration_from_wire(message.interval_max, f"{field}.interval_max", violations)
    for name, interval in (("initial_interval", initial), ("interval_max", longest)):
        if interval is not None and interval > INTERVAL_MAX:
            violations.add(f"{field}.{name}", f"{interval} is more than {INTERVAL_MAX}")
    elapsed_max = duration_from_wire(message.elapsed_max, f"{field}.elapsed_max", violations)
    return RetryPolicy(
        initial_interval=initial or _DEFAULTS.initial_interval,
        coefficient=coefficient,
        interval_max=longest or _DEFAULTS.interval_max,
        jitter=jitter,
        attempts_max=attempts_max,
        elapsed_max=elapsed_max or None,
        non_retryable_reasons=_reasons_of(message, f"{field}.non_retryable_reasons", violations),
    )


def _reasons_of(
    message: namespace_service_pb2.RetryPolicy, field: str, violations: Violations
) -> tuple[str, ...]:
    reasons = tuple(message.non_retryable_reasons)
    if len(reasons) > REASONS_MAX:
        violations.add(field, f"{len(reasons)} are more than {REASONS_MAX}")
    for index, reason in enumerate(reasons[:REASONS_MAX]):
        check_text(reason, f"{field}[{index}]", REASON_BYTES_MAX, violations)
    return reasons
