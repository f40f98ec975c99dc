"""Batches: order, one result each; a refused or locked item does not hold up the others."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.intent import Complete, Failed, RemoveProcess, SetTimer, UnsetTimer
from progressor.domain.processes.process import Leadership, ProcessKey, process_key
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.settings.sections import Commit
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.locks import find_locked
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import connection_of
from progressor.storage.processes import admissions
from progressor.storage.steps.claims import Wanted
from progressor.storage.steps.settlements import LeaseLost, Written
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import open_cluster
from tests.support.postgres.locks import until_blocked
from tests.support.storage.store import (
    BROKEN,
    EXPIRES_AFTER,
    NO_TIME,
    STATEMENT_TIMEOUT,
    UNREACHABLE,
    Store,
    a_request,
    create_namespace,
    fresh_key,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
POISONED_ID = "nul\0"
LONE_SURROGATE = "\ud800"


SPOILT: dict[str, dict[str, Any]] = {
    "a payload that is not bytes": {"args": "text"},
    "a context that is not JSON": {"caller_context": {"k": object()}},
    "a history range of another type": {"history_range": "all"},
}


async def admit_together(store: Store, *requests: Any) -> list[Any]:
    """Submit before anything is written, so that they share a batch; return results or errors."""
    entries = [admissions.Entry(request, True, EXPIRES_AFTER) for request in requests]
    futures = [store.admissions.submit(entry) for entry in entries]
    await asyncio.wait(futures)
    return [future.exception() or future.result()[0] for future in futures]


def verdicts(results: list[Any]) -> list[Any]:
    return [getattr(each, "verdict", type(each)) for each in results]


class TestABatch:
    async def test_of_128_mixed_settlements_gives_each_its_own(self, store: Store) -> None:
        tasks = [await store.start(fresh_key()) for _ in range(128)]
        gone = tasks[::8]
        for task in gone:
            await store.remove(task.key)
        outcomes = (
            success(events=3), success(SetTimer(after=NO_TIME)), success(UnsetTimer()),
            success(Complete()), success(RemoveProcess()), BROKEN, UNREACHABLE, success(),
        )  # fmt: skip

        futures = [
            store.settlements.submit(store.entry(task, outcomes[number * 7 % 8]))
            for number, task in enumerate(tasks)
        ]
        written = [await future for future in futures]

        lost = [isinstance(each, LeaseLost) for each in written]
        assert lost == [task in gone for task in tasks]
        for task, each in zip(tasks, written, strict=True):
            if isinstance(each, Written) and each.process is not None:
                assert each.process.key == task.key
                assert each.next is None or each.next.key == task.key

    async def test_of_128_mixed_requests_gives_each_its_own(self, store: Store) -> None:
        running = [fresh_key() for _ in range(32)]
        broken = [fresh_key() for _ in range(32)]
        absent = [fresh_key() for _ in range(32)]
        nowhere = [fresh_key("nowhere") for _ in range(32)]
        for key in running:
            await store.started(key)
        for key in broken:
            await store.broken(key)
        mixed = [key for four in zip(running, broken, absent, nowhere, strict=True) for key in four]

        results = await admit_together(store, *(a_request(key) for key in mixed))

        assert verdicts(results) == 32 * [
            Verdict.ACCEPTED,
            Verdict.PROCESS_FAILED,
            Verdict.PROCESS_NOT_FOUND,
            Verdict.NAMESPACE_NOT_FOUND,
        ]
        assert [each.running.key for each in results[::4]] == running

    async def test_of_starts_gives_new_and_known_ones_their_own(self, store: Store) -> None:
        known = [fresh_key() for _ in range(4)]
        for key in known:
            await store.start(key, idempotency_key="once")
        new = [fresh_key() for _ in range(4)]

        results = await admit_together(
            store,
            *(a_request(key, TaskType.INIT, idempotency_key="once") for key in new),
            a_request(known[0], TaskType.INIT, idempotency_key="once"),
            a_request(known[1], TaskType.INIT, idempotency_key="once", args=b"other"),
            a_request(known[2], TaskType.INIT),
            a_request(fresh_key("nowhere"), TaskType.INIT),
        )

        assert verdicts(results) == 4 * [Verdict.ACCEPTED] + [
            Verdict.DUPLICATE,
            Verdict.KEY_REUSED,
            Verdict.PROCESS_ALREADY_EXISTS,
            Verdict.NAMESPACE_NOT_FOUND,
        ]


class TestAPoisonedItem:
    @pytest.mark.parametrize("poisoned_id", [POISONED_ID, LONE_SURROGATE])
    @pytest.mark.parametrize("task_type", [TaskType.INIT, TaskType.CALL])
    async def test_is_refused_alone(
        self, store: Store, task_type: TaskType, poisoned_id: str
    ) -> None:
        keys = [fresh_key() for _ in range(20)]
        if task_type is TaskType.CALL:
            for key in keys:
                await store.started(key)
        poisoned = ProcessKey(0, keys[0].namespace, poisoned_id)
        mixed = [*keys[:7], poisoned, *keys[7:]]

        results = await admit_together(store, *(a_request(key, task_type) for key in mixed))

        assert isinstance(results[7], errors.StorageRefusedError)
        assert {each.verdict for each in results[:7] + results[8:]} == {Verdict.ACCEPTED}

    async def test_may_be_a_number_that_no_column_holds(self, store: Store) -> None:
        good, bad = fresh_key(), fresh_key()
        outside = ProcessKey(1 << 20, bad.namespace, bad.process_id)

        results = await admit_together(
            store, a_request(good, TaskType.INIT), a_request(outside, TaskType.INIT)
        )

        assert results[0].verdict is Verdict.ACCEPTED
        assert isinstance(results[1], errors.StorageRefusedError)

    async def test_among_settlements_leaves_its_lease_for_another_answer(
        self, store: Store
    ) -> None:
        tasks = [await store.start(fresh_key()) for _ in range(9)]
        poison = success(SetTimer(after=dt.timedelta.max))
        outcomes = [poison if number == 4 else success() for number in range(9)]

        futures = [
            store.settlements.submit(store.entry(task, outcome))
            for task, outcome in zip(tasks, outcomes, strict=True)
        ]
        await asyncio.wait(futures)

        assert [future.exception() is None for future in futures] == [
            number != 4 for number in range(9)
        ]
        await store.settled(tasks[4], BROKEN)

    async def test_leaves_the_lane_to_those_that_come_after(self, store: Store) -> None:
        poisoned = ProcessKey(0, "orders", POISONED_ID)
        await admit_together(store, a_request(poisoned))

        assert (await store.start(fresh_key())).attempt == 1


def _raise_on_sent() -> None:
    raise AttributeError("nothing to tell")


class TestAnItemWhoseColumnsCannotBeBuilt:
    """Whatever is raised before a batch is sent is about one of its items."""

    @pytest.mark.parametrize("gated", [False, True])
    @pytest.mark.parametrize("task_type", [TaskType.INIT, TaskType.CALL])
    @pytest.mark.parametrize("why", SPOILT)
    async def test_is_refused_alone_as_a_request(
        self, store: Store, task_type: TaskType, why: str, *, gated: bool
    ) -> None:
        keys = [fresh_key() for _ in range(9)]
        if task_type is TaskType.CALL:
            for key in keys:
                await store.started(key)
        constraints = Constraints(gates={keys[0].process_id: 100}) if gated else None
        asked = [a_request(key, task_type, constraints=constraints) for key in keys]
        asked[4] = dataclasses.replace(asked[4], **SPOILT[why])

        results = await admit_together(store, *asked)
        later = await admit_together(store, a_request(fresh_key(), TaskType.INIT))

        assert isinstance(results[4], errors.StorageRefusedError)
        assert set(verdicts(results[:4] + results[5:] + later)) == {Verdict.ACCEPTED}

    async def test_is_refused_alone_as_a_job(self, store: Store) -> None:
        asked = [
            a_request(fresh_key(), TaskType.INIT, led_by=Leadership.PROCESSOR) for _ in range(5)
        ]
        asked[2] = dataclasses.replace(asked[2], job_options=object())  # type: ignore[arg-type]

        results = await admit_together(store, *asked)

        assert isinstance(results[2], errors.StorageRefusedError)
        assert set(verdicts(results[:2] + results[3:])) == {Verdict.ACCEPTED}

    async def test_is_refused_alone_where_the_callback_of_its_sending_fails(
        self, store: Store
    ) -> None:
        keys = [fresh_key() for _ in range(3)]
        entries = [
            admissions.Entry(a_request(key, TaskType.INIT), True, EXPIRES_AFTER) for key in keys
        ]
        entries[1] = dataclasses.replace(entries[1], on_sent=_raise_on_sent)
        futures = [store.admissions.submit(entry) for entry in entries]
        await asyncio.wait(futures)

        assert [type(future.exception()) for future in futures] == [
            type(None), errors.StorageRefusedError, type(None),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "spoilt",
        [
            success(response=["a list"]),  # type: ignore[arg-type]
            success(metadata={"k": object()}),
            success(SetTimer(after="soon")),  # type: ignore[arg-type]
            success(SetTimer(after=NO_TIME, history_range=1)),  # type: ignore[arg-type]
            Failed(code="x", reason="BUG", message="m", retryable=False),  # type: ignore[arg-type]
        ],
        ids=["response", "metadata", "timer", "history range", "code"],
    )
    async def test_is_refused_alone_as_a_settlement_and_can_still_be_broken(
        self, store: Store, spoilt: Any
    ) -> None:
        tasks = [await store.start(fresh_key()) for _ in range(9)]
        futures = [
            store.settlements.submit(store.entry(task, spoilt if number == 4 else success()))
            for number, task in enumerate(tasks)
        ]
        await asyncio.wait(futures)

        assert [type(future.exception()) for future in futures] == [
            errors.StorageRefusedError if number == 4 else type(None) for number in range(9)
        ]
        await store.settled(tasks[4], BROKEN)

    async def test_is_refused_alone_as_a_read(self, store: Store) -> None:
        keys = [fresh_key() for _ in range(3)]
        for key in keys:
            await store.started(key)
        spoilt = dataclasses.replace(keys[1], slot=object())  # type: ignore[arg-type]

        results = await asyncio.gather(
            *(store.processes.get(key) for key in (keys[0], spoilt, keys[2])),
            return_exceptions=True,
        )

        assert isinstance(results[1], errors.StorageRefusedError)
        found = [each for each in (results[0], results[2]) if not isinstance(each, BaseException)]
        assert [each.process.key for each in found] == [keys[0], keys[2]]


class TestOneProcess:
    async def test_has_its_crowd_admitted_in_the_order_of_submission(self, store: Store) -> None:
        keys = [fresh_key() for _ in range(3)]
        for key in keys:
            await store.started(key)
        crowd = [keys[number % 3] for number in range(150)]

        results = await admit_together(store, *(a_request(key) for key in crowd))

        for first in range(3):
            ids = [each.task_id for each in results[first::3]]
            assert ids == sorted(ids)
        assert sum(each.running is not None for each in results) == 3

    async def test_has_its_crowd_in_one_batch(self, database: str, clock: ManualClock) -> None:
        sizes: list[int] = []
        key = fresh_key()
        async with running_stores(
            database, clock=clock, on_batch=lambda _name, size, _wait: sizes.append(size)
        ) as [lone]:
            await lone.started(key)
            sizes.clear()
            results = await admit_together(lone, *(a_request(key) for _ in range(100)))

        assert sizes == [100]
        assert [each.running is not None for each in results] == [True] + 99 * [False]
        assert [each.due_now for each in results] == 100 * [False]

    async def test_has_equal_requests_in_batches_of_their_own(
        self, database: str, clock: ManualClock
    ) -> None:
        sizes: list[int] = []
        key = fresh_key()
        asked = a_request(key, idempotency_key="once")
        async with running_stores(
            database, clock=clock, on_batch=lambda _name, size, _wait: sizes.append(size)
        ) as [lone]:
            await lone.started(key)
            sizes.clear()
            results = await admit_together(lone, asked, a_request(key), asked, a_request(key))

        assert sizes == [2, 2]
        assert verdicts(results)[2] is Verdict.DUPLICATE
        assert results[2].task_id == results[0].task_id

    @pytest.mark.parametrize("task_type", [TaskType.INIT, None])
    async def test_is_in_a_batch_of_starts_or_settlements_once(
        self, database: str, clock: ManualClock, task_type: TaskType | None
    ) -> None:
        sizes: list[int] = []
        async with running_stores(
            database, clock=clock, on_batch=lambda _name, size, _wait: sizes.append(size)
        ) as [lone]:
            task = await lone.start(fresh_key())
            sizes.clear()
            if task_type is None:
                both = [lone.settlements.submit(lone.entry(task)) for _ in range(2)]
                await asyncio.wait(both)
            else:
                await admit_together(lone, *(a_request(task.key, task_type) for _ in range(2)))

        assert sizes == [1, 1]

    async def test_serves_two_thousand_calls_of_a_crowd_each_once(
        self, store: Store, other: Store
    ) -> None:
        """Ten processes, two replicas, submitters that do not know of each other."""
        keys = [fresh_key() for _ in range(10)]
        for key in keys:
            await store.started(key)
        served: Counter[int] = Counter()

        async def carry(task: RunningTask | None) -> None:
            while task is not None:
                served[task.task_id] += 1
                task = (await store.settled(task, success(events=1))).next

        async def call(number: int) -> int | None:
            asked = (store, other)[number % 2]
            admission = await asked.admit(a_request(keys[number % 10]))
            await carry(admission.running)
            return admission.task_id

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(number)) for number in range(2000)]

        assert served == Counter(task.result() for task in calls)
        ends = [(await store.processes.get(key)).process.last_event_id for key in keys]
        assert ends == 10 * [200]


class TestARaceForTheLocks:
    async def test_a_call_sees_only_a_process_that_it_has_locked(
        self, store: Store, other: Store, observer: psycopg.Connection[Any], database: str
    ) -> None:
        """Or it would look at the running row that a settlement is just about to delete."""
        locked, late = fresh_key(), fresh_key()
        await store.started(locked)
        with psycopg.connect(database) as holder:
            holder.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                [locked.process_id],
            )
            async with asyncio.TaskGroup() as group:
                together = group.create_task(
                    admit_together(store, a_request(locked), a_request(late))
                )
                await until_blocked(observer)
                await other.start(late)
                holder.rollback()

        assert verdicts(together.result()) == [Verdict.ACCEPTED, Verdict.PROCESS_NOT_FOUND]

    @pytest.mark.parametrize("rounds", [40])
    async def test_no_call_is_lost_to_the_settlement_before_it(
        self, store: Store, other: Store, rounds: int
    ) -> None:
        for _ in range(rounds):
            key = fresh_key()
            init = await store.start(key)
            async with asyncio.TaskGroup() as group:
                settling = group.create_task(store.settled(init))
                calling = group.create_task(other.admit(a_request(key)))
            found = settling.result().next
            runs = found or calling.result().running
            assert runs is not None, "neither the settlement nor the call has seen the other"
            assert runs.task_id == calling.result().task_id

    async def test_a_namespace_is_deleted_before_a_start_or_not_at_all(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        for number in range(20):
            name = f"short-lived-{number}"
            observer.execute(
                "INSERT INTO progressor.namespaces VALUES (%s, 1, '{}', now(), now())", [name]
            )
            async with asyncio.TaskGroup() as group:
                deletion = group.create_task(_deleted(store, name))
                start = group.create_task(
                    store.admit(a_request(process_key(name, "p"), TaskType.INIT))
                )
            accepted = start.result().verdict is Verdict.ACCEPTED
            assert accepted is not deletion.result()


async def _deleted(store: Store, name: str) -> bool:
    try:
        await store.namespaces.delete(name)
    except errors.NamespaceNotEmptyError:
        return False
    return True


class TestWithoutPostgres:
    async def test_requests_are_given_up_and_settlements_are_written_later(self) -> None:
        commit = Commit(gather=NO_TIME)
        with open_cluster() as own:
            if not own.is_embedded:
                pytest.skip("the server is not ours to stop")
            conninfo = own.create_database()
            migrate(conninfo)
            create_namespace(conninfo)
            clock = ManualClock()
            async with running_stores(conninfo, clock=clock, commit=commit) as [store]:
                awaited, forgotten = await store.start(fresh_key()), await store.start(fresh_key())
                own.kill()
                settling = store.settlements.submit(store.entry(awaited))
                given_up = store.settlements.submit(store.entry(forgotten))
                given_up.cancel()

                with pytest.raises(errors.StorageUnavailableError):
                    await store.start(fresh_key())
                assert not settling.done()
                await asyncio.to_thread(own.restart)

                assert isinstance(await settling, Written)

            # The other one cannot be awaited, but its replica does not end before it is written.
            async with running_stores(conninfo, clock=clock) as [store]:
                process = (await store.processes.get(forgotten.key)).process
                assert process.status == "running"

    async def test_a_full_queue_refuses_requests_and_takes_settlements(
        self, database: str, clock: ManualClock
    ) -> None:
        create_namespace(database)
        async with running_stores(
            make_conninfo(database), clock=clock, commit=Commit(queue_max=2, gather=NO_TIME)
        ) as [store]:
            tasks = [await store.start(fresh_key()) for _ in range(5)]
            entries = [admissions.Entry(a_request(task.key), True, EXPIRES_AFTER) for task in tasks]

            accepted = [store.admissions.submit(entry) for entry in entries[:2]]
            with pytest.raises(errors.OverloadedError):
                store.admissions.submit(entries[2])
            settling = [store.settlements.submit(store.entry(task)) for task in tasks]

            await asyncio.wait(accepted)
            await asyncio.wait(settling)
            assert all(isinstance(each.result(), Written) for each in settling)


@contextlib.contextmanager
def holding(database: str, *keys: ProcessKey) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Hold processes locked, as a session that is idle in a transaction does."""
    with psycopg.connect(database) as holder:
        for key in keys:
            holder.execute(
                "SELECT FROM progressor.processes WHERE (slot, namespace, process_id)"
                " = (%s, %s, %s) FOR UPDATE",
                [key.slot, key.namespace, key.process_id],
            )
        yield holder
        holder.rollback()


