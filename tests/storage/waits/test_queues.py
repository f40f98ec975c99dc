"""How many tasks, jobs and schedules wait, and for what."""

import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.domain.views.activity import NamespaceQueue
from progressor.storage.replicas.queues import LATE_AFTER
from tests.support.models.gates.walk import Walk
from tests.support.storage.jobs.store import JobStore, begun
from tests.support.storage.schedules import MINUTE, schedule_store
from tests.support.storage.store import (
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    Store,
    a_request,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)
MUTEX = Constraints(gates={"mutex": 1})
JOBS = (
    "job_count",
    "waiting_node_count",
    "ready_node_count",
    "running_node_count",
    "failed_node_count",
)
SCHEDULES = ("schedule_count", "paused_schedule_count", "late_schedule_count")


EMPTY = NamespaceQueue(
    namespace=NAMESPACE.name, due_count=0, due_age=None, timer_count=0, retry_count=0,
    retry_age=None, behind_count=0, behind_age=None,
)  # fmt: skip


async def counted(store: Store, *, count_max: int = 10_000) -> NamespaceQueue:
    """Return what waits in the namespace of all tests, without the counts of processes."""
    [queue] = await store.queues.count([NAMESPACE.name], count_max=count_max)
    return waiting(queue)


def waiting(queue: NamespaceQueue) -> NamespaceQueue:
    """Return counts without those of processes."""
    return dataclasses.replace(
        queue, init_process_count=0, running_process_count=0, error_process_count=0,
        finished_process_count=0,
    )  # fmt: skip


def queue(**fields: int) -> NamespaceQueue:
    """Return what waits, nothing unless said: counts, and ages in seconds, 0 unless said."""
    causes = ("due", "retry", "behind", "order", "gate", "available")
    found: dict[str, Any] = {f"{it}_age": NO_TIME for it in causes if fields.get(it)}
    for name, value in fields.items():
        is_age = name.endswith("_age")
        found[name if is_age else f"{name}_count"] = value * SECOND if is_age else value
    return dataclasses.replace(EMPTY, **found)


async def test_nothing_waits_where_nothing_is(store: Store) -> None:
    assert await counted(store) == queue()


async def test_a_running_task_does_not_wait(store: Store) -> None:
    await store.start(fresh_key())

    assert await counted(store) == queue()


async def test_a_timer_waits_for_its_time_and_then_for_a_worker(store: Store) -> None:
    await store.timed(HOUR)
    ahead = await counted(store)

    store.clock.advance(HOUR + dt.timedelta(seconds=2))

    assert ahead == queue(timer=1)
    assert await counted(store) == queue(due=1, due_age=2)


async def test_a_request_that_finds_no_worker_is_due(store: Store) -> None:
    key = await store.ready()
    await store.admit(a_request(key), run=False)
    await store.timed(NO_TIME)

    store.clock.advance(dt.timedelta(seconds=3))

    assert await counted(store) == queue(due=2, due_age=3)


async def test_a_failed_attempt_waits_for_its_retry(store: Store) -> None:
    key = await store.ready()
    await store.settled(await store.run_task(a_request(key)), UNREACHABLE)

    assert await counted(store) == queue(retry=1)


async def test_requests_wait_behind_the_one_that_runs(store: Store) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(3):
        await store.admit(a_request(key))

    assert await counted(store) == queue(behind=3)


async def test_a_timer_waits_behind_a_call(store: Store) -> None:
    key, _ = await store.timed(HOUR)
    await store.run_task(a_request(key))

    assert await counted(store) == queue(behind=1)


async def test_requests_wait_behind_one_that_waits_itself(store: Store) -> None:
    retried, due = fresh_key(), fresh_key()
    for key in (retried, due):
        await store.started(key)
    await store.settled(await store.run_task(a_request(retried)), UNREACHABLE)
    await store.admit(a_request(retried))
    await store.admit(a_request(due), run=False)
    await store.admit(a_request(due), run=False)

    assert await counted(store) == queue(due=1, retry=1, behind=2)


async def test_a_retry_is_as_old_as_its_first_attempt(store: Store) -> None:
    key = await store.ready()
    call = await store.run_task(a_request(key))
    store.clock.advance(dt.timedelta(seconds=3))
    await store.settled(call, UNREACHABLE)

    assert await counted(store) == queue(retry=1, retry_age=3)


