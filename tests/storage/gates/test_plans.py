"""No promotion reads a whole table, and none reads more where ten times as many wait."""

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TaskType
from progressor.storage.gates.gates import IDLE_WINDOW, Evicted
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import Connection
from progressor.storage.postgres.rows.effects import BATCH_MAX, Again, LoweredGate
from progressor.storage.processes import admissions
from progressor.storage.steps import settlements
from tests.storage.gates.seed import (
    GATES_COUNT,
    TABLES,
    gate,
    holder_key,
    idle_key,
    seed_gates,
    waiting_key,
    waiting_task,
)
from tests.support.builders import make_task
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
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

FEW, MANY = 1_000, 10_000
BATCH = 16
ROOM = 5
"""Fewer than wait for one gate alone, where few wait: as many are promoted where many do."""

PER_TASK = 40
"""Rows that one statement may read per table for each task that it settles, admits or promotes."""

SOON = START + dt.timedelta(seconds=BATCH)


async def leave_gates(store: Store) -> None:
    """Settle tasks that hold gates: the next in line of each is promoted."""
    entries = [
        settlements.Entry(
            key=holder_key(number),
            task_id=1_000_000_000 + number,
            task_type=TaskType.CALL,
            attempt=1,
            token=number,
            settlement=settle(
                make_task(),
                success(),
                namespace=NAMESPACE,
                now=START,
                spread=0.0,
            ),
            process=None,
            continues=True,
            expires_after=EXPIRES_AFTER,
        )
        for number in range(1, GATES_COUNT, GATES_COUNT // BATCH)
    ]
    written, *_ = await store.settlements._plain._kind.write(_connection(store), entries, False)
    assert isinstance(written, settlements.Written)
    assert len(written.effects.due) >= BATCH


async def come_into_lines(store: Store) -> None:
    entries = [
        admissions.Entry(
            a_request(idle_key(number), constraints=Constraints(gates={gate(number): 1})),
            False,
            EXPIRES_AFTER,
        )
        for number in range(1, BATCH + 1)
    ]
    await store.admissions._gated_requests._kind.write(_connection(store), entries, False)


async def look_again(store: Store) -> None:
    await _connection(store).execute(
        "UPDATE progressor.gates SET capacity = 2 WHERE namespace = %s AND gate < %s",
        [NAMESPACE.name, gate(BATCH + 1)],
    )
    again = [Again(namespace=NAMESPACE.name, gate=gate(number)) for number in range(1, BATCH + 1)]
    promoted = await store.gates.look_again(NAMESPACE.name, again)
    assert len(promoted.due) >= BATCH // 2


async def see_instants_come(store: Store) -> None:
    await store.gates.promote_due([NAMESPACE.name])


async def raise_a_capacity(store: Store) -> None:
    # Without the answer of `set`: for that it counts who waits, as far as it counts.
    found = await _set_capacity(store, 1 + ROOM)
    assert (found.verdict, len(found.effects)) == ("changed", ROOM)


async def lower_a_capacity(store: Store) -> None:
    await raise_a_capacity(store)
    found = await _set_capacity(store, 1)
    assert (found.verdict, found.is_lowered) == ("changed", True)
    evicted = await store.evict_holders(LoweredGate(NAMESPACE.name, gate(1)))
    assert evicted == Evicted(ROOM, is_done=True)


async def _set_capacity(store: Store, capacity: int) -> Any:
    [found] = await store.context.call(
        store.gates._set_gate,
        **store.context.own_arguments(),
        limit=BATCH_MAX,
        namespace=NAMESPACE.name,
        gate=gate(1),
        capacity=capacity,
        revision=0,
    )
    return found


async def cancel(store: Store) -> None:
    for number in range(FEW // 2, FEW // 2 + BATCH):
        await store.cancel(waiting_key(number), waiting_task(number))


async def find_what_is_idle(store: Store) -> None:
    found, until = await store.gates.find_idle([NAMESPACE.name])
    assert (found, until.order_namespace) == ((), NAMESPACE.name)


WORK: tuple[tuple[Callable[[Store], Awaitable[None]], int], ...] = (
    (leave_gates, PER_TASK * BATCH),
    (come_into_lines, PER_TASK * BATCH),
    (look_again, PER_TASK * BATCH),
    (see_instants_come, PER_TASK * BATCH),
    (raise_a_capacity, PER_TASK * BATCH),
    (lower_a_capacity, PER_TASK * BATCH),
    (cancel, PER_TASK * BATCH),
    # From order to order, of which each task that waits for its instant has one of its own.
    (find_what_is_idle, 5 * IDLE_WINDOW),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowds(cluster: Cluster) -> AsyncIterator[Mapping[int, Connection]]:
    """Return connections to two databases: in one few wait, in the other many."""
    found = {}
    for count in (FEW, MANY):
        conninfo = cluster.create_database()
        migrate(conninfo)
        seed_gates(conninfo, waiting=count)
        with psycopg.connect(conninfo, autocommit=True) as observer:
            broken = broken_invariants(observer, at_rest=True, now=START)
        # The seed writes no init tasks and no counts: nothing of this looks at them.
        assert broken.keys() <= {
            "processes_leave_init_with_their_init_task", "counts_equal_processes",
        }  # fmt: skip
        found[count] = await connect(conninfo)
    yield found
    for connection in found.values():
        await connection.close()


@pytest.mark.parametrize(("work", "rows_max"), WORK, ids=[work.__name__ for work, _ in WORK])
async def test_it_reads_by_index_what_it_decides_about(
    crowds: Mapping[int, Connection], work: Callable[[Store], Awaitable[None]], rows_max: int
) -> None:
    clock = ManualClock(SOON if work is see_instants_come else START)
    read = {count: await reads_of(crowd, clock, work) for count, crowd in crowds.items()}

    for table in TABLES:
        few, many = read[FEW][table], read[MANY][table]
        assert (table, few.sequential, many.sequential) == (table, 0, 0)
        assert (table, many.by_index) <= (table, rows_max)
        # One more level of an index does not count as a row; what is left is chance.
        assert many.by_index <= 1.3 * few.by_index + BATCH, table


async def test_a_settlement_reads_no_task_that_it_does_not_change(
    crowds: Mapping[int, Connection],
) -> None:
    """Of a process with many tasks, ended and waiting, where most processes have one."""
    key, counts = holder_key(1), {"few": 10, "many": 1000}
    found = {}
    for name, count in counts.items():

        async def work(store: Store, count: int = count) -> None:
            for statement in _LONG_STANDING:
                await _connection(store).execute(
                    statement, {"slot": key.slot, "process_id": key.process_id, "count": count}
                )
            await leave_gates(store)

        found[name] = await reads_of(crowds[FEW], ManualClock(SOON), work)

    assert found["many"]["tasks"].by_index <= found["few"]["tasks"].by_index + BATCH


_LONG_STANDING: tuple[LiteralString, ...] = (
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, created_at, finished_at)
    SELECT %(slot)s, 'orders', %(process_id)s, n, 'call', 'finished', '2026-01-01', '2026-01-01'
    FROM generate_series(1, %(count)s) n""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, created_at, constraints)
    SELECT %(slot)s, 'orders', %(process_id)s, 1500000000 + n, 'call', 'waiting', '2026-01-01', '{}'
    FROM generate_series(1, %(count)s) n""",
    """
    INSERT INTO progressor.gated
        (slot, namespace, process_id, task_id, task_type, state, state_since, ready_at, priority,
         gates, hold, replica_id)
    SELECT %(slot)s, 'orders', %(process_id)s, 1500000000 + n, 'call', 'process', '2026-01-01',
        '2026-01-01', 3, '{g001}', 'task', 1
    FROM generate_series(1, %(count)s) n""",
)


def _connection(store: Store) -> Connection:
    connection: Any = store.pool
    return connection.lent  # type: ignore[no-any-return]  # the pool of one that the test lends
