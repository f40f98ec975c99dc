"""What is read of jobs, and what is done to them but by settlements."""

import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import job_errors
from progressor.domain.constraint import Constraints
from progressor.domain.intent import SetTimer
from progressor.domain.job import Job, JobState, NodeCounts, NodeSpec
from progressor.domain.job_view import JobFilter
from progressor.domain.process import JobOptions, Leadership, ProcessKey, ProcessStatus
from progressor.domain.task import NodeOutcome, NodeState, TaskError, TaskType
from tests.support.clock import ManualClock
from tests.support.job_graphs import specs
from tests.support.jobs_storage import DONE, JobDesk, job_desk
from tests.support.laws import broken_laws
from tests.support.storage import (
    BROKEN,
    NO_TIME,
    Desk,
    a_request,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
HOUR = dt.timedelta(hours=1)
LONG_AGO = dt.timedelta(minutes=2)


@pytest.fixture
def jobs(desk: Desk) -> JobDesk:
    return job_desk(desk)


@pytest.fixture
def rival(other: Desk) -> JobDesk:
    return job_desk(other)


async def begun(jobs: JobDesk, graph: Any = None, **fields: Any) -> ProcessKey:
    """Submit a job."""
    leader = fresh_key()
    await jobs.submit(leader, specs(DIAMOND if graph is None else graph, **fields))
    return leader


async def failed(jobs: JobDesk, graph: Any = None, *, fails: str = "a") -> ProcessKey:
    """Return a job that has failed since one of its nodes has."""
    leader = await begun(jobs, graph)
    while (tasks := await jobs.claim()) and leader.process_id not in tasks:
        for name in tasks:
            await jobs.end(tasks, name, fails=(fails,))
    [join] = tasks.values()
    await jobs.settled(join, BROKEN)
    return leader


def holds(eye: psycopg.Connection[Any], clock: ManualClock) -> bool:
    """Tell that no law is broken."""
    assert broken_laws(eye, now=clock.now()) == {}
    return True


# Reads.


async def test_a_job_is_read_with_its_graph(jobs: JobDesk, clock: ManualClock) -> None:
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
        created_at=clock.now(),
        updated_at=clock.now(),
        ended_at=None,
        deadline_at=clock.now() + HOUR,
        schedule_id="nightly",
        revision=page.job.revision,
        retry_count=0,
    )
    first, second = page.nodes
    assert (first.ordinal, first.name, first.state) == (1, "a", NodeState.RUNNING)
    assert (first.args, first.target, first.constraints) == (b"args", "127.0.0.1:1", None)
    assert (first.created_at, first.ready_at, first.started_at) == (clock.now(),) * 3
    assert (second.state, second.predecessors) == (NodeState.WAITING, ("a",))
    assert (second.constraints, second.ready_at, second.ended_at) == (limits, None, None)
    assert not page.payloads_left_out


async def test_results_and_causes_are_read(jobs: JobDesk) -> None:
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


async def test_payloads_are_left_out_where_all_would_be_too_much(jobs: JobDesk) -> None:
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


async def test_what_leads_no_job_is_none(jobs: JobDesk) -> None:
    key = fresh_key()
    await jobs.desk.started(key)
    reads = (
        lambda: jobs.jobs.read(key, payloads=True), lambda: jobs.jobs.counts(key),
        lambda: jobs.jobs.changes(key, 0), lambda: jobs.jobs.cancel(key, "why"),
        lambda: jobs.jobs.retry(key, deadline=None, timeout=None),
    )  # fmt: skip

    for read in reads:
        with pytest.raises(job_errors.JobNotFoundError):
            await read()
    assert await jobs.jobs.known_nodes(key) == {}
    assert await jobs.jobs.outcomes(key, bytes_max=1) == ()


async def test_changes_are_those_after_a_revision(jobs: JobDesk) -> None:
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


async def test_a_list_pages_from_the_youngest(jobs: JobDesk, clock: ManualClock) -> None:
    keys = []
    for _ in range(3):
        keys.append(await begun(jobs, {"a": ()}))
        clock.advance(dt.timedelta(seconds=1))
    await jobs.jobs.cancel(keys[0], "")

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


async def test_outcomes_are_told_up_to_so_many_bytes(jobs: JobDesk) -> None:
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


async def test_running_jobs_are_counted(jobs: JobDesk) -> None:
    await begun(jobs)
    await jobs.jobs.cancel(await begun(jobs), "")

    [counted] = await jobs.jobs.count_running()

    assert dataclasses.astuple(counted) == ("orders", 1, 3, 0, 1)


# Cancel.


