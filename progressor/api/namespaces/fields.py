"""The fields of the Namespace message, with the bounds that namespace_service.proto gives them."""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from progressor.api.calls.validation import Violations, shown
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, HistoryMode, Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.task import TaskType
from progressor.v1 import namespace_service_pb2
from progressor.wire import fields as wire
from progressor.wire.policies import retry_policy_from_wire
from progressor.wire.shapes import UNSENT, Field, Shape, between

Change = Callable[[Namespace], Namespace]

TARGETS_MAX = 32
WORKERS_MAX = 100_000
HISTORY_LAST_MAX = 100_000
TARGET_PATIENCE_MAX = dt.timedelta(days=30)

_COUNT_MAX = 2**31 - 1
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
_UNIX_PATH = re.compile(r"unix:/[^\x00-\x1f\x7f]{1,106}")  # sun_path holds 107 bytes
_PORT_MAX = 65_535
_RETRIED_TYPES: Mapping[str, TaskType] = MappingProxyType(
    {
        task_type.value: task_type
        for task_type in (
            TaskType.INIT,
            TaskType.CALL,
            TaskType.NOTIFY,
            TaskType.REPAIR,
            TaskType.TIMEOUT,
            TaskType.JOIN,
        )
    }
)


def _is_target(target: str) -> bool:
    if (found := _HOST_AND_PORT.fullmatch(target)) is not None:
        return 1 <= int(found[1]) <= _PORT_MAX
    return _UNIX_PATH.fullmatch(target) is not None


def _check_targets(targets: tuple[str, ...], field: str) -> None:
    violations = Violations()
    if not 1 <= len(targets) <= TARGETS_MAX:
        violations.add(field, f"must have 1 to {TARGETS_MAX} items, got {len(targets)}")
    for index, target in enumerate(targets[:TARGETS_MAX]):
        if not _is_target(target):
            violations.add(
                f"{field}[{index}]", f"must be host:port or unix:/path, got {shown(target)}"
            )
    violations.raise_any()


def _check_retention(value: dt.timedelta, field: str) -> None:
    if value < dt.timedelta(0):
        wire.refuse(field, f"must not be negative, got {wire.duration_text(value)}")


def _policies_of(
    message: namespace_service_pb2.Namespace, path: str, _context: object
) -> dict[TaskType, RetryPolicy]:
    field, violations = f"{path}retry_policies", Violations()
    policies: dict[TaskType, RetryPolicy] = {}
    for name in sorted(message.retry_policies):
        task_type = _RETRIED_TYPES.get(name)
        if task_type is None:
            known = ", ".join(_RETRIED_TYPES)
            violations.add(field, f"unknown task type {shown(name)}; must be one of {known}")
            continue
        policy = violations.attempt(
            retry_policy_from_wire, message.retry_policies[name], f"{field}[{name!r}]"
        )
        policies[task_type] = policy or RetryPolicy()
    violations.raise_any()
    return policies


def _history_of(message: namespace_service_pb2.Namespace) -> dict[str, Any]:
    """Return the two fields that the history policy is kept in."""
    policy, field = message.history, "namespace.history"
    match policy.WhichOneof("mode"):
        case "last":
            between(1, HISTORY_LAST_MAX)(policy.last, f"{field}.last")
            return {"history_mode": HistoryMode.LAST, "history_last": policy.last}
        case "none":
            _check_true(policy.none, f"{field}.none")
            return {"history_mode": HistoryMode.NONE, "history_last": 0}
        case "all":
            _check_true(policy.all, f"{field}.all")
        case _:
            pass
    return {"history_mode": HistoryMode.ALL, "history_last": 0}


def _check_true(value: object, field: str) -> None:
    if not value:
        wire.refuse(field, "must be true where it is given")


NAMESPACE = Shape(
    Namespace,
    namespace_service_pb2.Namespace,
    processor_targets=_check_targets,
    step_timeout=Field(
        check=between(wire.STEP_TIMEOUT_MIN, wire.STEP_TIMEOUT_MAX), zero_is_default=True
    ),
    retry_policy=Field(
        read=lambda message, path, _: retry_policy_from_wire(
            message.retry_policy, f"{path}retry_policy"
        )
    ),
    retry_policies=Field(read=_policies_of),
    worker_count_max=between(1, WORKERS_MAX),
    history_mode=UNSENT,
    history_last=UNSENT,
    finished_process_retention=_check_retention,
    task_retention=_check_retention,
    payload_bytes_max=between(1, PAYLOAD_BYTES_CEILING),
    waiting_callers_max=between(1, _COUNT_MAX),
    target_patience=Field(
        check=between(wire.STEP_TIMEOUT_MIN, TARGET_PATIENCE_MAX), zero_is_default=True
    ),
)
CHANGEABLE = (
    "processor_targets",
    "step_timeout",
    "retry_policy",
    "retry_policies",
    "exhausted_call_fails_alone",
    "zombie_policy",
    "worker_count_max",
    "history",
    "finished_process_retention",
    "task_retention",
    "payload_bytes_max",
    "waiting_callers_max",
    "target_patience",
)
"""The fields of the message that a request may set, besides the name."""


def change_of(
    message: namespace_service_pb2.Namespace, paths: Iterable[str], violations: Violations
) -> Change:
    """Return what the named fields change; computed now, so that errors show before any read."""
    names = [path for path in dict.fromkeys(paths) if path in CHANGEABLE]
    plain = [name for name in names if name != "history"]
    values = violations.attempt(NAMESPACE.read_fields, message, plain, "namespace.") or {}
    if "history" in names:
        values |= violations.attempt(_history_of, message) or {}
    return lambda current: dataclasses.replace(current, **values)
