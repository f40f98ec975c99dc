"""Jobs go on the engine as they do in the rehearsal, deed by deed.

One job is led by its own processor, which adds nodes; another is led by the engine and has a job
within it. Nodes of all jobs end in any order, or fail, or are repaired; jobs are cancelled and
retried. After each deed the engine and the rehearsal have the same nodes.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from progressor import errors
from progressor.sdk import Client, Fail, Graph, JobState, Processor, ProcessStatus, Step
from progressor.sdk.testing import JobRehearsal
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.engine.replica import Replica
from tests.support.processor.rehearsed import comes_to, processor_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEEDS_MAX = 35
NODES_MAX = 14
AT_ONCE = "at once"

Edges = dict[str, list[str]]
"""Nodes, and what each comes after."""


def drawn(chance: random.Random, names: list[str], present: list[str]) -> Edges:
    """Return new nodes that come after some of those before them."""
    return {
        name: [it for it in [*present, *names[:place]] if chance.random() < 0.35]
        for place, name in enumerate(names)
    }


def graph_of(edges: Edges, args: dict[str, Any]) -> Graph:
    """Return a graph, in which nodes after an odd number of others want their results."""
    graph = Graph()
    for name, after in edges.items():
        graph.node(name, args.get(name), after=after, wants_results=len(after) % 2 == 1)
    return graph


def leading(policy: str) -> Processor[Any]:
    """Return a processor that leads what its args say; other processes end when called.

    If nodes have failed, the policy of the leader is to "fail", to "forgive", or to "fix" it by
    one more node. Every third node that it starts ends at once.
    """
    return processor_of(
        "leading", init=_begin, call=_called, join=partial(_join, policy), repair=_repaired
    )


def _start(step: Step[Any]) -> None:
    names = list(step.args)
    step.start_nodes(graph_of(step.args, dict.fromkeys(names[2::3], AT_ONCE)))


def _begin(step: Step[Any]) -> None:
    step.state = dict(sorted(step.results.items()))
    if isinstance(step.args, dict):
        _start(step)
    elif step.args == AT_ONCE:
        step.complete([step.process_id, step.state])


def _called(step: Step[Any]) -> None:
    if isinstance(step.args, dict):
        _start(step)
    elif step.args is True:
        step.complete([step.process_id, step.state])
    elif step.args is False:
        raise Fail("failed by the test")


def _join(policy: str, step: Step[Any]) -> None:
    undone = [it.name for it in step.nodes.values() if not it.is_done]
    if not undone or policy == "forgive" or "fix" in step.nodes:
        step.complete(undone)
    elif policy == "fix":
        step.start_nodes(graph_of({"fix": []}, {}))
    else:
        raise Fail(f"not done: {', '.join(undone)}")


def _repaired(step: Step[Any]) -> None:
    if step.args:
        step.complete("fixed")


class Both:
    """The same deeds in the rehearsal and on the engine; `jobs` are the outer and the inner one."""

    def __init__(self, chance: random.Random, client: Client, points: Points) -> None:
        self._chance, self._client, self._points = chance, client, points
        self.jobs: list[JobRehearsal] = []
        self.told: list[str] = []

    async def begin_led(self, processor: Processor[Any]) -> None:
        """Start a job that the processor leads."""
        edges = drawn(self._chance, ["n1", "n2", "n3"], [])
        self.jobs = [await JobRehearsal.led_by(processor, edges, job_id="job")]
        await self._client.start("job", edges)
        await self._same(f"begin {edges}")

    async def begin_nested(self, processor: Processor[Any]) -> None:
        """Start a job that the engine leads, whose node "a" leads another job."""
        edges = {"a": [], **drawn(self._chance, ["b", "c", "d"], ["a"]), "b": ["a"]}
        graph = graph_of(edges, {"a": drawn(self._chance, ["x", "y", "z"], [])})
        job = JobRehearsal(graph, processors=[processor], job_id="job")
        self.jobs = [job, await job.inner("a")]
        await self._client.jobs.submit("job", graph)
        # Once it answers, its first step is settled, and with it the inner job begun.
        await self._client.call("job/a")
        await self._same(f"begin {edges}")

    async def act(self) -> bool:
        """Do something in both, and see the same in both; return whether anything can be done."""
        deeds: list[Callable[[], Awaitable[str]]] = []
        outer, *inner = self.jobs
        for job in self.jobs:
            leaves = [it for it in job.running if not inner or (job, it) != (outer, "a")]
            deeds += [partial(self._end, job, it) for it in leaves for _ in range(2)]
            deeds += [partial(self._repair, job, it) for it in await _broken(job)]
            if job.state is JobState.FAILED:
                deeds.append(partial(self._retry, job))
        if inner and inner[0].state is outer.state is JobState.RUNNING:
            deeds.append(partial(self.cancel, inner[0]))
        if not inner and outer.state is JobState.RUNNING and len(outer.states) < NODES_MAX:
            deeds.append(self._add)
        if deeds:
            await self._same(await self._chance.choice(deeds)())
        return bool(deeds)

    async def end(self) -> None:
        """Cancel a job that still runs."""
        if self.jobs[0].state is JobState.RUNNING:
            await self._same(await self.cancel(self.jobs[0]))

    async def cancel(self, job: JobRehearsal) -> str:
        await job.cancel("enough")
        await self._client.jobs.cancel(job.job_id, cause="enough")
        return f"cancel {job.job_id}"

    async def _add(self) -> str:
        present = list(self.jobs[0].states)
        names = [f"n{len(present) + number}" for number in range(1, self._chance.randint(2, 4))]
        edges = drawn(self._chance, names, present)
        await self.jobs[0].leader.call(edges)
        await self._client.call("job", edges)
        return f"add {edges}"

    async def _end(self, job: JobRehearsal, name: str) -> str:
        succeeds = self._chance.random() < 0.75
        with contextlib.suppress(errors.ProcessFailedError):
            await (await job.process(name)).call(succeeds)
        with contextlib.suppress(errors.ProcessFailedError):
            await self._client.call(f"{job.job_id}/{name}", succeeds)
        return f"end {job.job_id}/{name}, succeeds: {succeeds}"

    async def _repair(self, job: JobRehearsal, name: str) -> str:
        completes = self._chance.random() < 0.4
        await job.repair(name, completes)
        await self._client.repair(f"{job.job_id}/{name}", completes)
        return f"repair {job.job_id}/{name}, completes: {completes}"

    async def _retry(self, job: JobRehearsal) -> str:
        names = await job.retry()
        assert (await self._client.jobs.retry(job.job_id)).nodes == names, self.told
        return f"retry {job.job_id}: {names}"

    async def _same(self, deed: str) -> None:
        """Wait until the jobs on the engine are as they are in the rehearsal."""
        self.told.append(deed)
        for job in self.jobs:
            begun: set[str] = set()
            while left := [it for it in job.running if it not in begun]:
                # Its process may end at once, and others start.
                await job.process(left[0])
                begun.add(left[0])
        # What happens to the inner one is felt in the outer one after.
        for job in reversed(self.jobs):
            expected = _rehearsed(job)
            found = await comes_to(expected, partial(self._seen, job.job_id), self._points)
            assert found == expected, self.told

    async def _seen(self, job_id: str) -> tuple[Any, ...]:
        view = await self._client.jobs.get(job_id)
        nodes = {it.name: (it.state, it.attempt, it.skipped_because_of) for it in view.nodes}
        ends = {it.name: (it.result, it.error) for it in view.nodes}
        return view.job.state, view.job.detail, view.job.retry_count, nodes, ends


def _rehearsed(job: JobRehearsal) -> tuple[Any, ...]:
    """Return the state of a rehearsed job, in terms that both can tell."""
    outcomes = job.outcomes.values()
    nodes = {it.name: (it.state, job.attempts[it.name], it.skipped_because_of) for it in outcomes}
    ends = {it.name: (it.result, it.error) for it in outcomes}
    return job.state, job.detail, job.retry_count, nodes, ends


async def _broken(job: JobRehearsal) -> list[str]:
    """Return the nodes with a process that can be repaired."""
    found = []
    for name in job.states:
        with contextlib.suppress(ValueError):  # it has no process
            if (await job.process(name)).status is ProcessStatus.ERROR:
                found.append(name)
    return found


@pytest.mark.parametrize("led_by", ["processor", "engine"])
@pytest.mark.parametrize("seed", range(10))
async def test_a_job_goes_as_in_the_rehearsal(
    replica: Replica, tmp_path: Path, led_by: str, seed: int
) -> None:
    chance = random.Random(seed)
    processor = leading(chance.choice(["fail", "fix", "forgive"]))
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        processor.running(f"unix:{tmp_path}/processor.sock") as target,
        replica.namespace(f"{led_by}-{seed}", target) as client,
    ):
        both = Both(chance, client, replica.points)
        await (both.begin_led if led_by == "processor" else both.begin_nested)(processor)
        for _ in range(DEEDS_MAX):
            if not await both.act():
                break
        await both.end()

        for job in both.jobs:
            process = (await client.get(job.job_id)).process
            assert process.status is not ProcessStatus.RUNNING, both.told
            if led_by == "processor":
                assert process.status is job.leader.status, both.told
                assert process.result == job.result, both.told


async def test_a_retry_has_the_timer_run_in_a_process_that_runs(
    replica: Replica, tmp_path: Path
) -> None:
    statuses: list[ProcessStatus] = []

    def tick(step: Step[Any]) -> None:
        statuses.append(step.status)
        if len(statuses) % 2:
            raise Fail("at the timer")
        step.complete("by the timer")

    ticking = processor_of("ticking", init=lambda step: step.set_timer(after=0), timeout=tick)
    graph = graph_of({"a": []}, {})
    job = JobRehearsal(graph, processors=[ticking])
    await job.run("a")
    await job.retry()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        ticking.running(f"unix:{tmp_path}/processor.sock") as target,
        replica.namespace("ticking", target) as client,
    ):
        await client.jobs.submit("job", graph)
        await client.jobs.wait("job")
        await client.jobs.retry("job")
        await client.jobs.wait("job", check=True)

    assert statuses == [ProcessStatus.RUNNING] * 4
