"""What nodes and processes that were stopped say of why: the reason once, however deep they are."""

import datetime as dt

import pytest

from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskError
from tests.support.models.jobs.graphs import Graph, specs
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import NO_TIME, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALONE: Graph = {"a": ()}
MINUTE = dt.timedelta(minutes=1)
WHY = TaskError(code=10, reason="JOB_CANCELLED", message="why")


async def nested(jobs: JobStore, *names: str) -> list[ProcessKey]:
    """Return a job, one led by its only node, and so on: as many as there are names of nodes."""
    leaders = [await begun(jobs, {names[0]: ()})]
    for name in names[1:]:
        [init] = (await jobs.claim()).values()
        await jobs.settled(init, success(StartNodes(nodes=specs({name: ()}))))
        leaders.append(init.key)
    return leaders


async def error_of(jobs: JobStore, leader: ProcessKey) -> TaskError | None:
    """Return what went wrong with the first node of a job."""
    return (await jobs.jobs.read(leader, payloads=False)).nodes[0].error


async def details_of(jobs: JobStore, leader: ProcessKey) -> tuple[str | None, str | None]:
    """Return what a job says of itself, and what the process of its first node does."""
    page = await jobs.jobs.read(leader, payloads=False)
    view = await jobs.store.processes.get(page.nodes[0].follower)
    return page.job.detail, view.process.detail


@pytest.mark.parametrize(("reason", "told"), [("why", "why"), ("", "the job has ended")])
async def test_a_node_that_is_stopped_says_why(jobs: JobStore, reason: str, told: str) -> None:
    leader = await begun(jobs, ALONE)
    await jobs.control.cancel(leader, reason)

    await jobs.control.maintain(leader)

    assert await error_of(jobs, leader) == TaskError(code=10, reason="JOB_CANCELLED", message=told)
    assert await details_of(jobs, leader) == (reason, f"JOB_CANCELLED: {told}")


async def test_a_node_that_is_stopped_after_a_step_says_why(jobs: JobStore) -> None:
    leader = await begun(jobs, ALONE)
    tasks = await jobs.claim()
    await jobs.control.cancel(leader, "why")

    await jobs.settled(tasks["a"], success(SetTimer(after=NO_TIME)))

    assert await error_of(jobs, leader) == WHY
    assert await details_of(jobs, leader) == ("why", "JOB_CANCELLED: why")


async def test_a_node_that_is_stopped_at_the_deadline_says_so(jobs: JobStore) -> None:
    leader = fresh_key()
    await jobs.submit(leader, specs(ALONE), timeout=MINUTE)
    jobs.store.clock.advance(MINUTE)
    await jobs.control.fail_overdue(limit=10)

    await jobs.control.maintain(leader)

    late = "DEADLINE_EXCEEDED"
    assert await error_of(jobs, leader) == TaskError(code=10, reason="JOB_CANCELLED", message=late)
    assert await details_of(jobs, leader) == (late, f"JOB_CANCELLED: {late}")


async def test_jobs_within_a_cancelled_one_say_why_at_every_depth(jobs: JobStore) -> None:
    outer, middle, inner = leaders = await nested(jobs, "a", "b", "c")
    await jobs.control.cancel(outer, "why")

    for leader in leaders:
        await jobs.control.maintain(leader)

    assert [await error_of(jobs, each) for each in leaders] == [WHY] * 3
    assert await details_of(jobs, outer) == ("why", "JOB_CANCELLED: why")
    assert await details_of(jobs, middle) == ("JOB_CANCELLED: why",) * 2
    assert await details_of(jobs, inner) == ("JOB_CANCELLED: why",) * 2


@pytest.mark.parametrize(("reason", "told"), [("why", "why"), ("", "the job was cancelled")])
async def test_a_job_that_is_cancelled_within_another_says_why_up_and_down(
    jobs: JobStore, reason: str, told: str
) -> None:
    outer, inner = await nested(jobs, "a", "b")

    await jobs.control.cancel(inner, reason)
    await jobs.control.maintain(inner)

    up = TaskError(code=9, reason="JOB_CANCELLED", message=told)
    assert await error_of(jobs, outer) == up
    assert await error_of(jobs, inner) == TaskError(code=10, reason=up.reason, message=told)
    assert await details_of(jobs, inner) == (f"JOB_CANCELLED: {told}",) * 2


async def test_a_job_that_is_late_within_another_says_so_up_and_down(jobs: JobStore) -> None:
    outer = await begun(jobs, ALONE)
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(StartNodes(nodes=specs({"b": ()}), timeout=MINUTE)))
    jobs.store.clock.advance(MINUTE)

    await jobs.control.fail_overdue(limit=10)
    await jobs.control.maintain(init.key)

    late = "DEADLINE_EXCEEDED"
    up, down = await error_of(jobs, outer), await error_of(jobs, init.key)
    assert up == TaskError(code=9, reason=late, message="the deadline of its job has passed")
    assert down == TaskError(code=10, reason="JOB_CANCELLED", message=late)
    assert await details_of(jobs, init.key) == (late, f"JOB_CANCELLED: {late}")


async def test_jobs_of_orphans_say_why(jobs: JobStore) -> None:
    outer, inner = await nested(jobs, "a", "b")
    await jobs.store.remove(outer)

    await jobs.control.stop_orphans()
    await jobs.control.maintain(inner)

    gone = "its leader was removed"
    assert await error_of(jobs, inner) == TaskError(code=10, reason="JOB_CANCELLED", message=gone)
    assert await details_of(jobs, inner) == (f"JOB_CANCELLED: {gone}",) * 2


async def test_jobs_of_a_halted_process_say_why(jobs: JobStore) -> None:
    outer, inner = await nested(jobs, "a", "b")

    await jobs.store.halt(inner, "JOB_CANCELLED: why")
    await jobs.control.maintain(inner)

    up = TaskError(code=9, reason="PROCESS_FAILED", message="JOB_CANCELLED: why")
    assert await error_of(jobs, outer) == up
    assert await error_of(jobs, inner) == WHY
    assert await details_of(jobs, inner) == ("JOB_CANCELLED: why",) * 2


async def test_a_node_that_is_done_after_all_says_nothing(jobs: JobStore) -> None:
    leader = await begun(jobs, ALONE)
    tasks = await jobs.claim()
    await jobs.control.cancel(leader, "why")

    await jobs.settled(tasks["a"], DONE)

    assert await error_of(jobs, leader) is None
