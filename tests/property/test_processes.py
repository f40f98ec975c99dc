"""Invariants of the decisions about one process: admission, settlement, retry."""

import dataclasses
import datetime as dt
import functools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.admission import Import, Request, Verdict, decide
from progressor.domain.processes.event import Direction, HistoryRange
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
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy, next_delay
from progressor.domain.processes.process import ProcessStatus
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
from tests.support.builders import make_key, make_namespace, make_task
from tests.support.clock import START

REQUESTED = (TaskType.INIT, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4)
REQUESTS = st.builds(
    Request,
    key=st.just(make_key()),
    task_type=st.sampled_from(REQUESTED),
    args=st.binary(max_size=3),
    history_range=st.none()
    | st.builds(
        HistoryRange,
        after=st.integers(0, 3),
        limit=st.none() | st.integers(0, 3),
        direction=st.sampled_from(Direction),
    ),
    metadata=st.none() | OBJECTS,
)


def reordered(value: Any) -> Any:
    """Return an equal JSON value whose objects have their keys in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(each) for each in value] if isinstance(value, list) else value


def meaning(request: Request) -> str:
    metadata = json.dumps(request.metadata or None, sort_keys=True)
    return repr((request.task_type, request.args, request.history_range, metadata))


@given(st.sampled_from(REQUESTED), st.none() | st.sampled_from(ProcessStatus))
def test_a_process_accepts_exactly_the_requests_that_fit_its_status(
    task_type: TaskType, status: ProcessStatus | None
) -> None:
    fits = {
        None: {TaskType.INIT},
        ProcessStatus.INIT: {TaskType.CALL, TaskType.NOTIFY},
        ProcessStatus.RUNNING: {TaskType.CALL, TaskType.NOTIFY},
        ProcessStatus.ERROR: {TaskType.REPAIR},
        ProcessStatus.FINISHED: set(),
    }

    assert (decide(task_type, status) is Verdict.ACCEPTED) == (task_type in fits[status])


@given(REQUESTS, REQUESTS)
def test_fingerprints_are_equal_exactly_for_equal_requests(one: Request, other: Request) -> None:
    assert (one.fingerprint() == other.fingerprint()) == (meaning(one) == meaning(other))


@given(
    REQUESTS | st.just(Import(key=make_key(), status=ProcessStatus.RUNNING)),
    OBJECTS,
)
def test_the_order_of_keys_means_nothing(
    request: Request | Import, metadata: dict[str, Any]
) -> None:
    one = dataclasses.replace(request, metadata=metadata)
    other = dataclasses.replace(request, metadata=reordered(metadata))

    assert one.fingerprint() == other.fingerprint()


DELAYS = st.timedeltas(dt.timedelta(), dt.timedelta(days=30))
FAILURES = st.builds(
    Failed,
    code=st.integers(1, 16),
    reason=st.sampled_from("ABC"),
    message=st.text(max_size=5),
    retryable=st.booleans(),
    retry_after=st.none() | DELAYS,
)
REJECTS = st.builds(Rejected, code=st.integers(1, 16), message=st.text(max_size=5))
SUCCESSES = st.builds(
    Succeeded,
    st.builds(
        Intent,
        response=st.binary(max_size=5),
        timer=st.just(KeepTimer()) | st.just(UnsetTimer()) | st.builds(SetTimer, after=DELAYS),
        action=st.none() | st.just(RemoveProcess()) | st.builds(Complete, st.binary(max_size=5)),
    ),
)
LOST = st.just(Lost())
OUTCOMES = SUCCESSES | REJECTS | FAILURES | LOST | st.just(Released())
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
TASK_TYPES = st.sampled_from(TaskType)
ATTEMPTS = st.integers(1, 6)
SPREADS = st.floats(-1, 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """An attempt of a task that has an outcome; `spread` is its luck with jitter."""

    task: RunningTask
    outcome: Outcome
    namespace: Namespace
    spread: float

    @property
    def settlement(self) -> Settlement:
        return settle(
            self.task, self.outcome, namespace=self.namespace, now=START, spread=self.spread
        )

    @property
    def attempts_max(self) -> int:
        return self.namespace.policy_for(self.task.task_type).attempts_max


def cases(
    outcomes: st.SearchStrategy[Outcome] = OUTCOMES,
    task_types: st.SearchStrategy[TaskType] = TASK_TYPES,
    attempts: st.SearchStrategy[int] = ATTEMPTS,
) -> st.SearchStrategy[Case]:
    tasks = st.builds(make_task, task_type=task_types, attempt=attempts)
    return st.builds(Case, tasks, outcomes, NAMESPACES, SPREADS)


@given(cases())
def test_every_outcome_has_just_one_settlement(case: Case) -> None:
    assert type(case.settlement) in {Finish, Fail, Retry, Break, Remove}
    assert case.settlement == case.settlement


@given(cases(REJECTS))
def test_a_reject_never_breaks_a_process_and_is_never_asked_again(case: Case) -> None:
    settlement = case.settlement

    assert isinstance(settlement, Fail | Remove)
    assert settlement.error is not None
    assert settlement.error.rejected
    assert isinstance(settlement, Remove) == (case.task.task_type is TaskType.INIT)


@given(cases(task_types=st.just(TaskType.REPAIR)))
def test_a_repair_never_breaks_a_process(case: Case) -> None:
    assert not isinstance(case.settlement, Break)


@given(cases())
def test_only_a_success_saves_anything(case: Case) -> None:
    assert isinstance(case.settlement, Finish) <= isinstance(case.outcome, Succeeded)
    if isinstance(case.outcome, Succeeded):
        assert isinstance(case.settlement, Finish | Remove)


@given(cases())
def test_attempts_count_up_to_what_the_policy_allows_except_one_that_was_released(
    case: Case,
) -> None:
    settlement = case.settlement

    if isinstance(settlement, Retry):
        is_released = isinstance(case.outcome, Released)
        assert settlement.attempt_count == case.task.attempt - is_released
        assert settlement.delay >= dt.timedelta()
        assert is_released or settlement.attempt_count < case.attempts_max


@given(cases(FAILURES | LOST, attempts=st.just(1)))
def test_a_task_that_always_fails_comes_to_an_end(case: Case) -> None:
    while isinstance(case.settlement, Retry):
        again = dataclasses.replace(case.task, attempt=case.task.attempt + 1)
        case = dataclasses.replace(case, task=again)

    assert case.task.attempt <= case.attempts_max


@given(cases(LOST))
def test_a_zombie_is_treated_as_the_namespace_says(case: Case) -> None:
    may_retry = case.task.attempt < case.attempts_max
    retried = case.namespace.zombie_policy is ZombiePolicy.RETRY and may_retry

    assert isinstance(case.settlement, Retry) == retried
    if not retried:
        assert isinstance(case.settlement, Fail) == (case.task.task_type is TaskType.REPAIR)


@given(cases())
def test_only_calls_fail_alone_and_only_where_the_namespace_says_so(case: Case) -> None:
    settlement = case.settlement

    if isinstance(settlement, Fail) and settlement.error.metadata.get("alone"):
        assert case.namespace.exhausted_call_fails_alone
        assert case.task.task_type in {TaskType.CALL, TaskType.NOTIFY}
        assert isinstance(case.outcome, Failed)
        assert case.outcome.retryable


DURATIONS = st.timedeltas(dt.timedelta(), dt.timedelta(seconds=315_576_000_000))
"""Up to ten thousand years."""

ANY_POLICIES = st.builds(
    RetryPolicy,
    initial_interval=DURATIONS,
    coefficient=st.floats(1, allow_nan=False, allow_infinity=False) | st.floats(1, 10),
    interval_max=DURATIONS,
    jitter=st.floats(0, 1),
    attempts_max=st.integers(1, 10_000),
    elapsed_max=st.none() | DURATIONS,
    non_retryable_reasons=st.lists(st.sampled_from("ABC"), max_size=2).map(tuple),
)
MICROSECOND = dt.timedelta(microseconds=1)
delay_of = functools.partial(
    next_delay, reason="D", elapsed=dt.timedelta(), spread=0.0, retry_after=None
)


@given(
    ANY_POLICIES,
    st.fixed_dictionaries(
        {
            "attempt": st.integers(1, 12_000),
            "reason": st.sampled_from("ABCD"),
            "elapsed": DURATIONS,
            "spread": SPREADS,
            "retry_after": st.none() | DURATIONS,
        }
    ),
)
def test_a_delay_is_never_negative_and_keeps_every_limit(
    policy: RetryPolicy, failed: dict[str, Any]
) -> None:
    delay = next_delay(policy, **failed)

    if delay is None:
        return
    assert delay >= (failed["retry_after"] or dt.timedelta())
    assert failed["attempt"] < policy.attempts_max
    assert failed["reason"] not in policy.non_retryable_reasons
    assert policy.elapsed_max is None or failed["elapsed"] + delay <= policy.elapsed_max


@given(ANY_POLICIES, st.integers(1, 10_000), SPREADS)
def test_a_delay_stays_within_the_jitter_of_its_interval(
    policy: RetryPolicy, attempt: int, spread: float
) -> None:
    policy = dataclasses.replace(policy, elapsed_max=None)
    middle = delay_of(policy, attempt=attempt)
    delay = delay_of(policy, attempt=attempt, spread=spread)

    assert (middle is None) == (delay is None)
    if middle is not None and delay is not None:
        # Of ten thousand years a float keeps no microseconds.
        rounding = MICROSECOND + middle * 1e-12
        assert middle <= policy.interval_max + rounding
        assert abs(delay - middle) <= middle * policy.jitter + rounding


@given(ANY_POLICIES, st.integers(1, 9_998))
def test_delays_do_not_shrink_from_one_attempt_to_the_next(
    policy: RetryPolicy, attempt: int
) -> None:
    policy = dataclasses.replace(policy, elapsed_max=None, attempts_max=10_000)
    delay, following = delay_of(policy, attempt=attempt), delay_of(policy, attempt=attempt + 1)

    assert delay is not None
    assert following is not None
    assert delay <= following


@given(ANY_POLICIES, SPREADS)
def test_attempts_come_to_an_end(policy: RetryPolicy, spread: float) -> None:
    assert delay_of(policy, attempt=policy.attempts_max, spread=spread) is None


MISSED = Failed(code=14, reason="AWAY", message="", retryable=True, unreachable=True)
RAISED = Failed(code=2, reason="KeyError", message="", retryable=True)
BRIEF = st.timedeltas(dt.timedelta(), dt.timedelta(minutes=10))


@given(
    outcomes=st.lists(st.sampled_from([MISSED, RAISED, Released()]), max_size=60),
    attempts_max=st.integers(1, 10),
)
def test_only_attempts_that_count_bring_a_process_nearer_to_breaking(
    outcomes: list[Outcome], attempts_max: int
) -> None:
    policy = RetryPolicy(attempts_max=attempts_max, non_retryable_reasons=("AWAY",))
    namespace = make_namespace(retry_policy=policy)
    counted = 0
    for outcome in outcomes:
        task = make_task(attempt=counted + 1)
        found = settle(task, outcome, namespace=namespace, now=START, spread=0.0)
        counted += outcome is RAISED
        if counted == attempts_max:
            assert isinstance(found, Break)
            return
        assert isinstance(found, Retry)
        assert found.attempt_count == counted


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([MISSED, RAISED, RAISED, Released()]), BRIEF, BRIEF), max_size=30
    ),
    elapsed_max=BRIEF,
)
def test_only_attempts_that_count_and_their_waits_bring_a_task_nearer_to_elapsed_max(
    steps: list[tuple[Outcome, dt.timedelta, dt.timedelta]], elapsed_max: dt.timedelta
) -> None:
    policy = RetryPolicy(jitter=0.0, attempts_max=100, elapsed_max=elapsed_max)
    namespace = make_namespace(retry_policy=policy)
    started_at, expected, counted = START, dt.timedelta(), 0
    for outcome, lasted, outage in steps:
        task = make_task(attempt=counted + 1, started_at=started_at, tried_for=expected)
        ended_at = started_at + lasted
        found = settle(task, outcome, namespace=namespace, now=ended_at, spread=0.0)
        if outcome is RAISED:
            counted += 1
            delay = delay_of(dataclasses.replace(policy, elapsed_max=None), attempt=counted)
            assert delay is not None
            expected += lasted + delay
        if expected > elapsed_max:
            assert isinstance(found, Break)
            return
        assert isinstance(found, Retry)
        assert found.tried_for == expected
        started_at = ended_at + found.delay + outage
