"""A PgBouncer in transaction mode between the engine and PostgreSQL: all works, a little later."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from progressor.storage.postgres.migrations import migrate
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    health_becomes,
    open_env,
    refusal,
    running_replica,
    starting_replica,
)
from tests.support.postgres.cluster import Cluster, direct
from tests.support.postgres.pgbouncer import (
    PgBouncer,
    binary,
    carries_prepared_statements,
    open_pgbouncer,
)
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import connect

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(binary() is None, reason="pgbouncer is not installed (Debian: pgbouncer)"),
]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LEASE = {"replica.lease_timeout_seconds": "4", "database.connect_timeout_seconds": "1"}
"""Longer than it takes to start the pooler; so long do leases hold of which no answer told. And how
long a request looks for a server that takes writes, before it is refused."""
KEPT = 100
"""Prepared statements that a pooler carries from session to session."""


@pytest.fixture(scope="module", params=[0, KEPT], ids=["forgets names", "carries names"])
def pooler(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[PgBouncer]:
    if request.param and not carries_prepared_statements():
        pytest.skip("this release of pgbouncer carries no prepared statements (1.21 does)")
    conninfo = cluster.create_database()
    with open_pgbouncer(conninfo, prepared_statements_max=request.param) as pooler:
        yield pooler
    cluster.drop_database(conninfo)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(pooler: PgBouncer) -> AsyncIterator[Replica]:
    """Return an engine that migrated through the pooler; its leases outlast a restart of it."""
    async with running_replica(pooler.conninfo, LEASE) as replica:
        yield replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other(replica: Replica, pooler: PgBouncer) -> AsyncIterator[Replica]:
    assert replica.engine.serving.is_set(), "the first one migrates"
    async with running_replica(pooler.conninfo, LEASE) as other:
        yield other


@pytest_asyncio.fixture(loop_scope="module", params=[True, False], ids=["session", "unary"])
async def env(request: pytest.FixtureRequest, replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, session=request.param) as env:
        yield env


@pytest.fixture
def observer(pooler: PgBouncer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(pooler.conninfo, autocommit=True, prepare_threshold=None) as connection:
        yield connection


async def test_the_schema_can_be_migrated_again_through_it(
    pooler: PgBouncer, replica: Replica
) -> None:
    assert replica.engine.serving.is_set()
    assert await asyncio.to_thread(migrate, pooler.conninfo) == []


async def test_calls_and_timers_work(env: Env) -> None:
    await env.timed("p", answering(b"fired"), answering(b"called"), after=0.2)
    await env.settled("p", 2)
    await env.client.call("p", b"1")

    history = (await env.client.get("p")).history
    assert [event.payload for event in history] == [b"fired", b"called"]


async def test_a_crowd_of_callers_is_answered_each_with_its_own(
    env: Env, observer: psycopg.Connection[Any]
) -> None:
    names = [f"p{number}" for number in range(20)]
    for name in names:
        await env.running(name)
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(env.client.call(name, b"%s %d" % (name.encode(), number)))
            for number in range(20)
            for name in names
        ]

    answers = {task.result().response for task in calls}
    assert answers == {b"%s %d" % (name.encode(), n) for name in names for n in range(20)}
    assert not broken_invariants(observer)


async def test_answers_across_replicas_arrive_although_notifications_do_not(
    env: Env, other: Replica
) -> None:
    hang, _ = await env.busy("p")
    async with env.client_at(other.address) as elsewhere, asyncio.TaskGroup() as group:
        waiting = group.create_task(elsewhere.call("p", b"2"))
        await other.points.wait("admitted", key=env.key("p"))
        hang.released.set()

    answer = waiting.result()
    assert answer.response == b"2"
    assert env.points.count("settled", task_id=answer.task_id) == 1


class TestKilled:
    async def test_requests_are_told_and_served_again_once_it_is_back(
        self, env: Env, pooler: PgBouncer
    ) -> None:
        await env.running("p")
        await asyncio.to_thread(pooler.kill)
        await health_becomes(env.replica.address, NOT_SERVING)
        status = await refusal(env.client.call("p", b"lost"))
        await asyncio.to_thread(pooler.start)
        await health_becomes(env.replica.address, SERVING)
        answer = await env.client.call("p", b"1")

        assert status.reason == "STORAGE_UNAVAILABLE"
        assert answer.response == b"1"

    async def test_callers_with_keys_are_all_answered_once(
        self, env: Env, pooler: PgBouncer
    ) -> None:
        names = [f"p{number}" for number in range(10)]
        for name in names:
            await env.running(name)

        async def call(name: str, number: int) -> bytes:
            answer = await env.client.call(
                name, b"%d" % number, idempotency_key=f"k{number}", timeout=PATIENCE_SECONDS
            )
            response: bytes = answer.response
            return response

        async with asyncio.TaskGroup() as group:
            calls = {n: group.create_task(call(names[n % 10], n)) for n in range(200)}
            await env.asked("p0", 2)
            await asyncio.to_thread(pooler.kill)
            await asyncio.to_thread(pooler.start)

        assert all(task.result() == b"%d" % number for number, task in calls.items())
        for name in names:
            history = (await env.client.get(name)).history
            assert [event.event_id for event in history] == list(range(1, 21))
            assert len({event.payload for event in history}) == 20

    async def test_an_engine_that_starts_meanwhile_waits_for_it(self, pooler: PgBouncer) -> None:
        await asyncio.to_thread(pooler.kill)
        async with starting_replica(pooler.conninfo) as waiting:
            await health_becomes(waiting.address, NOT_SERVING)
            await asyncio.to_thread(pooler.start)

            await health_becomes(waiting.address, SERVING)


async def test_a_server_behind_it_that_was_demoted_is_away_until_it_takes_writes(
    env: Env, pooler: PgBouncer, cluster: Cluster
) -> None:
    """The pooler goes on to tell new clients what was so when it began."""
    await env.running("p")
    await asyncio.to_thread(switch, cluster, pooler, demoted=True)
    await health_becomes(env.replica.address, NOT_SERVING)
    status = await refusal(env.client.call("p", b"lost"))
    await asyncio.to_thread(pooler.kill)
    await asyncio.to_thread(pooler.start)
    await asyncio.to_thread(switch, cluster, pooler, demoted=False)
    await health_becomes(env.replica.address, SERVING)
    answer = await env.client.call("p", b"1")

    assert status.reason == "STORAGE_UNAVAILABLE"
    assert answer.response == b"1"


def switch(cluster: Cluster, pooler: PgBouncer, *, demoted: bool) -> None:
    """Let new sessions of the database refuse writes, or take them, and end those there are."""
    name = str(conninfo_to_dict(pooler.conninfo)["dbname"])
    change = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        connection.execute(change.format(sql.Identifier(name), sql.SQL("on" if demoted else "off")))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            [name],
        )


async def test_a_name_that_is_missing_disturbs_none_of_the_statements_under_way(
    pooler: PgBouncer,
) -> None:
    statement = direct(b"SELECT %b::bigint")
    async with await connect(pooler.conninfo) as connection:
        await statement.execute(connection, [0])
        # On every session behind the pooler that may come next.
        for _ in range(20):
            with psycopg.connect(pooler.conninfo, autocommit=True, prepare_threshold=None) as it:
                it.execute("DEALLOCATE ALL")
        async with asyncio.TaskGroup() as group:
            under_way = [
                group.create_task(statement.execute(connection, [number])) for number in range(50)
            ]

    assert [task.result() for task in under_way] == [[(number,)] for number in range(50)]
