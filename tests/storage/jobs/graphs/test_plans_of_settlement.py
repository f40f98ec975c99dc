"""Settling a node reads what it moves, however large its job is and whatever statistics say."""

import dataclasses
import datetime as dt
import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.jobs.graph import NodePlan, plan_nodes
from progressor.domain.jobs.job import WINDOW, NodeSpec, StartNodes
from progressor.domain.processes.intent import Complete, Intent, Outcome, SetTimer, Succeeded
from progressor.domain.processes.process import Leadership, Part, ProcessKey
from progressor.domain.processes.settlement import settle
from progressor.domain.processes.task import TaskType
from progressor.storage.jobs.jobs import MAINTAINED_MAX
from progressor.storage.postgres.pools import Connection
from progressor.storage.steps import settlements
from tests.conftest import TEMPLATE
from tests.support.builders import make_task
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import Reads, keep_unvacuumed, reads_of, seed
from tests.support.storage.jobs.store import job_store
from tests.support.storage.store import BROKEN, EXPIRES_AFTER, NAMESPACE, Store, connect, empty

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.plain_tables]

_FIRST_TASK = 3_000_000_000
_NODES_MAX = 1_000_000


class Shape(enum.StrEnum):
    """What waits for the nodes that run; all others are done."""

    PAIRS = "pairs"  # for each one other node
    FAN_IN = "fan_in"  # for all of them, and those that are done, the last node
    HUB = "hub"  # for all of them one, and for that one all others
    WIDE = "wide"  # none
    WINDOW = "window"  # all others, for room: they are ready
    GATED = "gated"  # the same, and they have constraints


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LargeJob:
    """A job: its number, from 1, is part of all its keys. A node's is 1 .. n, of the leader 0."""

    number: int
    shape: Shape
    node_count: int
    running_count: int

    @property
    def leader(self) -> ProcessKey:
        """Return the key of its leader; its slot is the seed's, not the hash's."""
        return ProcessKey(self.number * 7919 % 1024, "orders", f"job{self.number}")

    def part(self, node: int) -> Part:
        if not node:
            return Part(led_by=Leadership.PROCESSOR)
        return Part(leader=self.leader, node=node)

    def key(self, node: int) -> ProcessKey:
        if not node:
            return self.leader
        return ProcessKey((self.number + node) * 7919 % 1024, "orders", f"job{self.number}/n{node}")

    def token(self, node: int) -> int:
        return self.number * _NODES_MAX + node

    def task(self, node: int) -> int:
        return _FIRST_TASK + self.token(node)


