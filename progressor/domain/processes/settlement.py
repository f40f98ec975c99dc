"""Settlement: an outcome meets a task. What is written for it, and what happens next.

===========  =========================================  ==========================================
outcome      of                                         settlement
===========  =========================================  ==========================================
succeeded    any task; action remove                    Remove, with the response
             any task; any other action, or none        Finish
rejected     init                                       Remove, with the refusal
             call, notify, repair                       Fail: the process is as it was
rejected     the task that broke its process, run       Fail: the process is running again
             again
failed       any task, processor unreachable            Retry, the attempt not counted
             any task, retryable, attempts left         Retry
             repair                                     Fail: the process stays in error
             call, notify, attempts spent, where the    Fail
             namespace lets calls fail alone
             anything else                              Break
lost         policy retry, attempts left                Retry at once
             a job that a schedule has started          as failed for good, and its job as a whole
             policy fail, or attempts spent             as failed for good
released     any task                                   Retry at once, the attempt not counted
===========  =========================================  ==========================================

``priv/functions/settlement/settle_tasks.sql`` carries these out under the process's lock, and
decides what becomes of the queue of waiting tasks and of the timer.
"""

import dataclasses
import datetime as dt
from typing import assert_never

from progressor.domain import values
from progressor.domain.processes.intent import (
    STEP_TIMEOUT,
    STILL_RUNNING,
    Failed,
    Intent,
    Lost,
    Outcome,
    Rejected,
    Released,
    RemoveProcess,
    Succeeded,
)
from progressor.domain.processes.message import Message
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import OnError, RetryPolicy, ZombiePolicy, next_delay
from progressor.domain.processes.process import NO_OPTIONS, JobOptions
from progressor.domain.processes.task import BROKEN_BY, LeasedTask, TaskError, TaskType

ZOMBIE = "ZOMBIE"
ZOMBIE_DETECTED = "zombie detected"
_ABORTED = 10
_NOW = dt.timedelta()
_LONE_TYPES = frozenset({TaskType.CALL, TaskType.NOTIFY})


@values.dataclass(frozen=True, slots=True)
class Finish:
    """The task is finished, and all that the intent says is saved."""

    intent: Intent


