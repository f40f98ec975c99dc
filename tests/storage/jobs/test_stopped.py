"""Jobs that are cancelled, late or lose their leader: what becomes of their steps, and why.

What was stopped says the reason once, however deep it is.
"""

import datetime as dt
from collections.abc import Awaitable, Callable

import pytest

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import JobState, StartNodes
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskError
from progressor.storage.steps.settlements import LeaseLost
from tests.support.models.jobs.graphs import Graph, specs
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import BROKEN, NO_TIME, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALONE: Graph = {"a": ()}
CHAIN: Graph = {"a": (), "b": ("a",), "c": ("b",)}
MINUTE = dt.timedelta(minutes=1)
LATE = "DEADLINE_EXCEEDED"

End = Callable[[JobStore, ProcessKey], Awaitable[object]]


def because(message: str, reason: str = "JOB_CANCELLED", code: int = 10) -> TaskError:
    """Return the error of a node that was stopped; with code 9 it is of one whose own job ended."""
    return TaskError(code=code, reason=reason, message=message)


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
    """Return the details of a job and of the process of its first node, which is in error."""
    page = await jobs.jobs.read(leader, payloads=False)
    process = (await jobs.store.processes.get(page.nodes[0].follower)).process
    assert process.status is ProcessStatus.ERROR
    return page.job.detail, process.detail


async def cancel(jobs: JobStore, key: ProcessKey) -> None:
    await jobs.control.cancel(key, "")


async def run_late(jobs: JobStore, key: ProcessKey) -> None:
    del key
    jobs.store.clock.advance(MINUTE)
    await jobs.control.fail_overdue(limit=10)


async def test_a_cancelled_job_starts_nothing_more(jobs: JobStore) -> None:
    leader = await begun(jobs)

    job = await jobs.control.cancel(leader, "not needed")

    assert (job.state, job.detail, job.ended_at) == (
        JobState.CANCELLED, "not needed", jobs.store.clock.now(),
    )  # fmt: skip
    assert job.counts == NodeCounts(running=1, cancelled=3)
    view = await jobs.store.processes.get(leader)
    assert view.process.status is ProcessStatus.FINISHED
    with pytest.raises(job_errors.JobEndedError):
        await jobs.control.cancel(leader, "again")


async def test_a_job_fails_at_its_deadline(jobs: JobStore) -> None:
    leader = fresh_key()
    await jobs.submit(leader, specs(CHAIN), timeout=MINUTE)
    before = await jobs.control.fail_overdue(limit=10)
    jobs.store.clock.advance(MINUTE)

    after = await jobs.control.fail_overdue(limit=10)
    await jobs.control.maintain(leader)

    assert (before, after) == ((), (leader,))
    assert await jobs.job_state(leader) == "failed"
    assert set((await jobs.states(leader)).values()) == {"cancelled"}
    assert await error_of(jobs, leader) == because(LATE)
    assert await details_of(jobs, leader) == (LATE, f"JOB_CANCELLED: {LATE}")
    view = await jobs.store.processes.get(leader)
    assert view.process.status is ProcessStatus.ERROR
    assert await jobs.control.fail_overdue(limit=10) == ()


@pytest.mark.parametrize(("reason", "told"), [("why", "why"), ("", "the job has ended")])
async def test_a_follower_without_a_step_in_hand_is_stopped(
    jobs: JobStore, reason: str, told: str
) -> None:
    leader = await begun(jobs)
    await jobs.control.cancel(leader, reason)

    maintained = await jobs.control.maintain(leader)
    again = await jobs.control.maintain(leader)

    assert (maintained.stopped, maintained.is_whole, again.stopped) == (1, True, 0)
    assert set((await jobs.states(leader)).values()) == {"cancelled"}
    assert await error_of(jobs, leader) == because(told)
    assert await details_of(jobs, leader) == (reason, f"JOB_CANCELLED: {told}")
    assert await jobs.claim() == {}


async def test_a_follower_ends_the_step_in_hand_and_goes_no_further(jobs: JobStore) -> None:
    leader = await begun(jobs)
    tasks = await jobs.claim()
    await jobs.control.cancel(leader, "why")
    maintained = await jobs.control.maintain(leader)
    before = await jobs.states(leader)

    written = await jobs.settled(tasks["a"], success(SetTimer(after=NO_TIME)), continues=True)

    assert (maintained.stopped, maintained.is_whole) == (0, True)
    assert before["a"] == "running"
    assert written.next is None
    assert await error_of(jobs, leader) == because("why")
    assert await details_of(jobs, leader) == ("why", "JOB_CANCELLED: why")
    assert await jobs.claim() == {}


async def test_a_follower_that_completes_after_all_is_done(jobs: JobStore) -> None:
    leader = await begun(jobs)
    tasks = await jobs.claim()
    await jobs.control.cancel(leader, "why")

    await jobs.settled(tasks["a"], DONE)

    assert (await jobs.states(leader))["a"] == "done"
    assert await error_of(jobs, leader) is None
    assert (await jobs.job_state(leader)) == "cancelled"


@pytest.mark.parametrize(("end", "state"), [(cancel, "cancelled"), (run_late, "failed")])
async def test_a_step_of_the_leader_is_fenced_off(jobs: JobStore, end: End, state: str) -> None:
    leader = fresh_key()
    await jobs.submit(leader, specs(ALONE), timeout=MINUTE)
    await jobs.end(await jobs.claim(), "a")
    [join] = (await jobs.claim()).values()

    await end(jobs, leader)

    assert not hasattr(await jobs.settle(join, DONE), "settled_at")
    assert await jobs.job_state(leader) == state


