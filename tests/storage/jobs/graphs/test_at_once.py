"""Three replicas at once over the same few jobs: no deadlock, no invariant broken, and all ends."""

import asyncio
import contextlib
import datetime as dt
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import JobFilter, JobState, StartNodes
from progressor.domain.processes.intent import Complete, Outcome, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.steps.settlements import Written
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import random_graph, specs
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, job_store
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    a_request,
    create_namespace,
    running_stores,
    success,
)

REPLICAS = 3
SEEDS = 4
PARTIES_EACH = 2
LEADERS = [process_key(NAMESPACE.name, f"l{number}") for number in range(3)]
DEEDS_EACH = 120
DEPTH_MAX = 2
LONG = dt.timedelta(minutes=5)
ROUNDS_MAX = 200

_FOLLOWERS = """
    SELECT slot, namespace, process_id, init_task_id
    FROM progressor.processes
    WHERE leader_id IS NOT NULL AND (%s::text IS NULL OR status::text = %s)"""
_LEFT = """
    SELECT 'job', process_id FROM progressor.jobs WHERE state = 'running'
    UNION ALL
    SELECT 'upkeep_due', process_id FROM progressor.jobs WHERE upkeep_due_at IS NOT NULL
    UNION ALL
    SELECT 'node', follower_id FROM progressor.job_nodes WHERE ended_at IS NULL
    UNION ALL
    SELECT 'orphan', process_id FROM progressor.orphans
    UNION ALL
    SELECT 'schedule', process_id FROM progressor.schedule
    UNION ALL
    SELECT 'running', process_id FROM progressor.running
    UNION ALL
    SELECT 'gated', process_id FROM progressor.gated"""


class Party:
    """One of those who write at once."""

    def __init__(
        self, jobs: JobStore, held: dict[int, RunningTask], clock: ManualClock, seed: int
    ) -> None:
        self.jobs = jobs
        self.held = held
        self.clock = clock
        self.random = random.Random(seed)
        self.done: dict[str, int] = {}
        self.settled: list[RunningTask] = []
        self.deeds: dict[Callable[[], Awaitable[object]], int] = {
            self.settle: 40, self.submit: 6, self.maintain: 8, self.cancel: 2, self.retry: 5,
            self.repair: 4, self.simple_repair: 4, self.call: 4, self.remove: 2,
            self.remove_leader: 1, self.cancel_init: 2, self.fail_overdue: 1, self.recover: 2,
            self.stop_orphans: 3,
        }  # fmt: skip

    async def live(self, deeds: int) -> None:
        for deed in self.random.choices([*self.deeds], [*self.deeds.values()], k=deeds):
            # A session keeps a lock for longer than a statement waits: the caller gets an error.
            with contextlib.suppress(errors.StorageLockedError, errors.RequestError):
                await deed()
                name = deed.__name__
                self.done[name] = self.done.get(name, 0) + 1

    def leader(self) -> ProcessKey:
        return self.random.choice(LEADERS)

    async def follower(self, status: str | None = None) -> tuple[ProcessKey, int]:
        async with self.jobs.store.pool.connection() as connection:
            cursor = await connection.execute(_FOLLOWERS, [status, status])
            found = await cursor.fetchall()
        if not found:
            raise errors.ProcessNotFoundError(NAMESPACE.name, "")
        row = self.random.choice(found)
        return ProcessKey(*row[:3]), row[3]

    async def submit(self) -> None:
        # A job of the same name is a later one.
        self.clock.advance(dt.timedelta(milliseconds=1))
        leader = self.leader()
        graph = random_graph(self.random, 8)
        gated = Constraints(gates={"g": 2}) if self.random.random() < 0.3 else None
        timeout = LONG if self.random.random() < 0.2 else None
        action = StartNodes(nodes=specs(graph, constraints=gated), timeout=timeout)
        admission = await self.jobs.store.admit(a_request(leader, TaskType.INIT))
        if admission.running is not None:
            await self.jobs.settle(admission.running, success(action))

    async def settle(self) -> None:
        for claimed in await self.jobs.store.claim_due(limit=2):
            self.held[claimed.task.token] = claimed.task
        if not self.held:
            return
        tokens = self.random.sample(
            [*self.held], min(len(self.held), self.random.choice([1, 1, 3]))
        )
        batch = [self.held.pop(token) for token in tokens]
        if self.settled and self.random.random() < 0.3:
            # Whose lease is gone: nothing of the others may depend on it, wherever it stands.
            batch.insert(self.random.randrange(2), self.random.choice(self.settled))
        outcomes: list[Outcome] = [
            *[DONE] * 10, success(), success(SetTimer(after=NO_TIME)), UNREACHABLE, BROKEN, BROKEN,
            success(Complete()), success(RemoveProcess()),
        ]  # fmt: skip
        entries = [
            await self.jobs.entry(
                task,
                self.random.choice([*outcomes, *self.leading(task)]),
                continues=self.random.random() < 0.7,
            )
            for task in batch
        ]
        self.settled += batch[-1:]
        for written in await asyncio.gather(*map(self.jobs.store.settlements.submit, entries)):
            if isinstance(written, Written) and written.next is not None:
                self.held[written.next.token] = written.next

    def leading(self, task: RunningTask) -> list[Outcome]:
        """Return how a follower may answer its init to lead a job itself, down to two below."""
        depth = task.key.process_id.count("/")
        if task.task_type is not TaskType.INIT or depth > DEPTH_MAX or task in self.settled:
            return []
        return [success(StartNodes(nodes=specs(random_graph(self.random, 3))))] * 3

    async def call(self) -> None:
        key, _ = await self.follower()
        if self.random.random() < 0.3:
            key = self.leader()
        await self.hold(a_request(key))

    async def repair(self) -> None:
        key, _ = await self.follower("error")
        if self.random.random() < 0.3:
            key = self.leader()
        await self.hold(a_request(key, TaskType.REPAIR))

    async def hold(self, request: Any) -> None:
        admission = await self.jobs.store.admit(request)
        if admission.running is not None:
            self.held[admission.running.token] = admission.running

    async def maintain(self) -> None:
        found = await self.jobs.jobs.find_upkeep_due(age=NO_TIME, limit=100)
        if found:
            await self.jobs.control.maintain(self.random.choice(found))

    async def cancel(self) -> None:
        await self.jobs.control.cancel(self.leader(), "enough")

    async def retry(self) -> None:
        failed = JobFilter(states=(JobState.FAILED,))
        found = await self.jobs.jobs.list(NAMESPACE.name, failed, after=None, limit=3)
        if found:
            job = self.random.choice(found)
            await self.jobs.control.retry(job.key, deadline=None, timeout=None)

    async def simple_repair(self) -> None:
        key, _ = await self.follower("error")
        await self.jobs.store.recover(key if self.random.random() < 0.7 else self.leader())

    async def remove(self) -> None:
        await self.jobs.store.remove((await self.follower())[0])

    async def remove_leader(self) -> None:
        await self.jobs.store.remove(self.leader())

    async def cancel_init(self) -> None:
        await self.jobs.store.cancel(*await self.follower("init"))

    async def fail_overdue(self) -> None:
        self.clock.advance(LONG / 3)
        await self.jobs.control.fail_overdue(limit=10)

    async def recover(self) -> None:
        found = await self.jobs.control.recover()
        assert not found, f"recovery found something in a healthy engine: {found}"

    async def stop_orphans(self) -> None:
        await self.jobs.control.stop_orphans()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_three_replicas_at_once_leave_jobs_whole(own_database: str, seed: int) -> None:
    ended = threading.Event()
    broken: list[dict[str, list[Any]]] = []
    watch = threading.Thread(target=_watch, args=(own_database, ended, broken), name="watch")
    watch.start()
    try:
        done = asyncio.run(_crowd(own_database, seed))
    finally:
        ended.set()
        watch.join()

    assert broken == []
    with psycopg.connect(own_database, autocommit=True) as observer:
        assert observer.execute(_LEFT).fetchall() == []
        assert broken_invariants(observer, now=_NEVER).keys() <= {"times_spent_add_up"}
        counted = observer.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert counted == (0,)
    # Which of them come to anything is chance; these do whatever happens.
    assert {"submit", "settle", "maintain", "retry", "recover"} <= done.keys()


