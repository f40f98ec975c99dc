"""Which replica ran a task, or a node, is known after its end; and when a node changed last."""

import datetime as dt

import pytest

from progressor.domain.processes.intent import Lost, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskType
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.store import DONE, JobStore, begun, collecting, job_store
from tests.support.storage.store import BROKEN, NO_TIME, Store, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)


async def ran(store: Store, key: ProcessKey) -> list[int | None]:
    """Return which replica ran each task of a process, in the order of their ids."""
    return [each.replica_id for each in await store.processes.trace(key, after=0, limit=10)]


class TestATask:
    async def test_that_is_leased_when_it_is_admitted(self, store: Store, other: Store) -> None:
        key = fresh_key()
        await store.settled(await store.run_task(a_request(key, TaskType.INIT)))
        await other.settled(await other.run_task(a_request(key)))

        assert await ran(store, key) == [store.replica_id, other.replica_id]

    async def test_that_was_claimed_belongs_to_the_claiming_replica(
        self, store: Store, other: Store
    ) -> None:
        key = fresh_key()
        await store.started(key)
        waiting = await store.admit(a_request(key), run=False)
        before = await ran(store, key)
        [claimed] = await other.claim(key, waiting.task_id)
        in_hand = await ran(store, key)
        await other.settled(claimed.task)

        assert before == [store.replica_id, None]
        assert in_hand == await ran(store, key) == [store.replica_id, other.replica_id]

    async def test_that_follows_in_the_same_worker(self, store: Store) -> None:
        key = fresh_key()
        init = await store.run_task(a_request(key, TaskType.INIT))
        await store.admit(a_request(key), run=False)
        call = await store.settled(init, success(), continues=True)
        assert call.next is not None
        timer = await store.settled(call.next, success(SetTimer(after=NO_TIME)), continues=True)
        assert timer.next is not None
        await store.settled(timer.next)

        assert await ran(store, key) == [store.replica_id] * 3

    async def test_that_was_lost_keeps_its_replica_until_another_runs_it(
        self, store: Store, other: Store
    ) -> None:
        key = fresh_key()
        init = await store.run_task(a_request(key, TaskType.INIT))
        await other.settled(init, Lost())
        lost = await ran(store, key)
        [claimed] = await other.claim(key, init.task_id)
        await other.settled(claimed.task)

        assert (lost, await ran(store, key)) == ([store.replica_id], [other.replica_id])


class TestANode:
    async def test_names_the_replica_that_runs_it_or_ran_it(
        self, jobs: JobStore, other: Store, clock: ManualClock
    ) -> None:
        there = job_store(other)
        leader = await begun(jobs, {"a": (), "b": ("a",)})
        before = (await jobs.jobs.read(leader, payloads=False)).nodes[0]
        task = (await there.claim())["a"]
        in_hand = (await jobs.jobs.read(leader, payloads=False)).nodes[0]
        clock.advance(MINUTE)
        await there.settled(task, DONE)

        a, b = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (before.replica_id, in_hand.replica_id) == (None, other.replica_id)
        assert (a.replica_id, b.replica_id) == (other.replica_id, None)
        assert a.updated_at == b.updated_at == clock.now()
        assert before.updated_at == clock.now() - MINUTE

    async def test_between_two_steps_names_the_replica_of_the_first(
        self, jobs: JobStore, other: Store
    ) -> None:
        there = job_store(other)
        leader = await begun(jobs, {"a": ()})
        await there.settled((await there.claim())["a"], success(SetTimer(after=HOUR)))

        [a] = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (str(a.state), a.replica_id) == ("running", other.replica_id)

    async def test_that_was_lost_names_the_replica_that_lost_it(
        self, jobs: JobStore, other: Store, clock: ManualClock
    ) -> None:
        there = job_store(other)
        leader = fresh_key()
        await jobs.submit(leader, specs({"a": ()}))
        task = (await there.claim())["a"]
        for _ in range(3):
            await jobs.store.write(collecting(task, clock.now()))
            task = next(iter((await there.claim()).values()), task)

        [a] = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (str(a.state), a.replica_id) == ("failed", other.replica_id)

    async def test_that_is_retried_has_changed_then(
        self, jobs: JobStore, clock: ManualClock
    ) -> None:
        leader = await begun(jobs, {"a": (), "b": ("a",)})
        await jobs.end(await jobs.claim(), "a", fails=("a",))
        [join] = (await jobs.claim()).values()
        await jobs.settled(join, BROKEN)
        clock.advance(HOUR)

        await jobs.control.retry(leader, deadline=None, timeout=None)

        updated = {node.updated_at for node in (await jobs.jobs.read(leader, payloads=False)).nodes}
        assert updated == {clock.now()}
