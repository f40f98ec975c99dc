"""A job within a job goes on the engine as it does in the rehearsal, deed by deed.

Nodes of both end in any order, or fail, or are repaired; the inner job is cancelled and retried;
the outer one is retried, and cancelled in the end. After each deed both tell of the same nodes.
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
from progressor.sdk import (
    Client,
    Fail,
    Graph,
    JobState,
    Processor,
    ProcessStatus,
    Step,
)
from progressor.sdk.testing import JobRehearsal
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.engine.replica import Replica
from tests.support.processor.rehearsed import comes_to, processor_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = range(12)
DEEDS_MAX = 30
OUTER, INNER = "job", "job/a"

Standing = tuple[Any, ...]
"""State, detail and retries of a job; of each node where it is, and how it has ended."""


def drawn(chance: random.Random, names: str) -> dict[str, list[str]]:
    """Return what each of some nodes comes after."""
    return {
        name: [it for it in names[:place] if chance.random() < 0.4]
        for place, name in enumerate(names)
    }


def graph_of(edges: dict[str, list[str]], leading: dict[str, Any]) -> Graph:
    """Return a graph; nodes that lead get what they start as their args.

    Nodes that come after an odd number of others want their results.
    """
    graph = Graph()
    for name, after in edges.items():
        graph.node(name, leading.get(name), after=after, wants_results=len(after) % 2 == 1)
    return graph


def troupe(*, forgives: bool) -> Processor[Any]:
    """Return a processor that leads what its args say; other processes end when called."""

    def begin(step: Step[Any]) -> None:
        step.state = dict(sorted(step.results.items()))
        if step.args:
            step.start_nodes(graph_of(step.args, {}))

    def join(step: Step[Any]) -> None:
        undone = [it.name for it in step.nodes.values() if not it.is_done]
        if undone and not forgives:
            raise Fail(f"not done: {', '.join(undone)}")
        step.complete(undone)

    return processor_of("troupe", init=begin, call=called, join=join, repair=repaired)


def called(step: Step[Any]) -> None:
    if step.args is True:
        step.complete([step.process_id, step.state])
    elif step.args is False:
        raise Fail("failed by the test")


def repaired(step: Step[Any]) -> None:
    if step.args:
        step.complete("fixed")


class Duet:
    """The same deeds in the rehearsal and on the engine."""

    def __init__(
        self, chance: random.Random, client: Client, processor: Processor[Any], points: Points
    ) -> None:
        """Begin with nothing; `begin` starts both."""
        edges = {"a": [], **drawn(chance, "bcd")}
        edges["b"] = ["a"]
        self._graph = graph_of(edges, {"a": drawn(chance, "xyz")})
        self._chance, self._client, self._points = chance, client, points
        self.job = JobRehearsal(self._graph, processors=[processor], job_id=OUTER)
        self.inner: JobRehearsal
        self.told: list[str] = []

    async def begin(self) -> None:
        """Start the job in both."""
        self.inner = await self.job.inner("a")
        await self._client.jobs.submit(OUTER, self._graph)
        # Once it answers, its first step is settled, and with it the inner job begun.
        await self._client.call(INNER)
        await self._same(f"begin {self._graph.edges}")

    async def act(self) -> bool:
        """Do something in both, and see the same in both; tell whether there was anything to do."""
        deeds: list[Callable[[], Awaitable[str]]] = []
        for job in (self.job, self.inner):
            leaves = [it for it in job.running if (job, it) != (self.job, "a")]
            deeds += [partial(self._end, job, it) for it in leaves for _ in range(2)]
            deeds += [partial(self._repair, job, it) for it in await self._broken(job)]
            if job.state is JobState.FAILED:
                deeds.append(partial(self._retry, job))
        if self.inner.state is self.job.state is JobState.RUNNING:
            deeds.append(partial(self._cancel, self.inner))
        if not deeds:
            return False
        await self._same(await self._chance.choice(deeds)())
        return True

    async def end(self) -> None:
        """Cancel the outer job in both, and see both end in the same way."""
        await self._same(await self._cancel(self.job))

    async def _cancel(self, job: JobRehearsal) -> str:
        await job.cancel("enough")
        await self._client.jobs.cancel(job.job_id, cause="enough")
        return f"cancel {job.job_id}"

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

    async def _broken(self, job: JobRehearsal) -> list[str]:
        return [it for it in job.states if await is_broken(job, it)]

    async def _same(self, deed: str) -> None:
        """Wait until both jobs on the engine are as they are in the rehearsal."""
        self.told.append(deed)
        for job in (self.job, self.inner):
            for name in job.running:
                await job.process(name)
        # What happens to the inner one is felt in the outer one after.
        for job in (self.inner, self.job):
            expected = rehearsed(job)
            found = await comes_to(expected, partial(self._seen, job.job_id), self._points)
            assert found == expected, self.told

    async def _seen(self, job_id: str) -> Standing:
        view = await self._client.jobs.get(job_id)
        nodes = {it.name: (it.state, it.attempt, it.skipped_because_of) for it in view.nodes}
        ends = {it.name: (it.result, it.error) for it in view.nodes}
        return view.job.state, view.job.detail, view.job.retry_count, nodes, ends


def rehearsed(job: JobRehearsal) -> Standing:
    """Return how a job stands in the rehearsal, in terms that both can tell."""
    outcomes = job.outcomes.values()
    nodes = {it.name: (it.state, job.attempts[it.name], it.skipped_because_of) for it in outcomes}
    ends = {it.name: (it.result, it.error) for it in outcomes}
    return job.state, job.detail, job.retry_count, nodes, ends


async def is_broken(job: JobRehearsal, name: str) -> bool:
    """Tell whether a node has a process that can be repaired."""
    try:
        process = await job.process(name)
    except ValueError:
        return False
    return process.status is ProcessStatus.ERROR


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_job_within_a_job_goes_as_in_the_rehearsal(
    replica: Replica, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    processor = troupe(forgives=chance.random() < 0.3)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        processor.running(f"unix:{tmp_path}/processor.sock") as target,
        replica.namespace(f"nested-{seed}", target) as client,
    ):
        duet = Duet(chance, client, processor, replica.points)
        await duet.begin()
        for _ in range(DEEDS_MAX):
            if not await duet.act():
                break
        if duet.job.state is JobState.RUNNING:
            await duet.end()

        for job_id in (OUTER, INNER):
            process = (await client.get(job_id)).process
            assert process.status is not ProcessStatus.RUNNING, duet.told


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
    graph = Graph()
    graph.node("a")
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
