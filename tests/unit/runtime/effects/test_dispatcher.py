"""Effects of a settlement: who is notified, what becomes due, and what is logged."""

import logging
from typing import Any

import pytest

from progressor.domain.jobs.job import JobState
from progressor.domain.processes.intent import Complete, Intent
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import TaskError, TaskResult, TaskStatus, TaskType
from progressor.domain.views.replica import StepTally
from progressor.runtime.effects import queues
from progressor.runtime.effects.queues import DueQueue, KeyQueue
from progressor.storage.postgres.rows.effects import (
    JOB_HAS_ENDED,
    Again,
    Cancellation,
    Effects,
    Later,
    LoweredGate,
    job_effects,
)
from progressor.storage.steps.settlements import Due
from tests.support.builders import (
    make_cancelled,
    make_due,
    make_entry,
    make_error,
    make_key,
    make_process,
    make_success,
    make_task,
    make_written,
    seconds,
)
from tests.support.clock import START, ManualClock
from tests.support.runtime.harness import (
    KEY,
    make_context,
    make_dispatcher,
)
from tests.support.telemetry.measured import counted

ERROR = make_error()
RETRY = Retry(delay=seconds(1), attempt_count=1, error=ERROR)


class Effected:
    """A dispatcher, and what it fills."""

    def __init__(self) -> None:
        self.delivered: list[tuple[TaskResult, tuple[int, ...], str]] = []
        self.effects = make_dispatcher(replies=self, context=make_context(clock=ManualClock()))
        self.due_queue = self.effects.due_queue

    def deliver(self, result: TaskResult, reply_to: tuple[int, ...], *, namespace: str) -> None:
        self.delivered.append((result, reply_to, namespace))


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
    harness = Effected()

    harness.effects.settled(make_entry(settlement=settlement), make_written(reply_to=(2,)))

    result = TaskResult(
        task_id=7, task_type=TaskType.CALL, status=status, response=response, error=error
    )
    assert harness.delivered == [(result, (2,), "orders")]


