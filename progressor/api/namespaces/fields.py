"""Each field of the Namespace message, checked against its bounds and made into a change.

The bounds and defaults are those that namespace_service.proto writes beside the fields.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from progressor.api.calls.validation import Violations, check_range, duration_from_wire, shown
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, HistoryMode, Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.task import TaskType
from progressor.v1 import namespace_service_pb2
from progressor.wire import fields as wire
from progressor.wire.policies import ZOMBIE_POLICY_FROM_WIRE, retry_policy_from_wire

Change = Callable[[Namespace], Namespace]
Decoder = Callable[[namespace_service_pb2.Namespace, Violations], Change]

TARGETS_MAX = 32
WORKERS_MAX = 100_000
HISTORY_LAST_MAX = 100_000
TARGET_PATIENCE_MAX = dt.timedelta(days=30)

_COUNT_MAX = 2**31 - 1
_DEFAULTS = Namespace(name="", processor_targets=())
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


def _check_true(value: object, field: str, violations: Violations) -> None:
    if not value:
        violations.add(field, "must be true where it is given")


def _processor_targets(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    targets = tuple(message.processor_targets)
    if not 1 <= len(targets) <= TARGETS_MAX:
        violations.add("namespace.processor_targets", f"{len(targets)} are not 1 .. {TARGETS_MAX}")
    for index, target in enumerate(targets[:TARGETS_MAX]):
        if not _is_target(target):
            field = f"namespace.processor_targets[{index}]"
            violations.add(field, f"{shown(target)} is neither host:port nor unix:/path")
    return lambda current: dataclasses.replace(current, processor_targets=targets)


def _step_timeout(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    field, value = "namespace.step_timeout", _DEFAULTS.step_timeout
    if message.HasField("step_timeout"):
        value = duration_from_wire(message.step_timeout, field, violations) or value
        if not wire.STEP_TIMEOUT_MIN <= value <= wire.STEP_TIMEOUT_MAX:
            violations.add(field, f"{value.total_seconds()} s is not in 1 ms .. 1 day")
    return lambda current: dataclasses.replace(current, step_timeout=value)


def _retry_policy(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    policy = violations.attempt(
        retry_policy_from_wire, message.retry_policy, "namespace.retry_policy"
    )
    return lambda current: dataclasses.replace(
        current, retry_policy=policy or _DEFAULTS.retry_policy
    )


def _retry_policies(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    policies: dict[TaskType, RetryPolicy] = {}
    for name in sorted(message.retry_policies):
        task_type = _RETRIED_TYPES.get(name)
        if task_type is None:
            known = ", ".join(_RETRIED_TYPES)
            field = "namespace.retry_policies"
            violations.add(field, f"{shown(name)} is none of {known}")
            continue
        field = f"namespace.retry_policies[{name!r}]"
        policy = violations.attempt(retry_policy_from_wire, message.retry_policies[name], field)
        policies[task_type] = policy or _DEFAULTS.retry_policy
    return lambda current: dataclasses.replace(current, retry_policies=policies)


def _exhausted_call_fails_alone(
    message: namespace_service_pb2.Namespace, _violations: Violations
) -> Change:
    value = message.exhausted_call_fails_alone
    return lambda current: dataclasses.replace(current, exhausted_call_fails_alone=value)


def _zombie_policy(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    policy = ZOMBIE_POLICY_FROM_WIRE.get(message.zombie_policy)
    if policy is None and message.zombie_policy:
        violations.add("namespace.zombie_policy", f"{message.zombie_policy} is not a policy")
    return lambda current: dataclasses.replace(
        current, zombie_policy=policy or _DEFAULTS.zombie_policy
    )


def _worker_count_max(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    value = message.worker_count_max or _DEFAULTS.worker_count_max
    check_range(value, "namespace.worker_count_max", WORKERS_MAX, violations)
    return lambda current: dataclasses.replace(current, worker_count_max=value)


def _history(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    mode, last = HistoryMode.ALL, 0
    policy = message.history
    match policy.WhichOneof("mode"):
        case "last":
            mode, last = HistoryMode.LAST, policy.last
            check_range(last, "namespace.history.last", HISTORY_LAST_MAX, violations)
        case "none":
            mode = HistoryMode.NONE
            _check_true(policy.none, "namespace.history.none", violations)
        case "all":
            _check_true(policy.all, "namespace.history.all", violations)
        case _:
            pass
    return lambda current: dataclasses.replace(current, history_mode=mode, history_last=last)


def _finished_process_retention(
    message: namespace_service_pb2.Namespace, violations: Violations
) -> Change:
    value = None
    if message.HasField("finished_process_retention"):
        field = "namespace.finished_process_retention"
        value = duration_from_wire(message.finished_process_retention, field, violations)
    return lambda current: dataclasses.replace(current, finished_process_retention=value)


def _task_retention(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    value = None
    if message.HasField("task_retention"):
        value = duration_from_wire(message.task_retention, "namespace.task_retention", violations)
    return lambda current: dataclasses.replace(current, task_retention=value)


def _payload_bytes_max(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    value = message.payload_bytes_max or _DEFAULTS.payload_bytes_max
    check_range(value, "namespace.payload_bytes_max", PAYLOAD_BYTES_CEILING, violations)
    return lambda current: dataclasses.replace(current, payload_bytes_max=value)


def _waiting_callers_max(
    message: namespace_service_pb2.Namespace, violations: Violations
) -> Change:
    value = message.waiting_callers_max or _DEFAULTS.waiting_callers_max
    check_range(value, "namespace.waiting_callers_max", _COUNT_MAX, violations)
    return lambda current: dataclasses.replace(current, waiting_callers_max=value)


def _target_patience(message: namespace_service_pb2.Namespace, violations: Violations) -> Change:
    field, value = "namespace.target_patience", _DEFAULTS.target_patience
    if message.HasField("target_patience"):
        value = duration_from_wire(message.target_patience, field, violations) or value
        if not wire.STEP_TIMEOUT_MIN <= value <= TARGET_PATIENCE_MAX:
            violations.add(field, f"{value.total_seconds()} s is not in 1 ms .. 30 days")
    return lambda current: dataclasses.replace(current, target_patience=value)


DECODERS: Mapping[str, Decoder] = MappingProxyType(
    {
        "processor_targets": _processor_targets,
        "step_timeout": _step_timeout,
        "retry_policy": _retry_policy,
        "retry_policies": _retry_policies,
        "exhausted_call_fails_alone": _exhausted_call_fails_alone,
        "zombie_policy": _zombie_policy,
        "worker_count_max": _worker_count_max,
        "history": _history,
        "finished_process_retention": _finished_process_retention,
        "task_retention": _task_retention,
        "payload_bytes_max": _payload_bytes_max,
        "waiting_callers_max": _waiting_callers_max,
        "target_patience": _target_patience,
    }
)
