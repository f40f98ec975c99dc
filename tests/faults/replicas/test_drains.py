"""SIGTERM to a replica in the middle of a disaster: it leaves in time, and nothing is lost.

Half of its steps are answered while it drains, the other half never. What PostgreSQL can be told is
told: those are settled, and the leases of these handed back, so that their attempts do not count.
Otherwise the others find the leases lost.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor.sdk import BYTES, Client, NamespaceConfig, RetryPolicy
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.process import running_process
from tests.support.engine.replica import Env, Replica
from tests.support.faults.disasters import ABSENT, CUT_OFF, DISASTERS, PASSING, Target
from tests.support.faults.env import asked_twice, until
from tests.support.faults.processor import STREAM, UNARY, processor_process
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import Answer, Hang
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 6
DRAIN_SECONDS = 1.0
BOUND_SECONDS = 15.0
"""What leaving may take beyond the drain timeout where PostgreSQL does not answer: 5 s to write
what is decided, as long as the lease for a heartbeat that hangs, and what a farewell and the pools
wait for a connection; with patience for a busy machine."""

STAYING = {"replica.lease_timeout_seconds": "2", "database.connect_timeout_seconds": "1"}
LEAVING = {
    **STAYING,
    "server.drain_timeout_seconds": str(DRAIN_SECONDS),
    "database.statement_timeout_seconds": "1",
}

PATIENT = RetryPolicy(
    initial_interval=dt.timedelta(milliseconds=50), coefficient=1.0, attempts_max=1000
)


@pytest.fixture(scope="module")
def database(conninfo: str) -> str:
    return conninfo


@pytest.fixture
def target(mortal: Cluster, database: str, proxy: Proxy) -> Target:
    return Target(cluster=mortal, conninfo=database, proxy=proxy)


def rows(conninfo: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Return what a query finds, on a connection of its own: the server may have been restarted."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def events(conninfo: str, namespace: str) -> dict[str, list[bytes]]:
    query = (
        "SELECT process_id, array_agg(payload ORDER BY event_id) FROM progressor.events"
        " WHERE namespace = %s GROUP BY process_id"
    )
    return dict(rows(conninfo, query, namespace))


def attempts(conninfo: str, namespace: str, args: bytes) -> dict[str, int]:
    query = (
        "SELECT process_id, attempt_count FROM progressor.tasks"
        " WHERE namespace = %s AND args = %s AND task_type = 'call'"
    )
    return dict(rows(conninfo, query, namespace, args))


@contextlib.asynccontextmanager
async def work_in_hand(env: Env, address: str, hang: Hang) -> AsyncIterator[list[str]]:
    """Have steps in hand at a replica, and a call behind each; yields the processes.

    The even ones are answered once `hang` is released, the others are not.
    """
    names = [f"p{number}" for number in range(COUNT)]
    for number, name in enumerate(names):
        await env.running(name, Hang() if number % 2 else hang, Answer())
    async with env.client_at(address) as there:
        for name in names:
            await there.call(name, b"1", accept_only=True)
        await env.processor.received(2 * COUNT, seconds=PATIENCE_SECONDS)
        for name in names:
            await there.call(name, b"2", accept_only=True)
        yield names


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What became of a drain: how it ended, what was counted, how often each process was asked."""

    code: int
    took: float
    attempts: dict[str, int]
    asked: list[int]
    asked_twice: list[tuple[int, int]]


async def drained(second_replica: Replica, target: Target, directory: Path, name: str) -> Drained:
    """Have a replica drain in a disaster, and all its work done by the one that stays."""
    hang = Hang()
    async with judged_env(second_replica) as env:
        async with running_process(target.proxy.conninfo, directory, LEAVING) as leaving:
            async with work_in_hand(env, leaving.address, hang) as names:
                pass
            async with DISASTERS[name](target):
                begun_at = time.monotonic()
                leaving.terminate()
                hang.released.set()
                code = await leaving.left()
                took = time.monotonic() - begun_at
        all_done = {each: [b"1", b"2"] for each in names}
        await until(env.points, lambda: events(target.conninfo, env.namespace) == all_done)
        return Drained(
            code=code,
            took=took,
            attempts=attempts(target.conninfo, env.namespace, b"1"),
            asked=[len(env.asked_for(each)) for each in names],
            asked_twice=list(asked_twice(env)),
        )


