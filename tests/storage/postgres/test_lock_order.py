"""Every pair of writers over the same processes, in any order, at once: no deadlock.

A deadlock is noticed within 20 ms here and fails the test. That a lock is not had within the 300 ms
that the functions wait is none, only a busy machine: nothing was written, and the engine tries
again, too.

The keys are of one slot, and the collation of the database orders them and the gates otherwise than
the keys' own, where the server has ICU.
"""

import asyncio
import contextlib
import datetime as dt
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.admission import Import
from progressor.domain.processes.intent import Complete, Lost, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus, process_key
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TaskType
from progressor.domain.views import bulk
from progressor.domain.views.bulk import BulkKind, BulkRequest
from progressor.domain.views.filter import ProcessFilter
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import Connection
from progressor.storage.postgres.rows.effects import Again, LoweredGate
from progressor.storage.processes import admissions
from progressor.storage.steps import claims, settlements
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    NAMESPACE,
    NO_TIME,
    Store,
    a_request,
    connect,
    create_namespace,
    lent,
    store,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATES = "aBc"
KEYS = [
    next(
        it
        for n in itertools.count()
        if (it := process_key(NAMESPACE.name, f"{first}{n}")).slot == 1
    )
    for first in "aBcDeF"
]
ROUNDS = 12
CONNECTIONS_EACH = 2
HOUR = dt.timedelta(hours=1)
PATIENCE_SECONDS = 30.0


