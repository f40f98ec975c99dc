"""A leader is notified at once, by its join, when its last node ends other than by a step."""

import datetime as dt
from collections.abc import Awaitable, Callable

import pytest

from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskType
from tests.support.clock import ManualClock
from tests.support.job_graphs import specs
from tests.support.jobs_storage import DONE, JobDesk, begun
from tests.support.storage import BROKEN, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = dt.timedelta(minutes=1)

End = Callable[[JobDesk, ProcessKey], Awaitable[object]]


async def cancel(jobs: JobDesk, key: ProcessKey) -> None:
    await jobs.jobs.cancel(key, "why")


async def run_late(jobs: JobDesk, key: ProcessKey) -> None:
    del key
    await jobs.jobs.fail_overdue(limit=10)


async def halt(jobs: JobDesk, key: ProcessKey) -> None:
    await jobs.desk.processes.halt(key, "why")


async def remove(jobs: JobDesk, key: ProcessKey) -> None:
    await jobs.desk.processes.remove(key)


async def cancel_init(jobs: JobDesk, key: ProcessKey) -> None:
    view = await jobs.desk.processes.get(key)
    await jobs.desk.processes.cancel(key, view.process.init_task_id)


async def inner_job(jobs: JobDesk) -> ProcessKey:
    """Have the one node that is due lead a job of a minute, and return that."""
    [init] = (await jobs.claim()).values()
    action = StartNodes(nodes=specs({"x": ()}), timeout=MINUTE)
    await jobs.settled(init, success(action))
    return init.key


def told(jobs: JobDesk) -> list[ProcessKey]:
    return [key for each in jobs.desk.told for key, _ in each.due]


@pytest.mark.parametrize("end", [cancel, run_late, halt, remove])
async def test_a_leader_is_told_when_a_job_within_its_own_has_ended(
    jobs: JobDesk, clock: ManualClock, end: End
) -> None:
    leader = await begun(jobs, {"a": (), "b": ("a",)})
    inner = await inner_job(jobs)
    clock.advance(MINUTE)
    jobs.desk.told.clear()

    await end(jobs, inner)

    assert told(jobs) == [leader]
    claimed = await jobs.desk.claim(leader, jobs.desk.told[-1].due[0][1])
    assert [each.task.task_type for each in claimed] == [TaskType.JOIN]


@pytest.mark.parametrize("end", [halt, remove, cancel_init])
async def test_a_leader_is_told_when_its_last_node_has_ended(jobs: JobDesk, end: End) -> None:
    leader = await begun(jobs, {"a": ()})
    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    jobs.desk.told.clear()

    await end(jobs, node.follower)

    assert told(jobs) == [leader]


@pytest.mark.parametrize("end", [halt, remove, cancel_init])
async def test_a_leader_is_not_told_before(jobs: JobDesk, end: End) -> None:
    leader = await begun(jobs, {"a": (), "b": ()})
    first, _ = (await jobs.jobs.read(leader, payloads=False)).nodes
    jobs.desk.told.clear()

    await end(jobs, first.follower)

    assert told(jobs) == []


async def test_a_leader_with_a_step_in_hand_is_told_after_it(jobs: JobDesk) -> None:
    leader = fresh_key()
    action = StartNodes(nodes=specs({"a": ()}))
    await jobs.settled(await jobs.desk.start(leader), success(action))
    call = await jobs.desk.run_task(a_request(leader))
    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    jobs.desk.told.clear()

    await halt(jobs, node.follower)
    written = await jobs.settled(call, success(), continues=True)

    assert told(jobs) == []
    assert written.next is not None
    assert written.next.task_type is TaskType.JOIN


async def retry(jobs: JobDesk, key: ProcessKey) -> None:
    await jobs.jobs.retry(key, deadline=None, timeout=None)


async def simple_repair(jobs: JobDesk, key: ProcessKey) -> None:
    await jobs.desk.processes.simple_repair(key)


@pytest.mark.parametrize("bring_back", [retry, simple_repair])
async def test_a_leader_that_broke_when_all_was_done_is_told_once_more(
    jobs: JobDesk, bring_back: End
) -> None:
    leader = await begun(jobs, {"a": ()})
    for answer in (DONE, BROKEN):  # of the node, and of the join
        [task] = (await jobs.claim()).values()
        await jobs.settled(task, answer)
    jobs.desk.told.clear()

    await bring_back(jobs, leader)

    assert told(jobs) == [leader]
