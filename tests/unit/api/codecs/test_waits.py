"""Waits on the wire: each cause under its own name, and answers that a client can receive.

The fields of each cause are held by tests/golden/api.processes.responses.txt.
"""

import dataclasses
import datetime as dt
from typing import Any, get_args

import pytest

from progressor.api.calls import page_tokens
from progressor.api.processes import responses
from progressor.api.processes.responses import fill_wait
from progressor.domain.gates.constraint import GateHold, Order, Version
from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.message import MessageKind
from progressor.domain.processes.policy import Pause
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.domain.quotas.quotas import Quota
from progressor.domain.views import why
from progressor.domain.views.process import (
    AwaitedReply,
    HistoryPage,
    Listed,
    Place,
    ProcessPage,
    ProcessView,
    Replies,
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
    Paused,
    PresumedDead,
    ProcessFailed,
    ProcessorUnreachable,
    QuotaUsedUp,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    Wait,
)
from progressor.sdk import WaitCause
from progressor.sdk.values.processes import read_wait
from progressor.v1 import types_pb2
from tests.support.api.memory import trace
from tests.support.builders import make_process, seconds
from tests.support.clock import START

LATER, MUCH_LATER, SOME_DAY = START + seconds(1), START + seconds(2), START + dt.timedelta(days=9)

ORDER = OrderWait(
    order=Order("o", Version.parse("1.10")), process_id="p", task_id=3,
    version=Version.parse("1.9"), status=TaskStatus.AVAILABLE,
)  # fmt: skip
HOLDER = GateHolder(
    process_id="q", task_id=4, held_at=START, hold=GateHold.PROCESS, is_reserved=True
)
GATE = GateWait(gate="g", capacity=1, held=2, holders=(HOLDER,), position=2, waiting_count=5)

CAUSES: list[tuple[Cause, WaitCause]] = [
    (Running(replica_id=3, since=START), WaitCause.RUNNING),
    (
        PresumedDead(replica_id=3, since=START, silent_since=None, collected_at=None),
        WaitCause.PRESUMED_DEAD,
    ),
    (
        Overrun(replica_id=3, since=START, expired_at=LATER, collected_at=None),
        WaitCause.OVERRUN,
    ),
    (TimerNotDue(until=LATER), WaitCause.TIMER),
    (RetryNotDue(until=LATER, attempts_max=8), WaitCause.RETRY),
    (
        BehindTask(task_id=6, task_type=TaskType.NOTIFY, is_running=False, since=START),
        WaitCause.BEHIND_TASK,
    ),
    (ProcessFailed(since=START), WaitCause.PROCESS_FAILED),
    (NoFreeWorker(since=START, busy_count=0, worker_count=2), WaitCause.NO_FREE_WORKER),
    (
        ProcessorUnreachable(since=START, processor_unreachable_since=START),
        WaitCause.PROCESSOR_UNREACHABLE,
    ),
    (NoReplica(since=START, draining_count=1, silent_count=0), WaitCause.NO_REPLICA),
    (RunAtNotDue(until=LATER), WaitCause.RUN_AT),
    (BehindVersion(order=ORDER), WaitCause.ORDER),
    (GatesFull(gates=(GATE,)), WaitCause.GATE),
    (Paused(pause=Pause(paused_at=START, reason="why"), since=START), WaitCause.PAUSED),
    (
        QuotaUsedUp(since=START, namespace="n", quota=Quota.TIMERS_PER_SECOND, limit=9),
        WaitCause.QUOTA,
    ),
]


def a_wait(cause: Cause, **fields: Any) -> Wait:
    """Return a second attempt of a call."""
    defaults: dict[str, Any] = {
        "task_id": 7, "task_type": TaskType.CALL, "status": TaskStatus.WAITING, "attempt": 2,
        "created_at": START,
    }  # fmt: skip
    return Wait(**defaults | fields, cause=cause)


