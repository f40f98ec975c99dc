"""What tasks wait for, as the tables and the heartbeats of the replicas tell."""

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping

import pytest

from progressor.domain.processes.intent import Complete, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.domain.views import why
from progressor.domain.views.replica import NamespaceLoad, ReplicaLoad
from progressor.domain.views.wait import (
    BehindTask,
    Cause,
    NoFreeWorker,
    NoReplica,
    Overrun,
    PresumedDead,
    ProcessorUnreachable,
    RetryNotDue,
    Running,
    TimerNotDue,
)
from progressor.settings.sections import ReplicaSettings
from progressor.storage.postgres.functions import Functions
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.status import Watch
from tests.support.builders import seconds
from tests.support.clock import ManualClock
from tests.support.storage.store import (
    COLLECTING,
    EXPIRES_AFTER,
    LEASE_TIMEOUT,
    NO_TIME,
    UNREACHABLE,
    Store,
    a_request,
    connect,
    fresh_key,
    lent,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)
TELLER_ID = 900


class Teller:
    """A replica that tells what it knows."""

    def __init__(self, database: str, clock: ManualClock) -> None:
        self._heartbeats = Heartbeats(
            dsn=database,
            identity=Identity(replica_id=TELLER_ID, name="teller", version="1", functions="f"),
            lineage=Lineage(Functions()),
            replica=ReplicaSettings(heartbeat_interval=SECOND, lease_timeout=2 * LEASE_TIMEOUT),
            clock=clock,
        )

    def tell(self, loads: Mapping[str, NamespaceLoad], *, draining: bool = False) -> None:
        """Beat once."""
        load = ReplicaLoad(step_count=0, caller_count=0, loads=loads)
        self._heartbeats.beat(draining=draining, load=load)

    def close(self) -> None:
        self._heartbeats.close()


@pytest.fixture
def teller(database: str, clock: ManualClock) -> Iterator[Teller]:
    """Return the only replica that is not silent, once it beats."""
    clock.advance(HOUR)
    found = Teller(database, clock)
    yield found
    found.close()


async def causes(store: Store, key: ProcessKey) -> list[Cause]:
    return [wait.cause for wait in (await store.processes.get(key)).waits]


async def cause(store: Store, key: ProcessKey) -> Cause:
    [found] = await causes(store, key)
    return found


class TestGet:
    async def test_names_what_each_task_waits_for(self, store: Store) -> None:
        key = await store.ready(success(SetTimer(after=HOUR)))
        made_at = store.clock.now()
        running = await store.run_task(a_request(key))
        first = await store.admit(a_request(key))
        second = await store.admit(a_request(key, TaskType.NOTIFY))
        store.clock.advance(SECOND)
        await store.beat()

        waits = (await store.processes.get(key)).waits

        assert first.task_id is not None
        assert second.task_id is not None
        call, notify = TaskType.CALL, TaskType.NOTIFY
        assert [wait.task_id for wait in waits[:3]] == [
            running.task_id, first.task_id, second.task_id,
        ]  # fmt: skip
        assert [wait.cause for wait in waits] == [
            Running(replica_id=store.replica_id, since=made_at),
            BehindTask(task_id=running.task_id, task_type=call, is_running=True, since=made_at),
            BehindTask(task_id=first.task_id, task_type=call, is_running=False, since=made_at),
            BehindTask(
                task_id=second.task_id, task_type=notify, is_running=False, since=made_at,
                until=made_at + HOUR,
            ),
        ]  # fmt: skip
        assert [wait.attempt for wait in waits] == [1, 1, 1, 1]
        assert waits[3].status is TaskStatus.BLOCKED

    async def test_names_a_timer_and_a_retry(self, store: Store) -> None:
        timed, retried = fresh_key(), fresh_key()
        await store.started(timed, success(SetTimer(after=HOUR)))
        await store.started(retried, UNREACHABLE)

        [retry] = (await store.processes.get(retried)).waits

        policy = store.namespace.policy_for(TaskType.INIT)
        assert await cause(store, timed) == TimerNotDue(until=store.clock.now() + HOUR)
        assert retry.cause == RetryNotDue(
            until=store.clock.now() + SECOND, attempts_max=policy.attempts_max
        )
        assert (retry.attempt, retry.last_error is not None) == (2, True)

    async def test_names_a_replica_that_is_silent_and_when_its_task_is_collected(
        self, store: Store, other: Store
    ) -> None:
        key = fresh_key()
        await other.beat()
        beaten_at = store.clock.now()
        await other.start(key)
        store.clock.advance(LEASE_TIMEOUT)
        await store.beat()
        just_in_time = await cause(store, key)
        store.clock.advance(dt.timedelta(microseconds=1))

        collected_at = beaten_at + LEASE_TIMEOUT + COLLECTING
        assert just_in_time == Running(
            replica_id=other.replica_id, since=beaten_at, silent_since=beaten_at,
            collected_at=collected_at,
        )  # fmt: skip
        assert await cause(store, key) == PresumedDead(
            replica_id=other.replica_id, since=beaten_at, silent_since=beaten_at,
            collected_at=collected_at,
        )  # fmt: skip
        assert [zombie.key for zombie in await store.find_zombies()] == [key]

    async def test_names_a_replica_that_is_gone(self, store: Store, other: Store) -> None:
        key = fresh_key()
        leased_at = store.clock.now()
        await other.start(key)
        await store.replicas.retire(other.replica_id)
        store.clock.advance(SECOND)
        await store.beat()

        found = await cause(store, key)
        await other.beat()

        assert found == PresumedDead(
            replica_id=other.replica_id, since=leased_at, silent_since=None,
            collected_at=store.clock.now() + COLLECTING,
        )  # fmt: skip

    async def test_names_a_step_that_has_overrun(self, store: Store) -> None:
        key = fresh_key()
        leased_at = store.clock.now()
        await store.start(key)
        store.clock.advance(EXPIRES_AFTER + SECOND)
        await store.beat()

        expired_at = leased_at + EXPIRES_AFTER
        assert await cause(store, key) == Overrun(
            replica_id=store.replica_id, since=leased_at, expired_at=expired_at,
            collected_at=expired_at + COLLECTING,
        )  # fmt: skip
        assert [zombie.key for zombie in await store.find_zombies()] == [key]


