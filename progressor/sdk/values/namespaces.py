"""A namespace as operators see it, and its form on the wire."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from progressor.sdk.codec.wire import (
    WireEnum,
    duration_from_wire,
    duration_to_wire,
    instant_from_wire,
)
from progressor.v1 import namespace_service_pb2 as pb

_SET_BY_THE_ENGINE = frozenset({"created_at", "updated_at", "revision"})
_TARGET_PATIENCE = dt.timedelta(minutes=5)


class ZombiePolicy(WireEnum):
    """What is done with a task whose replica is presumed dead, or whose step overran."""

    UNSPECIFIED = "unspecified"
    RETRY = "retry"
    FAIL = "fail"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits between attempts: initial_interval * coefficient ** (attempt - 1).

    No wait is longer than ``interval_max``; each is spread by +/- ``jitter`` (0 .. 1) of itself.
    ``attempts_max`` counts all attempts, 1: never retried. ``elapsed_max`` counts from the first
    attempt; None: no limit.
    """

    initial_interval: dt.timedelta = dt.timedelta(milliseconds=100)
    coefficient: float = 2.0
    interval_max: dt.timedelta = dt.timedelta(seconds=30)
    jitter: float = 0.2
    attempts_max: int = 8
    elapsed_max: dt.timedelta | None = None
    non_retryable_reasons: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceConfig:
    """The configuration of a namespace; namespace_service.proto has each field's range.

    ``retry_policies`` are by task type ("init", "call", "notify", "repair", "timeout").
    ``history_last`` is how many events go to the processor with a task: None all of them, n the
    last n, 0 none. A retention of None keeps for ever. The last three fields are the engine's.
    """

    name: str
    processor_targets: tuple[str, ...]
    step_timeout: dt.timedelta = dt.timedelta(seconds=30)
    retry_policy: RetryPolicy = dataclasses.field(default_factory=RetryPolicy)
    retry_policies: Mapping[str, RetryPolicy] = dataclasses.field(default_factory=dict)
    exhausted_call_fails_alone: bool = False
    zombie_policy: ZombiePolicy = ZombiePolicy.RETRY
    worker_count_max: int = 1000
    history_last: int | None = None
    finished_process_retention: dt.timedelta | None = None
    task_retention: dt.timedelta | None = None
    payload_bytes_max: int = 2 * 1024 * 1024
    waiting_callers_max: int = 20_000
    target_patience: dt.timedelta = _TARGET_PATIENCE
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    revision: int = 0


def namespace_to_wire(config: NamespaceConfig) -> pb.Namespace:
    """Return `config` as its message, every field set, those of the engine left out."""
    return pb.Namespace(
        name=config.name,
        processor_targets=config.processor_targets,
        step_timeout=duration_to_wire(config.step_timeout),
        retry_policy=policy_to_wire(config.retry_policy),
        retry_policies={
            task_type: policy_to_wire(policy) for task_type, policy in config.retry_policies.items()
        },
        exhausted_call_fails_alone=config.exhausted_call_fails_alone,
        zombie_policy=pb.ZombiePolicy.ValueType(config.zombie_policy.number),
        worker_count_max=config.worker_count_max,
        history=_history_to_wire(config.history_last),
        finished_process_retention=_optional_duration(config.finished_process_retention),
        task_retention=_optional_duration(config.task_retention),
        payload_bytes_max=config.payload_bytes_max,
        waiting_callers_max=config.waiting_callers_max,
        target_patience=duration_to_wire(config.target_patience),
    )


def namespace_mask(fields: Iterable[str] | None) -> FieldMask:
    """Return the update mask of the named `fields` of NamespaceConfig; None: of all of them.

    Raises:
        ValueError: A name is not a field that an update can change.
    """
    known = [
        field.name
        for field in dataclasses.fields(NamespaceConfig)
        if field.name != "name" and field.name not in _SET_BY_THE_ENGINE
    ]
    chosen = known if fields is None else list(fields)
    for name in chosen:
        if name not in known:
            message = f"a namespace has no field {name!r} to update; it has {', '.join(known)}"
            raise ValueError(message)
    return FieldMask(paths=["history" if name == "history_last" else name for name in chosen])


def namespace_from_wire(message: pb.Namespace) -> NamespaceConfig:
    """Return a Namespace message as its value."""
    return NamespaceConfig(
        name=message.name,
        processor_targets=tuple(message.processor_targets),
        step_timeout=duration_from_wire(message.step_timeout),
        retry_policy=policy_from_wire(message.retry_policy),
        retry_policies={
            task_type: policy_from_wire(policy)
            for task_type, policy in message.retry_policies.items()
        },
        exhausted_call_fails_alone=message.exhausted_call_fails_alone,
        zombie_policy=ZombiePolicy.from_number(message.zombie_policy),
        worker_count_max=message.worker_count_max,
        history_last=_history_from_wire(message.history),
        finished_process_retention=(
            duration_from_wire(message.finished_process_retention)
            if message.HasField("finished_process_retention")
            else None
        ),
        task_retention=(
            duration_from_wire(message.task_retention)
            if message.HasField("task_retention")
            else None
        ),
        payload_bytes_max=message.payload_bytes_max,
        waiting_callers_max=message.waiting_callers_max,
        target_patience=(
            duration_from_wire(message.target_patience)
            if message.HasField("target_patience")
            else _TARGET_PATIENCE  # of an engine that knows of none yet
        ),
        created_at=(
            instant_from_wire(message.created_at) if message.HasField("created_at") else None
        ),
        updated_at=(
            instant_from_wire(message.updated_at) if message.HasField("updated_at") else None
        ),
        revision=message.revision,
    )


def policy_to_wire(policy: RetryPolicy) -> pb.RetryPolicy:
    """Return a retry policy as its message, every field set."""
    return pb.RetryPolicy(
        initial_interval=duration_to_wire(policy.initial_interval),
        coefficient=policy.coefficient,
        interval_max=duration_to_wire(policy.interval_max),
        jitter=policy.jitter,
        attempts_max=policy.attempts_max,
        elapsed_max=_optional_duration(policy.elapsed_max),
        non_retryable_reasons=policy.non_retryable_reasons,
    )


def policy_from_wire(message: pb.RetryPolicy) -> RetryPolicy:
    """Return a RetryPolicy message as its value."""
    return RetryPolicy(
        initial_interval=duration_from_wire(message.initial_interval),
        coefficient=message.coefficient,
        interval_max=duration_from_wire(message.interval_max),
        jitter=message.jitter,
        attempts_max=message.attempts_max,
        elapsed_max=(
            duration_from_wire(message.elapsed_max) if message.HasField("elapsed_max") else None
        ),
        non_retryable_reasons=tuple(message.non_retryable_reasons),
    )


def _history_to_wire(last: int | None) -> pb.HistoryPolicy:
    if last is None:
        return pb.HistoryPolicy(all=True)
    return pb.HistoryPolicy(last=last) if last else pb.HistoryPolicy(none=True)


def _history_from_wire(message: pb.HistoryPolicy) -> int | None:
    match message.WhichOneof("mode"):
        case "last":
            return message.last
        case "none":
            return 0
        case _:
            return None


def _optional_duration(duration: dt.timedelta | None) -> Duration | None:
    return None if duration is None else duration_to_wire(duration)
