"""Many jobs in several replicas at once: every node once, after all that it depends on."""

import asyncio
import contextlib
import itertools
import random
import zlib
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from progressor.v1 import types_pb2
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from tests.support.engine.gates import running_pair
from tests.support.engine.job_env import JobEnv, done, failing, open_jobs
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica, running_replica
from tests.support.models.jobs.graphs import Graph, ancestors, random_graph, running, states
from tests.support.processor.scripted import Answer
from tests.support.storage.doctor.invariants import broken_invariants

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOB_COUNT = 12
INIT = types_pb2.TASK_TYPE_INIT


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(database: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """Return two replicas that never scan, and to whom nothing was left to a scan in the end."""
    async with running_pair(database) as pair:
        yield pair


@contextlib.asynccontextmanager
async def through(jobs: JobEnv, *replicas: Replica) -> AsyncIterator[list[JobEnv]]:
    """Yield an environment as it is through each of these replicas."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            jobs.through(
                JobServiceStub(
                    await stack.enter_async_context(grpc.aio.insecure_channel(it.address))
                )
            )
            for it in replicas
        ]


def fails(job_id: str, name: str) -> bool:
    """Tell whether a node is one of the few that fail."""
    return zlib.crc32(f"{job_id}/{name}".encode()) % 15 == 0


def outcome(job_id: str, graph: Graph) -> dict[str, str]:
    """Return how every node ends."""
    ended: dict[str, str] = {}
    while able := running(graph, ended):
        ended |= {name: "failed" if fails(job_id, name) else "done" for name in able}
    return states(graph, ended)


class TestCrowd:
    @pytest.mark.parametrize("seed", range(3))
    async def test_all_end_as_they_must_and_no_scan_has_helped(
        self, database: str, pair: tuple[Replica, Replica], seed: int
    ) -> None:
        chosen = random.Random(seed)
        graphs = {f"job{number}": random_graph(chosen, 30) for number in range(JOB_COUNT)}
        async with (
            open_jobs(database, pair[0]) as jobs,
            through(jobs, *pair) as (here, there),
        ):
            for job_id, graph in graphs.items():
                for name in graph:
                    answer = failing() if fails(job_id, name) else done()
                    jobs.env.processor.on_process(f"{job_id}/{name}", Answer(answer))
            async with asyncio.TaskGroup() as group:
                for at, (job_id, graph) in zip(
                    itertools.cycle((here, there)), graphs.items(), strict=False
                ):
                    group.create_task(at.submit(job_id, graph, hold=False), name=job_id)

            for job_id, graph in graphs.items():
                expected = outcome(job_id, graph)
                failed = set(expected.values()) != {"done"}
                assert await jobs.ended(job_id) == ("failed" if failed else "done")
                assert jobs.states(job_id) == expected
                assert [it[0] for it in jobs.tasks(job_id)] == ["init", "join"]
            self.check_what_the_processor_saw(jobs, graphs)
            assert broken_invariants(jobs.observer, at_rest=True) == {}

    def check_what_the_processor_saw(self, jobs: JobEnv, graphs: dict[str, Graph]) -> None:
        """Assert that each node was asked for once, after all that it depends on, or never."""
        asked = [it.process.process_id for it in jobs.env.processor.requests]
        assert len(asked) == len(set(asked))
        places = {process_id: place for place, process_id in enumerate(asked)}
        for job_id, graph in graphs.items():
            expected = outcome(job_id, graph)
            for name, before in graph.items():
                is_asked = f"{job_id}/{name}" in places
                assert is_asked == (expected[name] != "skipped")
                if is_asked:
                    assert all(
                        places[f"{job_id}/{each}"] < places[f"{job_id}/{name}"] for each in before
                    )

    async def test_a_chain_passes_through_both_without_a_scan(
        self, database: str, pair: tuple[Replica, Replica]
    ) -> None:
        names = [f"n{number:03}" for number in range(100)]
        chain = {name: names[max(0, place - 1) : place] for place, name in enumerate(names)}
        async with open_jobs(database, pair[0]) as jobs:
            jobs.env.processor.on_type(INIT, Answer(done()))
            await jobs.submit("job", chain, hold=False)

            assert await jobs.ended("job") == "done"
            asked = [it.process.process_id for it in jobs.env.processor.requests]
            assert asked == [f"job/{name}" for name in names]
            assert len(ancestors(chain, names[-1])) == len(names) - 1

    async def test_two_that_are_released_at_once_are_joined_once(
        self, database: str, pair: tuple[Replica, Replica]
    ) -> None:
        wide = {f"n{number}": () for number in range(16)}
        graph: Graph = {**wide, "last": tuple(wide)}
        async with open_jobs(database, pair[0]) as jobs, through(jobs, *pair) as envs:
            for number in range(6):
                jobs.hold(f"job{number}", graph)
                await envs[number % 2].submit(f"job{number}", graph)
                await jobs.asked(f"job{number}", *wide)
            for number in range(6):
                for name in graph:
                    jobs.release(f"job{number}", name)
            for number in range(6):
                assert await jobs.ended(f"job{number}") == "done"
                assert jobs.tasks(f"job{number}/last") == [("init", "finished", 1)]
                assert jobs.tasks(f"job{number}")[1:] == [("join", "finished", 1)]


class TestRecovery:
    async def test_is_carried_out_by_one_of_three_replicas(self, own_database: str) -> None:
        async with contextlib.AsyncExitStack() as stack:
            three = [
                await stack.enter_async_context(running_replica(own_database)) for _ in range(3)
            ]
            jobs = await stack.enter_async_context(open_jobs(own_database, three[0]))
            await jobs.submit("job", {"a": (), "b": ("a",)})
            await jobs.asked("job", "a")
            # As if the settlement of a had forgotten to start b, an hour ago.
            await _forget(jobs)
            jobs.observer.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity'")

            await eventually(lambda: _recovered(three) > 0)
            for replica in three:
                await replica.points.wait("scanned", replica.points.count("scanned") + 20)
            jobs.release("job", "b")
            assert _recovered(three) == 1
            assert await jobs.ended("job") == "done"
            assert jobs.tasks("job/b") == [("init", "finished", 1)]


def _recovered(replicas: list[Replica]) -> int:
    return sum(replica.points.count("job_recovered") for replica in replicas)


async def _forget(jobs: JobEnv) -> None:
    """Let node a be done by a settlement that does not know of the job."""
    await eventually(lambda: jobs.state("job") == "running")
    with jobs.observer.transaction():
        jobs.observer.execute(
            "UPDATE progressor.job_nodes SET (state, waits_for, ready_at) ="
            " ('ready', 0, now()) WHERE name = 'b'"
        )
        jobs.observer.execute(
            "UPDATE progressor.job_nodes SET (state, ended_at, begun) = ('done', now(), true)"
            " WHERE name = 'a'"
        )
        jobs.observer.execute(
            "UPDATE progressor.jobs SET (waiting, ready, running, beginning, updated_at) ="
            " (0, 1, 0, 0, now() - interval '1 h')"
        )
