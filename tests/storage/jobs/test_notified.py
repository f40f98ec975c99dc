"""A leader is notified at once, by its join, when its last node ends other than by a step."""

import datetime as dt
from collections.abc import Awaitable, Callable

import pytest

from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskType
from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import BROKEN, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = dt.timedelta(minutes=1)

End = Callable[[JobStore, ProcessKey], Awaitable[object]]


async def cancel(jobs: JobStore, key: ProcessKey) -> None:
    await jobs.control.cancel(key, "why")


async def run_late(jobs: JobStore, key: ProcessKey) -> None:
    del key
    await jobs.control.fail_overdue(limit=10)


async def halt(jobs: JobStore, key: ProcessKey) -> None:
    await jobs.store.halt(key, "why")


async def remove(jobs: JobStore, key: ProcessKey) -> None:
    await jobs.store.remove(key)


async def cancel_init(jobs: JobStore, key: ProcessKey) -> None:
    view = await jobs.store.processes.get(key)
    await jobs.store.cancel(key, view.process.init_task_id)


async def inner_job(jobs: JobStore) -> ProcessKey:
    """Have the one node that is due lead a job of a minute, and return that."""
    [init] = (await jobs.claim()).values()
    action = StartNodes(nodes=specs({"x": ()}), timeout=MINUTE)
    await jobs.settled(init, success(action))
    return init.key


def told(jobs: JobStore) -> list[ProcessKey]:
    return [key for each in jobs.store.reported for key, _ in each.due]


@pytest.mark.parametrize("end", [cancel, run_late, halt, remove])
async def test_a_leader_is_told_when_a_job_within_its_own_has_ended(
    jobs: JobStore, end: End
) -> None:
    leader = await begun(jobs, {"a": (), "b": ("a",)})
    inner = await inner_job(jobs)
    jobs.store.clock.advance(MINUTE)
    jobs.store.reported.clear()

    await end(jobs, inner)

    assert told(jobs) == [leader]
    [task_id] = [task_id for each in jobs.store.reported for _, task_id in each.due]
    claimed = await jobs.store.claim(leader, task_id)
    assert [each.task.task_type for each in claimed] == [TaskType.JOIN]


@pytest.mark.parametrize("end", [halt, remove, cancel_init])
async def test_a_leader_is_told_when_its_last_node_has_ended(jobs: JobStore, end: End) -> None:
    leader = await begun(jobs, {"a": ()})
    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    jobs.store.reported.clear()

    await end(jobs, node.follower)

    assert told(jobs) == [leader]


@pytest.mark.parametrize("end", [halt, remove, cancel_init])
async def test_a_leader_is_not_told_before(jobs: JobStore, end: End) -> None:
    leader = await begun(jobs, {"a": (), "b": ()})
    first, _ = (await jobs.jobs.read(leader, payloads=False)).nodes
    jobs.store.reported.clear()

    await end(jobs, first.follower)

    assert told(jobs) == []


async def test_a_leader_with_a_step_in_hand_is_told_after_it(jobs: JobStore) -> None:
    leader = fresh_key()
    action = StartNodes(nodes=specs({"a": ()}))
    await jobs.settled(await jobs.store.start(leader), success(action))
    call = await jobs.store.run_task(a_request(leader))
    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    jobs.store.reported.clear()

    await halt(jobs, node.follower)
    written = await jobs.settled(call, success(), continues=True)

    assert told(jobs) == []
    assert written.next is not None
    assert written.next.task_type is TaskType.JOIN


async def retry(jobs: JobStore, key: ProcessKey) -> None:
    await jobs.control.retry(key, deadline=None, timeout=None)


async def simple_repair(jobs: JobStore, key: ProcessKey) -> None:
    await jobs.store.recover(key)


@pytest.mark.parametrize("bring_back", [retry, simple_repair])
async def test_a_leader_that_broke_when_all_was_done_is_told_once_more(
    jobs: JobStore, bring_back: End
) -> None:
    leader = await begun(jobs, {"a": ()})
    for answer in (DONE, BROKEN):  # of the node, and of the join
        [task] = (await jobs.claim()).values()
        await jobs.settled(task, answer)
    jobs.store.reported.clear()

    await bring_back(jobs, leader)

    assert told(jobs) == [leader]