@dataclasses.dataclass(frozen=True, slots=True)
class Fail:
    """The task ends in error; its process stays exactly as it is."""

    error: TaskError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The task waits `delay` for its next attempt, of which `attempt_count` are behind it.

    ``tried_for``, as in `LeasedTask`, of the next attempt. An attempt that is not counted adds
    nothing, nor does a wait that the policy does not set: for a processor that cannot be reached,
    a paused namespace, a free worker, a gate.
    """

    delay: dt.timedelta
    attempt_count: int
    error: TaskError | None
    tried_for: dt.timedelta = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True)
class Break:
    """The task ends in error and breaks its process, with its whole job if it ``fails_job``.

    What was acknowledged on the process is held until it comes back; cancelled if ``cancels``.
    ``release`` is that of the processor whose step failed, if known.
    """

    error: TaskError
    fails_job: bool = False
    cancels: bool = False
    release: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """The process is deleted; the caller gets the response or the rejection."""

    response: bytes = b""
    error: TaskError | None = None
    messages: tuple[Message, ...] = ()


Settlement = Finish | Fail | Retry | Break | Remove


def messages_of(settlement: Settlement) -> tuple[Message, ...]:
    """Return the messages that a settlement sends."""
    match settlement:
        case Finish(intent):
            return intent.messages
        case Remove(messages=messages):
            return messages
        case Fail() | Retry() | Break():
            return ()
        case _:
            assert_never(settlement)


def settle(
    task: LeasedTask,
    outcome: Outcome,
    *,
    namespace: Namespace,
    now: dt.datetime,
    spread: float,
    options: JobOptions = NO_OPTIONS,
) -> Settlement:
    """Return what is to be written for an outcome.

    `now` is on the clock of `task.started_at`; `spread`, a random number from -1 to 1, places
    a delay within the retry policy's jitter; `options` go before the namespace's policies.
    """
    elapsed = task.tried_for + (now - task.started_at)
    match outcome:
        case Succeeded(intent):
            if isinstance(intent.action, RemoveProcess):
                return Remove(response=intent.response, messages=intent.messages)
            return Finish(intent)
        case Rejected():
            return _settle_rejection(task, outcome)
        case Failed():
            policy = options.retry_policy or namespace.policy_for(task.task_type)
            delay = _delay(task, outcome, policy, elapsed=elapsed, spread=spread)
            return _settle_failure(task, outcome, delay, namespace, elapsed)
        case Lost():
            return _settle_loss(task, namespace, options, elapsed)
        case Released():
            return Retry(
                delay=_NOW, attempt_count=task.attempt - 1, error=None, tried_for=task.tried_for
            )
        case _:
            assert_never(outcome)


def _settle_rejection(task: LeasedTask, rejected: Rejected) -> Settlement:
    error = TaskError(
        code=rejected.code,
        reason=rejected.reason,
        message=rejected.message,
        rejected=True,
        metadata=rejected.metadata,
    )
    # A process whose init was rejected was never created.
    return Remove(error=error) if task.task_type is TaskType.INIT else Fail(error)


def _delay(
    task: LeasedTask, failed: Failed, policy: RetryPolicy, *, elapsed: dt.timedelta, spread: float
) -> dt.timedelta | None:
    """Return how long a failed task waits for its next attempt; None: there is none."""
    if not failed.retryable:
        return None
    if failed.unreachable:
        return failed.retry_after or _NOW
    return next_delay(
        policy,
        attempt=task.attempt,
        reason=failed.reason,
        elapsed=elapsed,
        spread=spread,
        retry_after=failed.retry_after,
    )


def _settle_failure(
    task: LeasedTask,
    failed: Failed,
    delay: dt.timedelta | None,
    namespace: Namespace,
    elapsed: dt.timedelta,
) -> Settlement:
    error = TaskError(code=failed.code, reason=failed.reason, message=failed.message)
    if delay is not None:
        count = task.attempt - failed.unreachable
        tried_for = task.tried_for if failed.unreachable else elapsed + delay
        return Retry(delay=delay, attempt_count=count, error=error, tried_for=tried_for)
    if failed.reason in {STEP_TIMEOUT, STILL_RUNNING}:
        attempts = "1 attempt" if task.attempt == 1 else f"{task.attempt} attempts"
        error = dataclasses.replace(error, message=f"{error.message}, {attempts}")
    alone = failed.retryable and namespace.exhausted_call_fails_alone
    settlement = _give_up(task, error, namespace, alone=alone)
    if isinstance(settlement, Break) and failed.release:
        return dataclasses.replace(settlement, release=failed.release)
    return settlement


def _settle_loss(
    task: LeasedTask, namespace: Namespace, options: JobOptions, elapsed: dt.timedelta
) -> Settlement:
    error = TaskError(code=_ABORTED, reason=ZOMBIE, message=ZOMBIE_DETECTED)
    policy = options.retry_policy or namespace.policy_for(task.task_type)
    zombie_policy = options.zombie_policy or namespace.zombie_policy
    if options.scheduled:
        # The schedule will start another one; lost runs must not pile up.
        given_up = _give_up(task, error, namespace, alone=False)
        if isinstance(given_up, Break):
            return dataclasses.replace(given_up, fails_job=True)
        return given_up
    if zombie_policy is ZombiePolicy.RETRY and task.attempt < policy.attempts_max:
        return Retry(delay=_NOW, attempt_count=task.attempt, error=error, tried_for=elapsed)
    return _give_up(task, error, namespace, alone=False)


def _give_up(
    task: LeasedTask, error: TaskError, namespace: Namespace, *, alone: bool
) -> Settlement:
    if task.task_type is TaskType.REPAIR:
        known = {} if task.broken_by is None else {BROKEN_BY: str(task.broken_by)}
        return Fail(dataclasses.replace(error, metadata=known))
    if alone and task.task_type in _LONE_TYPES:
        return Fail(dataclasses.replace(error, metadata={"alone": "true"}))
    return Break(error, cancels=namespace.on_error is OnError.CANCEL)