async def test_a_retry_keeps_its_age_through_its_attempts(store: Store) -> None:
    key = await store.ready()
    await store.settled(await store.run_task(a_request(key)), UNREACHABLE)
    store.clock.advance(HOUR)
    [again] = await store.claim_due()
    await store.settled(again.task, UNREACHABLE)

    assert await counted(store) == queue(retry=1, retry_age=3600)


async def test_a_request_behind_a_task_is_as_old_as_its_admission(store: Store) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(2):
        store.clock.advance(dt.timedelta(seconds=5))
        await store.admit(a_request(key))
    store.clock.advance(dt.timedelta(seconds=2))

    assert await counted(store) == queue(behind=2, behind_age=7)


async def test_a_timer_behind_a_call_is_as_old_as_it_is_late(store: Store) -> None:
    key, _ = await store.timed(HOUR)
    await store.run_task(a_request(key))
    store.clock.advance(HOUR + dt.timedelta(seconds=4))

    assert await counted(store) == queue(behind=1, behind_age=4)


async def test_each_cause_is_counted_up_to_the_bound(store: Store) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(5):
        await store.admit(a_request(key))
        await store.timed(NO_TIME)
    for _ in range(5):
        await store.timed(HOUR)
    store.clock.advance(dt.timedelta(seconds=1))

    assert await counted(store, count_max=4) == queue(
        due=4, due_age=1, timer=4, behind=4, behind_age=1
    )


async def test_a_retry_is_counted_behind_any_number_of_timers(store: Store) -> None:
    key, _ = await store.timed(NO_TIME)
    for _ in range(4):
        await store.timed(dt.timedelta(milliseconds=1))
    [timeout] = await store.claim_due()
    assert timeout.task.key == key
    await store.settled(timeout.task, UNREACHABLE)

    assert await counted(store, count_max=3) == queue(timer=3, retry=1)


async def test_a_timer_that_would_be_tried_again_waits_behind_a_call_alone(store: Store) -> None:
    key, _ = await store.timed(NO_TIME)
    [timeout] = await store.claim_due()
    await store.settled(timeout.task, UNREACHABLE)
    await store.run_task(a_request(key))

    assert await counted(store) == queue(behind=1)


async def test_many_namespaces_share_what_is_counted_and_the_crowded_ones_once_more(
    store: Store,
) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(5):
        await store.admit(a_request(key))
        await store.timed(HOUR)

    found = await store.queues.count(["elsewhere", NAMESPACE.name], rows_max=4)

    assert {waiting(it) for it in found} == {
        dataclasses.replace(EMPTY, namespace="elsewhere"), queue(timer=2, behind=4),
    }  # fmt: skip


async def test_each_namespace_has_a_queue_of_its_own(store: Store) -> None:
    other = Namespace(name="elsewhere", processor_targets=("127.0.0.1:1",))
    await store.timed(HOUR)

    found = await store.queues.count([other.name, NAMESPACE.name])

    assert {each.namespace: each.timer_count for each in found} == {
        "elsewhere": 0,
        NAMESPACE.name: 1,
    }


async def fields_counted(store: Store, *fields: str, count_max: int = 10_000) -> tuple[object, ...]:
    """Return these fields of the only queue."""
    [queue] = await store.queues.count([NAMESPACE.name], count_max=count_max)
    assert set(fields) <= {it.name for it in dataclasses.fields(NamespaceQueue)}
    return tuple(getattr(queue, field) for field in fields)


async def test_jobs_that_run_are_counted_with_their_nodes(store: Store, jobs: JobStore) -> None:
    await begun(jobs)
    await begun(jobs)
    await jobs.control.cancel(await begun(jobs), "")

    assert await fields_counted(store, *JOBS) == (2, 6, 0, 2, 0)


async def test_schedules_are_counted_by_whether_they_go_on(store: Store) -> None:
    timetable = schedule_store(store)
    for paused in (False, False, True):
        await timetable.create(paused=paused)
    before = await fields_counted(store, *SCHEDULES)

    store.clock.advance(MINUTE + LATE_AFTER + dt.timedelta(seconds=1))
    late = await fields_counted(store, *SCHEDULES)
    await timetable.run_due()

    assert before == (2, 1, 0)
    assert late == (2, 1, 2)
    assert await fields_counted(store, *SCHEDULES) == (2, 1, 0)


