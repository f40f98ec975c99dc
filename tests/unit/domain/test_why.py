"""Why a task waits: the causes that follow from the facts, and how they are explained."""

import dataclasses
import datetime as dt
from typing import Any, get_args

import pytest

from progressor.domain.gates.constraint import GatedState, GateHold, Order, Version
from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.message import MessageKind
from progressor.domain.processes.policy import Pause, RetryPolicy
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskError, TaskStatus, TaskType
from progressor.domain.quotas.quotas import Quota
from progressor.domain.views import why
from progressor.domain.views.failure import FailedRepair
from progressor.domain.views.process import AwaitedReply
from progressor.domain.views.replica import Facts, NamespaceLoad, ReplicaView
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    Gated,
    GatesFull,
    GateWait,
    Lease,
    NoFreeWorker,
    NoReplica,
    OrderWait,
    Overrun,
    Paused,
    PresumedDead,
    ProcessFailed,
    ProcessorUnreachable,
    QuotaUsedUp,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    TimeSpent,
    UnfinishedTask,
    Wait,
)
from tests.support.builders import make_namespace, make_process, make_replica_view, seconds
from tests.support.clock import START as NOW

NAMESPACE = make_namespace(
    worker_count_max=10,
    retry_policies={TaskType.CALL: RetryPolicy(attempts_max=4)},
    retry_policy=RetryPolicy(attempts_max=9),
)
MICROSECOND = dt.timedelta(microseconds=1)
ERROR = TaskError(code=14, reason="AWAY", message="connection refused")


def ago(count: float) -> dt.datetime:
    return NOW - seconds(count)


def ahead(count: float) -> dt.datetime:
    return NOW + seconds(count)


def a_replica(replica_id: int = 1, *, age: float = 0, **fields: Any) -> ReplicaView:
    heartbeat_at = fields.setdefault("heartbeat_at", ago(age))
    return make_replica_view(replica_id, heartbeat_age=NOW - heartbeat_at, **fields)


def facts_of(*replicas: ReplicaView) -> Facts:
    return Facts(
        read_at=NOW, replicas={it.replica_id: it for it in replicas}, collecting=seconds(1)
    )


def a_load(
    busy: int, size: int = 10, *, unreachable: float | None = None
) -> dict[str, NamespaceLoad]:
    since = None if unreachable is None else seconds(unreachable)
    return {NAMESPACE.name: NamespaceLoad(busy_count=busy, size=size, unreachable_for=since)}


def a_task(task_id: int = 7, **fields: Any) -> UnfinishedTask:
    """Return a call that is due and unclaimed."""
    defaults: dict[str, Any] = {
        "task_id": task_id, "task_type": TaskType.CALL, "status": TaskStatus.WAITING,
        "attempt_count": 0, "created_at": ago(3), "due_at": ago(2), "is_due": True, "lease": None,
        "last_error": None,
    }  # fmt: skip
    return UnfinishedTask(**defaults | fields)


def leased(task_id: int = 7, *, at: float = 20, overdue: float = -10, **fields: Any) -> Any:
    """Return a call that replica 1 took so many seconds ago."""
    lease = Lease(replica_id=1, leased_at=ago(at), expires_at=ago(overdue))
    defaults: dict[str, Any] = {
        "status": TaskStatus.RUNNING, "attempt_count": 1, "due_at": None, "is_due": False,
    }  # fmt: skip
    return a_task(task_id, **defaults | {"lease": lease} | fields)


def timer(**fields: Any) -> UnfinishedTask:
    defaults: dict[str, Any] = {
        "task_type": TaskType.TIMEOUT, "due_at": ahead(60), "is_due": False,
    }  # fmt: skip
    return a_task(**defaults | fields)


def waits_of(*tasks: UnfinishedTask, facts: Facts | None = None) -> tuple[Wait, ...]:
    return why.waits(tasks, facts=facts or facts_of(a_replica()), namespace=NAMESPACE)