async def test_a_gated_follower_that_is_stopped_leaves_its_gates(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": ()}, constraints=Constraints(gates={"g1": 1}))
    await jobs.control.maintain(leader)
    await jobs.control.cancel(leader, "")

    maintained = await jobs.control.maintain(leader)

    assert maintained.stopped == 2
    gate = await jobs.store.gates.get("orders", "g1")
    assert (gate.gate.held, gate.line) == (0, ())


async def test_jobs_within_a_cancelled_one_are_stopped_at_every_depth(jobs: JobStore) -> None:
    outer, *within = leaders = await nested(jobs, "a", "b", "c")
    await jobs.control.cancel(outer, "why")

    for leader in leaders:
        await jobs.control.maintain(leader)

    assert [await jobs.job_state(each) for each in leaders] == ["cancelled", "failed", "failed"]
    assert [*map(dict.popitem, [await jobs.states(each) for each in leaders])] == [
        ("a", "cancelled"), ("b", "cancelled"), ("c", "cancelled"),
    ]  # fmt: skip
    assert [await error_of(jobs, each) for each in leaders] == [because("why")] * 3
    assert await details_of(jobs, outer) == ("why", "JOB_CANCELLED: why")
    assert [await details_of(jobs, each) for each in within] == [("JOB_CANCELLED: why",) * 2] * 2
    assert await jobs.claim() == {}


@pytest.mark.parametrize(("reason", "told"), [("why", "why"), ("", "the job was cancelled")])
async def test_a_job_that_is_cancelled_within_another_fails_its_node(
    jobs: JobStore, reason: str, told: str
) -> None:
    outer, inner = await nested(jobs, "a", "b")

    await jobs.control.cancel(inner, reason)
    await jobs.control.maintain(inner)

    assert await jobs.states(outer) == {"a": "failed"}
    assert await jobs.states(inner) == {"b": "cancelled"}
    assert await error_of(jobs, outer) == because(told, code=9)
    assert await error_of(jobs, inner) == because(told)
    assert await details_of(jobs, inner) == (f"JOB_CANCELLED: {told}",) * 2


async def test_a_job_that_is_late_within_another_says_so_up_and_down(jobs: JobStore) -> None:
    outer = await begun(jobs, ALONE)
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(StartNodes(nodes=specs({"b": ()}), timeout=MINUTE)))

    await run_late(jobs, init.key)
    await jobs.control.maintain(init.key)

    up = because("the deadline of its job has passed", LATE, code=9)
    assert await error_of(jobs, outer) == up
    assert await error_of(jobs, init.key) == because(LATE)
    assert await details_of(jobs, init.key) == (LATE, f"JOB_CANCELLED: {LATE}")


async def test_jobs_of_orphans_say_why(jobs: JobStore) -> None:
    outer, inner = await nested(jobs, "a", "b")
    await jobs.store.remove(outer)

    await jobs.control.stop_orphans()
    await jobs.control.maintain(inner)

    gone = "its leader was removed"
    assert await error_of(jobs, inner) == because(gone)
    assert await details_of(jobs, inner) == (f"JOB_CANCELLED: {gone}",) * 2


async def test_jobs_of_a_halted_process_say_why(jobs: JobStore) -> None:
    outer, inner = await nested(jobs, "a", "b")

    await jobs.store.halt(inner, "JOB_CANCELLED: why")
    await jobs.control.maintain(inner)

    up = because("JOB_CANCELLED: why", "PROCESS_FAILED", code=9)
    assert await error_of(jobs, outer) == up
    assert await error_of(jobs, inner) == because("why")
    assert await details_of(jobs, inner) == ("JOB_CANCELLED: why",) * 2


async def test_a_terminated_leader_cancels_its_job_and_fails_its_node(jobs: JobStore) -> None:
    outer, inner = await nested(jobs, "a", "b")

    await jobs.store.terminate(inner, "why")
    await jobs.control.maintain(inner)

    assert await jobs.states(outer) == {"a": "failed"}
    assert await error_of(jobs, outer) == because("why", "PROCESS_TERMINATED", code=9)
    assert await error_of(jobs, inner) == because("why")
    process = (await jobs.store.processes.get(inner)).process
    assert (process.status, process.detail) == (ProcessStatus.FINISHED, "why")


async def test_the_job_of_a_terminated_leader_is_cancelled(jobs: JobStore) -> None:
    leader = await begun(jobs, CHAIN)

    await jobs.store.terminate(leader, "why")
    await jobs.control.maintain(leader)

    assert await jobs.states(leader) == dict.fromkeys("abc", "cancelled")
    job = (await jobs.jobs.read(leader, payloads=False)).job
    assert (job.state, job.detail) == (JobState.CANCELLED, "why")


async def test_a_job_that_failed_is_cancelled_with_its_terminated_leader(jobs: JobStore) -> None:
    leader = await begun(jobs, ALONE)
    await jobs.end(await jobs.claim(), "a", fails={"a"})
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.store.terminate(leader, "why")

    assert (await jobs.jobs.read(leader, payloads=False)).job.state is JobState.CANCELLED
    with pytest.raises(job_errors.JobNotFailedError):
        await jobs.control.retry(leader, deadline=None, timeout=None)


async def test_a_terminated_follower_fails_its_node_again_when_its_job_is_retried(
    jobs: JobStore,
) -> None:
    leader = await begun(jobs, CHAIN)
    [init] = (await jobs.claim()).values()
    await jobs.store.terminate(init.key, "why")
    assert await jobs.states(leader) == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert isinstance(await jobs.settle(init), LeaseLost)
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.control.retry(leader, deadline=None, timeout=None)

    assert await jobs.states(leader) == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert await error_of(jobs, leader) == because("why", "PROCESS_TERMINATED", code=9)
