"""The checks that requests share, and the collector that reports all violations at once."""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from progressor import errors
from progressor.domain.processes.namespace import is_namespace_name
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.wire import fields as wire

CALLER_CONTEXT_PAIRS_MAX = 64
CALLER_CONTEXT_BYTES_MAX = 8 * 1024
PAGE_SIZE_MAX = 1000
PAGE_SIZE_DEFAULT = 100
VIOLATIONS_MAX = 100

_SHOWN_MAX = 64

P = ParamSpec("P")
T = TypeVar("T")


class Violations:
    """What is wrong with one request, gathered field by field."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[errors.FieldViolation] = []

    def add(self, field: str, description: str) -> None:
        """Add a violation; those beyond the first hundred are dropped."""
        if len(self._found) < VIOLATIONS_MAX:
            self._found.append(errors.FieldViolation(field, description))

    def attempt(self, convert: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what `convert` returns; None where it refuses, which is noted."""
        try:
            return convert(*args, **kwargs)
        except errors.InvalidRequestError as error:
            for violation in error.violations:
                self.add(violation.field, violation.description)
            return None

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._found)

    def raise_any(self) -> None:
        """Pass if there are none.

        Raises:
            InvalidRequestError: With all of them.
        """
        if self._found:
            raise errors.InvalidRequestError(*self._found)


def check_namespace_name(name: str, field: str, violations: Violations) -> None:
    """Note a name that no namespace could have."""
    if not is_namespace_name(name):
        violations.add(field, f"{shown(name)} is not 1 to 64 of [a-z0-9._-]")


def check_id(value: str, field: str, violations: Violations) -> None:
    """Note an id that is not 1 .. 256 bytes without control characters."""
    if value.isascii() and value.isprintable() and 0 < len(value) <= wire.ID_BYTES_MAX:
        return
    for fault in wire.id_faults(value):
        violations.add(field, fault)


def key_from_wire(namespace: str, process_id: str, violations: Violations) -> ProcessKey:
    """Return the key of a process; worth nothing once there are violations."""
    check_namespace_name(namespace, "namespace", violations)
    check_id(process_id, "process_id", violations)
    return process_key(namespace, process_id)


def idempotency_key_from_wire(value: str, violations: Violations) -> str | None:
    """Return an idempotency key, None for an empty one."""
    if not value:
        return None
    check_id(value, "idempotency_key", violations)
    return value


def check_payload(payload: bytes, field: str, bytes_max: int, violations: Violations) -> None:
    """Note a payload that is larger than its namespace allows."""
    if len(payload) > bytes_max:
        violations.add(field, f"{len(payload)} bytes are more than {bytes_max}")


def check_text(text: str, field: str, bytes_max: int, violations: Violations) -> None:
    """Note a text that PostgreSQL cannot keep, or that is too long."""
    if "\0" in text:
        violations.add(field, "has a NUL character")
    check_payload(text.encode(), field, bytes_max, violations)


def check_range(value: int, field: str, value_max: int, violations: Violations) -> None:
    """Note a number outside 1 .. `value_max`."""
    if not 1 <= value <= value_max:
        violations.add(field, f"{value} is not in 1 .. {value_max}")


def caller_context_from_wire(pairs: Mapping[str, str], violations: Violations) -> dict[str, str]:
    """Return the caller's pairs, checked against what is stored with each task."""
    if len(pairs) > CALLER_CONTEXT_PAIRS_MAX:
        violations.add(
            "caller_context", f"{len(pairs)} pairs are more than {CALLER_CONTEXT_PAIRS_MAX}"
        )
    size = 0
    for name, value in pairs.items():
        size += len(name.encode()) + len(value.encode())
        if "\0" in name or "\0" in value:
            violations.add(f"caller_context[{shown(name)}]", "has a NUL character")
    if size > CALLER_CONTEXT_BYTES_MAX:
        violations.add("caller_context", f"{size} bytes are more than {CALLER_CONTEXT_BYTES_MAX}")
    return dict(pairs)


def metadata_from_wire(
    struct: struct_pb2.Struct, field: str, violations: Violations
) -> dict[str, object] | None:
    """Return a JSON object."""
    return violations.attempt(wire.struct_to_mapping, struct, field)


def instant_from_wire(
    timestamp: timestamp_pb2.Timestamp, field: str, violations: Violations
) -> dt.datetime | None:
    """Return an instant."""
    return violations.attempt(wire.timestamp_to_datetime, timestamp, field)


def duration_from_wire(
    duration: duration_pb2.Duration, field: str, violations: Violations
) -> dt.timedelta | None:
    """Return a duration of 0 or more."""
    value = violations.attempt(wire.duration_to_timedelta, duration, field)
    if value is not None and value < dt.timedelta(0):
        violations.add(field, f"{value.total_seconds()} s is below 0")
    return value


def process_status_from_wire(
    number: int, field: str, violations: Violations
) -> ProcessStatus | None:
    """Return a status; None for none given."""
    status = wire.PROCESS_STATUS_FROM_WIRE.get(number)
    if status is None and number:
        violations.add(field, f"{number} is not a status")
    return status


def page_size_from_wire(value: int, violations: Violations) -> int:
    """Return the items of a page, 1 .. 1,000; 0 asks for the default."""
    if not 0 <= value <= PAGE_SIZE_MAX:
        violations.add("page_size", f"{value} is not in 0 .. {PAGE_SIZE_MAX}")
    return value or PAGE_SIZE_DEFAULT


def shown(value: str) -> str:
    """Return a value as a message can show it: quoted, and cut where it is long."""
    return repr(value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "…")