async def test_a_cancelled_job_starts_nothing_more(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs)

    job = await jobs.jobs.cancel(leader, "not needed")

    assert (job.state, job.detail, job.ended_at) == (
        JobState.CANCELLED, "not needed", clock.now(),
    )  # fmt: skip
    assert job.counts == NodeCounts(running=1, cancelled=3)
    view = await jobs.desk.processes.get(leader)
    assert view.process.status is ProcessStatus.FINISHED
    with pytest.raises(job_errors.JobEndedError):
        await jobs.jobs.cancel(leader, "again")
    assert holds(eye, clock)


async def test_a_follower_without_a_step_in_hand_is_stopped(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs)
    await jobs.jobs.cancel(leader, "why")

    tended = await jobs.jobs.tend(leader)
    again = await jobs.jobs.tend(leader)

    assert (tended.stopped, tended.is_whole) == (1, True)
    assert again.stopped == 0
    [node, *_] = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert (node.state, node.error) == (
        NodeState.CANCELLED,
        TaskError(code=10, reason="JOB_CANCELLED", message="JOB_CANCELLED: why"),
    )
    view = await jobs.desk.processes.get(node.follower)
    assert (view.process.status, view.process.detail) == (
        ProcessStatus.ERROR, "JOB_CANCELLED: why",
    )  # fmt: skip
    assert await jobs.claim() == {}
    assert holds(eye, clock)


async def test_a_follower_ends_the_step_in_hand_and_goes_no_further(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs)
    tasks = await jobs.claim()
    await jobs.jobs.cancel(leader, "why")
    tended = await jobs.jobs.tend(leader)
    before = await jobs.states(leader)

    written = await jobs.settled(tasks["a"], success(SetTimer(after=NO_TIME)), continues=True)

    assert (tended.stopped, tended.is_whole) == (0, True)
    assert before["a"] == "running"
    assert written.next is None
    assert (await jobs.states(leader))["a"] == "cancelled"
    assert await jobs.claim() == {}
    assert holds(eye, clock)


async def test_a_follower_that_completes_after_all_is_done(jobs: JobDesk) -> None:
    leader = await begun(jobs)
    tasks = await jobs.claim()
    await jobs.jobs.cancel(leader, "why")

    await jobs.settled(tasks["a"], DONE)

    assert (await jobs.states(leader))["a"] == "done"
    assert (await jobs.job_state(leader)) == "cancelled"


async def test_a_step_of_the_leader_is_fenced_off(jobs: JobDesk) -> None:
    leader = await begun(jobs, {"a": ()})
    await jobs.end(await jobs.claim(), "a")
    [join] = (await jobs.claim()).values()

    await jobs.jobs.cancel(leader, "")

    assert not hasattr(await jobs.settle(join, DONE), "settled_at")
    assert await jobs.job_state(leader) == "cancelled"


