"""The laws hold over storage's work, and each catches a violation that is planted."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.intent import SetTimer
from progressor.domain.task import TaskType
from tests.support.laws import LAWS, Past, broken_laws
from tests.support.storage import BROKEN, NO_TIME, Desk, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)

PLANTED = {
    "what runs is leased, under the token of its task": (
        "UPDATE progressor.running SET token = token + 1",
        "DELETE FROM progressor.running",
    ),
    "an unfinished task is scheduled or leased, an ended one neither": (
        "DELETE FROM progressor.schedule",
        (
            "UPDATE progressor.tasks SET status = 'cancelled', finished_at = now()"
            " WHERE status = 'waiting'"
        ),
    ),
    "what is scheduled has a task like it": (
        "UPDATE progressor.schedule SET attempt = 7",
        "DELETE FROM progressor.tasks WHERE status = 'waiting'",
    ),
    "every row is of a process, and every process of a namespace": (
        "DELETE FROM progressor.processes",
        "UPDATE progressor.processes SET namespace = 'nowhere'",
    ),
    "event ids run 1 .. n": (
        "DELETE FROM progressor.events WHERE event_id = 1",
        "UPDATE progressor.processes SET last_event_id = last_event_id + 1",
    ),
    "a task owns the events that its record names": (
        "UPDATE progressor.tasks SET event_count = event_count + 1",
        "UPDATE progressor.events SET task_id = 0",
    ),
    "a process is in init as long as its init task": (
        "UPDATE progressor.processes SET status = 'init' WHERE status = 'running'",
        "UPDATE progressor.processes SET init_task_id = 0",
    ),
    "a broken process waits for repairs, or for its timer run again, alone": (
        "UPDATE progressor.processes SET status = 'error', detail = '' WHERE status = 'running'",
        "UPDATE progressor.processes SET corrupted_by = 1 WHERE status = 'error'",
    ),
    "a finished process waits for nothing": (
        (
            "UPDATE progressor.processes SET (status, finished_at) = ('finished', now())"
            " WHERE status = 'running'"
        ),
    ),
    "what waits has exactly one way on": (
        "UPDATE progressor.schedule SET due_at = NULL WHERE task_type = 'call'",
        "UPDATE progressor.schedule SET status = 'blocked' WHERE task_type = 'timeout'",
        "UPDATE progressor.schedule SET due_at = now() WHERE due_at IS NULL",
    ),
    "a key names one task": (
        (
            "DROP INDEX progressor.tasks_by_idempotency_key;"
            "UPDATE progressor.tasks SET idempotency_key = 'one'"
        ),
    ),
    "a task succeeds only after it was tried": (
        "UPDATE progressor.tasks SET attempt_count = 0 WHERE status = 'finished'",
    ),
}


async def populate(desk: Desk) -> None:
    """Make a process of every kind, with a line and a timer."""
    busy, timed, waiting = fresh_key(), fresh_key(), fresh_key()
    await desk.started(busy, success(events=2))
    await desk.run_task(a_request(busy, idempotency_key="k"))
    await desk.admit(a_request(busy))
    await desk.started(timed, success(SetTimer(after=HOUR)))
    await desk.started(waiting, success(events=1))
    await desk.admit(a_request(waiting), run=False)
    await desk.broken(fresh_key())
    broken_by_timer = fresh_key()
    init = await desk.start(broken_by_timer)
    timer = (await desk.settled(init, success(SetTimer(after=NO_TIME)))).next
    assert timer is not None
    await desk.settled(timer, BROKEN)
    await desk.processes.simple_repair(broken_by_timer)
    await desk.admit(a_request(broken_by_timer, TaskType.REPAIR), run=False)


async def test_all_hold_over_what_storage_writes(desk: Desk, eye: psycopg.Connection[Any]) -> None:
    await populate(desk)

    assert broken_laws(eye) == {}


@pytest.mark.parametrize(
    ("law", "violation"), [(law, each) for law, planted in PLANTED.items() for each in planted]
)
async def test_each_catches_its_violation(
    desk: Desk, eye: psycopg.Connection[Any], law: str, violation: str
) -> None:
    await populate(desk)

    with eye.transaction(force_rollback=True):
        eye.execute(violation.encode())
        broken = broken_laws(eye)

    assert law in broken
    assert broken_laws(eye) == {}


async def test_each_has_a_violation_planted() -> None:
    assert PLANTED.keys() == LAWS.keys()


@pytest.mark.parametrize(
    "violation",
    [
        "UPDATE progressor.tasks SET response = 'other' WHERE status = 'finished'",
        "UPDATE progressor.tasks SET status = 'waiting', finished_at = NULL",
        "UPDATE progressor.events SET payload = 'other'",
        "DELETE FROM progressor.events",
    ],
)
async def test_the_past_does_not_change(
    desk: Desk, eye: psycopg.Connection[Any], violation: str
) -> None:
    await populate(desk)
    past = Past()
    assert past.look(eye) == []

    with eye.transaction(force_rollback=True):
        eye.execute(violation.encode())
        changed = past.look(eye)

    assert changed != []
