"""What is done to a job reads that job, whatever other jobs there are."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
import pytest_asyncio

from progressor.domain.jobs.job import JobFilter
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import Connection
from tests.support.clock import START, ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import reads_of
from tests.support.storage.jobs.seed import NODES_EACH, TABLES, follower_key, leader_key, seed_jobs
from tests.support.storage.jobs.store import job_store
from tests.support.storage.store import NO_TIME, Store, connect

pytestmark = pytest.mark.asyncio(loop_scope="module")

FEW, MANY = 40, 2_000
RUNS, CANCELLED, OVERDUE, FAILED = 1, 2, 3, 4
BATCH = 4
PER_JOB = 8 * NODES_EACH
"""Rows that one statement may read per table for each job that it is about."""


async def read(store: Store) -> None:
    assert len((await job_store(store).jobs.read(leader_key(RUNS), payloads=True)).nodes) == 20


async def changes(store: Store) -> None:
    jobs = job_store(store).jobs
    assert (await jobs.changes(leader_key(RUNS), 1))[1] == ()


async def outcomes(store: Store) -> None:
    jobs = job_store(store).jobs
    assert len(await jobs.outcomes(leader_key(RUNS), bytes_max=10_000) or ()) == 5
    assert len(await jobs.inputs(leader_key(RUNS), 11, bytes_max=10_000) or ()) == 0


async def list_jobs(store: Store) -> None:
    listed = await job_store(store).jobs.list("orders", JobFilter(), after=None, limit=BATCH)
    assert len(listed) == BATCH


async def cancel(store: Store) -> None:
    assert (await job_store(store).control.cancel(leader_key(RUNS), "")).counts.cancelled == 10


async def maintain(store: Store) -> None:
    assert (await job_store(store).control.maintain(leader_key(CANCELLED))).stopped == 5


async def find_upkeep_due(store: Store) -> None:
    assert len(await job_store(store).jobs.find_upkeep_due(age=NO_TIME, limit=BATCH)) == BATCH


async def retry(store: Store) -> None:
    _, names = await job_store(store).control.retry(leader_key(FAILED), deadline=None, timeout=None)
    assert len(names) == 5


async def fail_overdue(store: Store) -> None:
    assert len(await job_store(store).control.fail_overdue(limit=BATCH)) == BATCH


async def repair_a_follower(store: Store) -> None:
    await store.writes.simple_repair(follower_key(FAILED, 6))
    assert (await job_store(store).jobs.counts(leader_key(FAILED))).counts.waiting == 10


async def remove_a_follower(store: Store) -> None:
    await store.writes.remove(follower_key(RUNS, 6))
    assert (await job_store(store).jobs.counts(leader_key(RUNS))).counts.skipped == 10


async def remove_a_leader(store: Store) -> None:
    await store.writes.remove(leader_key(RUNS))
    assert await job_store(store).control.stop_orphans() == 5


WORK: tuple[tuple[Callable[[Store], Awaitable[None]], int], ...] = (
    (read, PER_JOB),
    (changes, PER_JOB),
    (outcomes, PER_JOB),
    (list_jobs, PER_JOB),
    (cancel, PER_JOB),
    (maintain, PER_JOB),
    (find_upkeep_due, PER_JOB),
    (retry, 2 * PER_JOB),
    (fail_overdue, BATCH * PER_JOB),
    (repair_a_follower, PER_JOB),
    (remove_a_follower, PER_JOB),
    (remove_a_leader, PER_JOB),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowds(cluster: Cluster) -> AsyncIterator[Mapping[int, Connection]]:
    """Return connections to two databases: in one are few jobs, in the other many."""
    found = {}
    for count in (FEW, MANY):
        conninfo = cluster.create_database()
        migrate(conninfo)
        seed_jobs(conninfo, count=count)
        found[count] = await connect(conninfo)
    yield found
    for connection in found.values():
        await connection.close()


@pytest.mark.parametrize(("work", "rows_max"), WORK, ids=[work.__name__ for work, _ in WORK])
async def test_it_reads_its_own_job(
    crowds: Mapping[int, Connection], work: Callable[[Store], Awaitable[None]], rows_max: int
) -> None:
    clock = ManualClock(START)
    read = {count: await reads_of(crowd, clock, work) for count, crowd in crowds.items()}

    for table in TABLES:
        few, many = read[FEW][table], read[MANY][table]
        assert (table, few.sequential, many.sequential) == (table, 0, 0)
        assert (table, many.by_index) <= (table, rows_max)
        # One more level of an index does not count as a row; what is left is chance.
        assert many.by_index <= 1.3 * few.by_index + BATCH, table


async def test_what_has_not_changed_is_not_read(crowds: Mapping[int, Connection]) -> None:
    read = await reads_of(crowds[MANY], ManualClock(START), changes)

    assert read["job_nodes"].by_index == 0


async def test_a_count_of_what_runs_reads_no_job_that_has_ended(
    crowds: Mapping[int, Connection],
) -> None:
    async def count(store: Store) -> None:
        [queue] = await store.queues.count(["orders"])
        assert queue.jobs > 0

    read = await reads_of(crowds[MANY], ManualClock(START), count)

    for table in TABLES:
        assert (table, read[table].sequential) == (table, 0)
    assert read["jobs"].by_index <= MANY // 2
    assert read["job_nodes"].by_index == 0


async def test_recovery_reads_what_runs_and_is_quiet(crowds: Mapping[int, Connection]) -> None:
    async def recover(store: Store) -> None:
        assert await job_store(store).control.recover() == ()

    read = await reads_of(crowds[MANY], ManualClock(START), recover)

    running = MANY // 2
    for table in TABLES:
        assert (table, read[table].sequential) == (table, 0)
    assert read["jobs"].by_index <= 4 * running
    assert read["job_nodes"].by_index <= (NODES_EACH + 1) * running
    assert read["processes"].by_index <= 6 * running