async def test_of_more_schedules_than_the_limit_so_many_are_fields_counted(store: Store) -> None:
    timetable = schedule_store(store)
    for _ in range(3):
        await timetable.create()

    assert await fields_counted(store, "schedule_count", count_max=2) == (2,)


async def constrained(
    store: Store,
    constraints: Constraints = MUTEX,
    *,
    key: ProcessKey | None = None,
    task_type: TaskType = TaskType.CALL,
) -> ProcessKey:
    """Admit a request with constraints, on a process that is there for it."""
    if key is None:
        key = fresh_key()
        if task_type is not TaskType.INIT:
            await store.started(key)
    await store.admit(a_request(key, task_type, constraints=constraints), run=False)
    return key


async def holding(store: Store, constraints: Constraints = MUTEX) -> RunningTask:
    """Return a task that has passed its gates and runs."""
    await constrained(store, constraints)
    [claimed] = await store.claim_due()
    return claimed.task


def versioned(version: int) -> Constraints:
    """Return a place in the order of all tests."""
    return Constraints(order=Order("schema", Version((version,))))


async def test_one_that_has_passed_its_gates_is_available_and_not_due_besides(store: Store) -> None:
    await constrained(store)
    key = await store.ready()
    store.clock.advance(2 * SECOND)
    await store.admit(a_request(key), run=False)
    store.clock.advance(SECOND)

    assert await counted(store) == queue(due=1, due_age=1, available=1, available_age=3, held=1)


async def test_one_that_runs_is_not_available_and_holds_its_gates(store: Store) -> None:
    await holding(store, Constraints(gates={"mutex": 1, "rollout": 5}))

    assert await counted(store) == queue(held=2)


async def test_a_place_that_its_process_keeps_is_held_though_nothing_waits(store: Store) -> None:
    await store.settled(await holding(store, Constraints(gates={"a": 1}, hold=GateHold.PROCESS)))

    assert await counted(store) == queue(held=1)


async def test_those_in_line_wait_for_the_gate_since_they_came_to_it(store: Store) -> None:
    await holding(store)
    await constrained(store, Constraints(run_at=store.clock.now() + HOUR, gates={"mutex": 1}))
    store.clock.advance(HOUR)
    await store.gates.promote_due([NAMESPACE.name])
    store.clock.advance(3 * SECOND)
    await constrained(store)

    assert await counted(store) == queue(gate=2, gate_age=3, held=1, full_gate=1)