@pytest.mark.parametrize(("cause", "on_the_wire"), CAUSES)
def test_a_cause_is_sent_under_its_own_name_with_its_explanation(
    cause: Cause, on_the_wire: WaitCause
) -> None:
    wait, message = a_wait(cause), types_pb2.Wait()

    fill_wait(message, wait)

    read = read_wait(message)
    assert (read.cause, read.explanation) == (on_the_wire, why.explain(wait))


def test_every_cause_is_in_the_table() -> None:
    assert {type(cause) for cause, _ in CAUSES} == set(get_args(Cause))
    assert {it for _, it in CAUSES} == set(WaitCause) - {WaitCause.UNSPECIFIED}


def test_get_explains_a_process_without_tasks() -> None:
    process = make_process(status=ProcessStatus.FINISHED)
    view = ProcessView(process=process, timer=None, waits=())

    response = responses.get_to_wire(view, HistoryPage(events=(), next_after=None))

    assert response.explanation == why.explain_process(process, ())


def test_a_get_of_many_waits_is_cut_to_what_a_client_can_receive() -> None:
    holder = dataclasses.replace(HOLDER, process_id="x" * 256)
    gate = dataclasses.replace(GATE, gate="g" * 256, holders=(holder,) * 10)
    waits = (a_wait(GatesFull(gates=(gate,) * 8)),) * 100
    view = ProcessView(process=make_process(), timer=None, waits=waits)

    response = responses.get_to_wire(view, HistoryPage(events=(), next_after=None))

    assert 1 < len(response.waits) < 100
    assert response.ByteSize() < responses.WAITS_BYTES_MAX + 10_000


def test_a_get_of_many_replies_is_cut_to_what_a_client_can_receive() -> None:
    reply = AwaitedReply(
        reply="r" * 64, kind=MessageKind.CALL, namespace="n" * 64, process_id="p" * 256, task_id=1,
        number=1, sent_at=LATER,
    )  # fmt: skip
    view = ProcessView(
        process=make_process(), timer=None, waits=(),
        replies=Replies(awaited=(reply,) * 100, requested=(reply,) * 100),
    )  # fmt: skip

    response = responses.get_to_wire(view, HistoryPage(events=(), next_after=None))

    assert 1 < len(response.awaited_replies) < 100
    assert 1 < len(response.requested_replies) < 100
    assert response.ByteSize() < 2 * responses.REPLIES_BYTES_MAX + 10_000


def test_list_reports_the_wait_of_the_first_task() -> None:
    wait = a_wait(TimerNotDue(until=LATER))
    waiting, idle = make_process(), make_process()

    page = responses.list_to_wire(a_page(Listed(process=waiting, first_wait=wait)))
    without = responses.list_to_wire(a_page(Listed(process=idle, first_wait=None)))

    assert page.processes[0].first_wait.cause == types_pb2.WAIT_CAUSE_TIMER
    assert page.processes[0].first_wait.explanation == why.explain(wait)
    assert not without.processes[0].HasField("first_wait")


def test_a_list_that_is_too_large_continues_after_the_last_process_sent() -> None:
    large = make_process(detail="x" * (responses.PAGE_BYTES_MAX // 2), status=ProcessStatus.ERROR)
    listed = [Listed(process=large, first_wait=None)] * 3

    response = responses.list_to_wire(a_page(*listed, next_before=place_of(make_process())))

    assert len(response.processes) == 1
    assert response.next_page_token == page_tokens.PROCESSES.write(place_of(large))


def a_page(*listed: Listed, next_before: Place | None = None) -> ProcessPage:
    return ProcessPage(listed=listed, next_before=next_before)


def test_a_page_of_a_trace_names_the_last_task_where_there_are_more() -> None:
    response = responses.trace_to_wire([trace(7), trace(8)], page_size=1)

    assert [it.task_id for it in response.tasks] == [7]
    assert response.next_page_token == page_tokens.TASKS.write(7)
    assert not responses.trace_to_wire([trace(7)], page_size=1).next_page_token