_NEVER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


async def _crowd(conninfo: str, seed: int) -> dict[str, int]:
    create_namespace(conninfo)
    quick = make_conninfo(conninfo, options="-c synchronous_commit=off")
    held: dict[int, RunningTask] = {}
    clock = ManualClock()
    async with running_stores(quick, count=REPLICAS, clock=clock) as stores:
        jobs = [job_store(each) for each in stores]
        parties = [
            Party(jobs[number % REPLICAS], held, clock, seed * 100 + number)
            for number in range(REPLICAS * PARTIES_EACH)
        ]
        async with asyncio.TaskGroup() as group:
            for number, party in enumerate(parties):
                group.create_task(party.live(DEEDS_EACH), name=f"party {number}")
        await _all_ends(jobs[0], held, clock)
    done: dict[str, int] = {}
    for party in parties:
        done |= party.done
    return done


async def _all_ends(jobs: JobStore, held: dict[int, RunningTask], clock: ManualClock) -> None:
    """Carry all that is left to its end, by what replicas do, and without recovery."""
    for _ in range(ROUNDS_MAX):
        clock.advance(dt.timedelta(seconds=2))
        await _carry(jobs, held)
        for leader in await jobs.jobs.find_upkeep_due(age=NO_TIME, limit=100):
            await jobs.control.maintain(leader)
        await jobs.control.stop_orphans()
        await jobs.store.gates.promote_due([NAMESPACE.name])
        again, _ = await jobs.store.gates.find_idle([NAMESPACE.name])
        if again:
            await jobs.store.gates.look_again(NAMESPACE.name, again)
        async with jobs.store.pool.connection() as connection:
            left = await (await connection.execute(_LEFT)).fetchall()
        if not left:
            return
        if not held:
            await _call(jobs, held, [name for kind, name in left if kind in {"node", "job"}])


async def _carry(jobs: JobStore, held: dict[int, RunningTask]) -> None:
    for claimed in await jobs.store.claim_due(limit=1000):
        held[claimed.task.token] = claimed.task
    for task in [*held.values()]:
        written = await jobs.settle(task, DONE, continues=True)
        del held[task.token]
        if isinstance(written, Written) and written.next is not None:
            held[written.next.token] = written.next


async def _call(jobs: JobStore, held: dict[int, RunningTask], process_ids: list[str]) -> None:
    """Call those to an end who run on and have nothing to do."""
    for process_id in process_ids:
        with contextlib.suppress(errors.RequestError):
            admission = await jobs.store.admit(a_request(process_key(NAMESPACE.name, process_id)))
            if admission.running is not None:
                held[admission.running.token] = admission.running


def _watch(conninfo: str, ended: threading.Event, broken: list[dict[str, list[Any]]]) -> None:
    """Look again and again whether the invariants hold that hold at any moment."""
    with psycopg.connect(conninfo, autocommit=True) as observer:
        while not ended.is_set() and not broken:
            found = broken_invariants(observer, now=_NEVER)
            # The clock is moved while others write.
            found.pop("times_spent_add_up", None)
            if found:
                broken.append(found)