def cause_of(*tasks: UnfinishedTask, facts: Facts | None = None) -> Cause:
    """Return the cause of the last task."""
    return waits_of(*tasks, facts=facts)[-1].cause


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
        running, first, second = leased(1), a_task(2, due_at=None), a_task(3, due_at=None)

        assert [it.cause for it in waits_of(running, first, second)[1:]] == [
            BehindTask(task_id=1, task_type=TaskType.CALL, is_running=True, since=ago(20)),
            BehindTask(task_id=2, task_type=TaskType.CALL, is_running=False, since=ago(3)),
        ]

    def test_is_behind_it_though_it_is_a_timer_that_is_overdue(self) -> None:
        task = timer(due_at=ago(1), is_due=True, status=TaskStatus.BLOCKED)

        found = cause_of(a_task(1), task)

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
            # Its release does not report loads.
            a_replica(6, loads=None),
        )

        assert cause_of(a_task(), facts=facts) == NoFreeWorker(
            since=ago(2), busy_count=13, worker_count=24, processor_unreachable_since=ago(8)
        )

    def test_waits_for_a_processor_that_no_replica_reaches(self) -> None:
        facts = facts_of(
            a_replica(1, loads=a_load(0, unreachable=7)),
            a_replica(2, loads=a_load(0, unreachable=3)),
            a_replica(3, loads={"another": NamespaceLoad(busy_count=1, size=1)}),
        )

        assert cause_of(a_task(), facts=facts) == ProcessorUnreachable(
            since=ago(2), processor_unreachable_since=ago(7)
        )

    def test_waits_for_a_processor_that_refused_it_until_the_next_attempt(self) -> None:
        task = timer(task_type=TaskType.CALL, last_error=ERROR)

        assert cause_of(task, facts=facts_of()) == ProcessorUnreachable(until=ahead(60))

    @pytest.mark.parametrize(
        ("replicas", "draining", "silent"),
        [((a_replica(1, draining=True), a_replica(2, age=6), a_replica(3, age=7)), 1, 2),
         ((), 0, 0)],
    )  # fmt: skip
    def test_has_no_replica_where_all_drain_or_are_silent(
        self, replicas: tuple[ReplicaView, ...], draining: int, silent: int
    ) -> None:
        assert cause_of(a_task(), facts=facts_of(*replicas)) == NoReplica(
            since=ago(2), draining_count=draining, silent_count=silent
        )


def dead(**fields: Any) -> PresumedDead:
    return PresumedDead(replica_id=1, since=ago(20), **fields)


def overrun(collected_at: dt.datetime | None) -> Overrun:
    return Overrun(replica_id=1, since=ago(20), expired_at=ago(0.5), collected_at=collected_at)


