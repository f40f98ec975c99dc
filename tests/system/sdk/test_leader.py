"""A job that its own processor leads goes on the engine as it does in the rehearsal, deed by deed.

Nodes end in any order, or fail; the leader adds more while it runs, and by its join; followers are
repaired; a job that has failed is retried. After each deed both tell of the same graph.
"""

import asyncio
import contextlib
import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest

from progressor import errors
from progressor.sdk import (
    Client,
    Fail,
    Graph,
    JobState,
    Limits,
    NodeState,
    Processor,
    ProcessStatus,
    Step,
    TaskType,
)
from progressor.sdk.testing import JobRehearsal
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = range(8)
DEEDS_MAX = 40
AT_ONCE = Limits(drain_timeout=dt.timedelta())
"""Nodes that were not told to end by then are left running."""
NODES_MAX = 14

Edges = dict[str, list[str]]
"""Nodes to be added, and what each comes after."""


class Troupe:
    """A processor whose nodes end, and whose leader adds nodes, as the test says."""

    def __init__(self, *, fixes: bool) -> None:
        """Have the leader fail at its first join, or, if it `fixes`, start one more node."""
        self._fixes = fixes
        self._ends: dict[str, asyncio.Future[bool]] = {}
        self.processor: Processor[Any] = Processor("troupe")
        self.processor.init(self._begin)
        self.processor.call(self._called)
        self.processor.repair(self._repaired)
        self.processor.join(self._joined)

    def end(self, name: str, *, succeeds: bool) -> None:
        """Have a node end whose first step is in hand."""
        self._future(name).set_result(succeeds)

    def forget(self, name: str) -> None:
        """Have a node that begins anew wait to be told."""
        self._ends.pop(name, None)

    async def _begin(self, step: Step[Any]) -> None:
        if isinstance(step.args, dict):
            step.start_nodes(_graph(step.args))
        elif await asyncio.shield(self._future(step.args)):
            step.complete([step.args, dict(sorted(step.results.items()))])
        else:
            raise Fail("failed by the test")

    async def _called(self, step: Step[Any]) -> None:
        if isinstance(step.args, dict):
            step.start_nodes(_graph(step.args))
        elif step.args:
            step.complete("after a repair")
        else:
            raise Fail("again")

    async def _repaired(self, _step: Step[Any]) -> None:
        pass

    async def _joined(self, step: Step[Any]) -> None:
        undone = [it.name for it in step.nodes.values() if not it.is_done]
        fixed = [it for it in step.nodes if it.startswith("fix")]
        if not undone or (fixed and self._fixes):
            step.complete(len(step.nodes))
        elif self._fixes:
            step.start_nodes(_graph({"fix": []}))
        else:
            raise Fail(f"not done: {', '.join(undone)}")

    def _future(self, name: str) -> "asyncio.Future[bool]":
        return self._ends.setdefault(name, asyncio.get_running_loop().create_future())


def _graph(edges: Edges) -> Graph:
    graph = Graph()
    for name, after in edges.items():
        graph.node(name, name, after=after, wants_results=True)
    return graph


