"""Results: how tasks ended, who ran them, and word of them between replicas."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.intent import Complete, Lost, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskResult, TaskStatus, TaskType
from progressor.storage.postgres.functions import Functions
from progressor.storage.processes.results import NOTIFY_IDS_MAX, listen
from progressor.storage.replicas.replicas import draw_replica_id
from tests.support.clock import ManualClock
from tests.support.models.jobs.graphs import specs
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.jobs.store import DONE, JobStore, begun, collecting, job_store
from tests.support.storage.store import (
    BROKEN,
    LEASE_TIMEOUT,
    NO_TIME,
    Store,
    a_request,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOUR = dt.timedelta(hours=1)
PATIENCE_SECONDS = 10


MINUTE = dt.timedelta(minutes=1)
EVERYWHERE = range(2**31)
"""All pages."""


class TestAwaitTask:
    async def test_answers_at_once_for_a_task_that_has_ended(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key, idempotency_key="k")
        await store.settled(init, success(response=b"r"))

        by_id = await store.results.await_task(key, init.task_id)
        by_key = await store.results.await_task(key, "k")

        assert isinstance(by_id, TaskResult)
        assert (by_id.status, by_id.response) == (TaskStatus.FINISHED, b"r")
        assert by_key == by_id

    async def test_notes_who_waits_for_one_that_has_not(self, store: Store, other: Store) -> None:
        key = fresh_key()
        init = await store.start(key, idempotency_key="k")

        assert await other.results.await_task(key, "k") == init.task_id
        assert await other.results.await_task(key, init.task_id) == init.task_id

        assert (await store.settled(init)).reply_to == (other.replica_id,)

    async def test_notes_who_waits_for_a_timer(self, store: Store, other: Store) -> None:
        key = fresh_key()
        due = (await store.started(key, success(SetTimer(after=HOUR)))).due
        assert due is not None
        await other.results.await_task(key, due.task_id)

        written = await store.settled(await store.run_task(a_request(key)), success(Complete()))

        assert [each.reply_to for each in written.cancelled] == [(other.replica_id,)]

    async def test_tells_an_unknown_process_from_an_unknown_task(self, store: Store) -> None:
        key = fresh_key()
        with pytest.raises(errors.ProcessNotFoundError):
            await store.results.await_task(key, 1)
        await store.start(key)

        with pytest.raises(errors.TaskNotFoundError):
            await store.results.await_task(key, 1)
        with pytest.raises(errors.TaskNotFoundError):
            await store.results.await_task(key, "no such key")

    async def test_races_a_settlement_without_losing_the_answer(
        self, store: Store, other: Store
    ) -> None:
        for _ in range(30):
            key = fresh_key()
            init = await store.start(key)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(other.results.await_task(key, init.task_id))
                settling = group.create_task(store.settled(init))
            told = settling.result().reply_to == (other.replica_id,)
            assert isinstance(waiting.result(), TaskResult) is not told


class TestFetch:
    async def test_leaves_out_what_has_not_ended_and_names_what_is_gone(self, store: Store) -> None:
        ended, running, removed, answered = [await store.start(fresh_key()) for _ in range(4)]
        await store.settled(ended, success(response=b"r"))
        await store.remove(removed.key)
        await store.settled(answered, success(RemoveProcess(), response=b"bye"))
        tasks: dict[int, ProcessKey] = {
            task.task_id: task.key for task in (ended, running, removed, answered)
        }

        results = {each.task_id: each for each in await store.results.fetch(tasks)}

        assert results.keys() == tasks.keys() - {running.task_id}
        assert results[ended.task_id].response == b"r"
        assert results[removed.task_id] == TaskResult(
            task_id=removed.task_id,
            task_type=TaskType.CALL,
            status=TaskStatus.CANCELLED,
            removed=True,
        )
        assert results[answered.task_id].response == b"bye"

    @pytest.mark.parametrize("by_settlement", [True, False])
    async def test_finds_the_answer_of_a_task_whose_process_went_before_it_was_fetched(
        self, store: Store, other: Store, by_settlement: bool
    ) -> None:
        key = fresh_key()
        init = await store.start(key)
        await other.results.await_task(key, init.task_id)
        await store.settled(init, success(response=b"r"))

        if by_settlement:
            await store.settled(await store.run_task(a_request(key)), success(RemoveProcess()))
        else:
            await store.remove(key)

        (result,) = await other.results.fetch({init.task_id: key})
        assert (result.removed, result.response) == (False, b"r")

    @pytest.mark.parametrize("by_settlement", [True, False])
    async def test_tells_nobody_the_answer_of_another_process(
        self, store: Store, by_settlement: bool
    ) -> None:
        """Task ids can be guessed."""
        key, other_key = fresh_key(), fresh_key()
        start = await store.start(key)
        if by_settlement:
            await store.settled(start, success(RemoveProcess(), response=b"secret"))
        else:
            await store.settled(start, success(response=b"secret"))
            await store.remove(key)

        (result,) = await store.results.fetch({start.task_id: other_key})
        with pytest.raises(errors.ProcessNotFoundError):
            await store.results.await_task(other_key, start.task_id)

        assert (result.removed, result.response) == (True, b"")
        (result,) = await store.results.fetch({start.task_id: key})
        assert result.response == b"secret"


async def test_replies_are_kept_for_a_while(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    await store.settled(await store.start(fresh_key()), success(RemoveProcess()))
    store.clock.advance(HOUR)
    await store.settled(await store.start(fresh_key()), success(RemoveProcess()))

    assert await store.retention.delete_old_replies(age=HOUR / 2, limit=99) == 1
    assert observer.execute("SELECT count(*) FROM progressor.replies").fetchone() == (1,)


class TestNotifications:
    async def test_reach_the_replica_they_are_for_in_pieces_that_fit(
        self, store: Store, other: Store, database: str
    ) -> None:
        ids = [10**18 + number for number in range(2 * NOTIFY_IDS_MAX + 1)]
        heard: list[int] = []
        words = listen(database, other.replica_id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await anext(words)
            await store.results.notify({store.replica_id: [1], other.replica_id: ids})
            while len(heard) < len(ids):
                heard += (await anext(words)).task_ids
        await words.aclose()  # type: ignore[attr-defined]  # an async generator, said more loosely

        assert heard == ids

    async def test_of_due_work_reach_the_other_living_replicas(
        self, store: Store, other: Store, database: str
    ) -> None:
        await store.beat()
        await other.beat()
        words = listen(database, other.replica_id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await anext(words)
            await store.results.call_others(lease_timeout=LEASE_TIMEOUT)
            word = await anext(words)
        await words.aclose()  # type: ignore[attr-defined]  # as above

        assert word.work_is_due


class TestReplicas:
    async def test_draw_ids_that_nobody_has_had(self, store: Store) -> None:
        drawn = [await draw_replica_id(store.pool, Functions()) for _ in range(3)]

        assert drawn == sorted(set(drawn))

    async def test_are_listed_until_they_retire_or_are_long_silent(
        self, store: Store, other: Store
    ) -> None:
        await other.beat()
        store.clock.advance(HOUR)
        await store.beat()
        assert [each.replica_id for each in await store.replicas.list(after=0, limit=9)] == [1, 2]

        assert await store.replicas.delete_dead(retention=HOUR / 2) == 1
        assert [each.replica_id for each in await store.replicas.list(after=0, limit=9)] == [1]
        await store.replicas.retire(1)

        assert await store.replicas.list(after=0, limit=9) == ()
        await store.beat()
        await other.beat()


class TestRetention:
    async def test_deletes_finished_processes_oldest_first_in_small_batches(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        old = [fresh_key() for _ in range(5)]
        for key in old:
            await store.started(key, success(Complete(), events=2))
            store.clock.advance(dt.timedelta(seconds=1))
        kept, broken = fresh_key(), fresh_key()
        await store.started(kept)
        await store.broken(broken)
        store.clock.advance(HOUR)
        young = fresh_key()
        await store.started(young, success(Complete()))

        found, after = [], None
        for _ in range(4):
            one = await store.retention.delete_finished(
                "orders", age=HOUR / 2, limit=2, after=after
            )
            found.append((one.deleted_count, one.more))
            after = one.reached_at

        assert found == [(2, True), (2, True), (1, False), (0, False)]
        left = observer.execute("SELECT process_id FROM progressor.processes").fetchall()
        assert {row[0] for row in left} == {key.process_id for key in (kept, broken, young)}
        assert broken_invariants(observer) == {}

    async def test_passes_over_a_process_that_somebody_has_locked(
        self, store: Store, database: str
    ) -> None:
        locked, free = fresh_key(), fresh_key()
        for key in (locked, free):
            await store.started(key, success(Complete()))
        store.clock.advance(HOUR)
        with psycopg.connect(database) as holder:
            holder.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                [locked.process_id],
            )

            found = await store.retention.delete_finished("orders", age=HOUR / 2, limit=9)

        assert found.deleted_count == 1

    async def test_takes_no_further_process_once_there_are_many_events(self, store: Store) -> None:
        for _ in range(3):
            await store.started(fresh_key(), success(Complete(), events=2))
            store.clock.advance(dt.timedelta(seconds=10))
        store.clock.advance(HOUR)

        found = await store.retention.delete_finished("orders", age=HOUR, limit=9, events_max=3)

        assert (found.deleted_count, found.more, found.overdue) == (2, True, 20)

    async def test_deletes_old_tasks_but_those_that_are_needed(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        key = fresh_key()
        init = await store.start(key)
        await store.settled(init, success(events=1))
        for _ in range(5):
            await store.settled(await store.run_task(a_request(key)), success(events=1))
        last = await store.run_task(a_request(key))
        await store.settled(last, BROKEN)
        store.clock.advance(HOUR)
        repair = await store.run_task(a_request(key, TaskType.REPAIR))

        counts = [
            await store.retention.delete_old_tasks(EVERYWHERE, {"orders": HOUR / 2}, limit=3)
            for _ in range(3)
        ]

        assert [each.deleted_count for each in counts] == [3, 2, 0]
        assert [(each.due_in or 0) < 0 for each in counts] == [True, False, False]
        left = await store.processes.trace(key, after=0, limit=99)
        assert [task.task_id for task in left] == [init.task_id, last.task_id, repair.task_id]
        assert broken_invariants(observer) == {}

    async def test_looks_for_tasks_of_the_namespaces_and_pages_that_it_is_told(
        self, store: Store
    ) -> None:
        key, ages = fresh_key(), {"orders": HOUR, "elsewhere": NO_TIME}
        await store.started(key)
        await store.settled(await store.run_task(a_request(key)))
        store.clock.advance(HOUR / 4)
        table = await store.retention.measure_tasks()
        behind = range(table.page_count, 2 * table.page_count)

        assert table.partition_count >= 1
        assert await store.retention.delete_old_tasks(behind, ages, limit=9) == (0, None)
        others = {"elsewhere": NO_TIME}
        assert await store.retention.delete_old_tasks(EVERYWHERE, others, limit=9) == (0, None)
        young = await store.retention.delete_old_tasks(EVERYWHERE, ages, limit=9)
        assert young == (0, (HOUR * 3 / 4).total_seconds())
        store.clock.advance(HOUR)
        assert await store.retention.delete_old_tasks(EVERYWHERE, ages, limit=9) == (1, None)

    async def test_one_replica_has_the_round_until_its_lease_is_over(
        self, store: Store, other: Store
    ) -> None:
        assert await store.retention.hold_round(lease=MINUTE)
        assert not await other.retention.hold_round(lease=MINUTE)
        store.clock.advance(MINUTE / 2)
        assert await store.retention.hold_round(lease=MINUTE)
        store.clock.advance(MINUTE * 1.5)
        assert await other.retention.hold_round(lease=MINUTE)
        assert not await store.retention.hold_round(lease=MINUTE)
        store.clock.advance(-HOUR)
        assert await store.retention.hold_round(lease=MINUTE)


async def ran(store: Store, key: ProcessKey) -> list[int | None]:
    """Return which replica ran each task of a process, in the order of their ids."""
    return [each.replica_id for each in await store.processes.trace(key, after=0, limit=10)]


class TestATask:
    async def test_that_is_leased_when_it_is_admitted(self, store: Store, other: Store) -> None:
        key = fresh_key()
        await store.settled(await store.run_task(a_request(key, TaskType.INIT)))
        await other.settled(await other.run_task(a_request(key)))

        assert await ran(store, key) == [store.replica_id, other.replica_id]

    async def test_that_was_claimed_belongs_to_the_claiming_replica(
        self, store: Store, other: Store
    ) -> None:
        key = await store.ready()
        waiting = await store.admit(a_request(key), run=False)
        before = await ran(store, key)
        [claimed] = await other.claim(key, waiting.task_id)
        in_hand = await ran(store, key)
        await other.settled(claimed.task)

        assert before == [store.replica_id, None]
        assert in_hand == await ran(store, key) == [store.replica_id, other.replica_id]

    async def test_that_follows_in_the_same_worker(self, store: Store) -> None:
        key = fresh_key()
        init = await store.run_task(a_request(key, TaskType.INIT))
        await store.admit(a_request(key), run=False)
        call = await store.settled(init, success(), continues=True)
        assert call.next is not None
        timer = await store.settled(call.next, success(SetTimer(after=NO_TIME)), continues=True)
        assert timer.next is not None
        await store.settled(timer.next)

        assert await ran(store, key) == [store.replica_id] * 3

    async def test_that_was_lost_keeps_its_replica_until_another_runs_it(
        self, store: Store, other: Store
    ) -> None:
        key = fresh_key()
        init = await store.run_task(a_request(key, TaskType.INIT))
        await other.settled(init, Lost())
        lost = await ran(store, key)
        [claimed] = await other.claim(key, init.task_id)
        await other.settled(claimed.task)

        assert (lost, await ran(store, key)) == ([store.replica_id], [other.replica_id])


class TestANode:
    async def test_names_the_replica_that_runs_it_or_ran_it(
        self, jobs: JobStore, other: Store, clock: ManualClock
    ) -> None:
        there = job_store(other)
        leader = await begun(jobs, {"a": (), "b": ("a",)})
        before = (await jobs.jobs.read(leader, payloads=False)).nodes[0]
        task = (await there.claim())["a"]
        in_hand = (await jobs.jobs.read(leader, payloads=False)).nodes[0]
        clock.advance(MINUTE)
        await there.settled(task, DONE)

        a, b = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (before.replica_id, in_hand.replica_id) == (None, other.replica_id)
        assert (a.replica_id, b.replica_id) == (other.replica_id, None)
        assert a.updated_at == b.updated_at == clock.now()
        assert before.updated_at == clock.now() - MINUTE

    async def test_between_two_steps_names_the_replica_of_the_first(
        self, jobs: JobStore, other: Store
    ) -> None:
        there = job_store(other)
        leader = await begun(jobs, {"a": ()})
        await there.settled((await there.claim())["a"], success(SetTimer(after=HOUR)))

        [a] = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (str(a.state), a.replica_id) == ("running", other.replica_id)

    async def test_that_was_lost_names_the_replica_that_lost_it(
        self, jobs: JobStore, other: Store, clock: ManualClock
    ) -> None:
        there = job_store(other)
        leader = fresh_key()
        await jobs.submit(leader, specs({"a": ()}))
        task = (await there.claim())["a"]
        for _ in range(3):
            await jobs.store.write(collecting(task, clock.now()))
            task = next(iter((await there.claim()).values()), task)

        [a] = (await jobs.jobs.read(leader, payloads=False)).nodes
        assert (str(a.state), a.replica_id) == ("failed", other.replica_id)

    async def test_that_is_retried_has_changed_then(
        self, jobs: JobStore, clock: ManualClock
    ) -> None:
        leader = await begun(jobs, {"a": (), "b": ("a",)})
        await jobs.end(await jobs.claim(), "a", fails=("a",))
        [join] = (await jobs.claim()).values()
        await jobs.settled(join, BROKEN)
        clock.advance(HOUR)

        await jobs.control.retry(leader, deadline=None, timeout=None)

        updated = {node.updated_at for node in (await jobs.jobs.read(leader, payloads=False)).nodes}
        assert updated == {clock.now()}