class Party:
    """One connection that writes over the common processes, now these, now those."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.random = random.Random(number)
        self.store: Store = store(lent(connection), clock=ManualClock(), replica_id=number)

    def some(self) -> list[ProcessKey]:
        """Return several processes in no order."""
        return self.random.sample(KEYS, self.random.randint(2, len(KEYS)))

    def one(self) -> ProcessKey:
        return self.random.choice(KEYS)

    async def leases(self) -> list[settlements.Entry]:
        """Return settlements of what runs, of every kind, in no order."""
        outcomes: tuple[Outcome, ...] = (
            success(events=1), success(SetTimer(after=NO_TIME)), success(RemoveProcess()),
            success(Complete()), BROKEN, Lost(),
        )  # fmt: skip
        zombies = await self.store.replicas.find_zombies(limit=100, known=())
        chosen = self.random.sample(zombies, len(zombies))
        return [
            settlements.Entry(
                key=each.key,
                task_id=each.task_id,
                task_type=each.task_type,
                attempt=each.attempt,
                token=each.token,
                settlement=settle(
                    each,
                    self.random.choice(outcomes),
                    namespace=NAMESPACE,
                    now=each.found_at,
                    spread=0.0,
                ),
                process=None,
                continues=False,
                expires_after=EXPIRES_AFTER,
            )
            for each in chosen
        ]


def _entries(party: Party, task_type: TaskType) -> list[admissions.Entry]:
    return [
        admissions.Entry(
            a_request(key, task_type),
            party.random.random() < 0.5,
            EXPIRES_AFTER,
            open_max=party.random.choice((None, 1_000)),
        )
        for key in party.some()
    ]


async def admit_starts(party: Party) -> None:
    await party.store.admissions._starts._kind.write(
        party.connection, _entries(party, TaskType.INIT), False
    )


async def admit_requests(party: Party) -> None:
    task_type = party.random.choice([TaskType.CALL, TaskType.CALL, TaskType.REPAIR])
    await party.store.admissions._requests._kind.write(
        party.connection, _entries(party, task_type), False
    )


async def settle_tasks(party: Party) -> None:
    entries = await party.leases()
    if entries:
        await party.store.settlements._plain._kind.write(party.connection, entries, False)


async def claim_tasks(party: Party) -> None:
    cursor = await party.connection.execute(
        "SELECT slot, namespace, process_id, task_id FROM progressor.schedule"
    )
    wanted = [
        claims.Wanted(key=ProcessKey(*row[:3]), task_id=row[3], expires_after=EXPIRES_AFTER)
        for row in await cursor.fetchall()
    ]
    party.random.shuffle(wanted)
    by_process = {each.key: each for each in wanted}
    if by_process:
        await party.store.claims.claim_tasks(party.store.pool, list(by_process.values()))


async def claim_due(party: Party) -> None:
    await party.store.claim_due(wait=party.random.random() < 0.5)


async def remove_process(party: Party) -> None:
    with contextlib.suppress(errors.ProcessNotFoundError):
        await party.store.remove(party.one())


async def put_process(party: Party) -> None:
    status = party.random.choice([ProcessStatus.RUNNING, ProcessStatus.FINISHED])
    timer = SetTimer(after=NO_TIME) if status is ProcessStatus.RUNNING else None
    await party.store.put(Import(key=party.one(), status=status, timer=timer))


async def simple_repair(party: Party) -> None:
    await party.store.recover(party.one())


async def await_task(party: Party) -> None:
    cursor = await party.connection.execute(
        "SELECT slot, namespace, process_id, task_id FROM progressor.tasks LIMIT 20"
    )
    for row in await cursor.fetchall():
        try:
            await party.store.results.await_task(ProcessKey(*row[:3]), row[3])
        except errors.NotFoundError:
            continue


async def delete_finished(party: Party) -> None:
    await party.store.retention.delete_finished("orders", age=-HOUR, limit=3)


async def delete_old_tasks(party: Party) -> None:
    await party.store.retention.delete_old_tasks(range(2**31), {"orders": -HOUR}, limit=5)


async def apply_bulk(party: Party) -> None:
    """Apply an operation to what there is; delete operations whose process another has removed."""
    bulks, name = Bulks(party.store.context), f"{party.random.random()}"
    request = BulkRequest(
        operation_id=name, kind=party.random.choice(list(BulkKind)), filter=ProcessFilter(),
        reason="bulk", failed_share_max=1.0, follow=True,
    )  # fmt: skip
    await bulks.start(request, {})
    with contextlib.suppress(errors.ProcessNotFoundError):
        await bulks.match(name)
        await bulks.apply(await bulks.get(name), limit=len(KEYS))
        await bulks.stop(name, "enough")
    await bulks.delete()


async def admit_gated(party: Party) -> None:
    """Requests that want several gates each, in no order, and may have an order."""
    constraints = [
        Constraints(
            gates=dict.fromkeys(party.random.sample(GATES, party.random.randint(1, 3)), 2),
            order=party.random.choice([None, Order("o", Version((party.random.randrange(9),)))]),
        )
        for _ in KEYS
    ]
    entries = [
        admissions.Entry(a_request(key, constraints=wanted), False, EXPIRES_AFTER)
        for key, wanted in zip(party.some(), constraints, strict=False)
    ]
    await party.store.admissions._gated_requests._kind.write(party.connection, entries, False)


async def cancel_task(party: Party) -> None:
    cursor = await party.connection.execute(
        "SELECT slot, namespace, process_id, task_id FROM progressor.gated"
    )
    for row in party.random.sample(found := await cursor.fetchall(), min(3, len(found))):
        with contextlib.suppress(errors.RequestError):
            await party.store.cancel(ProcessKey(*row[:3]), row[3])


async def set_gate(party: Party) -> None:
    gate, capacity = party.random.choice(GATES), party.random.randrange(4)
    await party.store.set_capacity(gate, capacity)
    await party.store.evict_holders(LoweredGate(NAMESPACE.name, gate))


async def look_again(party: Party) -> None:
    again = [Again(namespace=NAMESPACE.name, gate=gate) for gate in GATES]
    again.append(Again(namespace=NAMESPACE.name, order_key="o"))
    party.random.shuffle(again)
    await party.store.gates.look_again(NAMESPACE.name, again)
    await party.store.gates.promote_due([NAMESPACE.name])


Writer = Callable[[Party], Awaitable[None]]

WRITERS: tuple[Writer, ...] = (
    admit_starts, admit_requests, settle_tasks, claim_tasks, claim_due, remove_process,
    put_process, simple_repair, await_task, delete_finished, delete_old_tasks, apply_bulk,
)  # fmt: skip
GATED: tuple[Writer, ...] = (admit_gated, cancel_task, set_gate, look_again)
# Of the others, those that leave gates.
LEAVING: tuple[Writer, ...] = (settle_tasks, claim_due, remove_process, apply_bulk)
PAIRS = [
    *itertools.combinations_with_replacement(WRITERS, 2),
    *itertools.combinations_with_replacement(GATED, 2),
    *itertools.product(GATED, LEAVING),
]


async def _patiently(party: Party, writer: Writer) -> None:
    # A lock that is never released is a defect all the same.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await writer(party)
            except (psycopg.errors.LockNotAvailable, errors.StorageLockedError):
                continue


async def write_at_once(
    parties: list[Party], one: Writer, other: Writer, feeds: Sequence[Writer]
) -> None:
    """Have all but one party write, half of them each, and that one give them something to."""
    *writing, feeding = parties

    async def write(party: Party, writer: Writer) -> None:
        for _ in range(ROUNDS):
            await _patiently(party, writer)

    async with asyncio.TaskGroup() as group:
        for number, party in enumerate(writing):
            group.create_task(write(party, (one, other)[number % 2]))
        # Something to write over; what is fed is taken by those who write.
        for feed in feeds:
            await _patiently(feeding, feed)


@pytest.fixture(scope="module")
def database(cluster: Cluster) -> Iterator[str]:
    conninfo = cluster.create_unordered_database()
    migrate(conninfo)
    yield conninfo
    cluster.drop_database(conninfo)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parties(database: str) -> AsyncIterator[list[Party]]:
    """Return connections that notice a deadlock within 20 ms."""
    create_namespace(database)
    create_namespace(database, bulk.NAMESPACE)
    options = "-c deadlock_timeout=20ms -c synchronous_commit=off"
    impatient = make_conninfo(database, options=options)
    connections = [await connect(impatient) for _ in range(2 * CONNECTIONS_EACH + 1)]
    yield [Party(each, number) for number, each in enumerate(connections, start=1)]
    for each in connections:
        await each.close()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("one", "other"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
async def test_two_writers_never_lock_each_other_out(
    parties: list[Party],
    database: str,
    one: Writer,
    other: Writer,
) -> None:
    feeding_gates = [admit_gated] * (2 if {one, other} & {*GATED} else 0)
    feeds = (admit_starts, admit_requests, *feeding_gates, claim_due)

    await write_at_once(parties, one, other, feeds)

    # A deadlock would have been an error of one of them.
    with psycopg.connect(database, autocommit=True) as observer:
        assert broken_invariants(observer) == {}
        counted = observer.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert counted == (0,)
