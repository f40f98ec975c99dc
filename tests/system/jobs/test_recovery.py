"""The recovery rules of seeds/job-center.md, each with what it is about really done.

A job is never left half done, whichever is killed: its leader, its followers, both, or the one that
was about to tell the leader that all is done. The victim is a process that gets SIGKILL; the
second replica scans.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from progressor.sdk import Client, ZombiePolicy
from progressor.v1 import nodes_pb2
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from tests.support.engine.job_env import JobEnv, done, open_jobs, wire_nodes
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import NOW_AND_THEN, Replica, answering
from tests.support.models.jobs.graphs import Graph
from tests.support.processor.scripted import Answer, Hang, ScriptedProcessor
from tests.support.storage.doctor.invariants import broken_invariants

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAIR: Graph = {"a": (), "b": ("a",)}
WIDE: Graph = {**{f"n{number}": () for number in range(8)}, "last": [f"n{n}" for n in range(8)]}

_AT_VICTIM = """
    SELECT r.process_id FROM progressor.running r JOIN progressor.replicas p USING (replica_id)
    WHERE p.name = %s AND r.namespace = %s"""


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(database: str, second_replica: Replica) -> AsyncIterator[JobEnv]:
    async with open_jobs(
        database, second_replica, one_at_a_time=False, retry_policy=NOW_AND_THEN
    ) as jobs:
        yield jobs


@pytest_asyncio.fixture(loop_scope="module")
async def failing_with_leases(database: str, second_replica: Replica) -> AsyncIterator[JobEnv]:
    async with open_jobs(
        database, second_replica, one_at_a_time=False, zombie_policy=ZombiePolicy.FAIL
    ) as jobs:
        yield jobs


@contextlib.asynccontextmanager
async def a_victim(jobs: JobEnv, path: Path) -> AsyncIterator[tuple[ReplicaProcess, JobEnv]]:
    """Run a replica to be killed, and yield it with the environment as it is through that."""
    conninfo = jobs.observer.info.dsn
    password = f" password={jobs.observer.info.password}" if jobs.observer.info.password else ""
    settings = {"replica.name": path.name}
    async with (
        running_process(conninfo + password, path, settings) as victim,
        grpc.aio.insecure_channel(victim.address) as channel,
    ):
        yield victim, jobs.through(JobServiceStub(channel))


def in_hand(jobs: JobEnv, path: Path) -> set[str]:
    """Return the processes whose steps the victim has in hand."""
    found = jobs.observer.execute(_AT_VICTIM.encode(), [path.name, jobs.env.namespace]).fetchall()
    return {row[0] for row in found}


async def lead(jobs: JobEnv, client: Client, graph: Graph, *then: Hang | Answer) -> None:
    """Start a leader that has a processor of its own, which serves its other steps by `then`."""
    start = nodes_pb2.StartNodes(nodes=wire_nodes(graph))
    jobs.env.processor.on_process("job", answering(start_nodes=start), *then)
    await client.start("job")


def is_whole(jobs: JobEnv) -> bool:
    return broken_invariants(jobs.observer) == {}


class TestFollower:
    async def test_whose_replica_is_killed_begins_again_elsewhere(
        self, jobs: JobEnv, tmp_path: Path
    ) -> None:
        async with a_victim(jobs, tmp_path) as (victim, there):
            jobs.hold("job", WIDE, Answer(done()))
            await there.submit("job", WIDE, hold=False)
            await jobs.asked("job", *list(WIDE)[:8])
            lost = in_hand(jobs, tmp_path)
            assert lost
            victim.kill()
            for name in WIDE:
                if f"job/{name}" not in lost:
                    jobs.release("job", name)

            assert await jobs.ended("job") == "done"
        for name in list(WIDE)[:8]:
            attempts = 2 if f"job/{name}" in lost else 1
            assert jobs.tasks(f"job/{name}") == [("init", "finished", attempts)]
        assert jobs.tasks("job") == [("init", "finished", 1), ("join", "finished", 1)]
        assert is_whole(jobs)

    async def test_fails_its_node_where_the_policy_says_so(
        self, failing_with_leases: JobEnv, tmp_path: Path
    ) -> None:
        jobs = failing_with_leases
        async with a_victim(jobs, tmp_path) as (victim, there):
            await there.submit("job", PAIR)
            await jobs.asked("job", "a")
            assert in_hand(jobs, tmp_path) == {"job/a"}
            victim.kill()

            assert await jobs.ended("job") == "failed"
        assert jobs.states("job") == {"a": "failed", "b": "skipped"}
        told = {node.name: node for node in (await jobs.get("job")).nodes}
        assert told["a"].error.reason == "ZOMBIE"
        assert len(jobs.env.processor.requests) == 1

    async def test_whose_replica_was_frozen_is_not_settled_twice(
        self, jobs: JobEnv, tmp_path: Path
    ) -> None:
        async with a_victim(jobs, tmp_path) as (victim, there):
            jobs.hold("job", PAIR, Answer(done()))
            await there.submit("job", PAIR, hold=False)
            await jobs.asked("job", "a")
            assert in_hand(jobs, tmp_path) == {"job/a"}
            victim.freeze()
            await jobs.asked("job", "a", count=2)
            await jobs.end("job", "b")
            assert await jobs.ended("job") == "done"
            jobs.release("job", "a")
            victim.thaw()
            # A replica that answers now has finished its earlier work.
            await there.get("job")

        assert jobs.states("job") == {"a": "done", "b": "done"}
        assert jobs.tasks("job/a") == [("init", "finished", 2)]
        assert jobs.tasks("job") == [("init", "finished", 1), ("join", "finished", 1)]
        assert is_whole(jobs)


class TestLeader:
    async def test_whose_replica_is_killed_is_told_again_elsewhere(
        self, jobs: JobEnv, tmp_path: Path
    ) -> None:
        async with a_victim(jobs, tmp_path) as (victim, _):
            jobs.hold("job", PAIR)
            async with jobs.env.client_at(victim.address) as client:
                await lead(jobs, client, PAIR, Hang(), Answer(done(b"whole")))
            for name in PAIR:
                await jobs.asked("job", name)
                jobs.release("job", name)
            await jobs.env.asked("job", 2)
            assert in_hand(jobs, tmp_path) == {"job"}
            victim.kill()

            assert await jobs.ended("job") == "done"
        assert jobs.tasks("job")[-1] == ("join", "finished", 2)
        asked = [request.task for request in jobs.env.asked_for("job")]
        assert [node.name for node in asked[-1].nodes] == ["a", "b"]
        assert is_whole(jobs)

    @pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01])
    async def test_runs_whenever_the_replica_that_settles_the_last_node_is_killed(
        self, jobs: JobEnv, tmp_path: Path, delay: float
    ) -> None:
        async with a_victim(jobs, tmp_path) as (victim, there):
            jobs.hold("job", ["a"], Answer(done()))
            await there.submit("job", {"a": ()}, hold=False)
            await jobs.asked("job", "a")
            jobs.release("job", "a")
            await asyncio.sleep(delay)
            victim.kill()

            assert await jobs.ended("job") == "done"
        assert [task[:2] for task in jobs.tasks("job")] == [
            ("init", "finished"), ("join", "finished")
        ]  # fmt: skip
        assert is_whole(jobs)


async def test_a_target_that_stays_unreachable_fails_its_node_and_no_other(
    database: str, second_replica: Replica
) -> None:
    async with ScriptedProcessor() as elsewhere, open_jobs(database, second_replica) as jobs:
        await jobs.target(elsewhere.target, patience=dt.timedelta(seconds=0.3))
        await elsewhere.stop()
        jobs.hold("job", "bcd")
        nodes = [
            nodes_pb2.NodeSpec(name="a", target=elsewhere.target),
            *wire_nodes({"b": (), "c": ("a",), "d": ("b",)}),
        ]
        await jobs.submit("job", {}, nodes=nodes)
        await jobs.end("job", "b")
        await jobs.become("job", {"a": "failed", "c": "skipped"})
        await jobs.end("job", "d")

        assert await jobs.ended("job") == "failed"
        told = {node.name: node for node in (await jobs.get("job")).nodes}
        assert told["a"].error.reason == "TARGET_UNREACHABLE"
        assert jobs.asked_for("job", "a") == []