BROKEN_BY_7 = {
    "broken_by": "7", "failure_code": str(ERROR.code), "failure_reason": ERROR.reason,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settlement", "error", "removed"),
    [
        (Break(ERROR), ("PROCESS_FAILED", ERROR.message, BROKEN_BY_7), False),
        (Finish(make_success(Complete()).intent), ("PROCESS_FINISHED", "", {}), False),
        (Finish(make_success().intent), ("PROCESS_IS_RUNNING", "", {}), False),
        (Remove(), None, True),
        (Fail(ERROR), None, False),
        (RETRY, None, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_waiting_tasks_are_told_why_they_will_never_run(
    settlement: Any, error: tuple[str, str, dict[str, str]] | None, removed: bool
) -> None:
    harness = Effected()
    written = make_written(cancelled=(make_cancelled(8, reply_to=(3,)),))

    harness.effects.settled(make_entry(settlement=settlement), written)

    result, reply_to, _ = harness.delivered[-1]
    assert (result.task_id, result.status, reply_to) == (8, TaskStatus.CANCELLED, (3,))
    found = result.error and (result.error.reason, result.error.message, result.error.metadata)
    assert (found, result.removed) == (error, removed)


@pytest.mark.parametrize(("reply_to", "count"), [((), 0), ((3,), 1)])
def test_a_cancelled_timer_is_told_only_where_somebody_waits_for_it(
    reply_to: tuple[int, ...], count: int
) -> None:
    harness = Effected()
    timer = make_cancelled(task_type=TaskType.REMOVE, reply_to=reply_to)

    harness.effects.apply(Effects(cancelled=(Cancellation(namespace="orders", task=timer),)))

    assert len(harness.delivered) == count


@pytest.mark.parametrize(
    ("due", "effects", "seconds_left"),
    [
        (make_due(due_at=START + seconds(2)), Effects(), 2),
        (None, Effects(due=((KEY, 1),)), 0),
        (None, Effects(upcoming=(Later(KEY, 1, 2.0),)), 2),
    ],
    ids=["next of the process", "due now", "due later"],
)
def test_what_is_due_is_put_in_the_due_queue(
    due: Due | None, effects: Effects, seconds_left: float
) -> None:
    harness = Effected()

    harness.effects.settled(make_entry(), make_written(due=due, effects=effects))

    assert harness.due_queue.wait_seconds() == pytest.approx(seconds_left, abs=0.01)
    assert harness.due_queue.changed.is_set()


def test_effects_of_a_batch_come_with_one_of_its_settlements() -> None:
    harness = Effected()
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


def test_what_was_counted_in_a_namespace_that_is_gone_is_forgotten() -> None:
    effects = Effected().effects
    effects.context.measures.answered(make_task(), make_success(), 1.0)

    effects.apply(Effects(gone=("orders",)))

    assert effects.context.measures.tally_of("orders") == StepTally()


def test_no_effects_wake_nobody() -> None:
    harness = Effected()

    harness.effects.apply(Effects())

    assert not harness.due_queue.changed.is_set()
    assert not harness.effects.gate_queue.changed.is_set()
    assert not harness.effects.upkeep_queue.changed.is_set()


DONE = Finish(make_success().intent)
COMPLETED = Finish(Intent(action=Complete()))
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}


def told(caplog: pytest.LogCaptureFixture, settlement: Settlement, **fields: Any) -> list[Any]:
    """Return the records of a settlement."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        Effected().effects.settled(make_entry(settlement=settlement, **fields), make_written())
    return list(caplog.records)


@pytest.mark.parametrize(
    ("settlement", "before", "event"),
    [
        (DONE, ProcessStatus.INIT, "process runs"),
        (DONE, ProcessStatus.ERROR, "process repaired"),
        *((COMPLETED, it, "process finished") for it in list(ProcessStatus)[:3]),
        (Break(ERROR), ProcessStatus.INIT, "process broke"),
        (Break(ERROR), ProcessStatus.RUNNING, "process broke"),
        (Remove(), ProcessStatus.RUNNING, "process removed"),
        (Remove(error=ERROR), ProcessStatus.INIT, "process removed"),
        (DONE, ProcessStatus.RUNNING, None),
        (Fail(ERROR), ProcessStatus.RUNNING, None),
        (Fail(ERROR), ProcessStatus.ERROR, None),
        (RETRY, ProcessStatus.INIT, None),
    ],
)
def test_a_change_of_state_is_one_log_line_and_no_change_is_none(
    caplog: pytest.LogCaptureFixture,
    settlement: Settlement,
    before: ProcessStatus,
    event: str | None,
) -> None:
    records = told(caplog, settlement, process=make_process(status=before))

    level = "WARNING" if event == "process broke" else "INFO"
    expected = [] if event is None else [(event, level)]
    assert [(it.getMessage(), it.levelname) for it in records] == expected


def test_a_line_has_ids_a_reason_and_the_trace_and_none_of_the_processors_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = make_entry(settlement=Break(ERROR))
    [record] = told(caplog, Break(ERROR), trace_context=TRACE)

    assert (record.namespace, record.process_id) == (entry.key.namespace, entry.key.process_id)
    assert (record.task_id, record.task_type, record.attempt) == (
        entry.task_id, str(entry.task_type), entry.attempt,
    )  # fmt: skip
    assert (record.reason, record.trace_id) == (ERROR.reason, "0af7651916cd43dd8448eb211c80319c")
    assert ERROR.message not in str(vars(record))


@pytest.mark.parametrize(("ahead", "changes"), [(1.0, True), (3.0, False)])
def test_a_waiter_is_woken_only_by_an_earlier_task(ahead: float, changes: bool) -> None:
    queue = DueQueue(clock=ManualClock(), horizon=seconds(5), size_max=2)
    queue.add(make_due(1, due_at=START + seconds(2)), as_of=START)
    queue.changed.clear()

    queue.add(make_due(2, due_at=START + seconds(ahead)), as_of=START)

    assert queue.changed.is_set() is changes


ONE, OTHER = make_key("one"), make_key("other")


def test_jobs_are_taken_once_the_oldest_first() -> None:
    queue = KeyQueue()
    queue.add()
    assert not queue.changed.is_set()
    queue.add(OTHER)
    queue.add(ONE, OTHER)
    assert queue.changed.is_set()

    assert (queue.take(), queue.changed.is_set(), queue.take()) == ((OTHER, ONE), False, ())


def test_jobs_that_do_not_fit_are_left_to_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "KEYS_MAX", 2)
    queue = KeyQueue()

    queue.add(*(ProcessKey(0, "orders", f"p{number}") for number in range(3)))

    assert [key.process_id for key in queue.take()] == ["p0", "p1"]


def test_effects_are_read_as_settlements_write_them() -> None:
    effects = job_effects(
        {
            "due": [[*_columns(ONE), 7]],
            "upkeep": [[*_columns(OTHER)]],
            "cancelled": [[*_columns(OTHER), [[9, "call", [3]]]]],
            "failed": [_columns(OTHER)],
        }
    )

    assert (effects.due, effects.upkeep) == (((ONE, 7),), (OTHER,))
    assert effects.ended == ((OTHER, JobState.FAILED),)
    (each,) = effects.cancelled
    assert (each.namespace, each.error, each.removed) == (OTHER.namespace, JOB_HAS_ENDED, False)
    assert (each.task.task_id, each.task.reply_to) == (9, (3,))


@pytest.mark.parametrize("key", ["due", "upkeep", "cancelled", "failed"])
def test_effects_without_one_of_their_parts_are_read(key: str) -> None:
    nothing = dict.fromkeys(("due", "upkeep", "cancelled", "failed"))

    assert job_effects(nothing | {key: []}) == Effects()


def _columns(key: ProcessKey) -> tuple[int, str, str]:
    return key.slot, key.namespace, key.process_id