@pytest.mark.matrix
@pytest.mark.parametrize("name", PASSING)
async def test_a_drain_settles_what_is_answered_and_hands_the_rest_back(
    second_replica: Replica, target: Target, tmp_path: Path, name: str
) -> None:
    found = await drained(second_replica, target, tmp_path, name)

    assert (found.code, found.asked_twice) == (0, [])
    assert found.took < DRAIN_SECONDS + BOUND_SECONDS
    # What is handed back is asked for again, and neither attempt counts for more than the other.
    assert set(found.attempts.values()) == {1}
    assert found.asked == [3, 4] * (COUNT // 2)


@pytest.mark.slow
async def test_a_drain_without_a_way_to_the_database_ends_in_time_and_loses_nothing(
    second_replica: Replica, target: Target, tmp_path: Path
) -> None:
    drains: dict[str, asyncio.Task[Drained]] = {}
    with contextlib.ExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            for name in CUT_OFF:
                # Each breaks a way of its own, so they need not wait for each other.
                own_way = stack.enter_context(running_proxy(target.conninfo))
                directory = tmp_path / name
                directory.mkdir()
                drains[name] = group.create_task(
                    drained(
                        second_replica, dataclasses.replace(target, proxy=own_way), directory, name
                    ),
                    name=name,
                )

    for drain in drains.values():
        check_cut_off(drain.result())


@pytest.mark.matrix
@pytest.mark.parametrize("name", ABSENT)
async def test_a_drain_while_the_server_is_away_ends_in_time_and_loses_nothing(
    second_replica: Replica, target: Target, tmp_path: Path, name: str
) -> None:
    check_cut_off(await drained(second_replica, target, tmp_path, name))


def check_cut_off(found: Drained) -> None:
    """Assert that a replica left in time, and that the other one needed one more attempt."""
    assert (found.code, found.asked_twice) == (0, [])
    assert found.took < DRAIN_SECONDS + BOUND_SECONDS
    assert max(found.attempts.values()) <= 2
    assert max(found.asked) <= 4


@pytest.mark.matrix
@pytest.mark.parametrize("mode", [STREAM, UNARY])
@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "dead"])
async def test_a_drain_does_not_wait_for_a_processor_that_is_gone(
    second_replica: Replica, database: str, tmp_path: Path, mode: str, is_frozen: bool
) -> None:
    namespace = f"{mode}-{'frozen' if is_frozen else 'dead'}"
    address = f"unix:{tmp_path}/processor.sock"
    config = NamespaceConfig(name=namespace, processor_targets=(address,), retry_policy=PATIENT)
    names = [f"p{number}" for number in range(COUNT)]
    async with (
        Client(second_replica.address, namespace=namespace, codec=BYTES) as here,
        running_process(database, tmp_path, LEAVING) as leaving,
        Client(leaving.address, namespace=namespace, codec=BYTES) as there,
        processor_process(address, mode, tmp_path) as processor,
    ):
        await here.namespaces.create(config)
        for name in names:
            await here.start(name)
            await there.call(name, b"hang " + name.encode(), accept_only=True)
            await there.call(name, b"2", accept_only=True)
        await eventually(lambda: all((tmp_path / f"hang {name}").exists() for name in names))
        (processor.freeze if is_frozen else processor.kill)()
        begun_at = time.monotonic()
        leaving.terminate()
        code = await leaving.left()
        took = time.monotonic() - begun_at
        async with contextlib.AsyncExitStack() as stack:
            if is_frozen:
                processor.thaw()
            else:
                await processor.left()
                await stack.enter_async_context(processor_process(address, mode, tmp_path))
            all_done = {name: [b"hang " + name.encode(), b"2"] for name in names}
            await until(second_replica.points, lambda: events(database, namespace) == all_done)

    assert code == 0
    assert took < DRAIN_SECONDS + BOUND_SECONDS
    if is_frozen:
        # What is handed back does not count; but the processor that goes on may find the attempt
        # before still running, and say so once.
        for name in names:
            counted = attempts(database, namespace, b"hang " + name.encode())
            assert counted in ({name: 1}, {name: 2})
