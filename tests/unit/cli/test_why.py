"""The cause of a wait in a few words, by the fields that the wire has."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from progressor.cli.processes.why import cause_text
from progressor.sdk.values.constraints import GateHold, GateHolder, Order
from progressor.sdk.values.processes import (
    GateWait,
    OrderWait,
    TaskError,
    TaskStatus,
    TaskType,
    Wait,
    WaitCause,
)

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
LATER = NOON + dt.timedelta(seconds=1.5)
AT, AT_LATER = "2026-01-31 12:00:00.000Z", "2026-01-31 12:00:01.500Z"
ERROR = TaskError(code=14, reason="PROCESSOR_UNAVAILABLE", message="refused\n\x1b[2J")
NOTHING: dict[str, Any] = {
    "until": None, "behind_task_id": None, "last_error": None, "replica_id": None, "since": None,
    "behind_type": None, "behind_runs": None, "behind_since": None, "attempts_max": None,
    "busy_count": None, "worker_count": None, "processor_unreachable_since": None,
    "silent_since": None, "collected_at": None, "explanation": "",
}  # fmt: skip


ORDER = OrderWait(
    order=Order("db/7", "1.10"), process_id="p", task_id=3, version="1.9",
    status=TaskStatus.AVAILABLE,
)  # fmt: skip
HOLDER = GateHolder(process_id="q", task_id=4, held_at=NOON, hold=GateHold.TASK, reserved=False)
FULL = GateWait(gate="g", capacity=2, held=2, holders=(HOLDER, HOLDER), position=2, waiting_count=5)
SHUT = GateWait(gate="shut", capacity=0, held=0, holders=(), position=None, waiting_count=1)


def a_wait(cause: WaitCause, **fields: Any) -> Wait:
    known: dict[str, Any] = {
        "task_id": 7, "type": TaskType.CALL, "status": TaskStatus.WAITING, "attempt": 1,
    }  # fmt: skip
    return Wait(**NOTHING | known | fields, cause=cause)


WORDS: list[tuple[Wait, str]] = [
    (
        a_wait(WaitCause.RUNNING, replica_id=3, since=NOON),
        f"running in replica 3 since {AT}",
    ),
    (
        a_wait(
            WaitCause.RUNNING, replica_id=3, since=NOON, attempt=2, last_error=ERROR,
            processor_unreachable_since=LATER,
        ),
        (
            f"running in replica 3 since {AT}, attempt 2 after PROCESSOR_UNAVAILABLE: "
            f"refused [2J, processor unreachable since {AT_LATER}"
        ),
    ),
    (a_wait(WaitCause.TIMER, until=NOON), f"timer, until {AT}"),
    (
        a_wait(
            WaitCause.BEHIND_TASK, behind_task_id=6, behind_type=TaskType.INIT, behind_runs=True,
            behind_since=NOON, until=LATER,
        ),
        f"behind task 6 (init), running since {AT}",
    ),
    (
        a_wait(
            WaitCause.BEHIND_TASK, behind_task_id=6, behind_type=TaskType.CALL, behind_runs=False,
            behind_since=NOON,
        ),
        f"behind task 6 (call), waiting since {AT}",
    ),
    (
        a_wait(WaitCause.NO_FREE_WORKER, since=NOON, busy_count=4, worker_count=4),
        f"no free worker (4 of 4 busy), due since {AT}",
    ),
    (
        a_wait(WaitCause.NO_FREE_WORKER, since=NOON, busy_count=3, worker_count=4),
        f"waits for a worker (3 of 4 busy), due since {AT}",
    ),
    (
        a_wait(WaitCause.RETRY, until=NOON, attempt=3, attempts_max=8, last_error=ERROR),
        f"retry 3 of 8 at {AT} after PROCESSOR_UNAVAILABLE: refused [2J",
    ),
    (a_wait(WaitCause.NO_REPLICA, since=NOON), f"no replica since {AT}"),
    (
        a_wait(
            WaitCause.PRESUMED_DEAD, replica_id=3, since=NOON, silent_since=NOON,
            collected_at=LATER,
        ),
        f"replica 3 presumed dead, collected at {AT_LATER}",
    ),
    (
        a_wait(WaitCause.OVERRUN, replica_id=3, since=NOON, collected_at=LATER),
        f"overrun in replica 3 since {AT}, collected at {AT_LATER}",
    ),
    (a_wait(WaitCause.RUN_AT, until=NOON), f"not before {AT}"),
    (
        a_wait(WaitCause.ORDER, order=ORDER),
        "order db/7: 1.10 behind 1.9 (task 3 of p, available)",
    ),
    (
        a_wait(WaitCause.GATE, gates=(FULL, SHUT)),
        (
            f"gate g (2 of 2 held first by q since {AT}), 2 of 5 in the queue, "
            "gate shut (0 of 0 held)"
        ),
    ),
    (
        a_wait(WaitCause.GATE, gates=(dataclasses.replace(FULL, holders=(HOLDER,)),)),
        f"gate g (2 of 2 held by q since {AT}), 2 of 5 in the queue",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wait", "words"), WORDS)
def test_each_cause_is_printed_with_its_known_fields(wait: Wait, words: str) -> None:
    assert cause_text(wait) == words


def test_there_is_a_text_for_every_cause() -> None:
    assert {wait.cause for wait, _ in WORDS} == set(WaitCause) - {WaitCause.UNSPECIFIED}


BEFORE: list[tuple[Wait, str]] = [
    (a_wait(WaitCause.RUNNING, replica_id=3, attempt=2), "running in replica 3, attempt 2"),
    (
        a_wait(WaitCause.BEHIND_TASK, behind_task_id=6, behind_type=TaskType.UNSPECIFIED),
        "behind task 6",
    ),
    (a_wait(WaitCause.NO_FREE_WORKER), "no free worker"),
    (a_wait(WaitCause.RETRY, until=NOON, attempt=2), f"retry 2 at {AT}"),
    (a_wait(WaitCause.UNSPECIFIED, until=NOON), f"unspecified, until {AT}"),
]


@pytest.mark.parametrize(("wait", "words"), BEFORE)
def test_an_engine_of_another_release_may_report_fewer_fields(wait: Wait, words: str) -> None:
    assert cause_text(wait) == words
