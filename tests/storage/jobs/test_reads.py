"""What is read of jobs, and which are found."""

import dataclasses
import datetime as dt

import pytest

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import Job, JobFilter, JobState, NodeSpec
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.processes.process import JobOptions, Leadership
from progressor.domain.processes.task import NodeOutcome, NodeState, TaskError
from tests.support.storage.jobs.store import JobStore, begun
from tests.support.storage.store import (
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


async def test_a_job_is_read_with_its_graph(jobs: JobStore) -> None:
    leader = fresh_key()
    limits = Constraints(gates={"g": 1})
    target = JobOptions(target="127.0.0.1:1")
    await jobs.submit(
        leader,
        (
            NodeSpec(name="a", args=b"args", options=target),
            NodeSpec(name="b", predecessors=("a",), constraints=limits),
        ),
        timeout=HOUR,
        schedule_id="nightly",
    )

    page = await jobs.jobs.read(leader, payloads=True)

    assert page.job == Job(
        key=leader,
        state=JobState.RUNNING,
        detail=None,
        led_by=Leadership.ENGINE,
        counts=NodeCounts(waiting=1, running=1),
        created_at=jobs.store.clock.now(),
        updated_at=jobs.store.clock.now(),
        ended_at=None,
        deadline_at=jobs.store.clock.now() + HOUR,
        schedule_id="nightly",
        revision=page.job.revision,
        retry_count=0,
    )
    first, second = page.nodes
    assert (first.ordinal, first.name, first.state) == (1, "a", NodeState.RUNNING)
    assert (first.args, first.target, first.constraints) == (b"args", "127.0.0.1:1", None)
    assert (first.created_at, first.ready_at, first.started_at) == (jobs.store.clock.now(),) * 3
    assert (second.state, second.predecessors) == (NodeState.WAITING, ("a",))
    assert (second.constraints, second.ready_at, second.ended_at) == (limits, None, None)
    assert not page.payloads_left_out


async def test_results_and_causes_are_read(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": (), "c": ("b",)})
    tasks = await jobs.claim()
    await jobs.end(tasks, "a")
    await jobs.end(tasks, "b", fails=("b",))

    done, broken, skipped = (await jobs.jobs.read(leader, payloads=True)).nodes

    assert (done.state, done.result) == (NodeState.DONE, b"end")
    assert (broken.state, broken.error) == (
        NodeState.FAILED,
        TaskError(code=13, reason="BUG", message="it broke"),
    )
    assert (skipped.state, skipped.skipped_because_of) == (NodeState.SKIPPED, "b")


async def test_payloads_are_left_out_where_all_would_be_too_much(jobs: JobStore) -> None:
    leader = fresh_key()
    await jobs.submit(leader, tuple(NodeSpec(name=name, args=b"123456") for name in "abc"))

    whole = await jobs.jobs.read(leader, payloads=True, bytes_max=18)
    short = await jobs.jobs.read(leader, payloads=True, bytes_max=17)
    none = await jobs.jobs.read(leader, payloads=False)

    assert [node.args for node in whole.nodes] == [b"123456"] * 3
    assert not whole.payloads_left_out
    assert [node.args for node in short.nodes] == [b"123456", b"123456", b""]
    assert short.payloads_left_out
    assert [node.args for node in none.nodes] == [b""] * 3
    assert not none.payloads_left_out


async def test_what_leads_no_job_is_none(jobs: JobStore) -> None:
    key = fresh_key()
    await jobs.store.started(key)
    reads = (
        lambda: jobs.jobs.read(key, payloads=True), lambda: jobs.jobs.counts(key),
        lambda: jobs.jobs.changes(key, 0), lambda: jobs.control.cancel(key, "why"),
        lambda: jobs.control.retry(key, deadline=None, timeout=None),
    )  # fmt: skip

    for read in reads:
        with pytest.raises(job_errors.JobNotFoundError):
            await read()
    assert await jobs.jobs.known_nodes(key) == {}
    assert await jobs.jobs.outcomes(key, bytes_max=1) == ()


async def test_changes_are_those_after_a_revision(jobs: JobStore) -> None:
    leader = await begun(jobs)
    job, everything = await jobs.jobs.changes(leader, 0)
    same, nothing = await jobs.jobs.changes(leader, job.revision)
    await jobs.end(await jobs.claim(), "a")

    later, changed = await jobs.jobs.changes(leader, job.revision)

    assert [node.name for node in everything] == ["a", "b", "c", "d"]
    assert (same, nothing) == (job, ())
    assert later.revision > job.revision
    assert [(node.name, node.predecessors) for node in changed] == [
        ("a", ()),
        ("b", ("a",)),
        ("c", ("a",)),
    ]
    assert [node.result for node in changed] == [b""] * 3


async def test_a_change_names_predecessors_that_have_not_changed(jobs: JobStore) -> None:
    leader = await begun(jobs)
    await jobs.end(await jobs.claim(), "a")
    job = await jobs.jobs.counts(leader)
    await jobs.end(await jobs.claim(), "b")

    _, changed = await jobs.jobs.changes(leader, job.revision)

    assert ("b", ("a",)) in [(node.name, node.predecessors) for node in changed]


async def test_a_list_pages_from_the_youngest(jobs: JobStore) -> None:
    keys = []
    for _ in range(3):
        keys.append(await begun(jobs, {"a": ()}))
        jobs.store.clock.advance(dt.timedelta(seconds=1))
    await jobs.control.cancel(keys[0], "")

    first = await jobs.jobs.list("orders", JobFilter(), after=None, limit=2)
    last = first[-1]
    rest = await jobs.jobs.list(
        "orders", JobFilter(), after=(last.created_at, last.key.process_id), limit=2
    )
    cancelled = await jobs.jobs.list(
        "orders", JobFilter(states=(JobState.CANCELLED,)), after=None, limit=2
    )
    scheduled = await jobs.jobs.list("orders", JobFilter(schedule_id="s"), after=None, limit=2)

    assert [job.key for job in (*first, *rest)] == keys[::-1]
    assert [job.key for job in cancelled] == keys[:1]
    assert scheduled == ()


async def test_outcomes_are_told_up_to_so_many_bytes(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": (), "c": ("a",)})
    tasks = await jobs.claim()
    await jobs.end(tasks, "a")
    await jobs.end(tasks, "b", fails=("b",))
    size = len("aendbit brokec")

    found = await jobs.jobs.outcomes(leader, bytes_max=size)
    done = NodeOutcome(name="a", state=NodeState.DONE, result=b"end")
    error = TaskError(code=13, reason="BUG", message="it broke")

    assert found == (done, NodeOutcome(name="b", state=NodeState.FAILED, error=error))
    assert await jobs.jobs.outcomes(leader, bytes_max=size - 1) is None
    assert await jobs.jobs.inputs(leader, 3, bytes_max=4) == (done,)
    assert await jobs.jobs.inputs(leader, 3, bytes_max=3) is None
    assert await jobs.jobs.inputs(leader, 1, bytes_max=0) == ()
    assert await jobs.jobs.known_nodes(leader) == {"a": 1, "b": 2, "c": 3}


async def test_running_jobs_are_counted(jobs: JobStore) -> None:
    await begun(jobs)
    await jobs.control.cancel(await begun(jobs), "")

    [counted] = await jobs.jobs.count_running()

    assert dataclasses.astuple(counted) == ("orders", 1, 3, 0, 1, 0, 0)
