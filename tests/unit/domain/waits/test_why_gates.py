"""Why a task with constraints waits: all its causes, and their explanation."""

import dataclasses
from typing import Any

import pytest

from progressor.domain.gates.constraint import GatedState, GateHold, Order, Version
from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.task import TaskError, TaskStatus, TaskType
from progressor.domain.views import why
from progressor.domain.views.replica import Facts, ReplicaFacts
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    Gated,
    GatesFull,
    GateWait,
    Lease,
    NoFreeWorker,
    OrderWait,
    RetryNotDue,
    RunAtNotDue,
    TimerNotDue,
    TimeSpent,
    UnfinishedTask,
    Wait,
)
from tests.support.builders import make_namespace, seconds
from tests.support.clock import START as NOW

NAMESPACE = make_namespace(worker_count_max=10)
SERVES = ReplicaFacts(
    replica_id=1, heartbeat_at=NOW, lease_timeout=seconds(5), draining=False, loads={}
)
FACTS = Facts(read_at=NOW, replicas={1: SERVES}, collecting=seconds(1))

LATER, SINCE = NOW + seconds(60), NOW - seconds(2)
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


def gated(state: GatedState, **fields: Any) -> Gated:
    defaults: dict[str, Any] = {"state": state, "since": SINCE, "spent": SPENT}
    return Gated(**defaults | fields)


def a_task(task_id: int = 7, **fields: Any) -> UnfinishedTask:
    """Return a call that has no instant."""
    defaults: dict[str, Any] = {
        "task_id": task_id,
        "task_type": TaskType.CALL,
        "status": TaskStatus.WAITING,
        "attempt_count": 0,
        "created_at": NOW - seconds(3),
        "due_at": None,
        "is_due": False,
        "lease": None,
        "last_error": None,
    }
    return UnfinishedTask(**defaults | fields)


def a_step(task_id: int = 9) -> UnfinishedTask:
    """Return a call that runs."""
    lease = Lease(replica_id=1, leased_at=SINCE, expires_at=LATER)
    return a_task(task_id, lease=lease, attempt_count=1, status=TaskStatus.RUNNING)


def waits_of(*tasks: UnfinishedTask, facts: Facts = FACTS) -> tuple[Wait, ...]:
    return why.waits(tasks, facts=facts, namespace=NAMESPACE)


RUN_AT, BEHIND_VERSION, FULL = (
    RunAtNotDue(until=LATER), BehindVersion(order=ORDER), GatesFull(gates=(GATE, SHUT)),
)  # fmt: skip
BEHIND = BehindTask(task_id=9, task_type=TaskType.CALL, is_running=True, since=SINCE)
DUE = NoFreeWorker(since=SINCE, busy_count=0, worker_count=10)
EVERYTHING: dict[str, Any] = {"order": ORDER, "gates": (GATE, SHUT)}

