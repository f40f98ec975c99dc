"""Jobs that a schedule has started, and that lose a replica: they fail as a whole."""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.jobs.job import JobState, StartNodes
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.policy import ZombiePolicy
from progressor.domain.processes.process import JobOptions, ProcessKey, ProcessStatus
from progressor.domain.processes.task import RunningTask, TaskError
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import Graph, specs
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, begun, collecting
from tests.support.storage.store import NO_TIME, a_request, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDE: Graph = {
    "lost": (), "busy": (), "idle": (),
    "behind-lost": ("lost",), "behind-busy": ("busy",), "last": ("idle", "busy"),
}  # fmt: skip
UNSTARTED = ("behind-lost", "behind-busy", "last")
SCHEDULED = JobOptions(scheduled=True)
WHY = 'the replica of node "lost" was lost'
HOUR = dt.timedelta(hours=1)
FAILED_WITH_IT = TaskError(code=10, reason="JOB_FAILED", message=WHY)


async def at_work(jobs: JobStore) -> tuple[ProcessKey, dict[str, RunningTask]]:
    """Return a job of a schedule: two nodes have a step in hand, one waits for its timer."""
    leader = await begun(jobs, WIDE, options=SCHEDULED)
    tasks = await jobs.claim()
    await jobs.settled(tasks["idle"], success(SetTimer(after=HOUR)))
    return leader, tasks


async def lose(jobs: JobStore, clock: ManualClock, task: RunningTask) -> None:
    """Collect a lease whose replica was lost."""
    await jobs.store.write(collecting(task, clock.now()))


async def test_the_job_and_all_that_was_not_started_fail_at_once(
    jobs: JobStore, clock: ManualClock
) -> None:
    leader, tasks = await at_work(jobs)

    await lose(jobs, clock, tasks["lost"])

    page = await jobs.jobs.read(leader, payloads=False)
    errors = {node.name: node.error for node in page.nodes}
    assert (page.job.state, page.job.detail) == (JobState.FAILED, f"ZOMBIE: {WHY}")
    assert page.job.counts == NodeCounts(running=2, failed=4)
    assert errors["lost"] == TaskError(code=10, reason="ZOMBIE", message="zombie detected")
    assert [errors[name] for name in UNSTARTED] == [FAILED_WITH_IT] * 3
    found = await jobs.store.processes.get(leader)
    assert (found.process.status, found.process.detail) == (ProcessStatus.ERROR, f"ZOMBIE: {WHY}")
    assert await jobs.claim() == {}


async def test_who_waits_for_a_call_of_the_leader_is_told(
    jobs: JobStore, clock: ManualClock
) -> None:
    leader, tasks = await at_work(jobs)
    call = await jobs.store.admit(a_request(leader), run=False)
    jobs.store.reported.clear()

    await lose(jobs, clock, tasks["lost"])

    cancelled = [each.task.task_id for told in jobs.store.reported for each in told.cancelled]
    assert cancelled == [call.task_id]


async def test_a_node_without_a_step_in_hand_fails_as_soon_as_the_job_is_tended(
    jobs: JobStore, clock: ManualClock
) -> None:
    leader, tasks = await at_work(jobs)
    await lose(jobs, clock, tasks["lost"])

    await jobs.maintain(leader)

    page = await jobs.jobs.read(leader, payloads=False)
    idle = {node.name: node for node in page.nodes}["idle"]
    assert (str(idle.state), idle.error) == ("failed", FAILED_WITH_IT)
    found = await jobs.store.processes.get(idle.follower)
    assert (found.process.status, found.process.detail) == (
        ProcessStatus.ERROR, f"JOB_FAILED: {WHY}",
    )  # fmt: skip


