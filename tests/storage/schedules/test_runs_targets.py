"""What schedules start: processes, calls, jobs; through gates, and where there is no way."""

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


async def test_what_cannot_be_started_is_refused_and_told(timetable: ScheduleStore) -> None:
    absent = CallTarget(task_type=TaskType.CALL, process_id="absent")
    call = await timetable.create(a_spec(absent))
    key = fresh_key()
    taken = await timetable.create(a_spec(StartTarget(template=key.process_id + "{instant}")))
    instant = f"{timetable.clock.now() + MINUTE:%Y-%m-%dT%H:%M:%S}Z"
    await timetable.store.started(process_key("orders", key.process_id + instant))

    assert await timetable.after(MINUTE) == ["refused", "refused"]

    errors = []
    for schedule in (call, taken):
        [run] = await timetable.last(schedule)
        assert run.state is ScheduleRunState.REFUSED
        assert run.task_id is None
        errors.append(run.error)
        assert (await timetable.schedules.get(schedule.key)).refused_count == 1
    there = f"process '{key.process_id}{instant}'"
    assert errors == [
        refusal("PROCESS_NOT_FOUND", "process 'absent' was not called: it does not exist"),
        refusal(
            "PROCESS_ALREADY_EXISTS",
            f"{there} was not started: a process of this id exists already",
        ),
    ]


async def test_a_call_whose_range_starts_beyond_the_history_is_refused(
    timetable: ScheduleStore,
) -> None:
    key = fresh_key()
    await timetable.store.started(key)
    beyond = HistoryRange(after=1)
    target = CallTarget(task_type=TaskType.CALL, process_id=key.process_id, history_range=beyond)
    schedule = await timetable.create(a_spec(target))

    assert await timetable.after(MINUTE) == ["refused"]

    [run] = await timetable.last(schedule)
    assert run.error == refusal(
        "EVENT_NOT_FOUND",
        f"process '{key.process_id}' was not called: its history ends before the event that the "
        "history range starts after",
    )


@pytest.mark.parametrize(
    ("outcome", "reason", "why"),
    [
        (BROKEN, "PROCESS_FAILED", "it is in error: it broke"),
        (success(Complete()), "PROCESS_FINISHED", "it is finished"),
    ],
)
async def test_a_process_that_takes_no_request_refuses_the_run(
    timetable: ScheduleStore, outcome: Outcome, reason: str, why: str
) -> None:
    key = fresh_key()
    await timetable.store.started(key, outcome)
    schedule = await timetable.create(
        a_spec(CallTarget(task_type=TaskType.NOTIFY, process_id=key.process_id))
    )

    assert await timetable.after(MINUTE) == ["refused"]

    [run] = await timetable.last(schedule)
    assert run.error == refusal(reason, f"process '{key.process_id}' was not notified: {why}")


async def test_a_job_of_an_id_that_is_taken_is_refused(timetable: ScheduleStore) -> None:
    key = fresh_key()
    target = JobTarget(template=key.process_id + "{instant}", nodes=(NodeSpec(name="a"),))
    schedule = await timetable.create(a_spec(target))
    process_id = f"{key.process_id}{timetable.clock.now() + MINUTE:%Y-%m-%dT%H:%M:%S}Z"
    await timetable.store.started(process_key("orders", process_id))

    assert await timetable.after(MINUTE) == ["refused"]

    [run] = await timetable.last(schedule)
    assert run.error == refusal(
        "PROCESS_ALREADY_EXISTS",
        f"job '{process_id}' was not submitted: a process of this id exists already",
    )


async def test_a_long_detail_of_a_process_is_told_in_part(timetable: ScheduleStore) -> None:
    key = fresh_key()
    await timetable.store.started(key)
    await timetable.store.writes.halt(key, "x" * 1000)
    schedule = await timetable.create(
        a_spec(CallTarget(task_type=TaskType.CALL, process_id=key.process_id))
    )
    await timetable.after(MINUTE)

    [run] = await timetable.last(schedule)
    told = f"process '{key.process_id}' was not called: it is in error: {'x' * 500}"
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
    told_before = len(timetable.store.told)

    assert await timetable.after(2 * MINUTE) == ["started", "started"]

    states = observer.execute(
        "SELECT state::text FROM progressor.gated ORDER BY task_id"
    ).fetchall()
    assert states == [("available",), ("gates",) if kind == "start" else ("process",)]
    assert len({task for each in timetable.store.told[told_before:] for task in each.due}) == 1


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
