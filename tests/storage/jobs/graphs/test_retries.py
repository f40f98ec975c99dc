"""Retries of jobs in storage, case by case, as ``test_jobs_cases``."""

import datetime as dt

import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.task import TaskType
from progressor.storage.processes.settlements import LeaseLost
from tests.storage.jobs.graphs.cases import LEADER, call, follower, led, nodes
from tests.support.models.jobs.graphs import SEED_EXAMPLE, specs
from tests.support.storage.jobs.store import JobStore, leader_of
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    a_request,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


class TestRetry:
    async def test_of_a_job_a_follower_of_which_is_being_repaired(self, jobs: JobStore) -> None:
        await jobs.submit(LEADER, nodes(a=""))
        tasks = await jobs.claim()
        timer = (
            await jobs.settled(tasks["a"], success(SetTimer(after=NO_TIME)), continues=True)
        ).next
        assert timer is not None
        await jobs.settled(timer, BROKEN)
        await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)
        await jobs.store.simple_repair(follower("a"))

        await jobs.control.retry(LEADER, deadline=None, timeout=None)

        assert await jobs.states(LEADER) == {"a": "running"}
        again = await jobs.claim()
        assert list(again) == ["a"]
        await jobs.settled(again["a"])
        assert await jobs.states(LEADER) == {"a": "done"}

    @pytest.mark.parametrize("in_hand", [True, False], ids=["in hand", "in line"])
    async def test_takes_the_place_of_a_repair_of_the_leader(
        self, jobs: JobStore, in_hand: bool
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

    async def test_has_the_timer_run_again_of_a_follower_that_was_stopped(
        self, jobs: JobStore
    ) -> None:
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

    async def test_lets_a_cancelled_node_wait_for_those_before_it(self, jobs: JobStore) -> None:
        await led(jobs, *nodes(a="", b="a"))
        tasks = await jobs.claim()
        await jobs.settled(await call(jobs, LEADER), BROKEN)
        await jobs.settled(tasks["a"])
        await led(jobs, *nodes(c="", d="c"), leader=leader_of(2))
        await jobs.settled(await call(jobs, leader_of(2)), BROKEN)
        await jobs.maintain(leader_of(2))
        assert await jobs.states(LEADER) == {"a": "done", "b": "cancelled"}
        assert await jobs.states(leader_of(2)) == {"c": "cancelled", "d": "cancelled"}

        for leader in (LEADER, leader_of(2)):
            await jobs.control.retry(leader, deadline=None, timeout=None)

        assert await jobs.states(LEADER) == {"a": "done", "b": "running"}
        assert await jobs.states(leader_of(2)) == {"c": "running", "d": "waiting"}

    async def test_counts_once_that_a_node_with_constraints_begins_again(
        self, jobs: JobStore
    ) -> None:
        gated = NodeSpec(name="a", constraints=Constraints(gates={"gate": 1}))
        await jobs.submit(LEADER, [gated])
        await jobs.maintain(LEADER)
        await jobs.settled((await jobs.claim())["a"], BROKEN)
        await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)

        await jobs.control.retry(LEADER, deadline=None, timeout=None)
        await jobs.maintain(LEADER)

        assert await jobs.attempts(LEADER) == {"a": 2}
        await jobs.settled((await jobs.claim())["a"])
        assert await jobs.states(LEADER) == {"a": "done"}

    async def test_has_a_node_with_constraints_go_on_by_a_repair_that_was_in_hand(
        self, jobs: JobStore
    ) -> None:
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

    async def test_begins_what_had_failed_and_what_that_had_skipped(self, jobs: JobStore) -> None:
        await jobs.submit(LEADER, specs(SEED_EXAMPLE))
        tasks = await jobs.claim()
        for name in "1235":
            await jobs.end(tasks, name)
            tasks |= await jobs.claim()
        await jobs.end(tasks, "4", fails="4")
        await jobs.end(tasks, "6")
        tasks |= await jobs.claim()
        await jobs.end(tasks, "8")
        await jobs.settled((await jobs.claim())[LEADER.process_id], BROKEN)

        job, names = await jobs.control.retry(LEADER, deadline=None, timeout=None)

        assert (names, job.state, job.retry_count) == (("4",), "running", 1)
        assert await jobs.states(LEADER) == {
            **dict.fromkeys("123568", "done"), "4": "running", "7": "waiting", "9": "waiting"
        }  # fmt: skip
        again = await jobs.claim()
        assert (again["4"].task_type, again["4"].attempt) == (TaskType.INIT, 1)
        await jobs.settled(again["4"])
        assert {"7", "9"} <= (await jobs.claim()).keys()
