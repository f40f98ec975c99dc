"""Why a task waits: the cause that follows from the facts, and its explanation."""

import dataclasses
import datetime as dt
from typing import Any, get_args

import pytest

from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskError, TaskStatus, TaskType
from progressor.domain.views import why
from progressor.domain.views.replica import Facts, NamespaceLoad, ReplicaFacts
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    GatesFull,
    Lease,
    NoFreeWorker,
    NoReplica,
    Overrun,
    PresumedDead,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    UnfinishedTask,
    Wait,
)
from tests.support.builders import make_namespace, make_process, seconds
from tests.support.clock import START as NOW

NAMESPACE = make_namespace(
    worker_count_max=10,
    retry_policies={TaskType.CALL: RetryPolicy(attempts_max=4)},
    retry_policy=RetryPolicy(attempts_max=9),
)
LEASE_TIMEOUT = seconds(5)
COLLECTING = seconds(1)
MICROSECOND = dt.timedelta(microseconds=1)
ERROR = TaskError(code=14, reason="PROCESSOR_UNAVAILABLE", message="connection refused")


def ago(count: float) -> dt.datetime:
    return NOW - seconds(count)


def ahead(count: float) -> dt.datetime:
    return NOW + seconds(count)


def a_replica(replica_id: int = 1, *, age: float = 0, **fields: Any) -> ReplicaFacts:
    """Return a replica with no step in hand, which serves."""
    defaults: dict[str, Any] = {
        "replica_id": replica_id,
        "heartbeat_at": ago(age),
        "lease_timeout": LEASE_TIMEOUT,
        "draining": False,
        "loads": {},
    }
    return ReplicaFacts(**defaults | fields)


def facts_of(*replicas: ReplicaFacts) -> Facts:
    return Facts(
        read_at=NOW, replicas={it.replica_id: it for it in replicas}, collecting=COLLECTING
    )


def a_load(
    busy: int, size: int = 10, *, unreachable: float | None = None
) -> dict[str, NamespaceLoad]:
    return {
        NAMESPACE.name: NamespaceLoad(
            busy_count=busy,
            size=size,
            unreachable_for=None if unreachable is None else seconds(unreachable),
        )
    }


def a_task(task_id: int = 7, **fields: Any) -> UnfinishedTask:
    """Return a call that is due and unclaimed."""
    defaults: dict[str, Any] = {
        "task_id": task_id,
        "task_type": TaskType.CALL,
        "status": TaskStatus.WAITING,
        "attempt_count": 0,
        "created_at": ago(3),
        "due_at": ago(2),
        "is_due": True,
        "lease": None,
        "last_error": None,
    }
    return UnfinishedTask(**defaults | fields)


def leased(*, replica_id: int = 1, at: float = 20, overdue: float = -10, **fields: Any) -> Any:
    """Return a call that a replica took so many seconds ago."""
    lease = Lease(replica_id=replica_id, leased_at=ago(at), expires_at=ago(overdue))
    defaults: dict[str, Any] = {
        "status": TaskStatus.RUNNING, "attempt_count": 1, "due_at": None, "is_due": False,
    }  # fmt: skip
    return a_task(**defaults | {"lease": lease} | fields)


def timer(**fields: Any) -> UnfinishedTask:
    defaults: dict[str, Any] = {
        "task_type": TaskType.TIMEOUT, "due_at": ahead(60), "is_due": False,
    }  # fmt: skip
    return a_task(**defaults | fields)


def cause_of(*tasks: UnfinishedTask, facts: Facts) -> Cause:
    """Return the cause of the last task."""
    return why.waits(tasks, facts=facts, namespace=NAMESPACE)[-1].cause