async def test_a_node_with_a_step_in_hand_ends_that_and_goes_no_further(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader, tasks = await at_work(jobs)
    await lose(jobs, clock, tasks["lost"])
    await jobs.maintain(leader)
    before = await jobs.states(leader)

    written = await jobs.settled(
        tasks["busy"], success(SetTimer(after=NO_TIME), events=1), continues=True
    )

    assert before["busy"] == "running"
    assert written.next is None
    assert (await jobs.states(leader))["busy"] == "failed"
    assert (await jobs.store.processes.get(tasks["busy"].key)).process.last_event_id == 1
    assert await jobs.claim() == {}
    assert broken_invariants(observer, at_rest=True, now=jobs.store.clock.now()) == {}


async def test_a_node_that_completes_after_all_is_done_and_starts_no_other(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader, tasks = await at_work(jobs)
    await lose(jobs, clock, tasks["lost"])

    await jobs.settled(tasks["busy"], DONE, continues=True)
    await jobs.maintain(leader)

    assert await jobs.states(leader) == {
        "busy": "done", "lost": "failed", "idle": "failed", **dict.fromkeys(UNSTARTED, "failed"),
    }  # fmt: skip
    assert await jobs.job_state(leader) == "failed"
    assert await jobs.claim() == {}
    assert broken_invariants(observer, at_rest=True, now=jobs.store.clock.now()) == {}


async def test_a_node_that_completes_in_the_same_batch_starts_no_other(jobs: JobStore) -> None:
    leader, tasks = await at_work(jobs)
    done = await jobs.entry(tasks["busy"], DONE)

    await asyncio.gather(
        jobs.store.write(done),
        jobs.store.write(collecting(tasks["lost"], jobs.store.clock.now())),
    )

    states = await jobs.states(leader)
    assert states["busy"] == "done"
    assert {states[name] for name in UNSTARTED} == {"failed"}
    assert await jobs.claim() == {}


async def test_a_leader_that_is_lost_fails_all_nodes(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": ()}, options=SCHEDULED)
    await jobs.end(await jobs.claim(), "a")
    [join] = (await jobs.claim()).values()
    part = join.process.part
    assert part is not None
    lost = dataclasses.replace(
        join,
        process=dataclasses.replace(
            join.process, part=dataclasses.replace(part, options=SCHEDULED)
        ),
    )

    await lose(jobs, clock, lost)

    assert await jobs.job_state(leader) == "failed"
    assert (await jobs.states(leader)) == {"a": "done"}
    assert broken_invariants(observer, at_rest=True, now=jobs.store.clock.now()) == {}


async def test_a_lease_that_was_settled_meanwhile_fails_nothing(
    jobs: JobStore, clock: ManualClock
) -> None:
    leader, tasks = await at_work(jobs)
    await jobs.settled(tasks["lost"], DONE)

    await lose(jobs, clock, tasks["lost"])

    assert await jobs.job_state(leader) == "running"
    assert (await jobs.states(leader))["behind-lost"] == "running"


async def test_a_job_above_fails_as_a_whole_too(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"inner": (), "other": (), "after": ("other",)}, options=SCHEDULED)
    tasks = await jobs.claim()
    inner = tasks["inner"].key
    action = StartNodes(nodes=specs({"lost": (), "behind": ("lost",)}, options=SCHEDULED))
    await jobs.settled(tasks["inner"], success(action))
    below = await jobs.claim()

    await lose(jobs, clock, below["lost"])
    at_once = await jobs.states(inner)
    invariants = broken_invariants(observer, now=jobs.store.clock.now())
    await jobs.maintain(inner)
    await jobs.maintain(leader)

    assert (at_once, invariants) == ({"lost": "failed", "behind": "failed"}, {})
    assert await jobs.job_state(leader) == "failed"
    assert await jobs.states(leader) == {
        "inner": "failed", "other": "running", "after": "failed",
    }  # fmt: skip
    assert (await jobs.jobs.read(leader, payloads=False)).job.detail == f"ZOMBIE: {WHY}"
    await jobs.settled(tasks["other"], DONE)
    assert await jobs.claim() == {}
    assert broken_invariants(observer, at_rest=True, now=jobs.store.clock.now()) == {}


async def test_a_job_below_is_failed_with_it(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"inner": (), "lost": ()}, options=SCHEDULED)
    tasks = await jobs.claim()
    action = StartNodes(nodes=specs({"a": (), "b": ("a",)}, options=SCHEDULED))
    await jobs.settled(tasks["inner"], success(action))

    await lose(jobs, clock, tasks["lost"])
    await jobs.maintain(leader)
    await jobs.maintain(tasks["inner"].key)

    assert await jobs.states(leader) == {"inner": "failed", "lost": "failed"}
    assert await jobs.states(tasks["inner"].key) == {"a": "failed", "b": "failed"}
    assert await jobs.claim() == {}
    assert broken_invariants(observer, at_rest=True, now=jobs.store.clock.now()) == {}


async def test_it_can_be_retried(jobs: JobStore, clock: ManualClock) -> None:
    leader, tasks = await at_work(jobs)
    await lose(jobs, clock, tasks["lost"])
    await jobs.settled(tasks["busy"], DONE)
    await jobs.maintain(leader)

    await jobs.control.retry(leader, deadline=None, timeout=None)

    assert await jobs.job_state(leader) == "running"
    assert await jobs.states(leader) == {
        "lost": "running", "idle": "running", "busy": "done",
        "behind-busy": "running", "behind-lost": "waiting", "last": "waiting",
    }  # fmt: skip
    jobs.store.clock.advance(HOUR)  # at which the timer of the idle one is due again
    assert set(await jobs.claim()) == {"lost", "idle", "behind-busy"}


async def test_a_job_of_no_schedule_loses_the_node_alone(
    jobs: JobStore, clock: ManualClock
) -> None:
    options = JobOptions(zombie_policy=ZombiePolicy.FAIL)
    leader = await begun(jobs, {"lost": (), "other": (), "after": ("other",)}, options=options)
    tasks = await jobs.claim()

    await lose(jobs, clock, tasks["lost"])

    assert await jobs.job_state(leader) == "running"
    assert await jobs.states(leader) == {"lost": "failed", "other": "running", "after": "waiting"}
