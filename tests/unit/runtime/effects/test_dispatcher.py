"""Effects of a settlement: who is notified, and what becomes due."""

from typing import Any

import pytest

from progressor.domain.jobs.job import JobState
from progressor.domain.processes.intent import Complete
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry
from progressor.domain.processes.task import TaskError, TaskResult, TaskStatus, TaskType
from progressor.storage.rows.effects import Again, Cancellation, Effects, Later, LoweredGate
from tests.support.builders import (
    make_cancelled,
    make_due,
    make_entry,
    make_error,
    make_key,
    make_success,
    make_written,
    seconds,
)
from tests.support.clock import START, ManualClock
from tests.support.runtime.context import make_context, make_dispatcher
from tests.support.telemetry.measured import counted

OWN = 1
KEY = make_key()
ERROR = make_error()
RETRY = Retry(delay=seconds(1), attempt_count=1, error=ERROR)


class HeardReplies:
    """Notes what is delivered."""

    def __init__(self) -> None:
        self.delivered: list[tuple[TaskResult, tuple[int, ...], int, str]] = []

    def deliver(
        self, result: TaskResult, *, reply_to: tuple[int, ...], own: int, namespace: str
    ) -> None:
        self.delivered.append((result, reply_to, own, namespace))


class Harness:
    """A dispatcher, and what it fills."""

    def __init__(self) -> None:
        self.replies = HeardReplies()
        self.effects = make_dispatcher(
            replies=self.replies, context=make_context(clock=ManualClock(), replica_id=OWN)
        )
        self.due_queue = self.effects.due_queue

    def results(self) -> list[TaskResult]:
        return [result for result, *_ in self.replies.delivered]


@pytest.mark.parametrize(
    ("settlement", "status", "response", "error"),
    [
        (Finish(make_success().intent), TaskStatus.FINISHED, b"done", None),
        (Remove(response=b"bye"), TaskStatus.FINISHED, b"bye", None),
        (Remove(error=ERROR), TaskStatus.ERROR, b"", ERROR),
        (Fail(ERROR), TaskStatus.ERROR, b"", ERROR),
        (Break(ERROR), TaskStatus.ERROR, b"", ERROR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_caller_is_told_how_the_task_ended(
    settlement: Any, status: TaskStatus, response: bytes, error: TaskError | None
) -> None:
    harness = Harness()

    harness.effects.settled(make_entry(settlement=settlement), make_written(reply_to=(2,)))

    result = TaskResult(
        task_id=7, task_type=TaskType.CALL, status=status, response=response, error=error
    )
    assert harness.replies.delivered == [(result, (2,), OWN, "orders")]


@pytest.mark.parametrize(
    ("settlement", "reason", "removed"),
    [
        (Break(ERROR), "PROCESS_FAILED", False),
        (Finish(make_success(Complete()).intent), "PROCESS_FINISHED", False),
        (Finish(make_success().intent), "PROCESS_IS_RUNNING", False),
        (Remove(), None, True),
        (Fail(ERROR), None, False),
        (RETRY, None, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_waiting_tasks_are_told_why_they_will_never_run(
    settlement: Any, reason: str | None, removed: bool
) -> None:
    harness = Harness()
    written = make_written(cancelled=(make_cancelled(8, reply_to=(3,)),))

    harness.effects.settled(make_entry(settlement=settlement), written)

    result, reply_to, *_ = harness.replies.delivered[-1]
    assert (result.task_id, result.status, reply_to) == (8, TaskStatus.CANCELLED, (3,))
    assert (result.error and result.error.reason, result.removed) == (reason, removed)


def test_waiting_tasks_are_told_which_task_broke_the_process() -> None:
    harness = Harness()
    written = make_written(cancelled=(make_cancelled(),))

    harness.effects.settled(make_entry(settlement=Break(ERROR)), written)

    error = harness.results()[-1].error
    assert error is not None
    assert error.message == ERROR.message
    assert error.metadata == {
        "broken_by": "7",
        "failure_code": str(ERROR.code),
        "failure_reason": ERROR.reason,
    }


@pytest.mark.parametrize(("reply_to", "count"), [((), 0), ((3,), 1)])
def test_a_cancelled_timer_is_told_only_where_somebody_waits_for_it(
    reply_to: tuple[int, ...], count: int
) -> None:
    harness = Harness()
    timer = make_cancelled(task_type=TaskType.REMOVE, reply_to=reply_to)

    harness.effects.apply(Effects(cancelled=(Cancellation(namespace="orders", task=timer),)))

    assert len(harness.results()) == count


def test_the_next_instant_of_a_process_is_put_in_the_due_queue() -> None:
    harness = Harness()
    due = make_due(due_at=START + seconds(2))

    harness.effects.settled(make_entry(), make_written(due=due))

    assert harness.due_queue.wait_seconds() == pytest.approx(2, abs=0.01)


def test_a_task_that_is_due_now_is_claimed_at_once() -> None:
    harness = Harness()

    harness.effects.apply(Effects(due=((KEY, 1),)))

    assert harness.due_queue.wait_seconds() == pytest.approx(0, abs=0.01)
    assert harness.due_queue.changed.is_set()


def test_a_task_that_is_due_later_is_claimed_then() -> None:
    harness = Harness()

    harness.effects.apply(Effects(upcoming=(Later(KEY, 1, 2.0),)))

    assert harness.due_queue.wait_seconds() == pytest.approx(2, abs=0.01)


def test_effects_of_a_batch_come_with_one_of_its_settlements() -> None:
    harness = Harness()
    effects = Effects(
        again=(Again(namespace="orders", gate="g"),),
        lowered=(LoweredGate("orders", "low"),),
        upkeep=(KEY,),
        ended=((KEY, JobState.FAILED),),
    )

    harness.effects.settled(make_entry(), make_written(effects=effects))

    assert list(harness.effects.gate_queue.take_again()) == list(effects.again)
    assert list(harness.effects.gate_queue.lowered) == list(effects.lowered)
    assert harness.effects.upkeep_queue.take() == (KEY,)
    assert counted(harness.effects.context.metrics.jobs_ended) == {("orders", "failed"): 1}


def test_no_effects_wake_nobody() -> None:
    harness = Harness()

    harness.effects.apply(Effects())

    assert not harness.due_queue.changed.is_set()
    assert not harness.effects.gate_queue.changed.is_set()
    assert not harness.effects.upkeep_queue.changed.is_set()
