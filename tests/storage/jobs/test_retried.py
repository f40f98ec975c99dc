"""Failed jobs that are retried, and with what each of their nodes begins again."""

import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.jobs.job import JobState, NodeSpec, StartNodes
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.storage.steps.settlements import LeaseLost
from tests.storage.jobs.graphs.cases import LEADER, call, follower, led, nodes
from tests.support.models.jobs.graphs import DIAMOND, Graph, specs
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, begun
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    a_request,
    fresh_key,
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
    [(name, again)] = tasks.items()
    assert (name, again.task_type, again.attempt) == ("b", TaskType.INIT, 1)
    await jobs.end(tasks, "b")
    await jobs.end(await jobs.claim(), "d")
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, DONE)
    assert await jobs.job_state(leader) == "done"


ORDERED = Constraints(order=Order(key="o", version=Version((5,))))


@pytest.mark.parametrize("constraints", [None, ORDERED], ids=["plain", "with an order"])
async def test_an_init_that_broke_its_follower_runs_again_under_its_own_id(
    jobs: JobStore, observer: psycopg.Connection[Any], constraints: Constraints | None
) -> None:
    """And before what is held behind it, also if that has a smaller version of its order."""
    leader = await begun(jobs, {"a": ()}, constraints=constraints)
    await jobs.control.maintain(leader)
    [init] = (await jobs.claim()).values()
    smaller = Constraints(order=Order(key="o", version=Version((1,))))
    behind = await jobs.store.admit(
        a_request(init.key, TaskType.NOTIFY, waits=False, constraints=smaller), run=False
    )
    await jobs.settled(init, BROKEN)
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.control.retry(leader, deadline=None, timeout=None)
    await jobs.control.maintain(leader)

    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    [again] = (await jobs.claim()).values()
    assert (again.task_id, again.task_type, again.attempt, again.args) == (
        init.task_id, TaskType.INIT, 1, init.args,
    )  # fmt: skip
    assert again.process.init_task_id == init.task_id
    assert isinstance(await jobs.settle(init), LeaseLost)
    await jobs.settled(again, success())
    [notify] = (await jobs.claim()).values()
    assert notify.task_id == behind.task_id
    traced = await jobs.store.processes.trace(init.key, after=0, limit=9)
    assert [(it.task_id, it.status) for it in traced] == [
        (init.task_id, TaskStatus.FINISHED), (behind.task_id, TaskStatus.RUNNING),
    ]  # fmt: skip


@pytest.mark.parametrize("is_broken", [True, False], ids=["broken", "overdue"])
async def test_a_node_that_is_retried_has_the_memos_of_its_init(
    jobs: JobStore, observer: psycopg.Connection[Any], is_broken: bool
) -> None:
    leader = fresh_key()
    await jobs.submit(leader, specs({"a": ()}), timeout=HOUR)
    [init] = (await jobs.claim()).values()
    await jobs.store.remember(init, "pay")
    if is_broken:
        await jobs.settled(init, BROKEN)
        [join] = (await jobs.claim()).values()
        await jobs.settled(join, BROKEN)
    else:
        await jobs.settled(init, dataclasses.replace(BROKEN, retryable=True))
        jobs.store.clock.advance(2 * HOUR)
        await jobs.control.fail_overdue(limit=10)
        await jobs.control.maintain(leader)

    await jobs.control.retry(leader, deadline=None, timeout=None)
    await jobs.control.maintain(leader)
    [again] = (await jobs.claim()).values()

    assert (again.task_id == init.task_id, again.has_memos) == (is_broken, True)
    assert await jobs.store.memos(init.key) == {again.task_id: ["pay"]}
    assert broken_invariants(observer, now=jobs.store.clock.now()) == {}
    await jobs.settled(again, success())
    assert await jobs.store.memos(init.key) == {}


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
    assert await jobs.attempts(leader) == {"a": 2}
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
    nodes_ = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert [node.ready_at is None for node in nodes_] == [False, True, True, True]
    assert list(await jobs.claim()) == ["a"]


async def test_a_cancelled_node_starts_whose_predecessors_are_done(jobs: JobStore) -> None:
    await led(jobs, *nodes(a="", b="a"))
    tasks = await jobs.claim()
    await jobs.settled(await call(jobs, LEADER), BROKEN)
    await jobs.settled(tasks["a"])
    assert await jobs.states(LEADER) == {"a": "done", "b": "cancelled"}

    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    assert await jobs.states(LEADER) == {"a": "done", "b": "running"}


