"""Settlement of leaders and followers: their own policies go before the namespace's."""

import pytest

from progressor.domain.processes.intent import Lost, Outcome
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import JobOptions
from progressor.domain.processes.settlement import ZOMBIE, Break, Retry, Settlement, settle
from progressor.domain.processes.task import TaskType
from tests.support.builders import make_failure, make_namespace, make_task, seconds
from tests.support.clock import START

TWICE = RetryPolicy(initial_interval=seconds(1), jitter=0.0, attempts_max=2)
FOUR_TIMES = RetryPolicy(initial_interval=seconds(5), jitter=0.0, attempts_max=4)
NO_MORE = RetryPolicy(attempts_max=1, elapsed_max=seconds(1), non_retryable_reasons=("GONE",))
NAMESPACE = make_namespace(retry_policy=TWICE, retry_policies={TaskType.INIT: TWICE})
FAILS_ZOMBIES = make_namespace(retry_policy=TWICE, zombie_policy=ZombiePolicy.FAIL)


def settlement_of(
    outcome: Outcome,
    options: JobOptions,
    *,
    attempt: int = 1,
    task_type: TaskType = TaskType.INIT,
    namespace: Namespace = NAMESPACE,
    after: float = 0.0,
) -> Settlement:
    task = make_task(task_type=task_type, attempt=attempt, first_started_at=START)
    now = START + seconds(after)
    return settle(task, outcome, namespace=namespace, now=now, spread=0.0, options=options)


@pytest.mark.parametrize("task_type", [TaskType.INIT, TaskType.CALL, TaskType.JOIN])
def test_a_nodes_retry_policy_goes_before_all_of_the_namespaces(task_type: TaskType) -> None:
    options = JobOptions(retry_policy=FOUR_TIMES)

    tried = settlement_of(make_failure(), options, attempt=3, task_type=task_type)
    spent = settlement_of(make_failure(), options, attempt=4, task_type=task_type)

    assert isinstance(tried, Retry)
    assert tried.delay == seconds(20)
    assert isinstance(spent, Break)


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
    found = settlement_of(Lost(), JobOptions(zombie_policy=policy), namespace=namespace)

    assert isinstance(found, Break if ends else Retry)


@pytest.mark.parametrize("policy", [None, ZombiePolicy.RETRY])
def test_what_a_schedule_has_started_is_not_tried_again_when_it_is_lost(
    policy: ZombiePolicy | None,
) -> None:
    found = settlement_of(Lost(), JobOptions(scheduled=True, zombie_policy=policy))

    assert isinstance(found, Break)
    assert (found.error.reason, found.fails_job) == (ZOMBIE, True)


def test_a_patient_failure_is_tried_again_whatever_the_policy_says() -> None:
    failure = make_failure(patient=True, reason="GONE")
    options = JobOptions(retry_policy=NO_MORE)

    found = settlement_of(failure, options, attempt=1000, after=3600)

    assert isinstance(found, Retry)
    assert found.delay <= NO_MORE.interval_max