async def test_who_holds_a_process_is_found_without_waiting(store: Store, database: str) -> None:
    keys = [fresh_key() for _ in range(3)]
    for key in keys:
        await store.started(key)
    find = find_locked(Functions(), STATEMENT_TIMEOUT)
    with holding(database, keys[1]):
        async with connection_of(store.pool) as connection:
            held = await find(connection, [*keys, fresh_key()])

    async with connection_of(store.pool) as connection:
        assert await find(connection, keys) == frozenset()
    assert held == {keys[1]}


async def test_calls_of_other_processes_are_admitted(store: Store, database: str) -> None:
    locked, others = fresh_key(), [fresh_key() for _ in range(20)]
    for key in (locked, *others):
        await store.started(key)
    with holding(database, locked) as holder:
        waiting = asyncio.ensure_future(store.admit(a_request(locked)))
        async with asyncio.TaskGroup() as group:
            admitted = [group.create_task(store.admit(a_request(key))) for key in others]
        was_done = waiting.done()
        holder.rollback()

    assert all(task.result().running is not None for task in admitted)
    assert not was_done
    assert (await waiting).running is not None


async def test_a_call_of_a_locked_process_keeps_its_place(store: Store, database: str) -> None:
    key = await store.ready()
    with holding(database, key) as holder:
        first = asyncio.ensure_future(store.admit(a_request(key, args=b"1")))
        await store.started(fresh_key())
        second = asyncio.ensure_future(store.admit(a_request(key, args=b"2")))
        await store.started(fresh_key())
        holder.rollback()

    assert (await first).running is not None
    assert (await second).running is None


