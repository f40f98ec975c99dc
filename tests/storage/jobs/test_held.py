"""What is held on leaders and followers that broke, once their jobs go on."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskStatus, TaskType
from tests.storage.jobs.graphs.cases import LEADER, call, follower, led, nodes
from tests.support.storage.constrained import on
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore
from tests.support.storage.store import BROKEN, a_request, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


async def notify(jobs: JobStore, key: ProcessKey, constraints: Constraints | None = None) -> int:
    fields: dict[str, Any] = {} if constraints is None else {"constraints": constraints}
    request = a_request(key, TaskType.NOTIFY, waits=False, **fields)
    admission = await jobs.store.admit(request, run=False)
    assert admission.task_id is not None
    return admission.task_id


async def status_of(jobs: JobStore, key: ProcessKey) -> ProcessStatus:
    return (await jobs.store.processes.get(key)).process.status


async def test_a_repaired_follower_brings_its_leader_back_with_what_is_held(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    await led(jobs, *nodes(a=""))
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    [join] = (await jobs.claim()).values()
    held = await notify(jobs, LEADER)
    await jobs.settled(join, BROKEN)

    jobs.store.reported.clear()
    await jobs.store.recover(follower("a"))

    assert await status_of(jobs, LEADER) is ProcessStatus.RUNNING
    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    due = [each for effects in jobs.store.reported for each in effects.due]
    assert (LEADER, held) in due
    [task] = (await jobs.claim()).values()
    assert task.task_id == held


async def test_a_follower_that_runs_again_brings_its_leader_back_with_what_is_held(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    await led(jobs, *nodes(a=""))
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    [join] = (await jobs.claim()).values()
    held = await notify(jobs, LEADER)
    await jobs.settled(join, BROKEN)

    await jobs.store.recover(follower("a"), retries=True)
    [init] = (await jobs.claim()).values()
    jobs.store.reported.clear()
    await jobs.settled(init, success())

    assert await status_of(jobs, LEADER) is ProcessStatus.RUNNING
    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    due = [each for effects in jobs.store.reported for each in effects.due]
    assert (LEADER, held) in due
    [task] = (await jobs.claim()).values()
    assert task.task_id == held


@pytest.mark.parametrize("constraints", [None, on("g")], ids=["plain", "gated"])
async def test_a_retried_job_runs_what_is_held_on_its_followers(
    jobs: JobStore, constraints: Constraints | None
) -> None:
    await led(jobs, *nodes(a=""))
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(SetTimer(after=HOUR)))
    broken = await call(jobs, follower("a"))
    held = await notify(jobs, follower("a"), constraints)
    await jobs.settled(broken, BROKEN)
    await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)
    assert await jobs.store.task_status(follower("a"), held) is not TaskStatus.CANCELLED

    jobs.store.reported.clear()
    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    due = [each for effects in jobs.store.reported for each in effects.due]
    assert (follower("a"), held) in due
    [task] = (await jobs.claim()).values()
    assert task.task_id == held
    assert await status_of(jobs, LEADER) is ProcessStatus.RUNNING


@pytest.mark.parametrize("constraints", [None, on("g")], ids=["plain", "gated"])
async def test_a_retried_job_keeps_a_timer_that_is_held(
    jobs: JobStore, constraints: Constraints | None
) -> None:
    fields: dict[str, Any] = {} if constraints is None else {"constraints": constraints}
    await led(jobs, *nodes(a=""))
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(SetTimer(after=HOUR, **fields)))
    broken = await call(jobs, follower("a"))
    await jobs.settled(broken, BROKEN)
    await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)

    jobs.store.reported.clear()
    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    assert await jobs.claim() == {}
    told = {
        (each.key, each.seconds)
        for effects in jobs.store.reported
        for each in (*effects.upcoming, *effects.later)
    }
    assert told == {(follower("a"), HOUR.total_seconds())}


@pytest.mark.parametrize("constraints", [None, on("g")], ids=["plain", "gated"])
async def test_a_retried_job_runs_what_is_held_on_its_leader(
    jobs: JobStore, constraints: Constraints | None
) -> None:
    await led(jobs, *nodes(a=""))
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    [join] = (await jobs.claim()).values()
    held = await notify(jobs, LEADER, constraints)
    await jobs.settled(join, BROKEN)

    jobs.store.reported.clear()
    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    due = [each for effects in jobs.store.reported for each in effects.due]
    assert (LEADER, held) in due
    assert held in [task.task_id for task in (await jobs.claim()).values()]


@pytest.mark.parametrize("outcome", [success(), DONE], ids=["goes on", "is done"])
async def test_a_retried_follower_reopens_its_node(jobs: JobStore, outcome: Any) -> None:
    await led(jobs, *nodes(a="", b="a"))
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)

    await jobs.store.recover(follower("a"), retries=True)
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, outcome)

    assert await jobs.job_state(LEADER) == "running"
