"""PostgreSQL ends while gates are held and jobs are at work: afterwards all goes on, once."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import psycopg
import pytest

from progressor.sdk import Client, Graph
from progressor.v1 import types_pb2
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.gates import Gated, constraints, open_gated, watched_gates
from tests.support.engine.points import eventually
from tests.support.engine.replica import Env, Replica, answering, open_env, response
from tests.support.faults.disasters import ENDS
from tests.support.faults.env import asked_twice, insist
from tests.support.postgres.cluster import Cluster
from tests.support.processor.scripted import Hang
from tests.support.storage.doctor.judge import ailments

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAPACITY = 3
COUNT = 30


@pytest.mark.parametrize("end", ENDS)
async def test_holders_and_waiters_of_a_gate_pass_afterwards(
    replicas: tuple[Replica, Replica], mortal: Cluster, conninfo: str, end: str
) -> None:
    here, there = replicas
    with watched_gates(conninfo):
        async with open_gated(conninfo, here, there.address, one_at_a_time=False) as gated:
            names = [f"p{number}" for number in range(COUNT)]
            hangs = await gated.held(*names)
            tasks = await in_line(gated, names)
            # Some are answered before it, some while it is away, the others after.
            before, meanwhile, after = hangs[:10], hangs[10:20], hangs[20:]
            for hang in before:
                hang.released.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.to_thread(ENDS[end], mortal, conninfo))
                for hang in meanwhile:
                    hang.released.set()
            for hang in after:
                hang.released.set()
            for name, task_id in tasks:
                await insist(gated.env.client.await_task, name, task_id=task_id, timeout=10)
            with psycopg.connect(conninfo, autocommit=True) as observer:
                judged = dataclasses.replace(gated, observer=observer)
                await judged.at_rest()
                assert judged.settled_at_once() <= CAPACITY
            assert asked_twice(gated.env) == []


async def in_line(gated: Gated, names: list[str]) -> list[tuple[str, int]]:
    """Have processes want the gate and one of a few others, until the first hold it."""
    tasks = [
        (name, await gated.call(name, constraints("gate", f"db{number % 5}", capacity=CAPACITY)))
        for number, name in enumerate(names)
    ]
    for name in names[:CAPACITY]:
        await gated.has_begun(name)
    return tasks


JOBS, WIDTH = 6, 8
NODES = JOBS * (WIDTH + 2)
HELD = 3
"""Of these jobs a node is held until PostgreSQL has ended."""
UNFINISHED = """
    SELECT count(*) FROM progressor.jobs
    WHERE namespace = %s AND (state <> 'done' OR waiting + ready + running > 0)"""
EVENTS = """
    SELECT count(*), count(DISTINCT process_id) FROM progressor.events WHERE namespace = %s"""
JOINS = """
    SELECT process_id, count(*) FROM progressor.tasks
    WHERE namespace = %s AND task_type = 'join' AND status = 'finished' GROUP BY 1"""


@pytest.mark.parametrize("end", ENDS)
async def test_jobs_go_on_where_they_were_and_each_node_is_done_once(
    replicas: tuple[Replica, Replica], mortal: Cluster, conninfo: str, end: str
) -> None:
    here, there = replicas
    async with (
        open_env(here, one_at_a_time=False) as env,
        env.client_at(there.address) as elsewhere,
    ):
        await play(env, elsewhere, lambda: ENDS[end](mortal, conninfo))
        with psycopg.connect(conninfo, autocommit=True) as observer:
            which = [env.namespace]
            await eventually(lambda: observer.execute(UNFINISHED, which).fetchone() == (0,))
            assert observer.execute(EVENTS, which).fetchone() == (NODES, NODES)
            joined: dict[str, int] = dict(observer.execute(JOINS, which).fetchall())
        assert joined == {f"j{number}": 1 for number in range(JOBS)}
        # A replica that lost an answer finds its settlement again, and counts it then.
        await eventually(lambda: ended(replicas, env.namespace) == (NODES, JOBS))
        assert asked_twice(env) == []
        assert await asyncio.to_thread(ailments, conninfo) == []


def ended(replicas: Sequence[Replica], namespace: str) -> tuple[float, float]:
    """Return how many nodes and jobs the replicas have counted as done."""
    counts = [replica.engine.metrics for replica in replicas]
    labels = (namespace, "done")
    return (
        sum(count.job_nodes_ended.value(labels) for count in counts),
        sum(count.jobs_ended.value(labels) for count in counts),
    )


async def play(env: Env, elsewhere: Client, end: Callable[[], None]) -> None:
    """Submit jobs at both replicas, and end what is to end in the midst of them."""
    done = answering(b"done", complete=Complete())
    env.processor.on_type(types_pb2.TASK_TYPE_INIT, done)
    hangs = [Hang(response=response(b"done", complete=Complete())) for _ in range(HELD)]
    for number, hang in enumerate(hangs):
        env.processor.on_process(f"j{number}/wide-1", hang, done)
    graph = Graph()
    wide = graph.fan_out("wide", [b""] * WIDTH, after=graph.node("first", b""))
    graph.node("last", b"", after=wide)
    async with asyncio.TaskGroup() as group:
        for number in range(JOBS):
            submit = (env.client, elsewhere)[number % 2].jobs.submit
            group.create_task(insist(submit, f"j{number}", graph, idempotency_key="k", timeout=10))
        for number in range(HELD):
            await env.asked(f"j{number}/wide-1")
        ending = group.create_task(asyncio.to_thread(end))
        hangs[0].released.set()
        await ending
    for hang in hangs[1:]:
        hang.released.set()