async def test_full_gates_are_those_with_a_line_however_many_lines(store: Store) -> None:
    for gate in ("a", "b", "full but unwanted"):
        await holding(store, Constraints(gates={gate: 1}))
    for gates in ({"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1}, {"b": 1}):
        await constrained(store, Constraints(gates=gates))

    assert await counted(store) == queue(gate=5, held=3, full_gate=2)


async def test_a_request_waits_for_its_instant(store: Store) -> None:
    for _ in range(2):
        await constrained(store, Constraints(run_at=store.clock.now() + HOUR))

    assert await counted(store) == queue(run_at=2)


async def test_a_larger_version_waits_for_the_smaller_one(store: Store) -> None:
    await constrained(store, versioned(1))
    store.clock.advance(SECOND)
    await constrained(store, versioned(2))
    store.clock.advance(SECOND)

    assert await counted(store) == queue(order=1, order_age=1, available=1, available_age=2)


async def test_one_waits_behind_a_task_of_its_own_process(store: Store) -> None:
    key = await store.ready()
    await store.run_task(a_request(key))
    store.clock.advance(SECOND)
    await constrained(store, key=key)
    store.clock.advance(4 * SECOND)

    assert await counted(store) == queue(behind=1, behind_age=4)


async def test_what_is_behind_is_as_old_as_the_oldest_with_constraints_or_without(
    store: Store,
) -> None:
    key = await store.ready()
    await store.run_task(a_request(key))
    await store.admit(a_request(key), run=False)
    store.clock.advance(SECOND)
    await constrained(store, key=key)
    store.clock.advance(SECOND)

    assert await counted(store) == queue(behind=2, behind_age=2)


async def test_what_comes_after_an_init_task_with_constraints_is_behind_it(store: Store) -> None:
    await holding(store)
    key = await constrained(store, task_type=TaskType.INIT)
    await store.admit(a_request(key), run=False)
    store.clock.advance(2 * SECOND)

    assert await counted(store) == queue(
        gate=1, gate_age=2, held=1, full_gate=1, behind=1, behind_age=2
    )


async def test_a_timer_with_constraints_is_a_timer_until_its_time_and_never_late(
    store: Store,
) -> None:
    await store.timed(HOUR, constraints=MUTEX)
    ahead = await counted(store)
    await holding(store)
    store.clock.advance(HOUR)
    await store.gates.promote_due([NAMESPACE.name])
    store.clock.advance(SECOND)

    assert ahead == queue(timer=1)
    assert await counted(store) == queue(gate=1, gate_age=1, held=1, full_gate=1)


async def test_a_timer_that_waited_for_its_gate_is_due_since_it_has_it(store: Store) -> None:
    holder = await holding(store)
    await store.timed(SECOND, constraints=MUTEX)
    store.clock.advance(HOUR)
    await store.gates.promote_due([NAMESPACE.name])
    await store.settled(holder)
    store.clock.advance(2 * SECOND)
    waiting = await counted(store)

    # Not overdue for an hour: the safety net would say that no replica has looked.
    assert await store.claim_due(overdue=HOUR) == []
    [claimed] = await store.claim_due()
    assert waiting == queue(available=1, available_age=2, held=1)
    assert claimed.due_at == store.clock.now() - 2 * SECOND


async def test_a_retry_is_a_retry_whose_gates_are_free(store: Store) -> None:
    task = await holding(store)
    store.clock.advance(5 * SECOND)
    await store.settled(task, UNREACHABLE)

    assert await counted(store) == queue(retry=1, retry_age=5)


async def test_retries_with_constraints_and_without_are_counted_together(store: Store) -> None:
    key = await store.ready()
    await store.settled(await store.run_task(a_request(key)), UNREACHABLE)
    store.clock.advance(NO_TIME)
    await store.settled(await holding(store), UNREACHABLE)
    await store.timed(HOUR)

    assert await counted(store) == queue(retry=2, timer=1)


async def test_each_cause_of_constrained_tasks_is_counted_up_to_the_bound(store: Store) -> None:
    running = fresh_key()
    for number in range(4):
        await holding(store, Constraints(gates={f"gate {number}": 1}))
    await holding(store)
    await store.start(running)
    for number in range(4):
        await constrained(store)
        await constrained(store, versioned(number))
        await constrained(store, Constraints(run_at=store.clock.now() + HOUR))
        await constrained(store, Constraints(gates={"wide": 9}))
        await constrained(store, key=running)
        await store.timed(HOUR, constraints=MUTEX)

    assert await counted(store, count_max=3) == queue(
        timer=3, run_at=3, order=3, gate=3, available=3, behind=3, held=3, full_gate=1
    )  # fmt: skip


async def test_a_constrained_retry_is_counted_behind_any_number_of_timers(store: Store) -> None:
    for _ in range(4):
        await store.timed(HOUR, constraints=MUTEX)
        await constrained(store, Constraints(run_at=store.clock.now() + SECOND / 1000))
    await store.settled(await holding(store), UNREACHABLE)

    assert await counted(store, count_max=3) == queue(timer=3, run_at=3, retry=1)


@pytest.mark.parametrize("seed", range(6))
async def test_every_task_that_waits_is_counted_once(
    store: Store, observer: psycopg.Connection[Any], seed: int
) -> None:
    walk = Walk(store, store.clock, seed)
    for _ in range(120):
        await walk.step()

        found = await counted(store)
        waiting = observer.execute(
            "SELECT count(*) FROM progressor.tasks WHERE status = 'waiting'"
        ).fetchone()
        assert waiting is not None
        assert (
            found.due_count + found.timer_count + found.retry_count + found.behind_count
            + found.run_at_count + found.order_count + found.gate_count + found.available_count
            + found.process_failed_count
        ) == waiting[0], found  # fmt: skip