async def test_steps_of_other_processes_are_settled(store: Store, database: str) -> None:
    locked, *others = [await store.start(fresh_key()) for _ in range(20)]
    with holding(database, locked.process.key) as holder:
        waiting = asyncio.ensure_future(store.settled(locked))
        async with asyncio.TaskGroup() as group:
            settled = [group.create_task(store.settled(task)) for task in others]
        was_done = waiting.done()
        holder.rollback()

    assert all(isinstance(task.result(), Written) for task in settled)
    assert not was_done
    assert isinstance(await waiting, Written)


async def test_timers_of_other_processes_are_claimed(store: Store, database: str) -> None:
    timers = [await store.timed(NO_TIME) for _ in range(3)]
    wanted = [Wanted(key=key, task_id=task, expires_after=EXPIRES_AFTER) for key, task in timers]
    with holding(database, timers[1][0]):
        claimed = await store.claims.claim_tasks(store.pool, wanted)

    assert {each.task.task_id for each in claimed} == {timers[0][1], timers[2][1]}
    assert [each.task.task_id for each in await store.claim_due()] == [timers[1][1]]


async def test_a_backlog_is_claimed_but_for_what_is_locked(store: Store, database: str) -> None:
    timers = [await store.timed(NO_TIME) for _ in range(3)]
    with holding(database, timers[0][0]):
        claimed = await store.claim_due(wait=True)

    assert {each.task.task_id for each in claimed} == {timers[1][1], timers[2][1]}
