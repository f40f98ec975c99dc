"""Which replica ran a task, or a node, is known after its end; and when a node changed last."""

import datetime as dt

import pytest

from progressor.domain.processes.intent import Lost, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskType
from tests.support.clock import ManualClock
from tests.support.job_graphs import specs
from tests.support.jobs_storage import DONE, JobDesk, begun, collecting, job_desk
from tests.support.storage import BROKEN, NO_TIME, Desk, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)


async def ran(desk: Desk, key: ProcessKey) -> list[int | None]:
    """Return which replica ran each task of a process, in the order of their ids."""
    return [each.replica_id for each in await desk.processes.trace(key, after=0, limit=10)]


class TestATask:
    async def test_that_is_leased_when_it_is_admitted(self, desk: Desk, other: Desk) -> None:
        key = fresh_key()
        await desk.settled(await desk.run_task(a_request(key, TaskType.INIT)))
        await other.settled(await other.run_task(a_request(key)))

        assert await ran(desk, key) == [desk.replica_id, other.replica_id]

    async def test_that_was_claimed_belongs_to_the_claiming_replica(
        self, desk: Desk, other: Desk
    ) -> None:
        key = fresh_key()
        await desk.started(key)
        waiting = await desk.admit(a_request(key), run=False)
        before = await ran(desk, key)
        [claimed] = await other.claim(key, waiting.task_id)
        in_hand = await ran(desk, key)
        await other.settled(claimed.task)

        assert before == [desk.replica_id, None]
        assert in_hand == await ran(desk, key) == [desk.replica_id, other.replica_id]

    async def test_that_follows_in_the_same_worker(self, desk: Desk) -> None:
        key = fresh_key()
        init = await desk.run_task(a_request(key, TaskType.INIT))
        await desk.admit(a_request(key), run=False)
        call = await desk.settled(init, success(), continues=True)
        assert call.next is not None
        timer = await desk.settled(call.next, success(SetTimer(after=NO_TIME)), continues=True)
        assert timer.next is not None
        await desk.settled(timer.next)

        assert await ran(desk, key) == [desk.replica_id] * 3

    async def test_that_was_lost_keeps_its_replica_until_another_runs_it(
        self, desk: Desk, other: Desk
    ) -> None:
        key = fresh_key()
        init = await desk.run_task(a_request(key, TaskType.INIT))
        await other.settled(init, Lost())
        lost = await ran(desk, key)
        [claimed] = await other.claim(key, init.task_id)
        await other.settled(claimed.task)

        assert (lost, await ran(desk, key)) == ([desk.replica_id], [other.replica_id])


class TestANode:
    async def test_names_the_replica_that_runs_it_or_ran_it(
        self, jobs: JobDesk, other: Desk, clock: ManualClock
    ) -> None:
        there = job_desk(other)
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
        self, jobs: JobDesk, other: Desk
    ) -> None:
        there = job_desk(other)
        leader = await begun(jobs, {"a": ()})
        await there.settled((await there.claim())["a"], success(SetTimer(after=HOUR)))

        [a] = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (str(a.state), a.replica_id) == ("running", other.replica_id)

    async def test_that_was_lost_names_the_replica_that_lost_it(
        self, jobs: JobDesk, other: Desk, clock: ManualClock
    ) -> None:
        there = job_desk(other)
        leader = fresh_key()
        await jobs.submit(leader, specs({"a": ()}))
        task = (await there.claim())["a"]
        for _ in range(3):
            await jobs.desk.settlements.submit(collecting(task, clock.now()))
            task = next(iter((await there.claim()).values()), task)

        [a] = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (str(a.state), a.replica_id) == ("failed", other.replica_id)

    async def test_that_is_retried_has_changed_then(
        self, jobs: JobDesk, clock: ManualClock
    ) -> None:
        leader = await begun(jobs, {"a": (), "b": ("a",)})
        await jobs.end(await jobs.claim(), "a", fails=("a",))
        [join] = (await jobs.claim()).values()
        await jobs.settled(join, BROKEN)
        clock.advance(HOUR)

        await jobs.jobs.retry(leader, deadline=None, timeout=None)

        updated = {node.updated_at for node in (await jobs.jobs.read(leader, payloads=False)).nodes}
        assert updated == {clock.now()}