class Performance:
    """The same deeds in the rehearsal and on the engine."""

    def __init__(self, chance: random.Random, troupe: Troupe, client: Client) -> None:
        """Begin with nothing; `begin` starts both."""
        self._chance, self._troupe, self._client = chance, troupe, client
        self._repaired: set[str] = set()
        self._count = 0
        self.job: JobRehearsal
        self.told: list[str] = []

    async def begin(self) -> None:
        """Start the leader in both."""
        edges = self._more(3, [])
        self.job = await JobRehearsal.led_by(self._troupe.processor, edges, job_id="job")
        await self._client.start("job", edges)
        await self._same(f"begin {edges}")

    async def act(self) -> None:
        """Do something in both, and see the same in both."""
        deeds = [self._end] * 6
        failed = [it for it, state in self.job.states.items() if state is NodeState.FAILED]
        if failed:
            deeds += [self._repair] * 2
        if self.job.state is JobState.FAILED:
            deeds = [self._retry, *([self._repair] if failed else [])]
        elif len(self.job.states) < NODES_MAX:
            deeds += [self._add]
        await self._same(await self._chance.choice(deeds)())

    def _more(self, count: int, present: list[str]) -> Edges:
        edges: Edges = {}
        for _ in range(count):
            self._count += 1
            candidates = [*present, *edges]
            after = [it for it in candidates if self._chance.random() < 0.3]
            edges[f"n{self._count}"] = after
        return edges

    async def _end(self) -> str:
        name = self._chance.choice(self.job.running)
        succeeds = self._chance.random() < 0.75
        if name in self._repaired:
            # Its first step is behind it: it is ended by a call.
            self._repaired.discard(name)
            with contextlib.suppress(errors.ProcessFailedError):
                await (await self.job.process(name)).call(succeeds)
            with contextlib.suppress(errors.ProcessFailedError):
                await self._client.call(f"job/{name}", succeeds)
        else:
            self._troupe.end(name, succeeds=succeeds)
            await self.job.run(name)
        return f"end {name}, succeeds: {succeeds}"

    async def _add(self) -> str:
        edges = self._more(self._chance.randint(1, 3), list(self.job.states))
        await self._client.call("job", edges)
        await self.job.leader.call(edges)
        return f"add {edges}"

    async def _repair(self) -> str:
        failed = [it for it, state in self.job.states.items() if state is NodeState.FAILED]
        name = self._chance.choice(failed)
        self._repaired.add(name)
        await self.job.repair(name, "go")
        await self._client.repair(f"job/{name}", "go")
        return f"repair {name}"

    async def _retry(self) -> str:
        for name, node in self.job.outcomes.items():
            if node.state is NodeState.FAILED:
                process = await self.job.process(name)
                steps = [it for it in process.steps if it.type is TaskType.INIT]
                if steps[-1].error is not None and name not in self._repaired:
                    self._troupe.forget(name)
        ours = await self.job.retry()
        theirs = (await self._client.jobs.retry("job")).nodes
        assert theirs == ours, self.told
        return f"retry {ours}"

    async def _same(self, deed: str) -> None:
        """Follow the job on the engine until it is as it is in the rehearsal."""
        self.told.append(deed)
        states: dict[str, NodeState] = {}
        causes: dict[str, str] = {}
        expected = (
            self.job.state,
            self.job.states,
            {it.name: it.skipped_because_of for it in self.job.outcomes.values()},
        )
        found: Any = None
        try:
            async with (
                asyncio.timeout(5),
                contextlib.aclosing(self._client.jobs.watch("job")) as changes,
            ):
                async for view in changes:
                    states |= {it.name: it.state for it in view.nodes}
                    causes |= {it.name: it.skipped_because_of for it in view.nodes}
                    found = (view.job.state, states, causes)
                    if found == expected:
                        return
        except TimeoutError:
            pass
        assert found == expected, self.told


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_job_goes_as_in_the_rehearsal(replica: Replica, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    troupe = Troupe(fixes=chance.random() < 0.5)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        troupe.processor.running(f"unix:{tmp_path}/processor.sock", limits=AT_ONCE) as target,
        replica.namespace(f"troupe-{seed}", target) as client,
    ):
        performance = Performance(chance, troupe, client)
        await performance.begin()
        job = performance.job
        for _ in range(DEEDS_MAX):
            if job.state is JobState.DONE:
                break
            await performance.act()

        process = (await client.get("job")).process
        assert process.status is job.leader.status, performance.told
        if process.status is ProcessStatus.FINISHED:
            assert process.result == job.result, performance.told
        assert {it.name: it.result for it in (await client.jobs.get("job")).nodes} == {
            it.name: it.result for it in job.outcomes.values()
        }, performance.told