LATE, DRAINS = a_replica(1, age=6), a_replica(2, draining=True)
LONG_SILENT = a_replica(1, heartbeat_at=ago(8) - MICROSECOND, lease_timeout=seconds(8), loads=None)
UNREACHABLE = a_replica(1, loads=a_load(1, unreachable=8), age=2)
LEASED: dict[str, tuple[UnfinishedTask, tuple[ReplicaView, ...], Cause]] = {
    "runs": (leased(), (a_replica(loads=a_load(1)),), Running(replica_id=1, since=ago(20))),
    "runs in a replica that does not reach the processor": (
        leased(), (UNREACHABLE, a_replica(2, loads=a_load(1, unreachable=100))),
        Running(replica_id=1, since=ago(20), processor_unreachable_since=ago(10)),
    ),
    "runs where the facts are older than the lease": (
        leased(at=0), (), Running(replica_id=1, since=NOW),
    ),
    "runs where the heartbeat is older than the lease": (
        leased(at=0), (LATE,), Running(replica_id=1, since=NOW),
    ),
    "is lost when its replica is silent for its own lease timeout": (
        leased(), (LONG_SILENT, a_replica(2)),
        dead(silent_since=ago(8) - MICROSECOND, collected_at=ahead(1) - MICROSECOND),
    ),
    "is lost when its replica is not on the list": (
        leased(), (a_replica(2),), dead(silent_since=None, collected_at=ahead(1)),
    ),
    "is not collected where no replica serves": (
        leased(), (LATE, DRAINS), dead(silent_since=ago(6), collected_at=None),
    ),
    "overran where its replica lives and its time is over": (
        leased(overdue=0.5), (a_replica(1),), overrun(ahead(0.5)),
    ),
    "overran and is not collected": (
        leased(overdue=0.5), (a_replica(1, draining=True),), overrun(None),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("task", "replicas", "cause"), LEASED.values(), ids=LEASED)
def test_a_task_that_is_leased(
    task: UnfinishedTask, replicas: tuple[ReplicaView, ...], cause: Cause
) -> None:
    assert cause_of(task, facts=facts_of(*replicas)) == cause


@pytest.mark.parametrize(("age", "is_late"), [(2.5, False), (2.6, True), (5, True)])
def test_a_task_runs_in_a_replica_of_which_a_heartbeat_is_missing(
    age: float, is_late: bool
) -> None:
    found = cause_of(leased(), facts=facts_of(a_replica(1, age=age), a_replica(2)))

    late: dict[str, Any] = {"silent_since": ago(age), "collected_at": ahead(6 - age)}
    assert found == Running(replica_id=1, since=ago(20), **(late if is_late else {}))


PAUSE = Pause(paused_at=ago(9), reason="charged twice", author="ada")


@pytest.mark.parametrize(
    ("task", "replicas", "causes"),
    [
        (a_task(), (a_replica(),), [Paused(pause=PAUSE, since=ago(2))]),
        (a_task(), (), [Paused(pause=PAUSE, since=ago(2))]),
        (timer(), (a_replica(),), [TimerNotDue(until=ahead(60)), Paused(pause=PAUSE)]),
        (
            a_task(held_since=ago(5)), (a_replica(),),
            [ProcessFailed(since=ago(5)), Paused(pause=PAUSE)],
        ),
        (leased(), (a_replica(),), [Running(replica_id=1, since=ago(20))]),
    ],
    ids=["due", "due without a replica", "not due", "held", "running"],
)  # fmt: skip
def test_whatever_waits_in_a_paused_namespace_waits_for_its_end_too(
    task: UnfinishedTask, replicas: tuple[ReplicaView, ...], causes: list[Cause]
) -> None:
    paused = dataclasses.replace(NAMESPACE, pause=PAUSE)

    [wait] = why.waits([task], facts=facts_of(*replicas), namespace=paused)

    assert list(wait.causes) == causes


def test_a_wait_tells_the_attempt_that_runs_or_comes_next_and_the_last_error() -> None:
    running, waiting = waits_of(
        leased(attempt_count=2), a_task(8, attempt_count=2, last_error=ERROR)
    )

    assert (running.task_id, running.attempt, running.last_error) == (7, 2, None)
    assert (waiting.task_id, waiting.attempt, waiting.last_error) == (8, 3, ERROR)
    assert (waiting.task_type, waiting.status) == (TaskType.CALL, TaskStatus.WAITING)


# Tasks with constraints.

LATER, SINCE = ahead(60), ago(2)
ORDER = OrderWait(
    order=Order("db/7", Version.parse("1.10")),
    process_id="p",
    task_id=3,
    version=Version.parse("1.9"),
    status=TaskStatus.AVAILABLE,
)
HOLDER = GateHolder(process_id="q", task_id=4, held_at=NOW, hold=GateHold.TASK, is_reserved=False)
GATE = GateWait(gate="db/7", capacity=1, held=1, holders=(HOLDER,), position=2, waiting_count=5)
SHUT = GateWait(gate="shut", capacity=0, held=0, holders=(), position=0, waiting_count=9)
SPENT = TimeSpent(**{it.name: seconds(1) for it in dataclasses.fields(TimeSpent)})
RUN_AT, BEHIND_VERSION, FULL = (
    RunAtNotDue(until=LATER), BehindVersion(order=ORDER), GatesFull(gates=(GATE, SHUT)),
)  # fmt: skip
BEHIND = BehindTask(task_id=9, task_type=TaskType.CALL, is_running=True, since=SINCE)
DUE = NoFreeWorker(since=SINCE, busy_count=0, worker_count=10)
EVERYTHING: dict[str, Any] = {"order": ORDER, "gates": (GATE, SHUT)}
TIME, ORDERED, PROCESS, GATES, AVAILABLE = GatedState


def gated(state: GatedState, task_id: int = 7, **fields: Any) -> UnfinishedTask:
    """Return a call that has no instant, and is in a state of its constraints."""
    own = {it.name for it in dataclasses.fields(Gated)} & fields.keys()
    given: dict[str, Any] = {"state": state, "since": SINCE, "spent": SPENT} | {
        it: fields.pop(it) for it in own
    }
    return a_task(task_id, **{"due_at": None, "is_due": False, "gated": Gated(**given)} | fields)


FOUND: dict[str, tuple[UnfinishedTask, tuple[Cause, ...]]] = {
    "its instant alone": (gated(TIME, due_at=LATER), (RUN_AT,)),
    "its instant first": (
        gated(TIME, due_at=LATER, **EVERYTHING), (RUN_AT, BEHIND_VERSION, FULL),
    ),
    "an instant that has come, before a replica has looked": (
        gated(TIME, due_at=NOW, is_due=True, **EVERYTHING), (BEHIND_VERSION, FULL),
    ),
    "a timer": (
        gated(TIME, task_type=TaskType.TIMEOUT, due_at=LATER), (TimerNotDue(until=LATER),),
    ),
    "a retry": (
        gated(TIME, due_at=LATER, attempt_count=2, gates=(GATE,)),
        (RetryNotDue(until=LATER, attempts_max=4), GatesFull(gates=(GATE,))),
    ),
    "an order": (gated(ORDERED, order=ORDER), (BEHIND_VERSION,)),
    "an order first": (gated(ORDERED, **EVERYTHING), (BEHIND_VERSION, FULL)),
    "gates": (gated(GATES, gates=(GATE, SHUT)), (FULL,)),
    "gates first, where a smaller version came later": (
        gated(GATES, **EVERYTHING), (FULL, BEHIND_VERSION),
    ),
    "nothing any more": (gated(GATES), (DUE,)),
    "no task any more": (gated(PROCESS), (DUE,)),
    "a worker": (gated(AVAILABLE, due_at=SINCE, is_due=True), (DUE,)),
    "a worker, since it has passed and not since it was due": (
        gated(AVAILABLE, task_type=TaskType.TIMEOUT, due_at=SINCE - seconds(99), is_due=True),
        (DUE,),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("task", "causes"), FOUND.values(), ids=FOUND)
def test_a_task_names_all_that_it_waits_for(
    task: UnfinishedTask, causes: tuple[Cause, ...]
) -> None:
    [wait] = waits_of(task)

    assert wait.causes == causes
    assert (wait.created_at, wait.spent) == (task.created_at, SPENT)


def behind(task_id: int) -> BehindTask:
    return BehindTask(task_id=task_id, task_type=TaskType.CALL, is_running=False, since=ago(3))


def test_a_call_is_behind_the_older_one_that_stands_in_line_for_its_gates() -> None:
    older = gated(GATES, 5, gates=(GATE,))

    _, wait = waits_of(older, gated(PROCESS, gates=(GATE,), behind_task_id=5))

    assert wait.causes == (behind(5), GatesFull(gates=(GATE,)))


def test_a_call_is_behind_one_that_waits_for_its_retry_and_came_later() -> None:
    begun = a_task(9, attempt_count=1, due_at=LATER, is_due=False)

    assert waits_of(begun, gated(PROCESS))[-1].causes == (behind(9),)


@pytest.mark.parametrize(
    ("state", "first"),
    [*zip(GatedState, (RUN_AT, BEHIND_VERSION, BEHIND, FULL, BEHIND), strict=True)],
)
def test_a_busy_process_is_named_whatever_comes_first(state: GatedState, first: Cause) -> None:
    _, wait = waits_of(leased(9, at=2), gated(state, due_at=LATER, **EVERYTHING))

    assert BEHIND in wait.causes
    assert wait.cause == first


def test_it_is_behind_those_asked_for_before_it_and_not_behind_later_ones() -> None:
    *_, wait = waits_of(leased(9), a_task(5, due_at=None), a_task(8, due_at=None), gated(PROCESS))
    *_, alone = waits_of(a_task(8, due_at=None), gated(GATES, gates=(GATE,)))

    assert wait.cause == behind(5)
    assert alone.causes == (GatesFull(gates=(GATE,)),)


def test_a_timer_is_behind_them_all() -> None:
    late = gated(PROCESS, task_type=TaskType.TIMEOUT, due_at=SINCE, is_due=True)

    assert cause_of(a_task(8), late) == dataclasses.replace(behind(8), until=SINCE)


def test_only_an_init_task_holds_up_others_while_it_waits_for_its_constraints() -> None:
    waiting = gated(GATES, gates=(GATE,))
    init = gated(GATES, 6, task_type=TaskType.INIT, gates=(GATE,))

    *_, passing = waits_of(waiting, timer(task_id=9))
    *_, held_up = waits_of(init, waiting)

    assert passing.cause == TimerNotDue(until=LATER)
    assert held_up.cause == GatesFull(gates=(GATE,))
    assert [type(it) for it in held_up.besides] == [BehindTask]


# Explanations.


def explained(*causes: Cause, **fields: Any) -> str:
    """Return the sentences on call 7."""
    defaults: dict[str, Any] = {
        "task_id": 7, "task_type": TaskType.CALL, "status": TaskStatus.WAITING, "attempt": 1,
        "created_at": NOW,
    }  # fmt: skip
    return why.explain(Wait(**defaults | fields, cause=causes[0], besides=causes[1:]))


AT, AT_1, AT_2 = (f"2026-01-01 00:00:0{second}.000Z" for second in range(3))
RUNNING = Running(replica_id=3, since=NOW)
DEAD = PresumedDead(replica_id=3, since=NOW, silent_since=ahead(1), collected_at=ahead(2))
LOST = dataclasses.replace(DEAD, silent_since=None, collected_at=None)
STRUGGLING = dataclasses.replace(
    RUNNING, processor_unreachable_since=NOW, silent_since=ahead(1), collected_at=ahead(2)
)
OVERRUN = Overrun(replica_id=3, since=NOW, expired_at=ahead(1), collected_at=ahead(2.5))
RETRY = RetryNotDue(until=ahead(1.25), attempts_max=8)
AWAY = dataclasses.replace(RETRY, processor_unreachable_since=NOW)
BEHIND_INIT = BehindTask(task_id=6, task_type=TaskType.INIT, is_running=True, since=NOW)
WAITING_BEHIND = dataclasses.replace(BEHIND_INIT, is_running=False, until=ahead(1))
CROWDED = NoFreeWorker(since=NOW, busy_count=10, worker_count=10)
ALMOST = dataclasses.replace(CROWDED, busy_count=9, processor_unreachable_since=NOW)
NOBODY = dataclasses.replace(CROWDED, busy_count=0, worker_count=0)
NO_REPLICA = NoReplica(since=NOW, draining_count=1, silent_count=2)
FULL_OF_TWO = dataclasses.replace(GATE, capacity=2, held=2, holders=(HOLDER, HOLDER), position=0)
RESERVED = dataclasses.replace(
    GATE, holders=(dataclasses.replace(HOLDER, is_reserved=True),), position=1, waiting_count=1
)
QUEUED = dataclasses.replace(SHUT, position=3)
RUNS = f"has been running since {AT} in replica 3"
TAKEN = f"was taken at {AT} by replica 3, which"
COLLECTED = f"the task is collected at {AT_2} at the latest."
PAUSED = "has been paused since 2025-12-31 23:59:51.000Z"
UNREACHED = f"The processor has been unreachable since {AT}."
VERSION = (
    "has version 1.10 in the order db/7, and waits for version 1.9: task 3 of process p, which is "
    "available."
)

SENTENCES: list[tuple[tuple[Cause, ...], dict[str, Any], str]] = [
    ((RUNNING,), {}, f"{RUNS}."),
    ((RUNNING,), {"attempt": 2}, f"{RUNS}, attempt 2."),
    ((RUNNING,), {"attempt": 2, "last_error": ERROR},
     f"{RUNS}, attempt 2, after AWAY: connection refused."),
    ((STRUGGLING,), {},
     f"{RUNS}. {UNREACHED} That replica has been silent since {AT_1}; if it stays so, {COLLECTED}"),
    ((DEAD,), {},
     f"{TAKEN} has been silent since {AT_1} and is presumed dead; {COLLECTED}"),
    ((LOST,), {},
     (f"{TAKEN} is no longer on the list of replicas and is presumed dead; the task is "
     "collected once a replica serves.")),
    ((OVERRUN,), {},
     f"{RUNS} and should have ended by {AT_1}; {COLLECTED.replace('02.000', '02.500')}"),
    ((TimerNotDue(until=ahead(1)),), {}, f"is a timer, until {AT_1}."),
    ((RETRY,), {"attempt": 3, "last_error": ERROR},
     ("waits for its retry, attempt 3 of 8, at 2026-01-01 00:00:01.250Z, after AWAY: connection "
     "refused.")),
    ((AWAY,), {"attempt": 2},
     f"waits for its retry, attempt 2 of 8, at 2026-01-01 00:00:01.250Z. {UNREACHED}"),
    ((BEHIND_INIT,), {}, f"waits behind task 6 (init), which has been running since {AT}."),
    ((WAITING_BEHIND,), {},
     (f"waits behind task 6 (init), which has been waiting since {AT}. It is a timer, until "
     f"{AT_1}.")),
    ((ProcessFailed(since=NOW),), {},
     f"is held: its process has been in error since {AT}."),
    ((ProcessFailed(since=NOW, until=ahead(1)),), {},
     f"is held: its process has been in error since {AT}. It is a timer, until {AT_1}."),
    ((CROWDED,), {}, f"has been due since {AT}, and no worker is free: 10 of 10 are busy."),
    ((CROWDED,), {"last_error": ERROR},
     (f"has been due since {AT}, after AWAY: connection refused, and no worker is free: 10 of 10 "
      "are busy.")),
    ((ALMOST,), {},
     f"has been due since {AT}; a worker is about to take it: 9 of 10 are busy. {UNREACHED}"),
    ((ProcessorUnreachable(since=NOW, processor_unreachable_since=NOW),), {},
     f"waits for its processor, due since {AT}. {UNREACHED}"),
    ((ProcessorUnreachable(until=ahead(1)),), {"last_error": ERROR},
     (f"waits for its processor, and is tried again at {AT_1}, after AWAY: connection "
     "refused.")),
    ((NOBODY,), {}, f"has been due since {AT}, and no worker has taken it yet."),
    ((NO_REPLICA,), {},
     f"has been due since {AT}, and no replica serves: 1 draining, 2 silent."),
    ((QuotaUsedUp(since=NOW, namespace="orders", quota=Quota.TIMERS_PER_SECOND, limit=9),), {},
     (f"has been due since {AT}, but its namespace has used up its quota: timers_per_second is 9. "
      "To raise it: progressor namespace update orders --set quotas.timers_per_second=N.")),
    ((Paused(pause=PAUSE, since=NOW),), {},
     f"has been due since {AT}, but its namespace {PAUSED} by ada: charged twice."),
    ((TimerNotDue(until=NOW), Paused(pause=dataclasses.replace(PAUSE, author=""))), {},
     (f"is a timer, until {AT}. It also waits until its namespace is resumed, which {PAUSED}: "
     "charged twice.")),
    ((RunAtNotDue(until=NOW),), {}, f"may not run before {AT}."),
    ((BEHIND_VERSION,), {}, VERSION),
    ((GatesFull(gates=(GATE,)),), {},
     ("waits for gate db/7, as number 2 of 5 in the queue, which is full: 1 of 1 held, by task 4 "
     f"of process q since {AT}.")),
    ((GatesFull(gates=(FULL_OF_TWO,)),), {},
     ("waits for gate db/7, which is full: 2 of 2 held, longest by task 4 of process q since "
     f"{AT}.")),
    ((GatesFull(gates=(RESERVED,)),), {},
     ("waits for gate db/7, as number 1 of 1 in the queue, which is full: 1 of 1 held, by task 4 "
     f"of process q since {AT}, for which it is reserved.")),
    ((GatesFull(gates=(SHUT, QUEUED)),), {},
     ("waits for gate shut, whose capacity is 0, and for gate shut, whose capacity is 0, as number "
     "3 of 9 in the queue.")),
    ((RunAtNotDue(until=NOW), BEHIND_VERSION, GatesFull(gates=(SHUT,))), {},
     (f"may not run before {AT}. It also {VERSION} It also waits for gate shut, whose "
     "capacity is 0.")),
]  # fmt: skip


@pytest.mark.parametrize(("causes", "fields", "sentence"), SENTENCES)
def test_a_sentence_tells_each_cause_and_all_that_is_known_of_it(
    causes: tuple[Cause, ...], fields: dict[str, Any], sentence: str
) -> None:
    assert explained(*causes, **fields) == f"Task 7 (call) {sentence}"


def test_every_cause_has_a_sentence() -> None:
    assert {type(it) for causes, *_ in SENTENCES for it in causes} == set(get_args(Cause))


def test_an_instant_is_told_in_utc_wherever_it_comes_from() -> None:
    there = NOW.astimezone(dt.timezone(dt.timedelta(hours=9)))

    assert explained(TimerNotDue(until=there)).endswith(f"until {AT}.")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("connection refused.", ": connection refused."),
        ("two\nlines\tand \x1b[2J more", ": two lines and [2J more."),
        ("", "."),
        ("x" * (why.WORDS_MAX + 1), f": {'x' * why.WORDS_MAX} …."),
    ],
)
def test_foreign_text_stays_within_the_sentence(message: str, told: str) -> None:
    error = dataclasses.replace(ERROR, message=message)

    assert explained(RETRY, last_error=error).endswith(f", after AWAY{told}")


