"""A process's part in jobs, as its columns keep it."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import JobOptions, Leadership, Part, ProcessKey

_encode = msgspec.json.Encoder().encode
_NO_OPTIONS = JobOptions()


def options_text(options: JobOptions) -> bytes | None:
    """Return what a process of a job has of its own as JSON; None where it is nothing."""
    if options == _NO_OPTIONS:
        return None
    told: dict[str, Any] = {}
    if options.takes_results:
        told["takes_results"] = True
    if options.retry_policy is not None:
        told["retry"] = _policy_told(options.retry_policy)
    if options.zombie_policy is not None:
        told["zombie"] = options.zombie_policy.value
    if options.target is not None:
        told["target"] = options.target
    if options.scheduled:
        told["scheduled"] = True
    return _encode(told)


def options_of(column: Mapping[str, Any] | None) -> JobOptions:
    """Return the options of a column."""
    if not column:
        return _NO_OPTIONS
    retry, zombie = column.get("retry"), column.get("zombie")
    return JobOptions(
        takes_results=column.get("takes_results", False),
        retry_policy=None if retry is None else _policy_of(retry),
        zombie_policy=None if zombie is None else ZombiePolicy(zombie),
        target=column.get("target"),
        scheduled=column.get("scheduled", False),
    )


def part_of(column: Sequence[Any] | None) -> Part | None:
    """Return the part of the column of ``priv/functions/jobs/leaders/build_job_part.sql``."""
    if column is None:
        return None
    led_by, slot, namespace, leader_id, node, options = column
    return Part(
        led_by=None if led_by is None else Leadership(led_by),
        leader=None if leader_id is None else ProcessKey(slot, namespace, leader_id),
        node=node,
        options=options_of(options),
    )


def _policy_told(policy: RetryPolicy) -> dict[str, Any]:
    return {
        "initial": policy.initial_interval.total_seconds(),
        "coefficient": policy.coefficient,
        "max": policy.interval_max.total_seconds(),
        "jitter": policy.jitter,
        "attempts": policy.attempts_max,
        "elapsed": None if policy.elapsed_max is None else policy.elapsed_max.total_seconds(),
        "non_retryable": list(policy.non_retryable_reasons),
    }


def _policy_of(column: Mapping[str, Any]) -> RetryPolicy:
    elapsed = column["elapsed"]
    return RetryPolicy(
        initial_interval=dt.timedelta(seconds=column["initial"]),
        coefficient=column["coefficient"],
        interval_max=dt.timedelta(seconds=column["max"]),
        jitter=column["jitter"],
        attempts_max=column["attempts"],
        elapsed_max=None if elapsed is None else dt.timedelta(seconds=elapsed),
        non_retryable_reasons=tuple(column["non_retryable"]),
    )
