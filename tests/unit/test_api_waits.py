"""Every cause of waiting crosses the wire: what a client reads is what the engine found."""

import dataclasses
import datetime as dt
from typing import Any, get_args

import pytest

from progressor.api import answers
from progressor.api.wait_codec import fill_wait
from progressor.domain import why
from progressor.domain.process import ProcessStatus
from progressor.domain.task import TaskError, TaskStatus, TaskType
from progressor.domain.view import HistoryPage, ProcessView
from progressor.domain.wait import (
    BehindTask,
    Cause,
    NoFreeWorker,
    NoReplica,
    Overrun,
    PresumedDead,
    RetryNotDue,
    Running,
    TimerNotDue,
    Wait,
)
from progressor.sdk import WaitCause
from progressor.sdk.waits import read_wait
from progressor.v1 import types_pb2
from tests.support.builders import make_process, seconds
from tests.support.clock import START

LATER, MUCH_LATER, SOME_DAY = START + seconds(1), START + seconds(2), START + dt.timedelta(days=9)
ALWAYS = frozenset({"task_id", "type", "status", "attempt", "last_error", "explanation"})

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
]  # fmt: skip


def a_wait(cause: Cause, **fields: Any) -> Wait:
    """Return a second attempt of a call."""
    defaults: dict[str, Any] = {
        "task_id": 7, "task_type": TaskType.CALL, "status": TaskStatus.WAITING, "attempt": 2,
    }  # fmt: skip
    return Wait(**defaults | fields, cause=cause)


@pytest.mark.parametrize(("cause", "expected"), SHOWN)
def test_a_cause_has_its_fields_and_no_others(cause: Cause, expected: dict[str, Any]) -> None:
    wait = a_wait(cause)
    message = types_pb2.Wait()

    fill_wait(message, wait)

    read = dataclasses.asdict(read_wait(message))
    assert {k: v for k, v in read.items() if k not in ALWAYS and v is not None} == expected
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

    response = answers.get_to_wire(view, HistoryPage(events=(), next_after=None))

    assert response.explanation == why.explain_process(process, ())


def test_list_tells_what_the_first_task_of_a_process_waits_for() -> None:
    wait = a_wait(TimerNotDue(until=LATER))
    waiting, idle = make_process(), make_process()

    page = answers.list_to_wire([waiting], {waiting.key: wait}, page_size=10)
    without = answers.list_to_wire([idle], {}, page_size=10)

    assert page.processes[0].first_wait.cause == types_pb2.WAIT_CAUSE_TIMER
    assert page.processes[0].first_wait.explanation == why.explain(wait)
    assert not without.processes[0].HasField("first_wait")
