"""Namespaces in the configuration file, for deployments that create theirs at start.

A table ``[namespaces.orders]`` has the keys below. At start a namespace that is absent is
created; one that exists is left as it is, so that an update at run time outlives a restart.
"""

# `setting` makes a new dataclasses.field for each key

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from progressor import errors
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, HistoryMode, Namespace
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.task import TaskType
from progressor.settings.addresses import check_address
from progressor.settings.decoding import Given, decode, given_table, keys_of, setting

_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_TARGETS_MAX = 32
_YEARS = 100 * 365 * 86_400
_RETRIED_TYPES = ("init", "call", "notify", "repair", "timeout", "join")

Interval = Annotated[dt.timedelta, Meta(ge=0.001, le=365 * 86_400)]
Retention = Annotated[dt.timedelta, Meta(ge=0, le=_YEARS)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryTable:
    """A retry policy as a table."""

    initial_interval: Interval = setting(dt.timedelta(milliseconds=100), "before attempt 2")
    coefficient: Annotated[float, Meta(ge=1, le=1000)] = setting(2.0, "growth of each next wait")
    interval_max: Interval = setting(dt.timedelta(seconds=30), "the longest wait")
    jitter: Annotated[float, Meta(ge=0, le=1)] = setting(0.2, "spread of a wait, as its share")
    attempts_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(8, "attempts in all")
    elapsed_max: Interval | None = setting(None, "since the first attempt; empty: no limit")
    non_retryable_reasons: tuple[str, ...] = setting((), "failures that are not retried")

    def policy(self) -> RetryPolicy:
        """Return what the engine works with."""
        return RetryPolicy(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTable:
    """A namespace as a table, without its name."""

    processor_targets: tuple[str, ...] = setting(
        (), "where the processor listens: 1 .. 32 of host:port or unix:/path, taken in turn"
    )
    step_timeout: Annotated[dt.timedelta, Meta(ge=0.001, le=86_400)] = setting(
        dt.timedelta(seconds=30), "for one attempt of a step"
    )
    retry_policy: RetryTable = dataclasses.field(
        default_factory=RetryTable, metadata={"meaning": "a table, see below"}
    )
    retry_policies: dict[str, object] = dataclasses.field(
        default_factory=dict,
        metadata={"meaning": "such tables by task type: init, call, notify, repair, timeout, join"},
    )
    exhausted_call_fails_alone: bool = setting(
        False,  # noqa: FBT003 - the default of a key
        "a call whose attempts are spent leaves its process as it was",
    )
    zombie_policy: Literal["retry", "fail"] = setting("retry", "for steps whose replica is lost")
    worker_count_max: Annotated[int, Meta(ge=1, le=100_000)] = setting(
        1000, "steps that one replica carries at once"
    )
    history: Literal["all", "none"] | Annotated[int, Meta(ge=1, le=100_000)] = setting(
        "all", "events that go with a task: all, none, or so many of the last"
    )
    finished_process_retention: Retention | None = setting(
        None, "until a finished process is deleted; empty: kept"
    )
    task_retention: Retention | None = setting(
        None, "until the record of an ended task is deleted; empty: kept with its process"
    )
    payload_bytes_max: Annotated[int, Meta(ge=1, le=PAYLOAD_BYTES_CEILING)] = setting(
        2 * 1024 * 1024, "bytes of one payload"
    )
    waiting_callers_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(
        20_000, "callers that may wait in one replica"
    )
    target_patience: Annotated[dt.timedelta, Meta(ge=0.001, le=30 * 86_400)] = setting(
        dt.timedelta(minutes=5), "until a node of a job fails whose target is unreachable"
    )


def decode_namespaces(given: Given) -> tuple[Namespace, ...]:
    """Return the namespaces of the table ``namespaces``, in its order.

    Raises:
        ConfigError: A name, a key or a value is wrong.
    """
    return tuple(
        decode_namespace(name, given_table(table, prefix=f"namespaces.{name}"))
        for name, table in given_table(given, prefix="namespaces").items()
    )


def decode_namespace(name: str, given: Mapping[str, Given]) -> Namespace:
    """Return the namespace that one table describes.

    Raises:
        ConfigError: The name, a key or a value is wrong.
    """
    prefix = f"namespaces.{name}"
    if not _NAME.fullmatch(name):
        raise errors.ConfigError(prefix, f"{name!r} is not 1..64 of [a-z0-9._-]")
    table = decode(NamespaceTable, given, prefix=prefix)
    targets = f"{prefix}.processor_targets"
    if not 1 <= len(table.processor_targets) <= _TARGETS_MAX:
        raise errors.ConfigError(
            targets, f"must name 1 .. {_TARGETS_MAX} targets, not {len(table.processor_targets)}"
        )
    for target in table.processor_targets:
        check_address(targets, target, port_min=1)
    last = table.history if isinstance(table.history, int) else 0
    return Namespace(
        name=name,
        processor_targets=table.processor_targets,
        step_timeout=table.step_timeout,
        retry_policy=table.retry_policy.policy(),
        retry_policies=_policies(given.get("retry_policies"), prefix=f"{prefix}.retry_policies"),
        exhausted_call_fails_alone=table.exhausted_call_fails_alone,
        zombie_policy=ZombiePolicy(table.zombie_policy),
        worker_count_max=table.worker_count_max,
        history_mode=HistoryMode.LAST if last else HistoryMode(str(table.history)),
        history_last=last,
        finished_process_retention=table.finished_process_retention,
        task_retention=table.task_retention,
        payload_bytes_max=table.payload_bytes_max,
        waiting_callers_max=table.waiting_callers_max,
        target_patience=table.target_patience,
    )


def differing_keys(one: Namespace, other: Namespace) -> tuple[str, ...]:
    """Return the keys of a configuration that would not be the same for two namespaces."""
    fields = {"history": ("history_mode", "history_last")}
    return tuple(
        key.name
        for key in keys_of(NamespaceTable)
        if any(
            getattr(one, field) != getattr(other, field)
            for field in fields.get(key.field, (key.field,))
        )
    )


def _policies(given: Given | None, *, prefix: str) -> dict[TaskType, RetryPolicy]:
    if given is None:
        return {}
    policies = {}
    for task_type, table in given_table(given, prefix=prefix).items():
        if task_type not in _RETRIED_TYPES:
            raise errors.ConfigError(
                f"{prefix}.{task_type}", f"{task_type!r} is none of {', '.join(_RETRIED_TYPES)}"
            )
        inner = given_table(table, prefix=f"{prefix}.{task_type}")
        decoded = decode(RetryTable, inner, prefix=f"{prefix}.{task_type}")
        policies[TaskType(task_type)] = decoded.policy()
    return policies
