"""The example of the seed, its nodes ended in every order that the graph allows.

Each step is a settlement of its own, undone again by a savepoint to try the next. Where two orders
have ended the same nodes, the tables must say the same; so it is enough to go on from there once,
and every step of every order is made. With HYPOTHESIS_PROFILE=ci, or nightly, it goes on from there
each time: 1,602 whole orders, in half a minute.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask
from progressor.storage.postgres.pools import Connection
from tests.conftest import PROFILE
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import (
    SEED_EXAMPLE,
    Graph,
    order_count,
    running,
    specs,
    states,
)
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import JobStore, job_store, leader_of
from tests.support.storage.store import (
    connect,
    create_namespace,
    empty,
    lent,
    running_stores,
    store,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ORDERS, ORDERS_WHERE_4_FAILS = 1602, 196
SETS_OF_ENDED = 56
FOURTH_EDGE = [
    {**SEED_EXAMPLE, "7": ("1", "4"), last: (*SEED_EXAMPLE[last], "2")} for last in ("8", "9")
]
NO_FAILURE: frozenset[str] = frozenset()


@pytest_asyncio.fixture(loop_scope="module")
async def connection(database: str) -> AsyncIterator[Connection]:
    create_namespace(database)
    with psycopg.connect(database, autocommit=True) as observer:
        empty(observer)
    async with await connect(database) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def alone(connection: Connection) -> AsyncIterator[JobStore]:
    """Return a replica's storage on one connection, in whose transaction a test may be."""
    own = store(lent(connection), clock=ManualClock())
    async with asyncio.TaskGroup() as group:
        for commits in (own.admissions, own.settlements):
            group.create_task(commits.run(), name="commits")
        yield job_store(own)
        own.admissions.close()
        own.settlements.close()


class Explorer:
    """Ends the nodes of one job in every order."""

    def __init__(
        self, connection: Connection, jobs: JobStore, graph: Graph, fails: frozenset[str]
    ) -> None:
        self.connection, self.jobs, self.graph, self.fails = connection, jobs, graph, fails
        self.leader = leader_of(1)
        self.seen: dict[frozenset[str], object] = {}
        self.order_count = 0

    async def begin(self) -> dict[str, RunningTask]:
        await self.jobs.submit(self.leader, specs(self.graph))
        return await self.jobs.claim()

    async def go_on(
        self, ended: Mapping[str, str], tasks: Mapping[str, RunningTask], *, everywhere: bool
    ) -> None:
        """Try each node that can end now, and go on from there.

        Without `everywhere`, only from where no other order has come to: the tables say the same
        there, whatever the order was.
        """
        assert sorted(tasks) == sorted(running(self.graph, ended))
        self.order_count += not tasks
        for name in tasks:
            async with self.connection.transaction(force_rollback=True):
                await self.jobs.end(tasks, name, fails=self.fails)
                after = {**ended, name: "failed" if name in self.fails else "done"}
                left = {other: task for other, task in tasks.items() if other != name}
                begun = await self.jobs.claim()
                begun.pop(self.leader.process_id, None)
                is_new = await self.compare(after)
                if is_new or everywhere:
                    await self.go_on(after, left | begun, everywhere=everywhere)

    async def compare(self, ended: Mapping[str, str]) -> bool:
        """Compare with the model, and with where other orders have come to; is it new?"""
        picture = await self.jobs.picture(self.leader)
        assert {row[0]: row[1] for row in picture[0]} == states(self.graph, ended)
        before = self.seen.setdefault(frozenset(ended), picture)
        assert picture == before
        return before is picture


async def test_every_order_gives_the_same_step_by_step(
    connection: Connection, alone: JobStore
) -> None:
    explorer = Explorer(connection, alone, SEED_EXAMPLE, NO_FAILURE)
    async with connection.transaction():
        await explorer.go_on({}, await explorer.begin(), everywhere=PROFILE in {"ci", "nightly"})

    assert order_count(SEED_EXAMPLE) == ORDERS
    assert explorer.order_count in {1, ORDERS}
    assert len(explorer.seen) == SETS_OF_ENDED - 1