class TestWhatAReplicaTells:
    async def test_is_how_many_workers_are_busy(self, store: Store, teller: Teller) -> None:
        key = fresh_key()
        await store.admit(a_request(key, TaskType.INIT), run=False)
        since = store.clock.now()
        store.clock.advance(3 * SECOND)
        teller.tell(
            {
                key.namespace: NamespaceLoad(busy_count=4, size=4),
                "another": NamespaceLoad(busy_count=1, size=9),
            }
        )

        assert await cause(store, key) == NoFreeWorker(since=since, busy_count=4, worker_count=4)

    async def test_is_since_when_it_reaches_no_processor(
        self, store: Store, teller: Teller
    ) -> None:
        key = fresh_key()
        await store.admit(a_request(key, TaskType.INIT), run=False)
        since = store.clock.now()
        store.clock.advance(3 * SECOND)
        teller.tell(
            {key.namespace: NamespaceLoad(busy_count=4, size=4, unreachable_for=seconds(1.5))}
        )

        assert await cause(store, key) == ProcessorUnreachable(
            since=since, processor_unreachable_since=store.clock.now() - seconds(1.5)
        )

    async def test_is_as_many_free_workers_as_may_be_where_it_has_had_no_step(
        self, store: Store, teller: Teller
    ) -> None:
        key = fresh_key()
        await store.admit(a_request(key, TaskType.INIT), run=False)
        teller.tell({})

        found = await cause(store, key)

        assert isinstance(found, NoFreeWorker)
        assert (found.busy_count, found.worker_count) == (0, store.namespace.worker_count_max)

    async def test_is_nothing_where_its_release_is_one_before(self, store: Store) -> None:
        key = fresh_key()
        store.clock.advance(HOUR)
        await store.admit(a_request(key, TaskType.INIT), run=False)
        await store.beat()

        found = await cause(store, key)

        assert isinstance(found, NoFreeWorker)
        assert (found.busy_count, found.worker_count) == (0, 0)

    async def test_may_be_more_than_this_release_understands(
        self, store: Store, teller: Teller
    ) -> None:
        key = fresh_key()
        await store.admit(a_request(key, TaskType.INIT), run=False)
        teller.tell({})
        async with store.pool.connection() as connection:
            await connection.execute(
                'UPDATE progressor.replicas SET facts = \'{"orders": [1, 2, null, "new"]}\''
                " WHERE replica_id = %s",
                [TELLER_ID],
            )

        found = await cause(store, key)

        assert isinstance(found, NoFreeWorker)
        assert (found.busy_count, found.worker_count) == (1, 2)

    async def test_counts_for_nothing_once_it_drains(self, store: Store, teller: Teller) -> None:
        key = fresh_key()
        await store.admit(a_request(key, TaskType.INIT), run=False)
        teller.tell({key.namespace: NamespaceLoad(busy_count=0, size=4)}, draining=True)

        found = await cause(store, key)

        assert isinstance(found, NoReplica)
        assert (found.since, found.draining_count) == (store.clock.now(), 1)


