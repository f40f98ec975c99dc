"""Namespaces as tables ``[namespaces.orders]`` of the configuration file, which exist from start.

A namespace that exists is left as it is, so that an update at run time outlives a restart.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from progressor import errors
from progressor.domain.processes.namespace import (
    PAYLOAD_BYTES_CEILING,
    TURN_CEILING,
    HistoryMode,
    Namespace,
    is_namespace_name,
    is_target,
)
from progressor.domain.processes.policy import (
    REASON_BYTES_MAX,
    REASONS_MAX,
    OnError,
    RetryPolicy,
    ZombiePolicy,
)
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import RATE_MAX, SIZE_MAX, Quotas
from progressor.settings.addresses import check_address
from progressor.settings.decoding import (
    Faults,
    Given,
    decode,
    found_setting,
    given_table,
    keys_of,
    setting,
)

_YEARS = 100 * 365 * 86_400

RetriedType = Literal["init", "call", "notify", "repair", "timeout", "join", "reply"]

Interval = Annotated[dt.timedelta, Meta(ge=0.001, le=365 * 86_400)]
Rate = Annotated[int, Meta(ge=0, le=RATE_MAX)]
Size = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Retention = Annotated[dt.timedelta, Meta(ge=0, le=_YEARS)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryTable:
    """A retry policy as a table."""

    initial_interval: Interval = setting(dt.timedelta(milliseconds=200), "wait before attempt 2")
    coefficient: Annotated[float, Meta(ge=1, le=1000)] = setting(2.0, "growth of each further wait")
    interval_max: Interval = setting(dt.timedelta(seconds=30), "longest wait")
    jitter: Annotated[float, Meta(ge=0, le=1)] = setting(0.2, "random share of a wait")
    attempts_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(10, "attempts in all")
    elapsed_max: Interval | None = setting(
        None, "time that attempts and the waits between them may take; empty: no limit"
    )
    non_retryable_reasons: tuple[str, ...] = setting((), "reasons that are not retried")

    def policy(self) -> RetryPolicy:
        return RetryPolicy(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTable:
    """The quotas of a namespace as a table; 0: no limit."""

    starts_per_second: Rate = setting(0, "starts, jobs and imports; 0: no limit")
    calls_per_second: Rate = setting(0, "calls and notifies; 0: no limit")
    timers_per_second: Rate = setting(0, "timers that fire; later ones wait; 0: no limit")
    open_processes: Size = setting(0, "processes that have not finished; 0: no limit")
    bytes_per_second: Size = setting(
        0, "bytes of the arguments of starts, calls and notifies; 0: no limit"
    )

    def quotas(self) -> Quotas:
        return Quotas(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTable:
    """A namespace as a table, without its name."""

    processor_targets: Annotated[tuple[str, ...], Meta(min_length=1, max_length=32)] = setting(
        dataclasses.MISSING,  # type: ignore[arg-type]  # required
        "where the processor listens: 1 to 32 of host:port or unix:/path, used in turn",
    )
    step_timeout: Annotated[dt.timedelta, Meta(ge=0.001, le=86_400)] = setting(
        dt.timedelta(seconds=30), "timeout of one attempt of a step"
    )
    retry_policy: RetryTable = found_setting(RetryTable, "a table, see below")
    retry_policies: dict[RetriedType, RetryTable] = found_setting(
        dict, "such tables by task type: init, call, notify, repair, timeout, join"
    )
    exhausted_call_fails_alone: bool = setting(
        False,  # noqa: FBT003 - the default of a key
        "a call that has used up its attempts leaves its process unchanged",
    )
    on_error: Literal["hold", "cancel"] = setting(
        "hold", "what becomes of what waits on a process that breaks"
    )
    zombie_policy: Literal["retry", "fail"] = setting(
        "retry", "what becomes of steps whose replica is lost"
    )
    worker_count_max: Annotated[int, Meta(ge=1, le=100_000)] = setting(
        1000, "steps that one replica runs at once"
    )
    history: Literal["all", "none"] | Annotated[int, Meta(ge=1, le=100_000)] = setting(
        "all", "events that go to the processor with a task: all, none, or the last so many"
    )
    finished_process_retention: Retention | None = setting(
        None, "time until a finished process is deleted; empty: kept"
    )
    task_retention: Retention | None = setting(
        None, "time until the record of an ended task is deleted; empty: kept with its process"
    )
    payload_bytes_max: Annotated[int, Meta(ge=1, le=PAYLOAD_BYTES_CEILING)] = setting(
        2 * 1024 * 1024, "bytes of one payload"
    )
    waiting_callers_max: Annotated[int, Meta(ge=1, le=1_000_000)] = setting(
        20_000, "callers that may wait per replica"
    )
    unreachable_patience: Annotated[dt.timedelta, Meta(ge=0.001, le=30 * 86_400)] | None = setting(
        None, "time until steps fail whose processor is unreachable; empty: no limit"
    )
    step_timeout_max: Annotated[dt.timedelta, Meta(ge=0.001, le=7 * 86_400)] = setting(
        dt.timedelta(hours=1), "longest time that a step may take if it extends its deadline"
    )
    processor_credentials: str = setting(
        "",
        "name of the `[processor_credentials.NAME]` by which the processor is reached; empty: no "
        "TLS and no token",
    )
    turn_max: Annotated[int, Meta(ge=1, le=TURN_CEILING)] = setting(
        1, "waiting calls of one process that are asked and settled together; 1: one at a time"
    )
    quotas: QuotaTable = found_setting(QuotaTable, "a table, see below")
    cell: str = setting("", "the cell in which it is created; empty: the emptiest")


def decode_namespaces(given: Given) -> tuple[Namespace, ...]:
    found, faults = [], Faults()
    try:
        for name, table in given_table(given, prefix="namespaces").items():
            with faults:
                inner = given_table(table, prefix=f"namespaces.{name}")
                found.append(decode_namespace(name, inner))
        faults.raise_all()
    except errors.ConfigError as error:
        if given.where in error.description:
            raise
        raise errors.ConfigError(error.key, f"{error.description}{given.where}") from None
    return tuple(found)


def decode_namespace(name: str, given: Mapping[str, Given]) -> Namespace:
    prefix = f"namespaces.{name}"
    if not is_namespace_name(name):
        raise errors.ConfigError(prefix, f"must be 1 to 64 of [a-z0-9._-], got {name!r}")
    table = decode(NamespaceTable, given, prefix=prefix)
    faults = Faults()
    for target in table.processor_targets:
        with faults:
            _check_target(f"{prefix}.processor_targets", target)
    with faults:
        _check_credentials(f"{prefix}.processor_credentials", table.processor_credentials)
    named = {f"retry_policies.{key}": policy for key, policy in table.retry_policies.items()}
    for key, policy in {"retry_policy": table.retry_policy, **named}.items():
        with faults:
            _check_reasons(f"{prefix}.{key}", policy)
    faults.raise_all()
    fields: dict[str, Any] = {it.name: getattr(table, it.name) for it in dataclasses.fields(table)}
    history = fields.pop("history")
    is_last = isinstance(history, int)
    fields |= {
        "retry_policy": table.retry_policy.policy(),
        "quotas": table.quotas.quotas(),
        "retry_policies": {TaskType(key): it.policy() for key, it in table.retry_policies.items()},
        "on_error": OnError(table.on_error),
        "zombie_policy": ZombiePolicy(table.zombie_policy),
        "history_mode": HistoryMode.LAST if is_last else HistoryMode(history),
        "history_last": history if is_last else 0,
    }
    return Namespace(name=name, **fields)


def _check_target(key: str, target: str) -> None:
    if not is_target(target):
        # It names a missing port, and is laxer otherwise.
        check_address(key, target, port_min=1)
        raise errors.ConfigError(key, f"must be host:port or unix:/path, got {target!r}")


def _check_credentials(key: str, name: str) -> None:
    if name and not is_namespace_name(name):
        raise errors.ConfigError(key, f"must be 1 to 64 of [a-z0-9._-], got {name!r}")


def _check_reasons(prefix: str, policy: RetryTable) -> None:
    reasons = policy.non_retryable_reasons
    longest = max((len(it.encode()) for it in reasons), default=0)
    if len(reasons) > REASONS_MAX or longest > REASON_BYTES_MAX:
        got = f"{len(reasons)}" if len(reasons) > REASONS_MAX else f"one of {longest} bytes"
        raise errors.ConfigError(
            f"{prefix}.non_retryable_reasons",
            f"must be a list of 0 to {REASONS_MAX} strings of at most {REASON_BYTES_MAX} bytes, "
            f"got {got}",
        )


def differing_keys(one: Namespace, other: Namespace) -> tuple[str, ...]:
    """Return the configuration keys whose values differ between two namespaces."""
    fields = {"history": ("history_mode", "history_last")}
    return tuple(
        key.name
        for key in keys_of(NamespaceTable)
        # Where it lives is not part of what is stored with it.
        if key.field != "cell"
        and any(
            getattr(one, field) != getattr(other, field)
            for field in fields.get(key.field, (key.field,))
        )
    )