async def test_a_gated_follower_that_is_stopped_leaves_its_gates(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": (), "b": ()}, constraints=Constraints(gates={"g1": 1}))
    await jobs.jobs.tend(leader)
    await jobs.jobs.cancel(leader, "")

    tended = await jobs.jobs.tend(leader)

    assert tended.stopped == 2
    gate = await jobs.desk.gates.get("orders", "g1")
    assert (gate.gate.held, gate.line) == (0, ())
    assert holds(eye, clock)


# Tend.


async def test_nodes_with_constraints_are_started_by_tending(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": (), "b": ()}, constraints=Constraints(gates={"g2": 1}))
    before = await jobs.states(leader)
    jobs.desk.told.clear()

    tended = await jobs.jobs.tend(leader)

    assert before == {"a": "ready", "b": "ready"}
    assert (tended.started, tended.is_whole) == (2, True)
    assert len([each for told in jobs.desk.told for each in told.due]) == 1
    assert holds(eye, clock)
    [(name, task)] = (await jobs.claim()).items()
    await jobs.settled(task, DONE)
    assert name == "a"
    assert list(await jobs.claim()) == ["b"]


async def test_a_gated_node_whose_process_is_there_already_fails(jobs: JobDesk) -> None:
    leader, taken = fresh_key(), fresh_key()
    await jobs.desk.started(taken)
    gated = Constraints(gates={"g3": 1})
    await jobs.submit(leader, (NodeSpec(name="a", process_id=taken.process_id, constraints=gated),))

    await jobs.jobs.tend(leader)

    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert (node.state, node.error and node.error.reason) == (
        NodeState.FAILED, "PROCESS_ALREADY_EXISTS",
    )  # fmt: skip


async def test_what_is_untended_for_long_is_found(jobs: JobDesk) -> None:
    leader = await begun(jobs)
    await jobs.jobs.cancel(leader, "")

    young = await jobs.jobs.find_untended(age=HOUR, limit=10)
    old = await jobs.jobs.find_untended(age=NO_TIME, limit=10)
    await jobs.jobs.tend(leader)

    assert (young, old) == ((), (leader,))
    assert await jobs.jobs.find_untended(age=NO_TIME, limit=10) == ()


# Retry.


async def test_a_failed_job_goes_on_from_its_failed_nodes(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await failed(jobs, fails="b")
    before = await jobs.states(leader)

    job, names = await jobs.jobs.retry(leader, deadline=None, timeout=HOUR)

    assert before == {"a": "done", "b": "failed", "c": "done", "d": "skipped"}
    assert names == ("b",)
    assert (job.state, job.retry_count, job.deadline_at) == (
        JobState.RUNNING, 1, clock.now() + HOUR,
    )  # fmt: skip
    assert await jobs.states(leader) == {
        "a": "done", "b": "running", "c": "done", "d": "waiting",
    }  # fmt: skip
    assert holds(eye, clock)
    tasks = await jobs.claim()
    assert [(name, task.task_type) for name, task in tasks.items()] == [("b", TaskType.INIT)]
    await jobs.end(tasks, "b")
    await jobs.end(await jobs.claim(), "d")
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, DONE)
    assert await jobs.job_state(leader) == "done"
    assert holds(eye, clock)


async def test_only_a_failed_job_is_retried(jobs: JobDesk) -> None:
    leader = await begun(jobs)

    with pytest.raises(job_errors.JobNotFailedError):
        await jobs.jobs.retry(leader, deadline=None, timeout=None)


async def test_a_follower_that_began_and_broke_runs_on(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": ()})
    [task] = (await jobs.claim()).values()
    await jobs.settled(task, success())
    call = await jobs.desk.run_task(a_request(task.key))
    await jobs.settled(call, BROKEN)
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.jobs.retry(leader, deadline=None, timeout=None)

    view = await jobs.desk.processes.get(task.key)
    assert view.process.status is ProcessStatus.RUNNING
    assert await jobs.states(leader) == {"a": "running"}
    assert await jobs.claim() == {}
    assert holds(eye, clock)


async def test_a_timer_that_broke_a_follower_runs_again(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": ()})
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(SetTimer(after=NO_TIME, args=b"tick")))
    [timer] = (await jobs.claim()).values()
    await jobs.settled(timer, BROKEN)
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)

    await jobs.jobs.retry(leader, deadline=None, timeout=None)

    assert holds(eye, clock)
    [again] = (await jobs.claim()).values()
    assert (again.task_type, again.args) == (TaskType.TIMEOUT, b"tick")
    await jobs.settled(again, DONE)
    assert await jobs.states(leader) == {"a": "done"}
    assert holds(eye, clock)


async def test_a_follower_that_is_gone_is_started_anew(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await failed(jobs, {"a": ()})
    [node] = (await jobs.jobs.read(leader, payloads=False)).nodes
    await jobs.desk.processes.remove(node.follower)

    await jobs.jobs.retry(leader, deadline=None, timeout=None)

    assert await jobs.states(leader) == {"a": "running"}
    assert list(await jobs.claim()) == ["a"]
    assert holds(eye, clock)


async def test_a_gated_node_begins_again_by_tending(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": ()}, constraints=Constraints(gates={"g4": 1}))
    await jobs.jobs.tend(leader)
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, BROKEN)
    await jobs.jobs.retry(leader, deadline=None, timeout=None)
    before = await jobs.states(leader)

    await jobs.jobs.tend(leader)

    assert before == {"a": "ready"}
    assert holds(eye, clock)
    await jobs.end(await jobs.claim(), "a")
    assert await jobs.states(leader) == {"a": "done"}
    assert holds(eye, clock)


async def test_what_was_cancelled_with_a_job_is_retried_with_it(
    jobs: JobDesk, eye: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs)
    eye.execute("UPDATE progressor.jobs SET deadline_at = %s", [clock.now()])
    await jobs.jobs.fail_overdue(limit=10)
    await jobs.jobs.tend(leader)
    before = await jobs.states(leader)

    _, names = await jobs.jobs.retry(leader, deadline=None, timeout=None)

    assert set(before.values()) == {"cancelled"}
    assert names == ()
    assert await jobs.states(leader) == {
        "a": "running", "b": "waiting", "c": "waiting", "d": "waiting",
    }  # fmt: skip
    assert list(await jobs.claim()) == ["a"]
    assert holds(eye, clock)
