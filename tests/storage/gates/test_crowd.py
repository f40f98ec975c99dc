"""However many wait on one process, or for the same gate, a statement reads no more for it."""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import Connection
from progressor.storage.processes import admissions
from progressor.storage.steps.settlements import Written
from tests.storage.gates.seed import TABLES
from tests.support.clock import START, ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import reads_of
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    EXPIRES_AFTER,
    NAMESPACE,
    Store,
    a_request,
    connect,
    create_namespace,
    running_stores,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

FEW, MANY = 30, 300
NOW = START + dt.timedelta(seconds=1)
SLACK = 12
"""Rows of a table that are left to chance: versions that are dead, one more level of an index."""

CROWDED = process_key(NAMESPACE.name, "crowded")
HOLDER = process_key(NAMESPACE.name, "holder")
MUTEX = Constraints(gates={"a": 1})


@dataclasses.dataclass(frozen=True, slots=True)
class Crowd:
    """A process with a step in hand on which many wait, and another that holds their gate."""

    connection: Connection
    step: RunningTask
    holder: RunningTask
    last_id: int


async def the_step_ends(crowd: Crowd, store: Store) -> None:
    await _settle(crowd, store, crowd.step)
    assert [key for key, _ in _due(store)] == [CROWDED]


async def the_gate_is_left(crowd: Crowd, store: Store) -> None:
    await _settle(crowd, store, crowd.holder)
    assert _due(store) == []


async def one_after_the_other_passes(crowd: Crowd, store: Store) -> None:
    await _settle(crowd, store, crowd.step)
    await _settle(crowd, store, crowd.holder)
    for _ in range(3):
        [*_, due] = _due(store)
        store.reported.clear()
        [claimed] = await store.claim(*due)
        await _settle(crowd, store, claimed.task)


async def one_more_comes(crowd: Crowd, store: Store) -> None:
    entry = admissions.Entry(a_request(CROWDED, constraints=MUTEX), False, EXPIRES_AFTER)
    await store.admissions._gated_requests._kind.write(crowd.connection, [entry], False)


async def one_of_them_is_cancelled(crowd: Crowd, store: Store) -> None:
    await store.cancel(CROWDED, crowd.last_id)


WORK: tuple[Callable[[Crowd, Store], Awaitable[None]], ...] = (
    the_step_ends,
    the_gate_is_left,
    one_after_the_other_passes,
    one_more_comes,
    one_of_them_is_cancelled,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowds(cluster: Cluster) -> AsyncIterator[Mapping[int, Crowd]]:
    found = {}
    for count in (FEW, MANY):
        conninfo = cluster.create_database()
        migrate(conninfo)
        create_namespace(conninfo)
        async with running_stores(conninfo, clock=ManualClock(START)) as (store,):
            found[count] = await _crowd(store, await connect(conninfo), count)
        with psycopg.connect(conninfo, autocommit=True) as observer:
            assert broken_invariants(observer, at_rest=False, now=START) == {}
    yield found
    for crowd in found.values():
        await crowd.connection.close()


async def _crowd(store: Store, connection: Connection, count: int) -> Crowd:
    """Have three kinds wait: for the gate, for an instant each, and for nothing but the process."""
    await store.started(HOLDER)
    await store.admit(a_request(HOLDER, constraints=MUTEX), run=False)
    [due] = _due(store)
    [holder] = await store.claim(*due)
    await store.started(CROWDED)
    step = await store.run_task(a_request(CROWDED))
    asked = []
    for number in range(count):
        later = START + dt.timedelta(hours=1, seconds=number)
        asked.append(await store.admit(a_request(CROWDED, constraints=MUTEX), run=False))
        await store.admit(a_request(CROWDED, constraints=Constraints(run_at=later)), run=False)
        await store.admit(a_request(CROWDED), run=False)
    assert asked[-1].task_id is not None
    return Crowd(connection, step, holder.task, asked[-1].task_id)


async def _settle(crowd: Crowd, store: Store, task: RunningTask) -> None:
    [settled] = await store.settlements._plain._kind.write(
        crowd.connection, [store.entry(task)], False
    )
    assert isinstance(settled, Written)
    store.effects.apply(settled.effects)


def _due(store: Store) -> list[tuple[ProcessKey, int]]:
    return [due for promoted in store.reported for due in promoted.due]


@pytest.mark.matrix
@pytest.mark.parametrize("work", WORK, ids=[work.__name__ for work in WORK])
async def test_it_reads_no_more_for_a_crowd(
    crowds: Mapping[int, Crowd], work: Callable[[Crowd, Store], Awaitable[None]]
) -> None:
    read = {}
    for count, crowd in crowds.items():

        async def done(store: Store, crowd: Crowd = crowd) -> None:
            await work(crowd, store)

        read[count] = await reads_of(crowd.connection, ManualClock(NOW), done)

    for table in TABLES:
        few, many = read[FEW][table], read[MANY][table]
        assert (table, few.sequential, many.sequential) == (table, 0, 0)
        assert many.by_index <= few.by_index + SLACK, (table, few.by_index, many.by_index)
