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

from progressor.v1.job_service_pb2_grpc import JobServiceStub
from tests.support.engine.gates import running_pair
from tests.support.engine.job_env import JobEnv, done, failing, open_jobs
from tests.support.engine.replica import Replica
from tests.support.models.jobs.graphs import Graph, random_graph, running, states
from tests.support.processor.scripted import Answer
from tests.support.storage.doctor.invariants import broken_invariants

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOB_COUNT = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(database: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """Return two replicas that never scan, and to whom nothing was left to a scan in the end."""
    async with running_pair(database) as pair:
        yield pair


@contextlib.asynccontextmanager
async def through(jobs: JobEnv, *replicas: Replica) -> AsyncIterator[list[JobEnv]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            jobs.through(
                JobServiceStub(
                    await stack.enter_async_context(grpc.aio.insecure_channel(replica.address))
                )
            )
            for replica in replicas
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
                assert [task[0] for task in jobs.tasks(job_id)] == ["init", "join"]
            self.check_what_the_processor_saw(jobs, graphs)
            assert broken_invariants(jobs.observer, at_rest=True) == {}

    def check_what_the_processor_saw(self, jobs: JobEnv, graphs: dict[str, Graph]) -> None:
        """Assert that each node was asked for once, after all that it depends on, or never."""
        asked = [request.process.process_id for request in jobs.env.processor.requests]
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
