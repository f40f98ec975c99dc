"""What schedules start: processes, calls, jobs; through gates, and where there is no way."""

import dataclasses
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.intent import Complete, Outcome
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskError, TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    JobTarget,
    OverlapPolicy,
    ScheduleRunState,
    StartTarget,
    Target,
)
from tests.support.storage.schedules import (
    MINUTE,
    ScheduleStore,
    a_spec,
    process_of,
)
from tests.support.storage.store import BROKEN, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

Observer = psycopg.Connection[Any]


def refusal(reason: str, message: str) -> TaskError:
    return TaskError(code=9, reason=reason, message=message)


async def test_a_call_and_a_notify_run_on_their_process(timetable: ScheduleStore) -> None:
    key = fresh_key()
    await timetable.store.started(key)
    schedules = [
        await timetable.create(
            a_spec(CallTarget(task_type=task_type, process_id=key.process_id, args=b"tick"))
        )
        for task_type in (TaskType.CALL, TaskType.NOTIFY)
    ]
    assert await timetable.after(MINUTE) == ["started", "started"]

    runs = [(await timetable.last(each))[0] for each in schedules]
    claimed = await timetable.store.claim_due()
    assert [each.task.task_id for each in claimed] == [min(it.task_id or 0 for it in runs)]
    assert claimed[0].task.args == b"tick"
    written = await timetable.store.settled(claimed[0].task)
    assert written.next is not None
    await timetable.store.settled(written.next)
    assert [await timetable.states(each) for each in schedules] == [["done"], ["done"]]


async def test_a_call_that_waits_is_cancelled_for_the_next_one(timetable: ScheduleStore) -> None:
    key = fresh_key()
    await timetable.store.started(key)
    busy = await timetable.store.run_task(a_request(key))
    target = CallTarget(task_type=TaskType.CALL, process_id=key.process_id)
    schedule = await timetable.create(a_spec(target, overlap_policy=OverlapPolicy.CANCEL_PREVIOUS))

    assert await timetable.after(2 * MINUTE) == ["started", "started"]

    assert await timetable.states(schedule) == ["cancelled", "running"]
    await timetable.store.settled(busy)


P = process_key("orders", "p")
CALL = CallTarget(task_type=TaskType.CALL, process_id=P.process_id)
NOTIFY = CallTarget(task_type=TaskType.NOTIFY, process_id=P.process_id)
EXISTS = "a process of this id exists already"
BEYOND = "its history ends before the event that the history range starts after"


@pytest.mark.parametrize(
    ("outcome", "target", "reason", "message"),
    [
        (None, CALL, "PROCESS_NOT_FOUND", "process 'p' was not called: it does not exist"),
        (
            success(),
            dataclasses.replace(CALL, history_range=HistoryRange(after=1)),
            "EVENT_NOT_FOUND",
            f"process 'p' was not called: {BEYOND}",
        ),
        (
            BROKEN,
            NOTIFY,
            "PROCESS_FAILED",
            "process 'p' was not notified: it is in error: it broke",
        ),
        (
            success(Complete()),
            NOTIFY,
            "PROCESS_FINISHED",
            "process 'p' was not notified: it is finished",
        ),
        (
            success(),
            StartTarget(template="p"),
            "PROCESS_ALREADY_EXISTS",
            f"process 'p' was not started: {EXISTS}",
        ),
        (
            success(),
            JobTarget(template="p", nodes=(NodeSpec(name="a"),)),
            "PROCESS_ALREADY_EXISTS",
            f"job 'p' was not submitted: {EXISTS}",
        ),
    ],
    ids=["absent", "beyond its history", "broken", "finished", "start of a taken id", "job of one"],
)
async def test_what_cannot_be_started_is_refused_and_told(
    timetable: ScheduleStore, outcome: Outcome | None, target: Target, reason: str, message: str
) -> None:
    if outcome is not None:
        await timetable.store.started(P, outcome)
    schedule = await timetable.create(a_spec(target))

    assert await timetable.after(MINUTE) == ["refused"]

    [run] = await timetable.last(schedule)
    assert (run.state, run.task_id) == (ScheduleRunState.REFUSED, None)
    assert run.error == refusal(reason, message)
    assert (await timetable.schedules.get(schedule.key)).refused_count == 1


async def test_a_long_detail_of_a_process_is_told_in_part(timetable: ScheduleStore) -> None:
    await timetable.store.started(P)
    await timetable.store.halt(P, "x" * 1000)
    schedule = await timetable.create(a_spec(CALL))
    await timetable.after(MINUTE)

    [run] = await timetable.last(schedule)
    told = f"process 'p' was not called: it is in error: {'x' * 500}"
    assert run.error == refusal("PROCESS_FAILED", told)