FOUND: list[tuple[str, UnfinishedTask, tuple[Cause, ...]]] = [
    ("its instant alone", a_task(due_at=LATER, gated=gated(GatedState.TIME)), (RUN_AT,)),
    (
        "its instant first",
        a_task(due_at=LATER, gated=gated(GatedState.TIME, **EVERYTHING)),
        (RUN_AT, BEHIND_VERSION, FULL),
    ),
    (
        "an instant that has come, before a replica has looked",
        a_task(due_at=NOW, is_due=True, gated=gated(GatedState.TIME, **EVERYTHING)),
        (BEHIND_VERSION, FULL),
    ),
    (
        "a timer",
        a_task(task_type=TaskType.TIMEOUT, due_at=LATER, gated=gated(GatedState.TIME)),
        (TimerNotDue(until=LATER),),
    ),
    (
        "a retry",
        a_task(due_at=LATER, attempt_count=2, gated=gated(GatedState.TIME, gates=(GATE,))),
        (
            RetryNotDue(
                until=LATER, attempts_max=NAMESPACE.policy_for(TaskType.CALL).attempts_max
            ),
            GatesFull(gates=(GATE,)),
        ),
    ),
    ("an order", a_task(gated=gated(GatedState.ORDER, order=ORDER)), (BEHIND_VERSION,)),
    (
        "an order first",
        a_task(gated=gated(GatedState.ORDER, **EVERYTHING)),
        (BEHIND_VERSION, FULL),
    ),
    ("gates", a_task(gated=gated(GatedState.GATES, gates=(GATE, SHUT))), (FULL,)),
    (
        "gates first, where a smaller version came later",
        a_task(gated=gated(GatedState.GATES, **EVERYTHING)),
        (FULL, BEHIND_VERSION),
    ),
    ("nothing any more", a_task(gated=gated(GatedState.GATES)), (DUE,)),
    ("no task any more", a_task(gated=gated(GatedState.PROCESS)), (DUE,)),
    (
        "a worker",
        a_task(due_at=SINCE, is_due=True, gated=gated(GatedState.AVAILABLE)),
        (DUE,),
    ),
    (
        "a worker, since it has passed and not since it was due",
        a_task(
            task_type=TaskType.TIMEOUT, due_at=SINCE - seconds(99), is_due=True,
            gated=gated(GatedState.AVAILABLE),
        ),
        (DUE,),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("task", "causes"), [it[1:] for it in FOUND], ids=[it[0] for it in FOUND])
def test_a_task_names_all_that_it_waits_for(
    task: UnfinishedTask, causes: tuple[Cause, ...]
) -> None:
    [wait] = waits_of(task)

    assert wait.causes == causes
    assert (wait.created_at, wait.spent) == (task.created_at, SPENT)


def test_a_call_is_behind_the_older_one_that_stands_in_line_for_its_gates() -> None:
    older = a_task(5, gated=gated(GatedState.GATES, gates=(GATE,)))
    younger = a_task(gated=gated(GatedState.PROCESS, gates=(GATE,), behind_task_id=5))

    _, wait = waits_of(older, younger)

    behind = BehindTask(
        task_id=5, task_type=TaskType.CALL, is_running=False, since=older.created_at
    )
    assert wait.causes == (behind, GatesFull(gates=(GATE,)))


def test_a_call_is_behind_one_that_waits_for_its_retry_and_came_later() -> None:
    begun = a_task(9, attempt_count=1, due_at=LATER)
    older = a_task(gated=gated(GatedState.PROCESS))

    _, wait = waits_of(begun, older)

    behind = BehindTask(
        task_id=9, task_type=TaskType.CALL, is_running=False, since=begun.created_at
    )
    assert wait.causes == (behind,)


@pytest.mark.parametrize("state", GatedState)
def test_a_busy_process_is_named_whatever_comes_first(state: GatedState) -> None:
    task = a_task(due_at=LATER, gated=gated(state, **EVERYTHING))

    _, wait = waits_of(a_step(), task)

    assert BEHIND in wait.causes
    first = {
        GatedState.TIME: RUN_AT,
        GatedState.ORDER: BEHIND_VERSION,
        GatedState.PROCESS: BEHIND,
        GatedState.GATES: FULL,
        GatedState.AVAILABLE: BEHIND,
    }
    assert wait.cause == first[state]


def test_it_is_behind_those_asked_for_before_it_and_not_behind_later_ones() -> None:
    older, newer = a_task(5), a_task(8)
    task = a_task(7, gated=gated(GatedState.PROCESS))

    *_, wait = waits_of(a_step(), older, newer, task)
    *_, alone = waits_of(newer, a_task(7, gated=gated(GatedState.GATES, gates=(GATE,))))

    assert isinstance(wait.cause, BehindTask)
    assert wait.cause.task_id == 5
    assert alone.causes == (GatesFull(gates=(GATE,)),)


def test_a_timer_is_behind_them_all() -> None:
    timer = a_task(
        7, task_type=TaskType.TIMEOUT, due_at=SINCE, is_due=True, gated=gated(GatedState.PROCESS)
    )

    *_, wait = waits_of(a_task(8), timer)

    assert isinstance(wait.cause, BehindTask)
    assert (wait.cause.task_id, wait.cause.until) == (8, SINCE)


def test_only_an_init_task_holds_up_others_while_it_waits_for_its_constraints() -> None:
    timer = a_task(9, task_type=TaskType.TIMEOUT, due_at=LATER)
    waiting = a_task(7, gated=gated(GatedState.GATES, gates=(GATE,)))
    init = a_task(6, task_type=TaskType.INIT, gated=gated(GatedState.GATES, gates=(GATE,)))

    *_, passing = waits_of(waiting, timer)
    *_, behind = waits_of(init, waiting)

    assert passing.cause == TimerNotDue(until=LATER)
    assert behind.cause == GatesFull(gates=(GATE,))
    assert [type(it) for it in behind.besides] == [BehindTask]


def explained(*causes: Cause, **fields: Any) -> str:
    """Return the sentences on call 7."""
    wait = Wait(
        task_id=7, task_type=TaskType.CALL, status=TaskStatus.WAITING, created_at=NOW,
        cause=causes[0], besides=causes[1:], **{"attempt": 1} | fields,
    )  # fmt: skip
    return why.explain(wait)


FULL_OF_TWO = dataclasses.replace(GATE, capacity=2, held=2, holders=(HOLDER, HOLDER), position=0)
RESERVED = dataclasses.replace(
    GATE, holders=(dataclasses.replace(HOLDER, is_reserved=True),), position=1, waiting_count=1
)
AT = "2026-01-01 00:00:00.000Z"

SENTENCES: list[tuple[tuple[Cause, ...], str]] = [
    ((RunAtNotDue(until=NOW),), f"may not run before {AT}."),
    (
        (BEHIND_VERSION,),
        (
            "has version 1.10 in the order db/7, and waits for version 1.9: task 3 of process p, "
            "which is available."
        ),
    ),
    (
        (GatesFull(gates=(GATE,)),),
        (
            "waits for gate db/7, as number 2 of 5 in line, which is full: 1 of 1 held, by task 4 "
            f"of process q since {AT}."
        ),
    ),
    (
        (GatesFull(gates=(FULL_OF_TWO,)),),
        (
            "waits for gate db/7, which is full: 2 of 2 held, longest by task 4 of process q "
            f"since {AT}."
        ),
    ),
    (
        (GatesFull(gates=(RESERVED,)),),
        (
            "waits for gate db/7, as number 1 of 1 in line, which is full: 1 of 1 held, by task 4 "
            f"of process q since {AT}, for which it is reserved."
        ),
    ),
    (
        (GatesFull(gates=(SHUT, dataclasses.replace(SHUT, position=3))),),
        (
            "waits for gate shut, whose capacity is 0, and for gate shut, whose capacity is 0, "
            "as number 3 of 9 in line."
        ),
    ),
    (
        (RunAtNotDue(until=NOW), BEHIND_VERSION, GatesFull(gates=(SHUT,))),
        (
            f"may not run before {AT}. Besides, it has version 1.10 in the order db/7, and waits "
            "for version 1.9: task 3 of process p, which is available. Besides, it waits for gate "
            "shut, whose capacity is 0."
        ),
    ),
]


@pytest.mark.parametrize(("causes", "sentence"), SENTENCES)
def test_a_sentence_tells_each_cause(causes: tuple[Cause, ...], sentence: str) -> None:
    assert explained(*causes) == f"Task 7 (call) {sentence}"


def test_a_retry_of_a_gated_task_tells_what_it_waits_for_besides() -> None:
    error = TaskError(code=14, reason="AWAY", message="away")
    retry = RetryNotDue(until=NOW, attempts_max=3)

    said = explained(retry, GatesFull(gates=(SHUT,)), attempt=2, last_error=error)

    assert said == (
        f"Task 7 (call) waits for its retry, attempt 2 of 3, at {AT}, after AWAY: away."
        " Besides, it waits for gate shut, whose capacity is 0."
    )
