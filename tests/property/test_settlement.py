"""Invariants of settlement."""

import dataclasses
import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.intent import (
    Complete,
    Failed,
    Intent,
    KeepTimer,
    Lost,
    Outcome,
    Rejected,
    Released,
    RemoveProcess,
    SetTimer,
    Succeeded,
    UnsetTimer,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.settlement import (
    Break,
    Fail,
    Finish,
    Remove,
    Retry,
    Settlement,
    settle,
)
from progressor.domain.processes.task import RunningTask, TaskType
from tests.support.builders import make_namespace, make_task
from tests.support.clock import START

DELAYS = st.timedeltas(dt.timedelta(), dt.timedelta(days=30))
TIMERS = st.one_of(st.just(KeepTimer()), st.just(UnsetTimer()), st.builds(SetTimer, after=DELAYS))
ACTIONS = st.one_of(st.none(), st.just(RemoveProcess()), st.builds(Complete, st.binary(max_size=5)))
INTENTS = st.builds(Intent, response=st.binary(max_size=5), timer=TIMERS, action=ACTIONS)
FAILURES = st.builds(
    Failed,
    code=st.integers(1, 16),
    reason=st.sampled_from("ABC"),
    message=st.text(max_size=5),
    retryable=st.booleans(),
    retry_after=st.none() | DELAYS,
)
REJECTS = st.builds(Rejected, code=st.integers(1, 16), message=st.text(max_size=5))
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, INTENTS),
    REJECTS,
    FAILURES,
    st.just(Lost()),
    st.just(Released()),
)
POLICIES = st.builds(
    RetryPolicy,
    jitter=st.floats(0, 1),
    attempts_max=st.integers(1, 5),
    elapsed_max=st.none() | DELAYS,
    non_retryable_reasons=st.sampled_from([(), ("A",)]),
)
NAMESPACES = st.builds(
    make_namespace,
    retry_policy=POLICIES,
    retry_policies=st.dictionaries(st.sampled_from(TaskType), POLICIES, max_size=2),
    exhausted_call_fails_alone=st.booleans(),
    zombie_policy=st.sampled_from(ZombiePolicy),
)
TASKS = st.builds(make_task, task_type=st.sampled_from(TaskType), attempt=st.integers(1, 6))
SPREADS = st.floats(-1, 1)


def settlement_of(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> Settlement:
    return settle(task, outcome, namespace=namespace, now=START, spread=spread)


@given(TASKS, OUTCOMES, NAMESPACES, SPREADS)
def test_every_outcome_has_just_one_settlement(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, outcome, namespace, spread)

    assert type(settlement) in {Finish, Fail, Retry, Break, Remove}
    assert settlement == settlement_of(task, outcome, namespace, spread)


@given(TASKS, REJECTS, NAMESPACES, SPREADS)
def test_a_reject_never_breaks_a_process_and_is_never_asked_again(
    task: RunningTask, outcome: Rejected, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, outcome, namespace, spread)

    assert isinstance(settlement, Fail | Remove)
    assert settlement.error is not None
    assert settlement.error.rejected
    assert isinstance(settlement, Remove) == (task.task_type is TaskType.INIT)


@given(TASKS, OUTCOMES, NAMESPACES, SPREADS)
def test_a_repair_never_breaks_a_process(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> None:
    repair = dataclasses.replace(task, task_type=TaskType.REPAIR)

    assert not isinstance(settlement_of(repair, outcome, namespace, spread), Break)


@given(TASKS, OUTCOMES, NAMESPACES, SPREADS)
def test_only_a_success_saves_anything(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, outcome, namespace, spread)

    assert isinstance(settlement, Finish) <= isinstance(outcome, Succeeded)
    if isinstance(outcome, Succeeded):
        assert isinstance(settlement, Finish | Remove)


@given(TASKS, OUTCOMES, NAMESPACES, SPREADS)
def test_every_attempt_counts_except_one_that_was_released(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, outcome, namespace, spread)

    if isinstance(settlement, Retry):
        not_counted = int(isinstance(outcome, Released))
        assert settlement.attempt_count == task.attempt - not_counted
        assert settlement.delay >= dt.timedelta()


@given(TASKS, OUTCOMES, NAMESPACES, SPREADS)
def test_no_task_has_more_attempts_than_its_policy_allows(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, outcome, namespace, spread)

    if isinstance(settlement, Retry) and not isinstance(outcome, Released):
        assert settlement.attempt_count < namespace.policy_for(task.task_type).attempts_max


@given(st.sampled_from(TaskType), FAILURES | st.just(Lost()), NAMESPACES, SPREADS)
def test_a_task_that_always_fails_comes_to_an_end(
    task_type: TaskType, outcome: Failed | Lost, namespace: Namespace, spread: float
) -> None:
    attempt = 1
    while isinstance(
        settlement_of(make_task(task_type=task_type, attempt=attempt), outcome, namespace, spread),
        Retry,
    ):
        attempt += 1

    assert attempt <= namespace.policy_for(task_type).attempts_max


@given(TASKS, NAMESPACES, SPREADS)
def test_a_zombie_is_treated_as_the_namespace_says(
    task: RunningTask, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, Lost(), namespace, spread)

    left = task.attempt < namespace.policy_for(task.task_type).attempts_max
    retried = namespace.zombie_policy is ZombiePolicy.RETRY and left
    assert isinstance(settlement, Retry) == retried
    if not retried:
        assert isinstance(settlement, Fail) == (task.task_type is TaskType.REPAIR)


@given(TASKS, OUTCOMES, NAMESPACES, SPREADS)
def test_only_calls_fail_alone_and_only_where_the_namespace_says_so(
    task: RunningTask, outcome: Outcome, namespace: Namespace, spread: float
) -> None:
    settlement = settlement_of(task, outcome, namespace, spread)

    if isinstance(settlement, Fail) and settlement.error.metadata.get("alone"):
        assert namespace.exhausted_call_fails_alone
        assert task.task_type in {TaskType.CALL, TaskType.NOTIFY}
        assert isinstance(outcome, Failed)
        assert outcome.retryable