async def test_a_schedule_that_was_made_anew_finds_the_process_of_the_old_one(
    timetable: ScheduleStore, observer: Observer
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=OverlapPolicy.ALLOW))
    await timetable.after(MINUTE)
    [first] = await timetable.last(schedule)
    observer.execute("DELETE FROM progressor.schedule_runs")
    observer.execute(
        "UPDATE progressor.schedules SET next_instant = %s, next_at = %s, fingerprint = 'other'",
        [first.instant, first.due_at],
    )

    assert await timetable.run_due() == ["refused"]

    [second] = await timetable.last(schedule)
    why = "its idempotency key belongs to a different request"
    assert second.error == refusal(
        "IDEMPOTENCY_KEY_REUSED", f"process '{first.process_id}' was not started: {why}"
    )


async def test_a_refused_run_takes_no_other_with_it(timetable: ScheduleStore) -> None:
    key = fresh_key()
    for target in (key.process_id, "absent"):
        await timetable.create(a_spec(CallTarget(task_type=TaskType.CALL, process_id=target)))
    await timetable.store.started(key)

    assert sorted(await timetable.after(MINUTE)) == ["refused", "started"]


async def test_two_schedules_may_call_one_process_at_one_instant(timetable: ScheduleStore) -> None:
    key = fresh_key()
    await timetable.store.started(key)
    target = CallTarget(task_type=TaskType.NOTIFY, process_id=key.process_id)
    for _ in range(3):
        await timetable.create(a_spec(target))

    assert await timetable.after(MINUTE) == ["started"] * 3
    assert await timetable.count("schedule") == 3


async def test_two_schedules_may_not_start_one_process(timetable: ScheduleStore) -> None:
    for _ in range(2):
        await timetable.create(a_spec(StartTarget(template="the one at {instant}")))

    assert sorted(await timetable.after(MINUTE)) == ["refused", "started"]
    assert await timetable.count("processes") == 1


async def test_a_job_is_submitted_with_its_graph(
    timetable: ScheduleStore, observer: Observer
) -> None:
    nodes = (NodeSpec(name="a", args=b"1"), NodeSpec(name="b", predecessors=("a",)))
    schedule = await timetable.create(a_spec(JobTarget(nodes=nodes)))
    assert await timetable.after(MINUTE) == ["started"]

    [run] = await timetable.last(schedule)
    row = observer.execute(
        "SELECT led_by, job_options->>'scheduled' FROM progressor.processes"
    ).fetchone()
    assert row == ("engine", "true")
    [claimed] = await timetable.store.claim(process_of(run), run.task_id)
    assert claimed.task.args
    assert await timetable.schedules.get(schedule.key) is not None
    assert (await timetable.schedules.get(schedule.key)).spec == schedule.spec


@pytest.mark.parametrize("kind", ["start", "call"])
async def test_what_has_constraints_waits_for_them(
    timetable: ScheduleStore, observer: Observer, kind: str
) -> None:
    constraints = Constraints(gates={"one": 1})
    key = fresh_key()
    await timetable.store.started(key)
    target: StartTarget | CallTarget = StartTarget(constraints=constraints)
    if kind == "call":
        target = CallTarget(
            task_type=TaskType.CALL, process_id=key.process_id, constraints=constraints
        )
    await timetable.create(a_spec(target, overlap_policy=OverlapPolicy.ALLOW))
    told_before = len(timetable.store.reported)

    assert await timetable.after(2 * MINUTE) == ["started", "started"]

    states = observer.execute(
        "SELECT state::text FROM progressor.gated ORDER BY task_id"
    ).fetchall()
    assert states == [("available",), ("gates",) if kind == "start" else ("process",)]
    assert len({task for each in timetable.store.reported[told_before:] for task in each.due}) == 1


@pytest.mark.parametrize("kind", ["start", "call"])
async def test_a_gate_that_is_not_there_refuses_the_run_alone(
    timetable: ScheduleStore, kind: str
) -> None:
    key = fresh_key()
    await timetable.store.started(key)
    made = []
    for gates in ({"missing": None}, {"made": 1}):
        target: StartTarget | CallTarget = StartTarget(constraints=Constraints(gates=gates))
        if kind == "call":
            target = CallTarget(
                task_type=TaskType.CALL,
                process_id=key.process_id,
                constraints=Constraints(gates=gates),
            )
        made.append(await timetable.create(a_spec(target)))

    assert sorted(await timetable.after(MINUTE)) == ["refused", "started"]

    [run] = await timetable.last(made[0])
    what = f"process '{run.process_id}' was not {kind}ed"
    assert run.error == refusal("GATE_NOT_FOUND", f"{what}: gate 'missing' does not exist")
