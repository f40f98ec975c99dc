"""Every pair of writers of jobs over the same leaders and followers, at once: no deadlock.

As ``test_lock_order``, whose parties these are. Any process may lead, and follow another.
"""

import contextlib
import itertools
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.graph import NodePlan, plan_nodes
from progressor.domain.jobs.job import JobFilter, JobState, NodeSpec, StartNodes
from progressor.domain.processes.intent import Complete, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.process import Leadership, ProcessKey
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TaskType
from progressor.runtime.jobs import JobControl
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.processes import admissions
from progressor.storage.replicas.replicas import Zombie
from progressor.storage.steps import settlements
from tests.storage.postgres.test_lock_order import (
    CONNECTIONS_EACH,
    HOUR,
    Party,
    Writer,
    claim_due,
    delete_finished,
    remove_process,
    simple_repair,
    write_at_once,
)
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import job_store
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    NAMESPACE,
    NO_TIME,
    a_request,
    connect,
    create_namespace,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _jobs(party: Party) -> Jobs:
    return job_store(party.store).jobs


def _control(party: Party) -> JobControl:
    return job_store(party.store).control


def _graph(party: Party, leader: ProcessKey) -> StartNodes:
    """Return a chain of the other processes, which may be there already."""
    others = [key.process_id for key in party.some() if key != leader]
    gates = Constraints(gates={"a": 2})
    return StartNodes(
        nodes=tuple(
            NodeSpec(
                name=name,
                process_id=name,
                predecessors=tuple(others[number - 1 : number]) if number % 2 else (),
                constraints=party.random.choice([None, None, gates]),
            )
            for number, name in enumerate(others)
        ),
        timeout=party.random.choice([None, HOUR]),
    )


async def submit(party: Party) -> None:
    entries = [
        admissions.Entry(
            a_request(key, TaskType.INIT, led_by=Leadership.ENGINE), True, EXPIRES_AFTER
        )
        for key in [party.one()]
    ]
    await party.store.admissions._jobs._kind.write(party.connection, entries, False)


async def settle_jobs(party: Party) -> None:
    """Settle what runs; a leader that begins starts nodes."""
    zombies = await party.store.replicas.find_zombies(limit=100, known=())
    outcomes: tuple[Outcome, ...] = (
        success(), success(SetTimer(after=NO_TIME)), success(RemoveProcess()),
        success(Complete()), success(Complete()), success(Complete()), BROKEN,
    )  # fmt: skip
    entries = []
    for each in party.random.sample(zombies, len(zombies)):
        # The engine decides a join.
        is_join = each.task_type is TaskType.JOIN
        outcome, plan = party.random.choice(outcomes[-2:] if is_join else outcomes), None
        if each.part is not None and each.part.led_by and each.task_type is TaskType.INIT:
            action = _graph(party, each.key)
            outcome, plan = success(action), plan_nodes(each.key, action, {})
        entries.append(_entry(each, outcome, plan))
    if entries:
        await party.store.settlements._of_jobs._kind.write(party.connection, entries, False)


def _entry(each: Zombie, outcome: Outcome, plan: NodePlan | None) -> settlements.Entry:
    return settlements.Entry(
        key=each.key,
        task_id=each.task_id,
        task_type=each.task_type,
        attempt=each.attempt,
        token=each.token,
        settlement=settle(each, outcome, namespace=NAMESPACE, now=each.found_at, spread=0.0),
        process=None,
        continues=False,
        expires_after=EXPIRES_AFTER,
        part=each.part,
        plan=plan,
    )


async def cancel(party: Party) -> None:
    with contextlib.suppress(errors.RequestError):
        await _control(party).cancel(party.one(), "enough")


async def retry(party: Party) -> None:
    failed = JobFilter(states=(JobState.FAILED,))
    for job in await _jobs(party).list(NAMESPACE.name, failed, after=None, limit=3):
        with contextlib.suppress(errors.RequestError):
            await _control(party).retry(job.key, deadline=None, timeout=None)


async def maintain(party: Party) -> None:
    for key in party.some():
        await _control(party).maintain(key)
    await _control(party).stop_orphans()


async def fail_overdue(party: Party) -> None:
    await party.connection.execute(
        "UPDATE progressor.jobs SET deadline_at = %s WHERE deadline_at IS NOT NULL"
        " AND process_id = %s",
        [party.store.clock.now(), party.one().process_id],
    )
    await _control(party).fail_overdue(limit=3)


async def recover(party: Party) -> None:
    await party.connection.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity'")
    await _control(party).recover(interval=NO_TIME, age=NO_TIME)


JOBS: tuple[Writer, ...] = (
    submit, settle_jobs, cancel, retry, maintain, fail_overdue, recover,
)  # fmt: skip
OTHERS: tuple[Writer, ...] = (claim_due, remove_process, simple_repair, delete_finished)
PAIRS = [
    *itertools.combinations_with_replacement(JOBS, 2),
    *itertools.product(JOBS, OTHERS),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parties(database: str) -> AsyncIterator[list[Party]]:
    """Return connections that notice a deadlock within 20 ms."""
    create_namespace(database)
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
async def test_two_writers_of_jobs_never_lock_each_other_out(
    parties: list[Party], database: str, one: Writer, other: Writer
) -> None:
    feeds = (submit, settle_jobs, claim_due, settle_jobs)

    await write_at_once(parties, one, other, feeds)

    with psycopg.connect(database, autocommit=True) as observer:
        broken = broken_invariants(observer)
        broken.pop("times_spent_add_up", None)
        assert broken == {}
        counted = observer.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert counted == (0,)
