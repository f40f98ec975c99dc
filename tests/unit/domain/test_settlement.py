"""Settlement: the table of outcomes and tasks, and the policies that decide about retries."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from progressor.domain.processes.intent import (
    Complete,
    KeepTimer,
    Lost,
    Outcome,
    Rejected,
    RemoveProcess,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy, next_delay
from progressor.domain.processes.process import JobOptions, ProcessStatus
from progressor.domain.processes.settlement import (
    ZOMBIE,
    ZOMBIE_DETECTED,
    Break,
    Fail,
    Finish,
    Remove,
    Retry,
    Settlement,
    settle,
)
from progressor.domain.processes.task import RunningTask, TaskError, TaskType
from tests.support.builders import (
    Decision,
    make_failure,
    make_namespace,
    make_process,
    make_success,
    make_task,
    seconds,
)
from tests.support.clock import START

POLICY = RetryPolicy(initial_interval=seconds(2), jitter=0.5, attempts_max=3)
NAMESPACE = make_namespace(retry_policy=POLICY)
FAILS_ZOMBIES = make_namespace(retry_policy=POLICY, zombie_policy=ZombiePolicy.FAIL)
REJECTED = Rejected(code=9, message="no", reason="CLOSED", metadata={"a": "b"})
REFUSAL = TaskError(code=9, reason="CLOSED", message="no", rejected=True, metadata={"a": "b"})
AWAY = TaskError(code=14, reason="PROCESSOR_UNAVAILABLE", message="connection refused")
ALL_BUT_REPAIR = tuple(task_type for task_type in TaskType if task_type is not TaskType.REPAIR)


def settlement_of(
    outcome: Outcome,
    task: RunningTask | None = None,
    *,
    namespace: Namespace = NAMESPACE,
    **arguments: Any,
) -> Any:
    chosen: dict[str, Any] = {"namespace": namespace, "now": START, "spread": 0.0} | arguments
    found: Settlement = settle(task or make_task(), outcome, **chosen)
    return found


@pytest.mark.parametrize(
    "decided", [KeepTimer(), SetTimer(after=seconds(1)), UnsetTimer(), Complete(b"end")], ids=repr
)
def test_a_success_finishes_the_task_with_its_whole_intent(decided: Decision) -> None:
    outcome = make_success(decided)

    assert settlement_of(outcome) == Finish(outcome.intent)


def test_a_success_with_remove_removes_the_process_and_answers() -> None:
    outcome = make_success(RemoveProcess(), response=b"bye")

    assert settlement_of(outcome) == Remove(response=b"bye")


@pytest.mark.parametrize("task_type", [TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR])
def test_a_rejected_request_fails_alone_with_the_processors_words(task_type: TaskType) -> None:
    assert settlement_of(REJECTED, make_task(task_type=task_type)) == Fail(REFUSAL)


@pytest.mark.parametrize("task_type", TaskType)
@pytest.mark.parametrize(("spread", "delay"), [(0.0, 4), (-1.0, 2), (1.0, 6)])
def test_a_retryable_failure_waits_for_the_next_attempt(
    task_type: TaskType, spread: float, delay: float
) -> None:
    task = make_task(task_type=task_type, attempt=2)

    assert settlement_of(make_failure(), task, spread=spread) == Retry(
        delay=seconds(delay), attempt_count=2, error=AWAY, tried_for=seconds(delay)
    )


@pytest.mark.parametrize("task_type", ALL_BUT_REPAIR)
@pytest.mark.parametrize(
    ("retryable", "attempt"), [(False, 1), (True, 3)], ids=["for good", "spent"]
)
def test_a_failure_without_another_attempt_breaks_the_process(
    task_type: TaskType, retryable: bool, attempt: int
) -> None:
    task = make_task(task_type=task_type, attempt=attempt)

    assert settlement_of(make_failure(retryable=retryable), task) == Break(AWAY)


@pytest.mark.parametrize("reason", ["STEP_TIMEOUT", "STILL_RUNNING"])
@pytest.mark.parametrize(("attempts_max", "words"), [(1, "1 attempt"), (3, "3 attempts")])
def test_a_step_that_ran_out_of_time_for_good_counts_its_attempts(
    reason: str, attempts_max: int, words: str
) -> None:
    failed = make_failure(reason=reason, message="step timeout of 1 s exceeded", retryable=True)
    namespace = make_namespace(retry_policy=RetryPolicy(attempts_max=attempts_max))

    settlement = settlement_of(failed, make_task(attempt=attempts_max), namespace=namespace)

    message = f"step timeout of 1 s exceeded, {words}"
    assert settlement == Break(TaskError(code=failed.code, reason=reason, message=message))


@pytest.mark.parametrize("outcome", [make_failure(retryable=False), Lost()])
@pytest.mark.parametrize(("corrupted_by", "known"), [(5, {"broken_by": "5"}), (None, {})])
def test_a_failed_repair_keeps_what_broke_the_process_before(
    outcome: Outcome, corrupted_by: int | None, known: dict[str, str]
) -> None:
    process = make_process(status=ProcessStatus.ERROR, corrupted_by=corrupted_by)
    repair = make_task(task_type=TaskType.REPAIR, process=process)

    settlement = settlement_of(outcome, repair, namespace=FAILS_ZOMBIES)

    assert isinstance(settlement, Fail)
    assert settlement.error.metadata == known


@pytest.mark.parametrize("task_type", [TaskType.CALL, TaskType.NOTIFY])
def test_only_an_exhausted_call_fails_alone_where_the_namespace_says_so(
    task_type: TaskType,
) -> None:
    namespace = make_namespace(retry_policy=POLICY, exhausted_call_fails_alone=True)
    task = make_task(task_type=task_type, attempt=3)

    exhausted = settlement_of(make_failure(), task, namespace=namespace)
    failed_for_good = settlement_of(make_failure(retryable=False), task, namespace=namespace)

    assert exhausted == Fail(dataclasses.replace(AWAY, metadata={"alone": "true"}))
    assert failed_for_good == Break(AWAY)


def test_the_time_of_all_attempts_and_waits_counts() -> None:
    policy = dataclasses.replace(POLICY, elapsed_max=seconds(60))
    task = make_task(started_at=START - seconds(9), tried_for=seconds(50))

    found = settlement_of(make_failure(), task, namespace=make_namespace(retry_policy=policy))

    assert found == Break(AWAY)


@pytest.mark.parametrize("task_type", TaskType)
def test_a_zombie_is_retried_at_once_while_attempts_are_left(task_type: TaskType) -> None:
    settlement = settlement_of(Lost(), make_task(task_type=task_type, attempt=2))

    assert isinstance(settlement, Retry)
    assert (settlement.delay, settlement.attempt_count) == (seconds(0), 2)


@pytest.mark.parametrize("task_type", ALL_BUT_REPAIR)
@pytest.mark.parametrize(("namespace", "attempt"), [(NAMESPACE, 3), (FAILS_ZOMBIES, 1)], ids=str)
def test_a_zombie_without_another_attempt_breaks_its_process(
    task_type: TaskType, namespace: Namespace, attempt: int
) -> None:
    task = make_task(task_type=task_type, attempt=attempt)

    settlement = settlement_of(Lost(), task, namespace=namespace)

    assert settlement == Break(TaskError(code=10, reason=ZOMBIE, message=ZOMBIE_DETECTED))


TWICE = RetryPolicy(initial_interval=seconds(1), jitter=0.0, attempts_max=2)
FOUR_TIMES = RetryPolicy(initial_interval=seconds(5), jitter=0.0, attempts_max=4)
NO_MORE = RetryPolicy(attempts_max=1, elapsed_max=seconds(1), non_retryable_reasons=("GONE",))


@pytest.mark.parametrize("task_type", [TaskType.INIT, TaskType.CALL, TaskType.JOIN])
@pytest.mark.parametrize(
    ("attempt", "settlement"),
    [
        (3, Retry(delay=seconds(20), attempt_count=3, error=AWAY, tried_for=seconds(20))),
        (4, Break(AWAY)),
    ],
)
def test_a_nodes_retry_policy_goes_before_all_of_the_namespaces(
    task_type: TaskType, attempt: int, settlement: Settlement
) -> None:
    namespace = make_namespace(retry_policy=TWICE, retry_policies={TaskType.INIT: TWICE})
    task = make_task(task_type=task_type, attempt=attempt)
    options = JobOptions(retry_policy=FOUR_TIMES)

    assert settlement_of(make_failure(), task, namespace=namespace, options=options) == settlement


@pytest.mark.parametrize(
    ("policy", "namespace", "ends"),
    [
        (ZombiePolicy.FAIL, NAMESPACE, True),
        (ZombiePolicy.RETRY, FAILS_ZOMBIES, False),
        (None, NAMESPACE, False),
        (None, FAILS_ZOMBIES, True),
    ],
)
def test_a_nodes_zombie_policy_goes_before_the_namespaces(
    policy: ZombiePolicy | None, namespace: Namespace, ends: bool
) -> None:
    found = settlement_of(Lost(), namespace=namespace, options=JobOptions(zombie_policy=policy))

    assert isinstance(found, Break if ends else Retry)


@pytest.mark.parametrize("policy", [None, ZombiePolicy.RETRY])
def test_what_a_schedule_has_started_is_not_tried_again_when_it_is_lost(
    policy: ZombiePolicy | None,
) -> None:
    found = settlement_of(Lost(), options=JobOptions(scheduled=True, zombie_policy=policy))

    assert (found.error.reason, found.fails_job) == (ZOMBIE, True)


def test_a_patient_failure_is_tried_again_whatever_the_policy_says() -> None:
    failure = make_failure(unreachable=True, reason="GONE")

    found = settlement_of(
        failure,
        make_task(attempt=1000, tried_for=seconds(3600)),
        options=JobOptions(retry_policy=NO_MORE),
    )

    assert isinstance(found, Retry)
    assert found.delay <= NO_MORE.interval_max


TRIPLING = RetryPolicy(
    initial_interval=seconds(1), coefficient=3.0, interval_max=seconds(10), jitter=0.0
)


@pytest.mark.parametrize(
    ("changes", "arguments", "expected"),
    [
        ({}, {"attempt": 1}, 1),
        ({}, {"attempt": 2}, 3),
        ({}, {"attempt": 3}, 9),
        ({}, {"attempt": 4}, 10),
        ({"non_retryable_reasons": ("NO_MONEY",)}, {"reason": "NO_MONEY"}, None),
        ({}, {"retry_after": seconds(60)}, 60),
        ({"elapsed_max": seconds(10)}, {"elapsed": seconds(9.0)}, 1),
        ({"elapsed_max": seconds(10)}, {"elapsed": seconds(9.1)}, None),
        # These overflow, as floats and as whole numbers.
        ({"coefficient": 10.0, "attempts_max": 100_000}, {"attempt": 50_000}, 10),
        ({"coefficient": 10, "attempts_max": 100_000}, {"attempt": 50_000}, 10),
    ],
    ids=str,
)
def test_waits_grow_by_the_coefficient_up_to_the_longest_within_the_policys_limits(
    changes: dict[str, Any], arguments: dict[str, Any], expected: float | None
) -> None:
    defaults: dict[str, Any] = {
        "attempt": 1, "reason": "UNAVAILABLE", "elapsed": dt.timedelta(), "spread": 0.0,
    }  # fmt: skip

    found = next_delay(dataclasses.replace(TRIPLING, **changes), **defaults | arguments)

    assert found == (None if expected is None else seconds(expected))
