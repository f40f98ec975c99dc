"""Settlement: the table of outcomes and tasks."""

import dataclasses

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
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import (
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
REJECTED = Rejected(code=9, message="no", reason="CLOSED", metadata={"a": "b"})
REFUSAL = TaskError(code=9, reason="CLOSED", message="no", rejected=True, metadata={"a": "b"})
ALL_BUT_REPAIR = tuple(task_type for task_type in TaskType if task_type is not TaskType.REPAIR)


def settlement_of(
    outcome: Outcome,
    task: RunningTask | None = None,
    *,
    namespace: Namespace = NAMESPACE,
    spread: float = 0.0,
) -> Settlement:
    settled = make_task() if task is None else task
    return settle(settled, outcome, namespace=namespace, now=START, spread=spread)


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
def test_a_retryable_failure_waits_for_the_next_attempt(task_type: TaskType) -> None:
    failed = make_failure()

    settlement = settlement_of(failed, make_task(task_type=task_type, attempt=2))

    error = TaskError(code=failed.code, reason=failed.reason, message=failed.message)
    assert settlement == Retry(delay=seconds(4), attempt_count=2, error=error)


def test_the_spread_moves_a_retry_within_the_jitter() -> None:
    assert settlement_of(make_failure(), spread=-1.0) == dataclasses.replace(
        _retry(settlement_of(make_failure())), delay=seconds(1)
    )


@pytest.mark.parametrize("task_type", ALL_BUT_REPAIR)
@pytest.mark.parametrize(
    ("retryable", "attempt"), [(False, 1), (True, 3)], ids=["for good", "spent"]
)
def test_a_failure_without_another_attempt_breaks_the_process(
    task_type: TaskType, retryable: bool, attempt: int
) -> None:
    failed = make_failure(retryable=retryable)

    settlement = settlement_of(failed, make_task(task_type=task_type, attempt=attempt))

    error = TaskError(code=failed.code, reason=failed.reason, message=failed.message)
    assert settlement == Break(error)


@pytest.mark.parametrize("reason", ["STEP_TIMEOUT", "STILL_RUNNING"])
@pytest.mark.parametrize(("attempts_max", "words"), [(1, "1 attempt"), (3, "3 attempts")])
def test_a_step_that_ran_out_of_time_for_good_counts_its_attempts(
    reason: str, attempts_max: int, words: str
) -> None:
    failed = make_failure(reason=reason, message="step timeout of 1 s exceeded", retryable=True)
    namespace = make_namespace(retry_policy=RetryPolicy(attempts_max=attempts_max))

    settlement = settlement_of(failed, make_task(attempt=attempts_max), namespace=namespace)

    assert isinstance(settlement, Break)
    assert settlement.error.message == f"step timeout of 1 s exceeded, {words}"
    assert settlement.error.reason == reason


@pytest.mark.parametrize("outcome", [make_failure(retryable=False), Lost()])
@pytest.mark.parametrize(("corrupted_by", "known"), [(5, {"broken_by": "5"}), (None, {})])
def test_a_failed_repair_keeps_what_broke_the_process_before(
    outcome: Outcome, corrupted_by: int | None, known: dict[str, str]
) -> None:
    process = make_process(status=ProcessStatus.ERROR, corrupted_by=corrupted_by)
    namespace = make_namespace(zombie_policy=ZombiePolicy.FAIL)
    repair = make_task(task_type=TaskType.REPAIR, process=process)

    settlement = settlement_of(outcome, repair, namespace=namespace)

    assert isinstance(settlement, Fail)
    assert settlement.error.metadata == known


@pytest.mark.parametrize("task_type", [TaskType.CALL, TaskType.NOTIFY])
def test_an_exhausted_call_fails_alone_where_the_namespace_says_so(task_type: TaskType) -> None:
    namespace = make_namespace(retry_policy=POLICY, exhausted_call_fails_alone=True)
    task = make_task(task_type=task_type, attempt=3)

    settlement = settlement_of(make_failure(), task, namespace=namespace)

    assert isinstance(settlement, Fail)
    assert settlement.error.metadata == {"alone": "true"}


def test_the_policy_of_the_task_type_goes_before_the_namespaces() -> None:
    namespace = make_namespace(
        retry_policy=POLICY, retry_policies={TaskType.CALL: RetryPolicy(attempts_max=1)}
    )

    assert isinstance(settlement_of(make_failure(), namespace=namespace), Break)


def test_the_time_since_the_first_attempt_counts() -> None:
    policy = dataclasses.replace(POLICY, elapsed_max=seconds(60))
    task = make_task(first_started_at=START - seconds(59))

    settlement = settlement_of(make_failure(), task, namespace=make_namespace(retry_policy=policy))

    assert isinstance(settlement, Break)


@pytest.mark.parametrize("task_type", TaskType)
def test_a_zombie_is_retried_at_once_while_attempts_are_left(task_type: TaskType) -> None:
    settlement = settlement_of(Lost(), make_task(task_type=task_type, attempt=2))

    assert isinstance(settlement, Retry)
    assert (settlement.delay, settlement.attempt_count) == (seconds(0), 2)


@pytest.mark.parametrize("task_type", ALL_BUT_REPAIR)
@pytest.mark.parametrize(
    ("policy", "attempt"), [(ZombiePolicy.RETRY, 3), (ZombiePolicy.FAIL, 1)], ids=str
)
def test_a_zombie_without_another_attempt_breaks_its_process(
    task_type: TaskType, policy: ZombiePolicy, attempt: int
) -> None:
    namespace = make_namespace(retry_policy=POLICY, zombie_policy=policy)
    task = make_task(task_type=task_type, attempt=attempt)

    settlement = settlement_of(Lost(), task, namespace=namespace)

    assert isinstance(settlement, Break)
    assert settlement.error.message == ZOMBIE_DETECTED


def test_a_repair_that_became_a_zombie_leaves_the_process_in_error() -> None:
    namespace = make_namespace(zombie_policy=ZombiePolicy.FAIL)

    settlement = settlement_of(Lost(), make_task(task_type=TaskType.REPAIR), namespace=namespace)

    assert isinstance(settlement, Fail)


def _retry(settlement: Settlement) -> Retry:
    assert isinstance(settlement, Retry)
    return settlement