A_WAIT = waits_of(leased())
HELD = waits_of(dataclasses.replace(a_task(8), held_since=NOW))
BROKEN = {"status": ProcessStatus.ERROR, "detail": "no stock", "corrupted_by": 5}


@pytest.mark.parametrize(("message", "told"), [("no such bin", ": no such bin"), ("", "")])
def test_a_broken_process_explains_which_repair_has_failed_since(message: str, told: str) -> None:
    repair = FailedRepair(task_id=7, failed_at=NOW, code=3, reason="BAD_BIN", message=message)

    assert why.explain_process(make_process(**BROKEN), (), None, (), repair) == (
        f"The process has been in error since {AT}, broken by task 5: no stock; repair 7 has "
        f"failed since, at {AT}, after BAD_BIN{told}; retry or repair it to bring it back."
    )


@pytest.mark.parametrize(
    ("fields", "waits", "sentence"),
    [
        (BROKEN, (),
         (f"The process has been in error since {AT}, broken by task 5: no stock; retry or repair "
         "it to bring it back.")),
        (BROKEN, HELD,
         (f"The process has been in error since {AT}, broken by task 5: no stock; retry or repair "
         "it to bring it back; 1 task waits for that.")),
        (BROKEN, (*HELD, *HELD, *A_WAIT),
         (f"The process has been in error since {AT}, broken by task 5: no stock; its recovery "
         "is under way; 2 tasks wait for that.")),
        (BROKEN | {"corrupted_by": None, "detail": ""}, A_WAIT,
         (f"The process has been in error since {AT}, broken: no detail; its recovery is under "
         "way.")),
        ({"status": ProcessStatus.FINISHED}, (),
         f"The process has been finished since {AT}; it waits for nothing."),
        ({"status": ProcessStatus.FINISHED, "detail": "no more"}, (),
         f"The process was ended from outside at {AT}: no more; it waits for nothing."),
        ({"status": ProcessStatus.RUNNING}, (),
         "The process waits for nothing: it has no task and no timer."),
        ({"status": ProcessStatus.RUNNING}, A_WAIT, ""),
        ({"status": ProcessStatus.INIT}, A_WAIT, ""),
    ],
)  # fmt: skip
def test_a_process_explains_what_none_of_its_tasks_does(
    fields: dict[str, Any], waits: tuple[Wait, ...], sentence: str
) -> None:
    assert why.explain_process(make_process(**fields), waits) == sentence


@pytest.mark.parametrize(
    ("kind", "task_id", "awaited", "requested"),
    [
        (MessageKind.CALL, 9, "(call, sent by task 7 at", "the answer of task 9 (call, sent by"),
        (MessageKind.START, 9, "(start, sent by task 7 at", "the end of the process (start,"),
        (MessageKind.NOTIFY, None, ", and not delivered yet).", ""),
    ],
)  # fmt: skip
def test_a_reply_is_explained_to_who_waits_for_it_and_to_who_has_to_answer(
    kind: MessageKind, task_id: int | None, awaited: str, requested: str
) -> None:
    reply = AwaitedReply(
        reply="picked", kind=kind, namespace="warehouse", process_id="w", task_id=7, number=1,
        sent_at=NOW, receiver_task_id=task_id,
    )  # fmt: skip

    sentence = why.explain_awaited(reply)
    assert sentence.startswith("The process waits for the reply 'picked' of warehouse/w (")
    assert awaited in sentence
    assert AT in sentence
    assert f"Process warehouse/w waits for {requested}" in why.explain_requested(reply)
    assert why.explain_process(make_process(status=ProcessStatus.RUNNING), (), None, (reply,)) == (
        "The process has no task and no timer; it waits for replies to its messages."
    )