async def test_a_job_is_retried_while_a_follower_is_being_repaired(jobs: JobStore) -> None:
    await jobs.submit(LEADER, nodes(a=""))
    tasks = await jobs.claim()
    timer = (await jobs.settled(tasks["a"], success(SetTimer(after=NO_TIME)), continues=True)).next
    assert timer is not None
    await jobs.settled(timer, BROKEN)
    await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)
    await jobs.store.recover(follower("a"))

    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    assert await jobs.states(LEADER) == {"a": "running"}
    again = await jobs.claim()
    assert list(again) == ["a"]
    await jobs.settled(again["a"])
    assert await jobs.states(LEADER) == {"a": "done"}


@pytest.mark.parametrize("in_hand", [True, False], ids=["in hand", "in line"])
async def test_a_retry_takes_the_place_of_a_repair_of_the_leader(
    jobs: JobStore, in_hand: bool
) -> None:
    init = await jobs.store.start(LEADER)
    await jobs.settled(init, success(StartNodes(nodes=nodes(a=""))))
    tasks = await jobs.claim()
    due = success(SetTimer(after=NO_TIME))
    timer = (await jobs.settled(await call(jobs, LEADER), due, continues=True)).next
    assert timer is not None
    await jobs.settled(timer, BROKEN)
    repair = await jobs.store.admit(a_request(LEADER, TaskType.REPAIR), run=in_hand)

    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    again = await jobs.claim()
    assert list(again) == [LEADER.process_id]
    assert again[LEADER.process_id].task_type is TaskType.TIMEOUT
    if repair.running is not None:
        assert isinstance(await jobs.settle(repair.running), LeaseLost)
    await jobs.settled(again[LEADER.process_id])
    await jobs.settled(tasks["a"])


async def test_the_timer_of_a_follower_that_was_stopped_runs_again(jobs: JobStore) -> None:
    await led(jobs, *nodes(a=""))
    tasks = await jobs.claim()
    await jobs.settled(tasks["a"], success(SetTimer(after=HOUR)))
    await jobs.settled(await call(jobs, LEADER), BROKEN)
    await jobs.maintain(LEADER)
    assert await jobs.states(LEADER) == {"a": "cancelled"}

    await jobs.control.retry(LEADER, deadline=None, timeout=None)
    jobs.store.clock.advance(HOUR)

    assert await jobs.states(LEADER) == {"a": "running"}
    assert list(await jobs.claim()) == ["a"]


async def test_all_timers_of_a_follower_that_was_stopped_are_set_again(jobs: JobStore) -> None:
    await led(jobs, *nodes(a=""))
    tasks = await jobs.claim()
    named = {"x": SetTimer(after=3 * HOUR), "y": SetTimer(after=HOUR, args=b"y")}
    await jobs.settled(tasks["a"], success(SetTimer(after=2 * HOUR), timers=named))
    await jobs.settled(await call(jobs, LEADER), BROKEN)
    await jobs.maintain(LEADER)

    await jobs.control.retry(LEADER, deadline=None, timeout=None)

    view = await jobs.store.processes.get(follower("a"))
    assert view.timer is not None
    found = [(it.name, it.status) for it in (view.timer, *view.later_timers)]
    blocked = TaskStatus.BLOCKED
    assert found == [("y", TaskStatus.WAITING), ("", blocked), ("x", blocked)]
    jobs.store.clock.advance(HOUR)
    task = (await jobs.claim())["a"]
    assert (task.timer_name, task.args) == ("y", b"y")
    assert (await jobs.settled(task, success())).due is not None


async def test_a_gated_node_goes_on_by_a_repair_that_was_in_hand(jobs: JobStore) -> None:
    gated = NodeSpec(name="a", constraints=Constraints(gates={"gate": 1}))
    await led(jobs, gated, NodeSpec(name="b", predecessors=("a",)))
    await jobs.maintain(LEADER)
    await jobs.settled((await jobs.claim())["a"], BROKEN)
    await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)
    await jobs.control.retry(LEADER, deadline=None, timeout=None)
    repair = await jobs.store.run_task(a_request(follower("a"), TaskType.REPAIR))

    await jobs.settled(repair, success())

    assert await jobs.states(LEADER) == {"a": "running", "b": "waiting"}
    assert await jobs.attempts(LEADER) == {"a": 2, "b": 1}
    await jobs.maintain(LEADER)
    await jobs.settled(await call(jobs, follower("a")))
    assert await jobs.states(LEADER) == {"a": "done", "b": "running"}