class TestATaskThatNobodyCarries:
    def test_is_a_timer_until_it_is_due(self) -> None:
        assert cause_of(timer(), facts=facts_of()) == TimerNotDue(until=ahead(60))

    @pytest.mark.parametrize(
        ("task_type", "attempts_max"), [(TaskType.CALL, 4), (TaskType.TIMEOUT, 9)]
    )
    def test_waits_for_its_retry_by_the_policy_of_its_type(
        self, task_type: TaskType, attempts_max: int
    ) -> None:
        task = timer(task_type=task_type, attempt_count=2)
        facts = facts_of(a_replica(loads=a_load(0, unreachable=30)))

        assert cause_of(task, facts=facts) == RetryNotDue(
            until=ahead(60), attempts_max=attempts_max, processor_unreachable_since=ago(30)
        )

    def test_is_behind_the_task_before_it(self) -> None:
        running, first, second = leased(task_id=1), a_task(2, due_at=None), a_task(3, due_at=None)
        facts = facts_of(a_replica())

        assert cause_of(running, first, facts=facts) == BehindTask(
            task_id=1, task_type=TaskType.CALL, is_running=True, since=ago(20)
        )
        assert cause_of(running, first, second, facts=facts) == BehindTask(
            task_id=2, task_type=TaskType.CALL, is_running=False, since=ago(3)
        )

    def test_is_behind_it_though_it_is_a_timer_that_is_overdue(self) -> None:
        task = timer(due_at=ago(1), is_due=True, status=TaskStatus.BLOCKED)

        found = cause_of(a_task(1), task, facts=facts_of(a_replica()))

        assert isinstance(found, BehindTask)
        assert (found.task_id, found.until) == (1, ago(1))

    def test_has_no_free_worker_in_any_replica_that_serves(self) -> None:
        facts = facts_of(
            a_replica(1, loads=a_load(10)),
            a_replica(2, loads=a_load(3, size=4, unreachable=7), age=1),
            a_replica(3, loads=a_load(5), draining=True),
            a_replica(4, loads=a_load(5), age=6),
            # It has had no step of this namespace yet.
            a_replica(5, loads={"another": NamespaceLoad(busy_count=1, size=1)}),
            # Its release does not tell.
            a_replica(6, loads=None),
        )

        assert cause_of(a_task(), facts=facts) == NoFreeWorker(
            since=ago(2), busy_count=13, worker_count=24, processor_unreachable_since=ago(8)
        )

    def test_has_no_replica_where_all_drain_or_are_silent(self) -> None:
        facts = facts_of(a_replica(1, draining=True), a_replica(2, age=6), a_replica(3, age=7))

        assert cause_of(a_task(), facts=facts) == NoReplica(
            since=ago(2), draining_count=1, silent_count=2
        )

    def test_has_no_replica_where_none_is_on_the_list(self) -> None:
        assert cause_of(a_task(), facts=facts_of()) == NoReplica(
            since=ago(2), draining_count=0, silent_count=0
        )


class TestATaskThatIsLeased:
    def test_runs(self) -> None:
        found = cause_of(leased(), facts=facts_of(a_replica(loads=a_load(1))))

        assert found == Running(replica_id=1, since=ago(20))

    def test_runs_in_a_replica_that_does_not_reach_the_processor(self) -> None:
        facts = facts_of(
            a_replica(1, loads=a_load(1, unreachable=8), age=2),
            a_replica(2, loads=a_load(1, unreachable=100)),
        )

        assert cause_of(leased(), facts=facts) == Running(
            replica_id=1, since=ago(20), processor_unreachable_since=ago(10)
        )

    @pytest.mark.parametrize(("age", "is_late"), [(2.5, False), (2.6, True), (5, True)])
    def test_runs_in_a_replica_of_which_a_heartbeat_is_missing(
        self, age: float, is_late: bool
    ) -> None:
        found = cause_of(leased(), facts=facts_of(a_replica(1, age=age), a_replica(2)))

        late = Running(
            replica_id=1, since=ago(20), silent_since=ago(age), collected_at=ahead(6 - age)
        )
        assert found == (late if is_late else Running(replica_id=1, since=ago(20)))

    def test_is_lost_when_its_replica_is_silent_for_its_own_lease_timeout(self) -> None:
        silent = a_replica(
            1, heartbeat_at=ago(8) - MICROSECOND, lease_timeout=seconds(8), loads=None
        )

        found = cause_of(leased(), facts=facts_of(silent, a_replica(2)))

        assert found == PresumedDead(
            replica_id=1,
            since=ago(20),
            silent_since=ago(8) - MICROSECOND,
            collected_at=ahead(1) - MICROSECOND,
        )

    def test_is_lost_when_its_replica_is_not_on_the_list(self) -> None:
        assert cause_of(leased(), facts=facts_of(a_replica(2))) == PresumedDead(
            replica_id=1, since=ago(20), silent_since=None, collected_at=ahead(1)
        )

    def test_is_collected_by_nobody_where_no_replica_serves(self) -> None:
        facts = facts_of(a_replica(1, age=6), a_replica(2, draining=True))

        assert cause_of(leased(), facts=facts) == PresumedDead(
            replica_id=1, since=ago(20), silent_since=ago(6), collected_at=None
        )

    @pytest.mark.parametrize("facts", [facts_of(), facts_of(a_replica(1, age=6))])
    def test_runs_where_the_facts_are_older_than_the_lease(self, facts: Facts) -> None:
        assert cause_of(leased(at=0), facts=facts) == Running(replica_id=1, since=NOW)

    def test_overran_where_its_replica_lives_and_its_time_is_over(self) -> None:
        found = cause_of(leased(overdue=0.5), facts=facts_of(a_replica(1)))

        assert found == Overrun(
            replica_id=1, since=ago(20), expired_at=ago(0.5), collected_at=ahead(0.5)
        )

    def test_overran_and_is_collected_by_nobody_where_no_replica_serves(self) -> None:
        found = cause_of(leased(overdue=0.5), facts=facts_of(a_replica(1, draining=True)))

        assert found == Overrun(replica_id=1, since=ago(20), expired_at=ago(0.5), collected_at=None)


