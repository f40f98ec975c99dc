"""Every cause of waiting crosses the wire: what a client reads is what the engine found."""

import dataclasses
import datetime as dt
from typing import Any, get_args

import pytest

from progressor.api.calls import page_tokens
from progressor.api.processes import responses
from progressor.api.processes.wait_codec import fill_wait
from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.process import Process, ProcessStatus
from progressor.domain.processes.task import TaskError, TaskStatus, TaskType
from progressor.domain.views import why
from progressor.domain.views.process import (
    HistoryPage,
    Listed,
    ProcessPage,
    ProcessView,
    place_of,
)
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    GatesFull,
    GateWait,
    NoFreeWorker,
    NoReplica,
    OrderWait,
    Overrun,
    PresumedDead,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    TimeSpent,
    Wait,
)
from progressor.sdk import WaitCause
from progressor.sdk.values.constraints import spent_from_wire
from progressor.sdk.values.process_wire import read_wait
from progressor.v1 import types_pb2
from progressor.wire import processes as process_wire
from tests.support.api.memory import trace
from tests.support.builders import make_process, seconds
from tests.support.clock import START

LATER, MUCH_LATER, SOME_DAY = START + seconds(1), START + seconds(2), START + dt.timedelta(days=9)
ALWAYS = frozenset(
    {"task_id", "type", "status", "attempt", "last_error", "explanation", "created_at"}
)

ORDER = OrderWait(
    order=Order("o", Version.parse("1.10")), process_id="p", task_id=3,
    version=Version.parse("1.9"), status=TaskStatus.AVAILABLE,
)  # fmt: skip
READ_ORDER = {
    "order": {"key": "o", "version": "1.10"}, "process_id": "p", "task_id": 3, "version": "1.9",
    "status": "available",
}  # fmt: skip
HOLDER = GateHolder(
    process_id="q", task_id=4, held_at=START, hold=GateHold.PROCESS, is_reserved=True
)
GATE = GateWait(gate="g", capacity=1, held=2, holders=(HOLDER,), position=2, waiting_count=5)
SHUT = GateWait(gate="shut", capacity=0, held=0, holders=(), position=0, waiting_count=9)
READ_GATES = (
    {
        "gate": "g", "capacity": 1, "held": 2, "position": 2, "waiting_count": 5,
        "holders": (
            {
                "process_id": "q", "task_id": 4, "held_at": START, "hold": "process",
                "reserved": True,
            },
        ),
    },
    {
        "gate": "shut", "capacity": 0, "held": 0, "position": None, "waiting_count": 9,
        "holders": (),
    },
)  # fmt: skip
EVERYTHING = Constraints(
    run_at=LATER, order=ORDER.order, gates={"g": 1, "h": None, "zero": 0}, priority=1,
    hold=GateHold.PROCESS,
)  # fmt: skip
PARTS = {"time": 1, "order": 2, "process": 3, "gates": 4, "available": 5, "running": 0.000_006}

SHOWN: list[tuple[Cause, dict[str, Any]]] = [
    (
        Running(
            replica_id=3, since=START, silent_since=LATER, collected_at=MUCH_LATER,
            processor_unreachable_since=SOME_DAY,
        ),
        {
            "cause": WaitCause.RUNNING, "replica_id": 3, "since": START, "silent_since": LATER,
            "collected_at": MUCH_LATER, "processor_unreachable_since": SOME_DAY,
        },
    ),
    (
        Running(replica_id=3, since=START),
        {"cause": WaitCause.RUNNING, "replica_id": 3, "since": START},
    ),
    (
        PresumedDead(replica_id=3, since=START, silent_since=LATER, collected_at=MUCH_LATER),
        {
            "cause": WaitCause.PRESUMED_DEAD, "replica_id": 3, "since": START,
            "silent_since": LATER, "collected_at": MUCH_LATER,
        },
    ),
    (
        PresumedDead(replica_id=3, since=START, silent_since=None, collected_at=None),
        {"cause": WaitCause.PRESUMED_DEAD, "replica_id": 3, "since": START},
    ),
    (
        Overrun(replica_id=3, since=START, expired_at=LATER, collected_at=MUCH_LATER),
        {
            "cause": WaitCause.OVERRUN, "replica_id": 3, "since": START,
            "collected_at": MUCH_LATER,
        },
    ),
    (TimerNotDue(until=LATER), {"cause": WaitCause.TIMER, "until": LATER}),
    (
        RetryNotDue(until=LATER, attempts_max=8, processor_unreachable_since=START),
        {
            "cause": WaitCause.RETRY, "until": LATER, "attempts_max": 8,
            "processor_unreachable_since": START,
        },
    ),
    (
        BehindTask(
            task_id=6, task_type=TaskType.NOTIFY, is_running=False, since=START, until=LATER
        ),
        {
            "cause": WaitCause.BEHIND_TASK, "behind_task_id": 6, "behind_type": "notify",
            "behind_runs": False, "behind_since": START, "until": LATER,
        },
    ),
    (
        NoFreeWorker(since=START, busy_count=0, worker_count=2),
        {
            "cause": WaitCause.NO_FREE_WORKER, "since": START, "busy_count": 0,
            "worker_count": 2,
        },
    ),
    (
        NoReplica(since=START, draining_count=1, silent_count=0),
        {"cause": WaitCause.NO_REPLICA, "since": START},
    ),
    (RunAtNotDue(until=LATER), {"cause": WaitCause.RUN_AT, "until": LATER}),
    (BehindVersion(order=ORDER), {"cause": WaitCause.ORDER, "order": READ_ORDER}),
    (GatesFull(gates=(GATE, SHUT)), {"cause": WaitCause.GATE, "gates": READ_GATES}),
]  # fmt: skip


