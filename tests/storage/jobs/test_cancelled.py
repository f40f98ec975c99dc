"""Jobs that are cancelled, and what becomes of the steps in hand."""

import pytest

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import JobState, NodeCounts
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import NodeState, TaskError
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import (
    NO_TIME,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


async def test_a_follower_without_a_step_in_hand_is_stopped(jobs: JobStore) -> None:
    leader = await begun(jobs)
    await jobs.control.cancel(leader, "why")

    maintained = await jobs.control.maintain(leader)
    again = await jobs.control.maintain(leader)

    assert (maintained.stopped, maintained.is_whole) == (1, True)
    assert again.stopped == 0
    [node, *_] = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert (node.state, node.error) == (
        NodeState.CANCELLED,
        TaskError(code=10, reason="JOB_CANCELLED", message="why"),
    )
    view = await jobs.store.processes.get(node.follower)
    assert (view.process.status, view.process.detail) == (
        ProcessStatus.ERROR, "JOB_CANCELLED: why",
    )  # fmt: skip
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
    assert (await jobs.states(leader))["a"] == "cancelled"
    assert await jobs.claim() == {}


async def test_a_follower_that_completes_after_all_is_done(jobs: JobStore) -> None:
    leader = await begun(jobs)
    tasks = await jobs.claim()
    await jobs.control.cancel(leader, "why")

    await jobs.settled(tasks["a"], DONE)

    assert (await jobs.states(leader))["a"] == "done"
    assert (await jobs.job_state(leader)) == "cancelled"


async def test_a_step_of_the_leader_is_fenced_off(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": ()})
    await jobs.end(await jobs.claim(), "a")
    [join] = (await jobs.claim()).values()

    await jobs.control.cancel(leader, "")

    assert not hasattr(await jobs.settle(join, DONE), "settled_at")
    assert await jobs.job_state(leader) == "cancelled"


async def test_a_gated_follower_that_is_stopped_leaves_its_gates(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": ()}, constraints=Constraints(gates={"g1": 1}))
    await jobs.control.maintain(leader)
    await jobs.control.cancel(leader, "")

    maintained = await jobs.control.maintain(leader)

    assert maintained.stopped == 2
    gate = await jobs.store.gates.get("orders", "g1")
    assert (gate.gate.held, gate.line) == (0, ())