def test_a_wait_tells_the_attempt_that_runs_or_comes_next_and_the_last_error() -> None:
    tasks = [leased(attempt_count=2), a_task(8, attempt_count=2, last_error=ERROR)]

    running, waiting = why.waits(tasks, facts=facts_of(a_replica()), namespace=NAMESPACE)

    assert (running.task_id, running.attempt, running.last_error) == (7, 2, None)
    assert (waiting.task_id, waiting.attempt, waiting.last_error) == (8, 3, ERROR)
    assert (waiting.task_type, waiting.status) == (TaskType.CALL, TaskStatus.WAITING)


def explained(cause: Cause, **fields: Any) -> str:
    """Return the sentences on call 7."""
    defaults: dict[str, Any] = {
        "task_id": 7, "task_type": TaskType.CALL, "status": TaskStatus.WAITING, "attempt": 1,
        "created_at": NOW,
    }  # fmt: skip
    return why.explain(Wait(**defaults | fields, cause=cause))


RUNNING = Running(replica_id=3, since=NOW)
DEAD = PresumedDead(replica_id=3, since=NOW, silent_since=ahead(1), collected_at=ahead(7))
OVERRUN = Overrun(replica_id=3, since=NOW, expired_at=ahead(1), collected_at=ahead(2.5))
RETRY = RetryNotDue(until=ahead(1.25), attempts_max=8)
BEHIND = BehindTask(task_id=6, task_type=TaskType.INIT, is_running=True, since=NOW)
CROWDED = NoFreeWorker(since=NOW, busy_count=10, worker_count=10)

SENTENCES: list[tuple[Cause, dict[str, Any], str]] = [
    (RUNNING, {}, "has been running since 2026-01-01 00:00:00.000Z in replica 3."),
    (
        RUNNING,
        {"attempt": 2},
        "has been running since 2026-01-01 00:00:00.000Z in replica 3, attempt 2.",
    ),
    (
        RUNNING,
        {"attempt": 2, "last_error": ERROR},
        (
            "has been running since 2026-01-01 00:00:00.000Z in replica 3, attempt 2,"
            " after PROCESSOR_UNAVAILABLE: connection refused."
        ),
    ),
    (
        dataclasses.replace(
            RUNNING,
            processor_unreachable_since=ahead(1),
            silent_since=ahead(2),
            collected_at=ahead(8),
        ),
        {},
        (
            "has been running since 2026-01-01 00:00:00.000Z in replica 3."
            " The processor has been unreachable since 2026-01-01 00:00:01.000Z."
            " That replica has been silent since 2026-01-01 00:00:02.000Z; if it stays so,"
            " the task is collected at 2026-01-01 00:00:08.000Z at the latest."
        ),
    ),
    (
        DEAD,
        {},
        (
            "was taken at 2026-01-01 00:00:00.000Z by replica 3, which has been silent since"
            " 2026-01-01 00:00:01.000Z and is presumed dead; the task is collected at"
            " 2026-01-01 00:00:07.000Z at the latest."
        ),
    ),
    (
        dataclasses.replace(DEAD, silent_since=None, collected_at=None),
        {},
        (
            "was taken at 2026-01-01 00:00:00.000Z by replica 3, which is not on the list of"
            " replicas any more and is presumed dead; the task is collected once a replica serves."
        ),
    ),
    (
        OVERRUN,
        {},
        (
            "has been running since 2026-01-01 00:00:00.000Z in replica 3 and ought to have ended"
            " by 2026-01-01 00:00:01.000Z; the task is collected at 2026-01-01 00:00:02.500Z at the"
            " latest."
        ),
    ),
    (TimerNotDue(until=ahead(3600)), {}, "is a timer, until 2026-01-01 01:00:00.000Z."),
    (
        RETRY,
        {"attempt": 3, "last_error": ERROR},
        (
            "waits for its retry, attempt 3 of 8, at 2026-01-01 00:00:01.250Z,"
            " after PROCESSOR_UNAVAILABLE: connection refused."
        ),
    ),
    (
        dataclasses.replace(RETRY, processor_unreachable_since=NOW),
        {"attempt": 2},
        (
            "waits for its retry, attempt 2 of 8, at 2026-01-01 00:00:01.250Z."
            " The processor has been unreachable since 2026-01-01 00:00:00.000Z."
        ),
    ),
    (
        BEHIND,
        {},
        "waits behind task 6 (init), which has been running since 2026-01-01 00:00:00.000Z.",
    ),
    (
        dataclasses.replace(BEHIND, is_running=False, until=ahead(1)),
        {},
        (
            "waits behind task 6 (init), which has been waiting since 2026-01-01 00:00:00.000Z."
            " It is a timer, until 2026-01-01 00:00:01.000Z."
        ),
    ),
    (
        CROWDED,
        {},
        "has been due since 2026-01-01 00:00:00.000Z, and no worker is free: 10 of 10 are busy.",
    ),
    (
        dataclasses.replace(CROWDED, busy_count=9, processor_unreachable_since=NOW),
        {},
        (
            "has been due since 2026-01-01 00:00:00.000Z; a worker is about to take it:"
            " 9 of 10 are busy."
            " The processor has been unreachable since 2026-01-01 00:00:00.000Z."
        ),
    ),
    (
        dataclasses.replace(CROWDED, busy_count=0, worker_count=0),
        {},
        "has been due since 2026-01-01 00:00:00.000Z, and no worker has taken it yet.",
    ),
    (
        NoReplica(since=NOW, draining_count=1, silent_count=2),
        {},
        "has been due since 2026-01-01 00:00:00.000Z, and no replica serves: 1 draining, 2 silent.",
    ),
]


