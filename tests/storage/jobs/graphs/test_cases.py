"""Jobs in storage, case by case: what models and people have found, each as small as it can be."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.jobs.job import WINDOW, NodeSpec, StartNodes
from progressor.domain.processes.intent import Lost, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.process import JobOptions, ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.storage.steps.settlements import LeaseLost, Written
from tests.storage.jobs.graphs.cases import LEADER, call, follower, led, nodes
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    UNREACHABLE,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


class TestRemoval:
    async def test_a_late_follower_of_a_job_that_is_gone_ends_no_node_of_the_next_one(
        self, jobs: JobStore
    ) -> None:
        await jobs.submit(LEADER, nodes(a="", b="a"))
        old = (await jobs.claim())["a"]
        await jobs.store.remove(LEADER)
        await jobs.submit(LEADER, nodes(x="", y="x"))

        await jobs.settled(old)

        assert await jobs.states(LEADER) == {"x": "running", "y": "waiting"}

    async def test_nor_a_node_of_the_same_name(self, jobs: JobStore) -> None:
        await jobs.submit(LEADER, nodes(a="", b="a"))
        tasks = await jobs.claim()
        await jobs.end(tasks, "a")
        old = (await jobs.claim())["b"]
        await jobs.store.remove(LEADER)
        await jobs.store.remove(follower("a"))
        await jobs.submit(LEADER, nodes(a="", b="a"))

        await jobs.settled(old)

        assert await jobs.states(LEADER) == {"a": "running", "b": "waiting"}

    @pytest.mark.parametrize("leads", [False, True], ids=["repair", "retry"])
    async def test_bringing_a_follower_of_a_job_that_is_gone_back_reopens_no_node_of_the_next_one(
        self, jobs: JobStore, leads: bool
    ) -> None:
        await jobs.submit(LEADER, nodes(a=""))
        if leads:
            inner = success(StartNodes(nodes=nodes(z="")))
            await jobs.settled((await jobs.claim())["a"], inner)
        await jobs.store.remove(LEADER)
        await jobs.control.stop_orphans()
        jobs.store.clock.advance(HOUR)
        await jobs.submit(LEADER, nodes(x="", y=""))
        await jobs.settled((await jobs.claim())["x"], BROKEN)

        if leads:
            await jobs.control.retry(follower("a"), deadline=None, timeout=None)
        else:
            await jobs.store.recover(follower("a"))

        # Node 1 of both jobs: what the old follower says of itself holds of the new job as well.
        assert await jobs.states(LEADER) == {"x": "failed", "y": "running"}
        assert await jobs.recovered() == []

    async def test_a_follower_that_removes_itself_is_done(self, jobs: JobStore) -> None:
        await jobs.submit(LEADER, nodes(a="", b="a"))
        tasks = await jobs.claim()

        await jobs.settled(tasks["a"], success(RemoveProcess()))

        assert await jobs.states(LEADER) == {"a": "done", "b": "running"}


class TestLoss:
    async def test_a_second_word_about_a_node_changes_nothing(self, pair: list[JobStore]) -> None:
        here, there = pair
        await here.submit(LEADER, nodes(a="", b="a"))
        task = (await here.claim())["a"]
        await here.settled(task)

        assert isinstance(await there.settle(task, BROKEN), LeaseLost)
        assert isinstance(await here.settle(task), LeaseLost)
        assert await here.states(LEADER) == {"a": "done", "b": "running"}

    async def test_one_that_is_lost_says_nothing_of_the_others_in_its_batch(
        self, jobs: JobStore
    ) -> None:
        await jobs.submit(LEADER, nodes(a="", b="", c="", d="b", e="c"))
        tasks = await jobs.claim()
        await jobs.settled(tasks["a"], Lost())
        batch: list[tuple[str, Outcome]] = [("a", DONE), ("b", UNREACHABLE), ("c", DONE)]
        entries = [await jobs.entry(tasks[name], outcome) for name, outcome in batch]

        lost, *written = await asyncio.gather(*map(jobs.store.settlements.submit, entries))

        assert isinstance(lost, LeaseLost)
        assert all(isinstance(each, Written) for each in written)
        assert await jobs.states(LEADER) == {
            "a": "running", "b": "running", "c": "done", "d": "waiting", "e": "running",
        }  # fmt: skip

    async def test_any_other_begins_again_with_the_next_attempt(self, jobs: JobStore) -> None:
        await jobs.submit(LEADER, nodes(a="", b="a"))
        task = (await jobs.claim())["a"]

        await jobs.settled(task, Lost())

        again = (await jobs.claim())["a"]
        assert (again.task_id, again.attempt) == (task.task_id, 2)
        assert await jobs.states(LEADER) == {"a": "running", "b": "waiting"}

    async def test_a_node_has_its_own_number_of_attempts(self, jobs: JobStore) -> None:
        once = JobOptions(retry_policy=RetryPolicy(attempts_max=1))
        await jobs.submit(LEADER, [NodeSpec(name="a", options=once)])

        await jobs.settled((await jobs.claim())["a"], UNREACHABLE)

        assert await jobs.states(LEADER) == {"a": "failed"}


class TestWindow:
    async def test_no_more_than_a_window_of_nodes_begins_at_once(
        self, jobs: JobStore, observer: psycopg.Connection[Any]
    ) -> None:
        names = [f"n{number}" for number in range(WINDOW + 100)]
        await jobs.submit(LEADER, [NodeSpec(name=name) for name in names])

        first = await jobs.claim()
        assert len(first) == WINDOW
        for name in list(first)[:10]:
            await jobs.settled(first[name], success(SetTimer(after=HOUR)))
        second = await jobs.claim()

        assert len(second) == 10
        assert not second.keys() & first.keys()
        states = list((await jobs.states(LEADER)).values())
        assert (states.count("running"), states.count("ready")) == (WINDOW + 10, 90)
        assert broken_invariants(observer) == {}

    async def test_a_node_that_is_lost_again_and_again_makes_room(self, jobs: JobStore) -> None:
        names = [f"n{number}" for number in range(WINDOW + 1)]
        await jobs.submit(LEADER, [NodeSpec(name=name) for name in names])
        first = await jobs.claim()

        await jobs.settled(first["n0"], UNREACHABLE)

        assert list(await jobs.claim()) == [f"n{WINDOW}"]


class TestNested:
    async def nested(self, jobs: JobStore) -> ProcessKey:
        """Submit a job whose node a leads nodes of its own; b waits for a."""
        await jobs.submit(LEADER, nodes(a="", b="a"))
        tasks = await jobs.claim()
        await jobs.settled(tasks["a"], success(StartNodes(nodes=nodes(x="", y="x"))))
        return follower("a")

    async def join_breaks(self, jobs: JobStore) -> None:
        """Break the one task that is due, a join."""
        [join] = (await jobs.claim()).values()
        assert join.task_type is TaskType.JOIN
        await jobs.settled(join, BROKEN)

    async def test_a_node_that_leads_a_job_is_done_when_that_is(self, jobs: JobStore) -> None:
        inner = await self.nested(jobs)
        for name in "xy":
            tasks = await jobs.claim()
            assert list(tasks) == [name]
            await jobs.settled(tasks[name])
        [join] = (await jobs.claim()).values()
        assert (join.key, join.task_type) == (inner, TaskType.JOIN)

        await jobs.settled(join)

        assert await jobs.job_state(inner) == "done"
        assert await jobs.states(LEADER) == {"a": "done", "b": "running"}

    async def test_one_that_breaks_fails_its_node(self, jobs: JobStore) -> None:
        inner = await self.nested(jobs)
        await jobs.settled((await jobs.claim())["x"], BROKEN)
        assert await jobs.states(inner) == {"x": "failed", "y": "skipped"}
        [join] = (await jobs.claim()).values()

        await jobs.settled(join, BROKEN)

        assert await jobs.job_state(inner) == "failed"
        assert await jobs.states(LEADER) == {"a": "failed", "b": "skipped"}

    @pytest.mark.parametrize("outermost_ends", [True, False])
    async def test_a_repair_in_the_innermost_one_reopens_the_nodes_of_all_above(
        self, jobs: JobStore, outermost_ends: bool
    ) -> None:
        await jobs.submit(LEADER, nodes(a="", b="a", c=""))
        tasks = await jobs.claim()
        await jobs.settled(tasks["a"], success(StartNodes(nodes=nodes(x=""))))
        inner = follower("a")
        innermost = follower("x", inner)
        x = (await jobs.claim())["x"]
        await jobs.settled(x, success(StartNodes(nodes=nodes(z=""))))
        await jobs.settled((await jobs.claim())["z"], BROKEN)
        for _ in range(2):
            await self.join_breaks(jobs)
        assert await jobs.states(LEADER) == {"a": "failed", "b": "skipped", "c": "running"}
        if outermost_ends:
            await jobs.settled(tasks["c"])
            await self.join_breaks(jobs)

        await jobs.store.recover(follower("z", innermost))
        for leader in (innermost, inner, LEADER):
            await jobs.maintain(leader)

        assert await jobs.states(innermost) == {"z": "running"}
        assert await jobs.states(inner) == {"x": "running"}
        assert {**await jobs.states(LEADER), "c": "running"} == {
            "a": "running", "b": "waiting", "c": "running",
        }  # fmt: skip
        assert await jobs.jobs.find_upkeep_due(age=NO_TIME, limit=10) == ()

    async def test_a_retry_of_the_inner_one_reopens_its_node(self, jobs: JobStore) -> None:
        inner = await self.nested(jobs)
        await jobs.settled((await jobs.claim())["x"], BROKEN)
        await self.join_breaks(jobs)
        assert await jobs.states(LEADER) == {"a": "failed", "b": "skipped"}

        await jobs.control.retry(inner, deadline=None, timeout=None)

        assert await jobs.states(LEADER) == {"a": "running", "b": "waiting"}

    async def test_a_repair_below_stops_a_leader_whose_own_job_has_ended(
        self, jobs: JobStore
    ) -> None:
        inner = await self.nested(jobs)
        await jobs.settled((await jobs.claim())["x"], BROKEN)
        [join] = (await jobs.claim()).values()
        await jobs.control.cancel(LEADER, "enough")
        await jobs.maintain(LEADER)
        assert await jobs.states(LEADER) == {"a": "running", "b": "cancelled"}

        await jobs.store.recover(follower("x", inner))
        for _ in range(2):
            for leader in await jobs.jobs.find_upkeep_due(age=NO_TIME, limit=10):
                await jobs.maintain(leader)

        assert isinstance(await jobs.settle(join), LeaseLost)
        assert await jobs.states(LEADER) == {"a": "cancelled", "b": "cancelled"}
        assert await jobs.job_state(inner) == "failed"
        assert await jobs.states(inner) == {"x": "cancelled", "y": "cancelled"}


class TestLeader:
    async def test_that_adds_nodes_in_its_join_is_joined_again(self, jobs: JobStore) -> None:
        await led(jobs, *nodes(a=""))
        await jobs.settled((await jobs.claim())["a"])
        [join] = (await jobs.claim()).values()

        await jobs.settled(join, success(StartNodes(nodes=nodes(b="a"))))
        await jobs.settled((await jobs.claim())["b"])

        [again] = (await jobs.claim()).values()
        assert (again.task_type, again.task_id > join.task_id) == (TaskType.JOIN, True)

    async def test_that_adds_nodes_while_its_join_waits_is_told_once_these_have_ended(
        self, jobs: JobStore
    ) -> None:
        await led(jobs, *nodes(a=""))
        task = (await jobs.claim())["a"]
        busy = await call(jobs, LEADER)
        await jobs.settled(task)
        await jobs.settled(busy, success(StartNodes(nodes=nodes(b="a"))))

        tasks = await jobs.claim()
        assert list(tasks) == ["b"]
        await jobs.settled(tasks["b"])
        assert [it.task_type for it in (await jobs.claim()).values()] == [TaskType.JOIN]

    async def test_that_finishes_early_has_the_rest_cancelled(self, jobs: JobStore) -> None:
        await led(jobs, *nodes(a="", b="a", c=""))
        tasks = await jobs.claim()
        await jobs.settled(tasks["c"], success(SetTimer(after=HOUR)))

        await jobs.settled(await call(jobs, LEADER), DONE)
        assert await jobs.states(LEADER) == {"a": "running", "b": "cancelled", "c": "running"}
        await jobs.maintain(LEADER)
        assert await jobs.states(LEADER) == {"a": "running", "b": "cancelled", "c": "cancelled"}
        await jobs.settled(tasks["a"], success(SetTimer(after=HOUR)))

        assert await jobs.states(LEADER) == dict.fromkeys("abc", "cancelled")
        assert await jobs.job_state(LEADER) == "done"
        assert await jobs.claim() == {}

    async def test_that_adds_to_what_has_failed_has_that_skipped(self, jobs: JobStore) -> None:
        await led(jobs, *nodes(a="", b="a", c=""))
        tasks = await jobs.claim()
        await jobs.settled(tasks["a"], BROKEN)

        added = nodes(d="b", e="d", f="c", g="a")
        await jobs.settled(await call(jobs, LEADER), success(StartNodes(nodes=added)))

        assert await jobs.states(LEADER) == {
            "a": "failed", **dict.fromkeys("bdeg", "skipped"), "c": "running", "f": "waiting"
        }  # fmt: skip

    async def test_all_of_whose_new_nodes_are_skipped_is_told_so(self, jobs: JobStore) -> None:
        await led(jobs, *nodes(a=""))
        await jobs.settled((await jobs.claim())["a"], BROKEN)
        [join] = (await jobs.claim()).values()

        await jobs.settled(join, success(StartNodes(nodes=nodes(b="a"))))

        assert await jobs.states(LEADER) == {"a": "failed", "b": "skipped"}
        assert [it.task_type for it in (await jobs.claim()).values()] == [TaskType.JOIN]