async def test_every_order_in_which_4_fails_gives_the_same_step_by_step(
    connection: Connection, alone: JobStore
) -> None:
    explorer = Explorer(connection, alone, SEED_EXAMPLE, frozenset("4"))
    async with connection.transaction():
        await explorer.go_on({}, await explorer.begin(), everywhere=True)

    assert explorer.order_count == ORDERS_WHERE_4_FAILS


@pytest.mark.parametrize("graph", FOURTH_EDGE, ids=["2 to 8", "2 to 9"])
@pytest.mark.parametrize("fails", ["", "4", "2", "6", "46", "159"])
async def test_whatever_fails_and_wherever_the_fourth_edge_of_2_leads_to(
    connection: Connection, alone: JobStore, graph: Graph, fails: str
) -> None:
    explorer = Explorer(connection, alone, graph, frozenset(fails))
    async with connection.transaction():
        await explorer.go_on({}, await explorer.begin(), everywhere=False)


async def test_the_leader_is_joined_once_when_the_last_has_ended(
    connection: Connection, alone: JobStore
) -> None:
    leader = leader_of(1)
    async with connection.transaction(force_rollback=True):
        await alone.submit(leader, specs(SEED_EXAMPLE))
        tasks = await alone.claim()
        for name in "123456789":
            assert leader.process_id not in tasks
            await alone.end(tasks, name)
            tasks |= await alone.claim()

        join = tasks[leader.process_id]
        assert join.task_type == "join"


PAIRS = [
    (ended, pair)
    for ended in (
        {}, {"1": "done"}, {"2": "done"}, dict.fromkeys("12", "done"),
        dict.fromkeys("1245", "done"), dict.fromkeys("1256", "done"),
        dict.fromkeys("123456", "done"),
        {**dict.fromkeys("123456", "done"), "4": "failed"}, {**dict.fromkeys("1235", "done")},
    )
    for pair in itertools.combinations(running(SEED_EXAMPLE, ended), 2)
]  # fmt: skip


@pytest.mark.parametrize("fails", ["", "4", "6", "46"])
async def test_two_that_end_at_the_same_moment_in_two_replicas(
    database: str, connection: Connection, fails: str
) -> None:
    """Also 6 and 7 of the seed, and 4 that fails with 6 that is done."""
    assert not connection.closed
    async with running_stores(database, count=2) as stores:
        here, there = map(job_store, stores)
        for number, (ended, pair) in enumerate(PAIRS):
            leader = leader_of(number)
            tasks = await _brought_to(here, leader, ended)
            async with asyncio.TaskGroup() as group:
                group.create_task(here.end(tasks, pair[0], fails=fails), name="here")
                group.create_task(there.end(tasks, pair[1], fails=fails), name="there")

            last = {name: "failed" if name in fails else "done" for name in pair}
            if pair[0] in fails and _depends(pair[1], pair[0]):
                continue
            assert await here.states(leader) == states(SEED_EXAMPLE, {**ended, **last})
    with psycopg.connect(database) as observer:
        assert broken_invariants(observer) == {}


def _depends(name: str, on: str) -> bool:
    return on in SEED_EXAMPLE[name]


async def _brought_to(
    jobs: JobStore, leader: ProcessKey, ended: Mapping[str, str]
) -> dict[str, RunningTask]:
    """Submit a job of the seed's, end these nodes in their order, and claim what runs then."""
    await jobs.submit(leader, specs(SEED_EXAMPLE))
    tasks = await jobs.claim()
    for name in sorted(ended):
        await jobs.end(tasks, name, fails=[name] if ended[name] == "failed" else [])
        tasks |= await jobs.claim()
    return {name: task for name, task in tasks.items() if name not in ended}