@pytest.mark.parametrize(("cause", "fields", "sentence"), SENTENCES)
def test_a_sentence_tells_the_cause_and_all_that_is_known_of_it(
    cause: Cause, fields: dict[str, Any], sentence: str
) -> None:
    assert explained(cause, **fields) == f"Task 7 (call) {sentence}"


def test_every_cause_has_a_sentence() -> None:
    # These are in test_domain_why_gates.
    constraints = {RunAtNotDue, BehindVersion, GatesFull}
    assert {type(cause) for cause, _, _ in SENTENCES} == set(get_args(Cause)) - constraints


def test_an_instant_is_told_in_utc_wherever_it_comes_from() -> None:
    there = NOW.astimezone(dt.timezone(dt.timedelta(hours=9)))

    assert explained(TimerNotDue(until=there)).endswith("until 2026-01-01 00:00:00.000Z.")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("connection refused.", ": connection refused."),
        ("two\nlines\tand \x1b[2J more", ": two lines and [2J more."),
        ("", "."),
    ],
)
def test_foreign_text_stays_within_the_sentence(message: str, told: str) -> None:
    error = dataclasses.replace(ERROR, message=message)

    assert explained(RETRY, last_error=error).endswith(f", after PROCESSOR_UNAVAILABLE{told}")


def test_a_long_message_is_cut() -> None:
    error = dataclasses.replace(ERROR, message="x" * (why.WORDS_MAX + 1))

    sentence = explained(RETRY, last_error=error)

    assert sentence.endswith(f"PROCESSOR_UNAVAILABLE: {'x' * why.WORDS_MAX} ….")


A_WAIT = why.waits([leased()], facts=facts_of(a_replica()), namespace=NAMESPACE)
BROKEN = {"status": ProcessStatus.ERROR, "detail": "no stock", "corrupted_by": 5}


@pytest.mark.parametrize(
    ("fields", "waits", "sentence"),
    [
        (
            BROKEN,
            (),
            (
                "The process has been in error since 2026-01-01 00:00:00.000Z, broken by task 5: "
                "no stock; it waits for a repair."
            ),
        ),
        (
            BROKEN | {"corrupted_by": None, "detail": ""},
            A_WAIT,
            (
                "The process has been in error since 2026-01-01 00:00:00.000Z, broken: no detail; "
                "a repair is under way."
            ),
        ),
        (
            {"status": ProcessStatus.FINISHED},
            (),
            "The process has been finished since 2026-01-01 00:00:00.000Z; it waits for nothing.",
        ),
        (
            {"status": ProcessStatus.RUNNING},
            (),
            "The process waits for nothing: it has no task and no timer.",
        ),
        ({"status": ProcessStatus.RUNNING}, A_WAIT, ""),
        ({"status": ProcessStatus.INIT}, A_WAIT, ""),
    ],
)
def test_a_process_explains_what_none_of_its_tasks_does(
    fields: dict[str, Any], waits: tuple[Wait, ...], sentence: str
) -> None:
    assert why.explain_process(make_process(**fields), waits) == sentence
