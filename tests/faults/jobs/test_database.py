"""PostgreSQL ends while jobs are in the midst of their graphs: afterwards all of them end, once."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence

import psycopg
import pytest
import pytest_asyncio

from progressor.sdk import Client, Graph
from progressor.storage.postgres.migrations import migrate
from progressor.v1 import types_pb2
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
    response,
    running_replica,
)
from tests.support.faults.disasters import kill_and_restart, terminate_all
from tests.support.faults.ground import asked_twice, eventually, insisted
from tests.support.faults.load import BRIEF
from tests.support.postgres.cluster import Cluster
from tests.support.processor.scripted import Hang
from tests.support.storage.doctor.judge import ailments

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOBS, WIDTH = 6, 8
HELD = 3
"""Of these jobs a node is held until PostgreSQL has ended."""

_UNFINISHED = """
    SELECT count(*) FROM progressor.jobs
    WHERE namespace = %s AND (state <> 'done' OR waiting + ready + running > 0)"""
_EVENTS = """
    SELECT count(*), count(DISTINCT process_id) FROM progressor.events WHERE namespace = %s"""
_JOINS = """
    SELECT process_id, count(*) FROM progressor.tasks
    WHERE namespace = %s AND task_type = 'join' AND status = 'finished' GROUP BY 1"""
End = Callable[[Cluster, str], None]


@pytest.fixture(scope="module")
def conninfo(mortal: Cluster) -> str:
    created = mortal.create_database()
    migrate(created)
    return created


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(conninfo: str) -> AsyncIterator[tuple[Replica, Replica]]:
    async with running_replica(conninfo, BRIEF) as here, running_replica(conninfo, BRIEF) as there:
        yield here, there


def restart(cluster: Cluster, _conninfo: str) -> None:
    cluster.restart()


def kill(cluster: Cluster, _conninfo: str) -> None:
    kill_and_restart(cluster)


def end_sessions(_cluster: Cluster, conninfo: str) -> None:
    terminate_all(conninfo)


@pytest.mark.parametrize("end", [restart, kill, end_sessions])
async def test_jobs_go_on_where_they_were_and_each_node_is_done_once(
    replicas: tuple[Replica, Replica], mortal: Cluster, conninfo: str, end: End
) -> None:
    here, there = replicas
    async with (
        open_env(here, one_at_a_time=False) as env,
        env.client_at(there.address) as elsewhere,
    ):
        await play(env, elsewhere, lambda: end(mortal, conninfo))
        with psycopg.connect(conninfo, autocommit=True) as observer:
            which = [env.namespace]
            await eventually(lambda: observer.execute(_UNFINISHED, which).fetchone() == (0,))
            nodes = JOBS * (WIDTH + 2)
            assert observer.execute(_EVENTS, which).fetchone() == (nodes, nodes)
            joined: dict[str, int] = dict(observer.execute(_JOINS, which).fetchall())
        assert joined == {f"j{number}": 1 for number in range(JOBS)}
        # A replica that lost an answer finds its settlement again, and counts it then.
        await eventually(lambda: ended(replicas, env.namespace) == (nodes, JOBS))
        assert asked_twice(env) == []
        assert await asyncio.to_thread(ailments, conninfo) == []


def ended(replicas: Sequence[Replica], namespace: str) -> tuple[float, float]:
    """Return how many nodes and jobs the replicas have counted as done."""
    counts = [it.engine.metrics for it in replicas]
    labels = (namespace, "done")
    return (
        sum(it.job_nodes_ended.value(labels) for it in counts),
        sum(it.jobs_ended.value(labels) for it in counts),
    )


async def play(env: Env, elsewhere: Client, end: Callable[[], None]) -> None:
    """Submit jobs at both replicas, and end what is to end in the midst of them."""
    done = response(b"done", complete=Complete())
    env.processor.on_type(types_pb2.TASK_TYPE_INIT, answering(b"done", complete=Complete()))
    hangs = []
    for number in range(HELD):
        hang = Hang(response=done)
        env.processor.on_process(f"j{number}/wide-1", hang, answering(b"done", complete=Complete()))
        hangs.append(hang)
    async with asyncio.TaskGroup() as group:
        for number in range(JOBS):
            client = (env.client, elsewhere)[number % 2]
            group.create_task(submitted(client, f"j{number}"))
        for number in range(HELD):
            await env.asked(f"j{number}/wide-1")
        ending = group.create_task(asyncio.to_thread(end))
        hangs[0].released.set()
        await ending
    for hang in hangs[1:]:
        hang.released.set()


async def submitted(client: Client, job_id: str) -> None:
    """Submit a job under a key until it is accepted."""
    graph = Graph()
    wide = graph.fan_out("wide", [b""] * WIDTH, after=graph.node("first", b""))
    graph.node("last", b"", after=wide)
    await insisted(
        functools.partial(client.jobs.submit, job_id, graph, idempotency_key="k", timeout=10)
    )
