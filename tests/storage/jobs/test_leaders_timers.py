"""The timer of a leader: what a step does about it stands beside the nodes that it starts."""

import datetime as dt

import pytest

from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.intent import Complete, RemoveProcess, SetTimer, UnsetTimer
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.store import JobStore
from tests.support.storage.store import a_request, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
NODES = StartNodes(nodes=specs({"a": ()}))


async def called(jobs: JobStore) -> tuple[int, RunningTask]:
    """Return the timer of a process, and a call on it that runs."""
    key, timer = await jobs.store.timed()
    return timer, await jobs.store.run_task(a_request(key))


async def test_a_step_that_starts_nodes_cancels_the_timer_as_well(jobs: JobStore) -> None:
    old, call = await called(jobs)

    await jobs.settled(call, success(NODES, UnsetTimer()))

    assert (await jobs.store.processes.get(call.key)).timer is None
    assert await jobs.store.task_status(call.key, old) is TaskStatus.CANCELLED
    assert list(await jobs.claim()) == ["a"]


async def test_a_step_that_starts_nodes_replaces_the_timer_as_well(jobs: JobStore) -> None:
    old, call = await called(jobs)

    await jobs.settled(call, success(NODES, SetTimer(after=2 * HOUR, args=b"new")))

    timer = (await jobs.store.processes.get(call.key)).timer
    assert timer is not None
    assert (timer.due_at, timer.status) == (jobs.store.clock.now() + 2 * HOUR, TaskStatus.WAITING)
    assert await jobs.store.task_status(call.key, old) is TaskStatus.CANCELLED
    assert list(await jobs.claim()) == ["a"]


async def test_a_step_that_starts_nodes_and_a_timer_due_now_goes_on_with_the_timer(
    jobs: JobStore,
) -> None:
    _, call = await called(jobs)

    due_now = SetTimer(after=dt.timedelta(), args=b"now")
    written = await jobs.settled(call, success(NODES, due_now), continues=True)

    assert written.next is not None
    assert (written.next.task_type, written.next.args) == (TaskType.TIMEOUT, b"now")
    assert list(await jobs.claim()) == ["a"]


async def test_a_repair_that_starts_nodes_may_set_a_timer_in_place_of_the_broken_one(
    jobs: JobStore,
) -> None:
    _, call = await called(jobs)
    await jobs.store.halt(call.key, "why")
    repair = await jobs.store.run_task(a_request(call.key, TaskType.REPAIR))

    await jobs.settled(repair, success(NODES, SetTimer(after=HOUR)))

    timer = (await jobs.store.processes.get(call.key)).timer
    assert timer is not None
    assert timer.due_at == jobs.store.clock.now() + HOUR


@pytest.mark.parametrize("change", [SetTimer(after=HOUR), UnsetTimer()])
async def test_a_process_that_finishes_has_no_timer_whatever_its_step_did_about_it(
    jobs: JobStore, change: SetTimer | UnsetTimer
) -> None:
    old, call = await called(jobs)

    written = await jobs.settled(call, success(Complete(b"end"), change))

    assert written.due is None
    assert (await jobs.store.processes.get(call.key)).timer is None
    assert await jobs.store.task_status(call.key, old) is TaskStatus.CANCELLED


async def test_a_process_that_is_removed_leaves_no_timer_behind(jobs: JobStore) -> None:
    _, call = await called(jobs)

    written = await jobs.settled(call, success(RemoveProcess(), SetTimer(after=HOUR)))

    assert (written.due, await jobs.claim()) == (None, {})