def a_wait(cause: Cause, **fields: Any) -> Wait:
    """Return a second attempt of a call."""
    defaults: dict[str, Any] = {
        "task_id": 7, "task_type": TaskType.CALL, "status": TaskStatus.WAITING, "attempt": 2,
        "created_at": START,
    }  # fmt: skip
    return Wait(**defaults | fields, cause=cause)


@pytest.mark.parametrize(("cause", "expected"), SHOWN)
def test_a_cause_has_its_fields_and_no_others(cause: Cause, expected: dict[str, Any]) -> None:
    wait = a_wait(cause)
    message = types_pb2.Wait()

    fill_wait(message, wait)

    read = dataclasses.asdict(read_wait(message))
    told = {k: v for k, v in read.items() if k not in ALWAYS and v not in (None, ())}
    assert told == expected
    assert read["created_at"] == START
    assert (read["task_id"], read["type"], read["attempt"]) == (7, "call", 2)
    assert (read["explanation"], read["last_error"]) == (why.explain(wait), None)


def test_every_cause_is_shown() -> None:
    assert {type(cause) for cause, _ in SHOWN} == set(get_args(Cause))
    assert {shown["cause"] for _, shown in SHOWN} == set(WaitCause) - {WaitCause.UNSPECIFIED}


def test_the_last_error_goes_with_it() -> None:
    message = types_pb2.Wait()

    fill_wait(
        message,
        a_wait(TimerNotDue(until=START), last_error=TaskError(code=14, reason="R", message="m")),
    )

    assert message.last_error == types_pb2.TaskError(code=14, reason="R", message="m")


def test_get_tells_what_no_task_does() -> None:
    process = make_process(status=ProcessStatus.FINISHED)
    view = ProcessView(process=process, timer=None, waits=())

    response = responses.get_to_wire(view, HistoryPage(events=(), next_after=None))

    assert response.explanation == why.explain_process(process, ())


def test_what_a_task_waits_for_besides_is_told_too_and_where_its_time_went() -> None:
    behind = BehindTask(task_id=6, task_type=TaskType.NOTIFY, is_running=True, since=START)
    spent = TimeSpent(**{part: seconds(count) for part, count in PARTS.items()})
    besides = (BehindVersion(order=ORDER), behind, GatesFull(gates=(GATE, SHUT)))
    message = types_pb2.Wait()

    fill_wait(message, a_wait(RunAtNotDue(until=LATER), besides=besides, spent=spent))

    read = dataclasses.asdict(read_wait(message))
    assert (read["cause"], read["until"]) == (WaitCause.RUN_AT, LATER)
    assert (read["order"], read["gates"]) == (READ_ORDER, READ_GATES)
    assert (read["behind_task_id"], read["behind_runs"], read["behind_since"]) == (6, True, START)
    assert read["spent"] == {part: seconds(count) for part, count in PARTS.items()}


def test_a_get_of_many_waits_is_cut_to_what_a_client_can_receive() -> None:
    holder = dataclasses.replace(HOLDER, process_id="x" * 256)
    gate = dataclasses.replace(GATE, gate="g" * 256, holders=(holder,) * 10)
    waits = (a_wait(GatesFull(gates=(gate,) * 8)),) * 100
    view = ProcessView(process=make_process(), timer=None, waits=waits)

    response = responses.get_to_wire(view, HistoryPage(events=(), next_after=None))

    assert 1 < len(response.waits) < 100
    assert response.ByteSize() < responses.WAITS_BYTES_MAX + 10_000


@pytest.mark.parametrize("constraints", [None, Constraints(), EVERYTHING])
def test_a_trace_has_the_constraints_as_they_were_asked_for(
    constraints: Constraints | None,
) -> None:
    spent = TimeSpent(**{part: seconds(count) for part, count in PARTS.items()})
    traced = dataclasses.replace(
        trace(7), constraints=constraints, spent=None if constraints is None else spent
    )

    [task] = responses.trace_to_wire([traced], page_size=1).tasks

    assert task.HasField("constraints") == task.HasField("spent") == (constraints is not None)
    if constraints is not None:
        assert process_wire.constraints_from_wire(task.constraints, "constraints") == constraints
        assert dataclasses.asdict(spent_from_wire(task.spent)) == dataclasses.asdict(spent)


def test_list_tells_what_the_first_task_of_a_process_waits_for() -> None:
    wait = a_wait(TimerNotDue(until=LATER))
    waiting, idle = make_process(), make_process()

    page = responses.list_to_wire(a_page(Listed(process=waiting, first_wait=wait)))
    without = responses.list_to_wire(a_page(Listed(process=idle, first_wait=None)))

    assert page.processes[0].first_wait.cause == types_pb2.WAIT_CAUSE_TIMER
    assert page.processes[0].first_wait.explanation == why.explain(wait)
    assert not without.processes[0].HasField("first_wait")


def test_a_list_goes_on_behind_the_last_process_that_was_looked_at() -> None:
    last = make_process()

    response = responses.list_to_wire(a_page(next_before=last))

    assert response.next_page_token == page_tokens.PROCESSES.write(place_of(last))
    assert not responses.list_to_wire(a_page()).next_page_token


def test_a_list_that_is_too_large_goes_on_behind_the_last_one_told() -> None:
    large = make_process(detail="x" * (responses.PAGE_BYTES_MAX // 2), status=ProcessStatus.ERROR)
    listed = [Listed(process=large, first_wait=None)] * 3

    response = responses.list_to_wire(a_page(*listed, next_before=make_process()))

    assert len(response.processes) == 1
    assert response.next_page_token == page_tokens.PROCESSES.write(place_of(large))


def a_page(*listed: Listed, next_before: Process | None = None) -> ProcessPage:
    return ProcessPage(listed=listed, next_before=next_before)