class TestAWatch:
    async def test_reads_again_when_what_it_knows_is_too_old(
        self, store: Store, teller: Teller
    ) -> None:
        watch = Watch(store.context, lease_timeout=LEASE_TIMEOUT, collecting=COLLECTING)
        teller.tell({"orders": NamespaceLoad(busy_count=1, size=2)})
        first = await watch.facts()
        teller.tell({"orders": NamespaceLoad(busy_count=2, size=2)})
        store.clock.advance(SECOND - dt.timedelta(milliseconds=1))
        within_a_second = await watch.facts()
        store.clock.advance(dt.timedelta(milliseconds=1))
        afterwards = await watch.facts()

        assert within_a_second is first
        assert first.replicas[TELLER_ID].loads == {"orders": NamespaceLoad(busy_count=1, size=2)}
        assert afterwards.replicas[TELLER_ID].loads == {
            "orders": NamespaceLoad(busy_count=2, size=2)
        }
        assert afterwards.read_at == store.clock.now()

    async def test_leaves_out_the_dead_before_the_living_where_there_are_too_many(
        self, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("progressor.storage.replicas.status.REPLICAS_MAX", 1)
        watch = Watch(store.context, lease_timeout=LEASE_TIMEOUT, collecting=COLLECTING)
        first, last = sorted((store, other), key=lambda it: it.replica_id)
        store.clock.advance(HOUR)
        await last.beat()
        store.clock.advance(SECOND)
        await first.beat()

        assert (await watch.facts()).replicas.keys() == {first.replica_id}

    async def test_knows_of_no_replica_where_none_is(self, own_database: str, store: Store) -> None:
        async with await connect(own_database) as connection:
            context = dataclasses.replace(store.context, pool=lent(connection))
            watch = Watch(context, lease_timeout=LEASE_TIMEOUT, collecting=COLLECTING)
            facts = await watch.facts()

        assert (facts.replicas, facts.read_at) == ({}, store.clock.now())


class TestTheFirstWaits:
    async def test_are_those_of_the_tasks_that_run_or_come_next(self, store: Store) -> None:
        busy, timed, free, idle, ended = (fresh_key() for _ in range(5))
        await store.beat()
        await store.started(busy, success(SetTimer(after=HOUR)))
        running = await store.run_task(a_request(busy))
        await store.admit(a_request(busy))
        await store.started(timed, success(SetTimer(after=HOUR)))
        first = await store.admit(a_request(free, TaskType.INIT), run=False)
        await store.admit(a_request(free), run=False)
        await store.started(idle)
        await store.started(ended, success(Complete()))
        nowhere = fresh_key()

        found = await store.processes.first_waits([idle, free, nowhere, timed, busy, ended])

        assert found.keys() == {busy, timed, free}
        assert found[busy].task_id == running.task_id
        assert found[free].task_id == first.task_id
        assert isinstance(found[free].cause, NoFreeWorker)
        assert found[busy].cause == Running(replica_id=store.replica_id, since=store.clock.now())
        assert found[timed].cause == TimerNotDue(until=store.clock.now() + HOUR)
        for key, wait in found.items():
            assert wait == (await store.processes.get(key)).waits[0]

    async def test_of_no_processes_are_none(self, store: Store) -> None:
        assert await store.processes.first_waits([]) == {}


async def test_every_wait_has_words(store: Store) -> None:
    key = await store.ready(success(SetTimer(after=NO_TIME + HOUR)))

    [wait] = (await store.processes.get(key)).waits

    assert why.explain(wait) == (
        f"Task {wait.task_id} (timeout) is a timer, until "
        f"{store.clock.now() + HOUR:%Y-%m-%d %H:%M:%S}.000Z."
    )
