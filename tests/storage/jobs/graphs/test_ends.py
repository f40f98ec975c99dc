"""What ends a job, or a part of it, from outside of its steps; and what brings it back."""

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import JobFilter, NodeSpec, StartNodes
from progressor.domain.processes.intent import Complete, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.domain.processes.task import TaskType
from progressor.storage.jobs.jobs import Found
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import Graph, specs
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, begun, job_store
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    a_request,
    create_namespace,
    empty,
    fresh_key,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ANY = JobFilter()
CHAIN: Graph = {"a": (), "b": ("a",), "c": ("b",)}
MINUTE = dt.timedelta(minutes=1)
STEP = success(SetTimer(after=dt.timedelta(hours=1)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(database: str, clock: ManualClock) -> AsyncIterator[tuple[JobStore, ...]]:
    """Return three replicas on one database."""
    create_namespace(database)
    async with running_stores(database, count=3, clock=clock) as stores:
        yield tuple(job_store(each) for each in stores)


@pytest.fixture
def jobs(three: tuple[JobStore, ...]) -> JobStore:
    return three[0]


@pytest.fixture(autouse=True)
def _lawful(observer: psycopg.Connection[Any], clock: ManualClock) -> Iterator[None]:
    """Begin without processes, and end with all invariants kept."""
    empty(observer, keep=("namespaces",))
    observer.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity', replica_id = NULL")
    yield
    assert broken_invariants(observer, now=clock.now()) == {}


async def joined(jobs: JobStore, *, fails: bool = True) -> None:
    """Have the one leader that is notified of its nodes decide."""
    [join] = (await jobs.claim()).values()
    assert join.task_type is TaskType.JOIN
    await jobs.settled(join, BROKEN if fails else DONE)


def follower(leader: ProcessKey, name: str) -> ProcessKey:
    return process_key(leader.namespace, f"{leader.process_id}/{name}")


async def status_of(jobs: JobStore, key: ProcessKey) -> ProcessStatus:
    return (await jobs.store.processes.get(key)).process.status


# Deadlines.


async def test_a_job_that_is_locked_does_not_keep_others_from_failing_at_their_deadlines(
    jobs: JobStore, clock: ManualClock, database: str
) -> None:
    leaders = [fresh_key() for _ in range(3)]
    for leader in leaders:
        await jobs.submit(leader, specs(CHAIN), timeout=MINUTE)
    clock.advance(MINUTE)

    with held(database, leaders[0]):
        meanwhile = await jobs.control.fail_overdue(limit=10)
    after = await jobs.control.fail_overdue(limit=10)

    assert (set(meanwhile), after) == (set(leaders[1:]), (leaders[0],))


@contextlib.contextmanager
def held(database: str, key: ProcessKey) -> Iterator[None]:
    """Hold the row of a process locked in another session."""
    with psycopg.connect(database) as holder:
        holder.execute(
            "SELECT FROM progressor.processes WHERE (namespace, process_id) = (%s, %s) FOR UPDATE",
            [key.namespace, key.process_id],
        )
        yield
        holder.rollback()


# Removal.


async def test_a_removed_leader_takes_its_job_with_it(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await begun(jobs, CHAIN)

    await jobs.store.remove(leader)
    stopped = await jobs.control.stop_orphans()

    with pytest.raises(job_errors.JobNotFoundError):
        await jobs.jobs.counts(leader)
    assert stopped == 1
    found = await jobs.store.processes.get(follower(leader, "a"))
    assert found.process.detail == "JOB_CANCELLED: its leader was removed"
    assert await jobs.claim() == {}
    assert observer.execute("SELECT FROM progressor.job_nodes").fetchall() == []
    assert observer.execute("SELECT FROM progressor.orphans").fetchall() == []


async def test_an_orphan_that_is_locked_is_left_for_the_next_time(
    jobs: JobStore, observer: psycopg.Connection[Any], database: str
) -> None:
    leader = await begun(jobs, {"a": (), "b": (), "c": ()})
    await jobs.store.remove(leader)

    with held(database, follower(leader, "b")):
        stopped = await jobs.control.stop_orphans()
    later = await jobs.control.stop_orphans()

    assert (stopped, later) == (2, 1)
    assert await jobs.claim() == {}
    assert observer.execute("SELECT FROM progressor.orphans").fetchall() == []


async def test_an_orphan_ends_the_step_in_hand(
    jobs: JobStore, observer: psycopg.Connection[Any]
) -> None:
    leader = await begun(jobs, CHAIN)
    tasks = await jobs.claim()
    await jobs.store.remove(leader)

    early = await jobs.control.stop_orphans()
    await jobs.settled(tasks["a"], STEP)
    late = await jobs.control.stop_orphans()

    assert (early, late) == (0, 1)
    assert await status_of(jobs, follower(leader, "a")) is ProcessStatus.ERROR
    assert observer.execute("SELECT FROM progressor.orphans").fetchall() == []


async def test_a_later_job_of_the_same_id_loses_no_follower(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": ()})
    await jobs.store.remove(leader)
    await jobs.store.remove(follower(leader, "a"))
    await jobs.submit(leader, specs({"a": ()}))

    assert await jobs.control.stop_orphans() == 0
    assert await jobs.states(leader) == {"a": "running"}


async def test_a_leader_that_removes_itself_takes_its_job_with_it(jobs: JobStore) -> None:
    leader = fresh_key()
    init = await jobs.store.start(leader)
    action = StartNodes(nodes=(NodeSpec(name="a"),))
    await jobs.settled(init, success(action))
    call = await jobs.store.run_task(a_request(leader))
    await jobs.settled(call, success(RemoveProcess()))

    assert await jobs.control.stop_orphans() == 1
    assert await jobs.jobs.known_nodes(leader) == {}


async def test_a_removed_follower_fails_its_node(jobs: JobStore) -> None:
    leader = await begun(jobs, CHAIN)
    await jobs.end(await jobs.claim(), "a")

    await jobs.store.remove(follower(leader, "b"))

    [_, node, _] = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert node.error is not None
    assert node.error.reason == "PROCESS_REMOVED"
    assert await jobs.states(leader) == {"a": "done", "b": "failed", "c": "skipped"}
    await joined(jobs)


async def test_a_follower_whose_init_is_cancelled_fails_its_node(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": ()}, constraints=Constraints(gates={"none": 0}))
    await jobs.control.maintain(leader)
    view = await jobs.store.processes.get(follower(leader, "a"))

    await jobs.store.cancel(view.process.key, view.process.init_task_id)

    assert await jobs.states(leader) == {"a": "failed"}
    await joined(jobs)


async def test_retention_keeps_followers_of_a_job_that_runs(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": (), "b": ("a",)})
    await jobs.end(await jobs.claim(), "a")
    clock.advance(MINUTE)

    running = await jobs.store.retention.delete_finished("orders", age=NO_TIME, limit=10)
    await jobs.end(await jobs.claim(), "b")
    await joined(jobs, fails=False)
    clock.advance(MINUTE)
    ended = await jobs.store.retention.delete_finished("orders", age=NO_TIME, limit=10)

    assert (running.deleted_count, ended.deleted_count) == (0, 3)
    assert await jobs.jobs.list("orders", _ANY, after=None, limit=1) == ()
    assert observer.execute("SELECT FROM progressor.job_nodes").fetchall() == []
    assert leader.namespace == "orders"


# Repair.


async def test_a_repaired_follower_reopens_its_node(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": ("a",), "c": (), "d": ("b", "c")})
    tasks = await jobs.claim()
    await jobs.end(tasks, "a", fails=("a",))
    before = await jobs.states(leader)

    await jobs.store.recover(follower(leader, "a"))

    assert before == {"a": "failed", "b": "skipped", "c": "running", "d": "skipped"}
    assert await jobs.states(leader) == {
        "a": "running", "b": "waiting", "c": "running", "d": "waiting",
    }  # fmt: skip
    [node, *_] = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert (node.attempt, node.error) == (2, None)


async def test_what_another_node_keeps_stays_skipped(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": (), "c": ("a",), "d": ("c", "b"), "e": ("d",)})
    tasks = await jobs.claim()
    await jobs.end(tasks, "a", fails=("a",))
    await jobs.end(tasks, "b", fails=("b",))

    await jobs.store.recover(follower(leader, "a"))

    nodes = (await jobs.jobs.read(leader, payloads=False)).nodes
    assert {node.name: (node.state.value, node.skipped_because_of) for node in nodes} == {
        "a": ("running", None), "b": ("failed", None), "c": ("waiting", None),
        "d": ("skipped", "b"), "e": ("skipped", "b"),
    }  # fmt: skip


async def test_a_repair_takes_a_join_back(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": ()})
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    [join] = (await jobs.claim()).values()

    await jobs.store.recover(follower(leader, "a"))

    assert not hasattr(await jobs.settle(join, BROKEN), "settled_at")
    assert await jobs.job_state(leader) == "running"
    call = await jobs.store.run_task(a_request(follower(leader, "a")))
    await jobs.settled(call, DONE)
    await joined(jobs, fails=False)
    assert await jobs.job_state(leader) == "done"


async def test_a_repair_brings_a_failed_job_back(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": ("a",)})
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    await joined(jobs)
    before = await jobs.job_state(leader)

    await jobs.store.recover(follower(leader, "a"))

    assert before == "failed"
    assert await jobs.job_state(leader) == "running"
    assert await status_of(jobs, leader) is ProcessStatus.RUNNING
    assert await jobs.states(leader) == {"a": "running", "b": "waiting"}


async def test_a_repair_that_succeeds_reopens_the_node_too(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": (), "b": ("a",)})
    await jobs.end(await jobs.claim(), "a", fails=("a",))
    await joined(jobs)

    repair = await jobs.store.run_task(a_request(follower(leader, "a"), TaskType.REPAIR))
    await jobs.settled(repair, success(Complete(b"repaired")))

    assert await jobs.states(leader) == {"a": "done", "b": "running"}
    assert await jobs.job_state(leader) == "running"


async def test_a_leader_that_is_repaired_is_told_again(jobs: JobStore) -> None:
    leader = await begun(jobs, {"a": ()})
    await jobs.end(await jobs.claim(), "a")
    await joined(jobs)

    await jobs.store.recover(leader)

    assert await jobs.job_state(leader) == "running"
    await joined(jobs, fails=False)
    assert await jobs.job_state(leader) == "done"


# Jobs within jobs.


async def nested(jobs: JobStore) -> tuple[ProcessKey, ProcessKey]:
    """Return an outer job, and one led by its node ``a``, both at work."""
    outer = await begun(jobs, {"a": (), "b": ("a",)})
    [init] = (await jobs.claim()).values()
    await jobs.settled(init, success(StartNodes(nodes=specs({"x": ()}))))
    return outer, init.key


async def test_a_retry_brings_the_failed_jobs_within_back(jobs: JobStore) -> None:
    outer, inner = await nested(jobs)
    [x] = (await jobs.claim()).values()
    await jobs.settled(x, BROKEN)
    await joined(jobs)
    await joined(jobs)
    before = (await jobs.job_state(outer), await jobs.job_state(inner))

    _, names = await jobs.control.retry(outer, deadline=None, timeout=None)

    assert before == ("failed", "failed")
    assert names == ("a",)
    assert await jobs.states(outer) == {"a": "running", "b": "waiting"}
    assert (await jobs.job_state(inner), await jobs.states(inner)) == (
        "running", {"x": "running"},
    )  # fmt: skip


# Recovery.


async def test_a_healthy_engine_gives_recovery_nothing_to_find(
    jobs: JobStore, clock: ManualClock
) -> None:
    await begun(jobs, CHAIN)
    clock.advance(5 * MINUTE)

    assert await jobs.control.recover() == ()


async def test_a_round_of_recovery_is_one_replicas_at_a_time(
    three: tuple[JobStore, ...], clock: ManualClock
) -> None:
    first, second, third = three

    rounds = [await each.control.recover() for each in three]
    clock.advance(MINUTE)
    later = [await each.control.recover() for each in (second, third, first)]

    assert rounds == [(), None, None]
    assert later == [(), None, None]


async def test_a_leader_that_nobody_told_is_told(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": ()})
    await jobs.end(await jobs.claim(), "a")
    observer.execute("DELETE FROM progressor.schedule")
    observer.execute("DELETE FROM progressor.tasks WHERE task_type = 'join'")
    observer.execute("UPDATE progressor.jobs SET join_task_id = NULL")
    early = await jobs.control.recover()
    clock.advance(2 * MINUTE)

    found = await jobs.control.recover()

    assert early == ()
    assert found == (Found("join", leader, None),)
    await joined(jobs, fails=False)


async def test_a_leader_that_was_told_is_not_told_again(jobs: JobStore, clock: ManualClock) -> None:
    leader = fresh_key()
    init = await jobs.store.start(leader)
    await jobs.settled(init, success(StartNodes(nodes=specs({"a": ()}))))
    await jobs.end(await jobs.claim(), "a")
    [join] = (await jobs.claim()).values()
    await jobs.settled(join, success())
    clock.advance(2 * MINUTE)

    assert await jobs.control.recover() == ()


async def test_nodes_whose_followers_have_ended_are_ended(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": (), "b": (), "c": (), "d": ("a",)})
    tasks = await jobs.claim()
    # As settlements that know nothing of jobs would leave it.
    await jobs.store.settled(tasks["a"], success(Complete(b"lost")))
    await jobs.store.settled(tasks["b"], BROKEN)
    observer.execute("DELETE FROM progressor.running")
    observer.execute("DELETE FROM progressor.tasks WHERE process_id LIKE '%%/c'")
    observer.execute("DELETE FROM progressor.processes WHERE process_id LIKE '%%/c'")
    observer.execute("INSERT INTO progressor.process_counts VALUES ('orders', 'init', NULL, 1)")
    clock.advance(2 * MINUTE)

    found = await jobs.control.recover()

    assert found is not None
    assert [(each.kind, each.node) for each in found] == [
        ("node", 1), ("node", 2), ("node", 3), ("start", 4),
    ]  # fmt: skip
    assert await jobs.states(leader) == {
        "a": "done", "b": "failed", "c": "failed", "d": "running",
    }  # fmt: skip
    done, broken, gone, _ = (await jobs.jobs.read(leader, payloads=True)).nodes
    assert done.result == b"lost"
    assert (broken.error and broken.error.message) == "it broke"
    assert (gone.error and gone.error.message) == "its process is gone"


async def test_ready_nodes_that_nobody_started_are_started(
    jobs: JobStore, observer: psycopg.Connection[Any], clock: ManualClock
) -> None:
    leader = await begun(jobs, {"a": (), "b": ()}, constraints=Constraints(gates={"g": 2}))
    observer.execute("UPDATE progressor.jobs SET upkeep_due_at = NULL")
    clock.advance(2 * MINUTE)

    found = await jobs.control.recover()

    assert found == (Found("gated", leader, None),)
    assert await jobs.jobs.find_upkeep_due(age=MINUTE, limit=10) == (leader,)


async def test_a_round_looks_at_all_jobs(
    jobs: JobStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("progressor.storage.jobs.jobs.RECOVER_MAX", 2)
    for _ in range(5):
        leader = await begun(jobs, {"a": ()})
        await jobs.store.settled((await jobs.claim())["a"], success(Complete()))
        assert leader is not None
    clock.advance(2 * MINUTE)

    found = await jobs.control.recover()

    assert found is not None
    assert [each.kind for each in found] == ["node"] * 5
