"""Failed jobs that are retried, and with what each of their nodes begins again."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import JobState
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.models.jobs.graphs import DIAMOND, Graph
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    a_request,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


async def failed(jobs: JobStore, graph: Graph = DIAMOND, *, fails: str = "a") -> ProcessKey:
    """Return a job that has failed since one of its nodes has."""
    leader = await begun(jobs, graph)
    while (tasks := await jobs.claim()) and leader.process_id not in tasks:
        for name in tasks:
            await jobs.end(tasks, name, fails=(fails,))
    [join] = tasks.values()
    await jobs.settled(join, BROKEN)
    return leader


async def test_a_failed_job_goes_on_from_its_failed_nodes(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await failed(jobs, fails="b")
    before = await jobs.states(leader)

    job, names = await jobs.control.retry(leader, deadline=None, timeout=HOUR)

    assert before == {"a": "done", "b": "failed", "c": "done", "d": "skipped"}
    assert names == ("b",)
    assert (job.state, job.retry_count, job.deadline_at) == (
        JobState.RUNNING, 1, jobs.store.clock.now() + HOUR,
    )  # fmt: skip
    assert await jobs.states(leader) == {
        "a": "done", "b": "running", "c": "done", "d": "waiting",
    }  # fmt: skip
    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    tasks = await jobs.claim()
    assert [(name, task.task_type) for name, task in tasks.items()] == [("b", TaskType.INIT)]
    await jobs.end(tasks, "b")
    await jobs.end(await jobs.claim(), "d")
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, DONE)
    assert await jobs.job_state(leader) == "done"


async def test_only_a_failed_job_is_retried(jobs: JobStore) -> None:
    leader = await begun(jobs)

    with pytest.raises(job_errors.JobNotFailedError):
        await jobs.control.retry(leader, deadline=None, timeout=None)


async def test_a_follower_that_began_and_broke_runs_on(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": ()})
    [task] = (await jobs.claim()).values()
    await jobs.settled(task, success())
    call = await jobs.store.run_task(a_request(task.key))
    await jobs.settled(call, BROKEN)
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.control.retry(leader, deadline=None, timeout=None)

    view = await jobs.store.processes.get(task.key)
    assert view.process.status is ProcessStatus.RUNNING
    assert await jobs.states(leader) == {"a": "running"}
    assert await jobs.claim() == {}


async def test_a_timer_that_broke_a_follower_runs_again(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await begun(jobs, {"a": ()})
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(SetTimer(after=NO_TIME, args=b"tick")))
    [timer] = (await jobs.claim()).values()
    await jobs.settled(timer, BROKEN)
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.control.retry(leader, deadline=None, timeout=None)

    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    [again] = (await jobs.claim()).values()
    assert (again.task_type, again.args) == (TaskType.TIMEOUT, b"tick")
    await jobs.settled(again, DONE)
    assert await jobs.states(leader) == {"a": "done"}


async def test_a_follower_that_is_gone_is_started_anew(jobs: JobStore) -> None:
    leader = await failed(jobs, {"a": ()})
    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    await jobs.store.remove(node.follower)

    await jobs.control.retry(leader, deadline=None, timeout=None)

    assert await jobs.states(leader) == {"a": "running"}
    assert list(await jobs.claim()) == ["a"]


async def test_a_gated_node_begins_again_by_tending(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await begun(jobs, {"a": ()}, constraints=Constraints(gates={"g4": 1}))
    await jobs.control.maintain(leader)
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)
    await jobs.control.retry(leader, deadline=None, timeout=None)
    before = await jobs.states(leader)

    await jobs.control.maintain(leader)

    assert before == {"a": "ready"}
    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    await jobs.end(await jobs.claim(), "a")
    assert await jobs.states(leader) == {"a": "done"}


async def test_what_was_cancelled_with_a_job_is_retried_with_it(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await begun(jobs)
    observer.execute("UPDATE progressor.jobs SET deadline_at = %s", [jobs.store.clock.now()])
    await jobs.control.fail_overdue(limit=10)
    await jobs.control.maintain(leader)
    before = await jobs.states(leader)

    _, names = await jobs.control.retry(leader, deadline=None, timeout=None)

    assert set(before.values()) == {"cancelled"}
    assert names == ()
    assert await jobs.states(leader) == {
        "a": "running", "b": "waiting", "c": "waiting", "d": "waiting",
    }  # fmt: skip
    assert list(await jobs.claim()) == ["a"]