def seed_large_jobs(conninfo: str, jobs: tuple[LargeJob, ...], *, others: int) -> None:
    """Write jobs, and so many others of ten nodes that are all done."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        keep_unvacuumed(connection)
        for table in ("jobs", "job_nodes"):
            connection.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = false)".encode()
            )
        for statement in _OTHERS:
            connection.execute(statement, {"others": others})
        for job in jobs:
            _seed_job(connection, job)


def _seed_job(connection: psycopg.Connection[Any], job: LargeJob) -> None:
    values = {
        "number": job.number,
        "slot": job.leader.slot,
        "process_id": job.leader.process_id,
        "shape": job.shape.value,
        "count": job.node_count,
        "running": job.running_count,
        "first_token": job.token(0),
        "first_task": job.task(0),
    }
    for statement in _JOB:
        connection.execute(statement, values)


_OTHERS: tuple[LiteralString, ...] = (
    """
    INSERT INTO progressor.jobs
        (slot, namespace, process_id, state, node_count, created_at, updated_at)
    SELECT (n * 7919 %% 1024)::smallint, 'orders', 'other' || n, 'running', 10, '2025-01-01',
        '2025-01-01'
    FROM generate_series(1, %(others)s::integer) n""",
    """
    INSERT INTO progressor.job_nodes
        (slot, namespace, process_id, ordinal, state, begun, waits_for, revision, follower_slot,
         created_at, started_at, ended_at, name, follower_namespace, follower_id)
    SELECT j.slot, j.namespace, j.process_id, o, 'done', true, 0, 1, 0, '2025-01-01', '2025-01-01',
        '2025-01-01', 'n' || o, 'orders', j.process_id || '/n' || o
    FROM progressor.jobs j
    CROSS JOIN generate_series(1, 10) o""",
)

_JOB: tuple[LiteralString, ...] = (
    """
    INSERT INTO progressor.job_nodes
        (slot, namespace, process_id, ordinal, state, begun, gated, waits_for, revision,
         follower_slot, created_at, ready_at, started_at, ended_at, name, follower_namespace,
         follower_id, predecessors, successors, constraints)
    SELECT %(slot)s, 'orders', %(process_id)s, n.ordinal, n.state::progressor.node_state,
        n.state = 'done' OR %(shape)s NOT IN ('window', 'gated'), n.gated,
        CASE WHEN n.state = 'waiting' THEN CASE %(shape)s
            WHEN 'pairs' THEN 1
            WHEN 'hub' THEN CASE WHEN n.ordinal = %(running)s + 1 THEN %(running)s ELSE 1 END
            ELSE %(running)s END ELSE 0 END,
        1, (%(number)s + n.ordinal) * 7919 %% 1024, '2025-01-01', '2025-01-01', '2025-01-01',
        CASE WHEN n.state = 'done' THEN '2025-01-01'::timestamptz END, 'n' || n.ordinal, 'orders',
        %(process_id)s || '/n' || n.ordinal,
        CASE
            WHEN n.state <> 'waiting' THEN '{}'
            WHEN %(shape)s = 'pairs' THEN ARRAY[n.ordinal - %(running)s]
            WHEN %(shape)s = 'hub' AND n.ordinal = %(running)s + 1
                THEN ARRAY(SELECT generate_series(1, %(running)s))
            WHEN %(shape)s = 'hub' THEN ARRAY[%(running)s + 1]
            ELSE ARRAY(SELECT generate_series(1, %(count)s - 1))
        END,
        CASE
            WHEN %(shape)s = 'pairs' AND n.ordinal <= %(running)s
                THEN ARRAY[n.ordinal + %(running)s]
            WHEN %(shape)s = 'hub' AND n.ordinal <= %(running)s THEN ARRAY[%(running)s + 1]
            WHEN %(shape)s = 'hub' AND n.ordinal = %(running)s + 1
                THEN ARRAY(SELECT generate_series(%(running)s + 2, %(count)s))
            WHEN %(shape)s = 'fan_in' AND n.ordinal < %(count)s THEN ARRAY[%(count)s::integer]
            ELSE '{}'
        END,
        CASE WHEN n.gated THEN '{"run_at": 1893456000000000}'::json END
    FROM (
        SELECT ordinal, CASE
                WHEN ordinal <= %(running)s THEN 'running'
                WHEN %(shape)s IN ('window', 'gated') THEN 'ready'
                WHEN %(shape)s = 'pairs' AND ordinal <= 2 * %(running)s THEN 'waiting'
                WHEN %(shape)s = 'fan_in' AND ordinal = %(count)s THEN 'waiting'
                WHEN %(shape)s = 'hub' THEN 'waiting'
                ELSE 'done'
            END AS state,
            %(shape)s = 'gated' AND ordinal > %(running)s AS gated
        FROM generate_series(1, %(count)s::integer) ordinal
    ) n""",
    """
    INSERT INTO progressor.jobs
        (slot, namespace, process_id, state, node_count, waiting, ready, running, beginning,
         created_at, updated_at)
    SELECT %(slot)s, 'orders', %(process_id)s, 'running', count(*),
        count(*) FILTER (WHERE n.state = 'waiting'), count(*) FILTER (WHERE n.state = 'ready'),
        count(*) FILTER (WHERE n.state = 'running'),
        count(*) FILTER (WHERE n.state = 'running' AND NOT n.begun), '2025-01-01', '2025-01-01'
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, 'orders', %(process_id)s)""",
    """
    CREATE TEMPORARY TABLE member AS
    SELECT n.ordinal, n.follower_slot AS slot, n.follower_id AS process_id, n.begun
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, 'orders', %(process_id)s)
        AND n.state = 'running'
    UNION ALL
    SELECT 0, %(slot)s, %(process_id)s, true""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, init_task_id, led_by,
         leader_slot, leader_namespace, leader_id, node)
    SELECT m.slot, 'orders', m.process_id,
        CASE WHEN m.begun THEN 'running' ELSE 'init' END::progressor.process_status,
        '2025-01-01', '2025-01-01', 1, CASE WHEN m.ordinal = 0 THEN 'processor' END,
        CASE WHEN m.ordinal > 0 THEN %(slot)s::smallint END,
        CASE WHEN m.ordinal > 0 THEN 'orders' END,
        CASE WHEN m.ordinal > 0 THEN %(process_id)s END, nullif(m.ordinal, 0)
    FROM member m""",
    """
    INSERT INTO progressor.running
        (slot, namespace, process_id, task_id, task_type, attempt, token, replica_id, leased_at,
         expires_at)
    SELECT m.slot, 'orders', m.process_id, %(first_task)s + m.ordinal, 'call', 1,
        %(first_token)s + m.ordinal, 1, '2026-01-01', '2026-02-01'
    FROM member m""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
         scheduled_at, first_started_at, token)
    SELECT m.slot, 'orders', m.process_id, %(first_task)s + m.ordinal, 'call', 'running', 1,
        '2025-01-01', '2025-01-01', '2025-01-01', %(first_token)s + m.ordinal
    FROM member m""",
    "DROP TABLE member",
)


WAITING, RUNNING, TASKS, OTHER_JOBS = 2_000, 500, 5_000, 1_000
SMALL, LARGE = 10, 10_000
PER_ITEM = 24
"""Rows that may be read per table for one item: of its process, of the leader, of neighbours in the
graph, each by several statements."""

MOVED_APART = 8_192
"""A value of so many bytes does not lie in its row."""

_UNTENDED = """
    UPDATE progressor.jobs
    SET upkeep_due_at = now(), ended_at = CASE WHEN %(ends)s THEN now() END,
        state = CASE WHEN %(ends)s THEN 'cancelled' ELSE 'running' END::progressor.job_state
    WHERE process_id = %(id)s"""

DONE: Outcome = Succeeded(Intent(action=Complete(b"end")))
GOES_ON: Outcome = Succeeded(Intent(timer=SetTimer(after=dt.timedelta(hours=1))))

_NUMBERS = iter(range(1, 100))


def _job(shape: Shape, node_count: int, running_count: int) -> LargeJob:
    return LargeJob(
        number=next(_NUMBERS), shape=shape, node_count=node_count, running_count=running_count
    )


PAIRS = (_job(Shape.PAIRS, SMALL, 5), _job(Shape.PAIRS, LARGE, 64))
FAN_INS = (_job(Shape.FAN_IN, SMALL, 5), _job(Shape.FAN_IN, LARGE, 64))
LASTS = (_job(Shape.WIDE, SMALL, 5), _job(Shape.WIDE, LARGE, 64))
FULL = _job(Shape.WINDOW, LARGE, WINDOW)
GATED = _job(Shape.GATED, LARGE, WINDOW)
HUB = _job(Shape.HUB, 1_000, 64)
JOBS = (*PAIRS, *FAN_INS, *LASTS, FULL, GATED)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["misled", "informed"])
async def connection(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Connection]:
    """Return a session on full tables of which PostgreSQL has noted pages and no rows, or all."""
    conninfo = cluster.create_database(TEMPLATE)
    _fill(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as observer:
        if request.param == "misled":
            empty(observer)
            observer.execute("VACUUM (ANALYZE, TRUNCATE false)")
            _fill(conninfo)
        else:
            observer.execute("ANALYZE")
        noted = observer.execute(
            "SELECT bool_and(relpages > 10), bool_and(reltuples = 0) FROM pg_class"
            " WHERE relnamespace = 'progressor'::regnamespace AND relkind = 'r'"
            " AND relname IN ('processes', 'tasks', 'running', 'schedule', 'jobs', 'job_nodes')",
        ).fetchone()
    assert noted == (True, request.param == "misled")
    async with await connect(conninfo) as session:
        yield session
    cluster.drop_database(conninfo)


def _fill(conninfo: str) -> None:
    seed(conninfo, waiting=WAITING, running=RUNNING, tasks=TASKS, analyze=False)
    seed_large_jobs(conninfo, (*JOBS, HUB), others=OTHER_JOBS)


@pytest.mark.parametrize("outcome", [DONE, GOES_ON, BROKEN], ids=["done", "goes_on", "broken"])
@pytest.mark.parametrize(
    ("job", "size"),
    [
        pytest.param(job, size, id=f"{size}_in_{job.shape}_of_{job.node_count}")
        for job in JOBS
        for size in (1, 4, 48)
        if size < job.running_count
    ],
)
async def test_the_end_of_a_node_reads_its_neighbours(
    connection: Connection, job: LargeJob, outcome: Outcome, size: int
) -> None:
    batch = [entry(job, node, outcome) for node in range(1, size + 1)]

    assert await too_many(connection, batch) == {}


@pytest.mark.parametrize("job", LASTS, ids=lambda job: f"of_{job.node_count}")
async def test_the_end_of_the_last_nodes_reads_no_other(
    connection: Connection, job: LargeJob
) -> None:
    batch = [entry(job, node, DONE) for node in range(1, job.running_count + 1)]

    assert await too_many(connection, batch) == {}


@pytest.mark.parametrize("job", [*PAIRS, *FAN_INS], ids=lambda job: f"{job.shape}_{job.node_count}")
async def test_nodes_that_are_added_read_what_they_name(
    connection: Connection, job: LargeJob
) -> None:
    nodes = (
        NodeSpec(name="new", predecessors=("n1", f"n{job.node_count}")),
        NodeSpec(name="newer", predecessors=("new", "n2")),
        NodeSpec(name="free"),
    )
    action = StartNodes(nodes=nodes)
    known = {f"n{ordinal}": ordinal for ordinal in range(1, job.node_count + 1)}
    plan = plan_nodes(job.leader, action, known)
    added = entry(job, 0, Succeeded(Intent(action=action)), plan=plan)

    assert await too_many(connection, [added]) == {}


async def test_ends_in_many_jobs_at_once_read_their_own(connection: Connection) -> None:
    batch = [entry(job, node, DONE) for job in JOBS for node in (1, 2)]

    assert await too_many(connection, batch) == {}


@pytest.mark.parametrize("job", [GATED, FULL], ids=["starts", "stops"])
async def test_tending_reads_those_that_it_starts_or_stops(
    connection: Connection, job: LargeJob
) -> None:
    async def work(store: Store) -> object:
        cursor = await connection.execute(_UNTENDED, {"id": job.leader.process_id, "ends": ends})
        assert cursor.rowcount == 1
        jobs = job_store(store).jobs
        return await jobs._call(
            jobs._maintain_job, **dataclasses.asdict(job.leader), after=0, limit=MAINTAINED_MAX
        )

    ends = job is FULL
    reads = await reads_of(connection, ManualClock(), work)

    # Whose rows of gated are read is a matter of the gates; no settings choose between its indexes.
    assert {
        table: each
        for table, each in reads.items()
        if table != "gated" and each.sequential + each.by_index > PER_ITEM * MAINTAINED_MAX
    } == {}
    assert reads["processes"].by_index >= MAINTAINED_MAX


async def test_many_that_fail_at_once_skip_what_depends_on_them_once(
    connection: Connection,
) -> None:
    batch = [entry(HUB, node, BROKEN) for node in range(1, 49)]

    reads = await reads_of(connection, ManualClock(), lambda store: written(store, batch))

    # The skipped ones are found, changed, and looked at by the start of what is ready.
    assert reads["job_nodes"].by_index < 4 * HUB.node_count


@pytest.mark.parametrize("outcome", [DONE, BROKEN], ids=["done", "broken"])
async def test_long_lists_of_neighbours_are_neither_read_nor_written(
    connection: Connection, outcome: Outcome
) -> None:
    batch = [entry(FAN_INS[1], node, outcome) for node in range(1, 9)]
    before: dict[str, int] = {}

    async def work(store: Store) -> object:
        cursor = await connection.execute(
            "SELECT pg_column_size(n.predecessors) FROM progressor.job_nodes n"
            " WHERE n.process_id = %s AND n.ordinal = %s",
            [FAN_INS[1].leader.process_id, LARGE],
        )
        row = await cursor.fetchone()
        assert row is not None
        assert row[0] > MOVED_APART
        before.update(await toasted(connection))
        answer = await written(store, batch)
        assert await toasted(connection) == before
        return answer

    await reads_of(connection, ManualClock(), work)


async def toasted(connection: Connection) -> dict[str, int]:
    """Return what this transaction has read and written of values that lie apart from their row."""
    cursor = await connection.execute(
        "SELECT coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0), n_tup_ins + n_tup_del"
        " FROM pg_stat_xact_all_tables WHERE relid ="
        " (SELECT reltoastrelid FROM pg_class WHERE oid = 'progressor.job_nodes'::regclass)"
    )
    row = await cursor.fetchone()
    assert row is not None
    return {"read": row[0], "written": row[1]}


async def written(
    store: Store, batch: Sequence[settlements.Entry]
) -> Sequence[settlements.Outcome]:
    """Settle, and return how that went: no lease is lost."""
    pool: Any = store.pool
    outcomes = await store.settlements._of_jobs._kind.write(pool.lent, batch, False)
    assert all(isinstance(each, settlements.Written) for each in outcomes)
    return outcomes


async def too_many(
    connection: Connection, batch: Sequence[settlements.Entry]
) -> Mapping[str, Reads]:
    """Settle, and return of which tables more was read than the items are worth."""
    reads = await reads_of(connection, ManualClock(), lambda store: written(store, batch))
    rows_max = PER_ITEM * len(batch)
    return {
        table: each for table, each in reads.items() if each.sequential + each.by_index > rows_max
    }


def entry(
    job: LargeJob, node: int, outcome: Outcome, *, plan: NodePlan | None = None
) -> settlements.Entry:
    """Return a settlement of what a node has in hand; of 0, its leader."""
    now = ManualClock().now()
    return settlements.Entry(
        key=job.key(node),
        task_id=job.task(node),
        task_type=TaskType.CALL,
        attempt=1,
        token=job.token(node),
        settlement=settle(
            make_task(task_type=TaskType.CALL, attempt=1, first_started_at=now),
            outcome,
            namespace=NAMESPACE,
            now=now,
            spread=0.0,
        ),
        process=None,
        continues=True,
        expires_after=EXPIRES_AFTER,
        part=job.part(node),
        plan=plan,
    )
