"""Writes whose answer was lost are found again, and not mistaken for another client's work."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.processes.intent import (
    Complete,
    Lost,
    Outcome,
    Rejected,
    Released,
    RemoveProcess,
    SetTimer,
)
from progressor.domain.processes.message import Message, MessageKind
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.postgres.pools import Connection
from progressor.storage.replicas.replicas import ZombieCause
from progressor.storage.steps.messages import Messages
from progressor.storage.steps.settlements import LeaseLost, Written
from tests.support.storage.store import (
    BROKEN,
    LEASE_TIMEOUT,
    NO_TIME,
    UNREACHABLE,
    Store,
    a_request,
    connect,
    dump,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
REFUSED = Rejected(code=3, message="no", reason="BAD")
OUTCOMES: tuple[Outcome, ...] = (success(events=1), success(Complete()), REFUSED, BROKEN)


@pytest_asyncio.fixture(loop_scope="module")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with await connect(database) as connection:
        yield connection


async def settle_unheard(
    store: Store, connection: Connection, task: RunningTask, outcome: Outcome
) -> Written:
    """Settle a task as a connection would that breaks before the answer; return that answer."""
    [written] = await store.settlements._plain._kind.write(
        connection, [store.entry(task, outcome)], False
    )
    assert isinstance(written, Written)
    return written


async def settle_again(
    store: Store, connection: Connection, task: RunningTask, outcome: Outcome
) -> Written | LeaseLost:
    [settled] = await store.settlements._plain._kind.write(
        connection, [store.entry(task, outcome)], True
    )
    return settled


async def lost_next(
    store: Store, connection: Connection, task: RunningTask, outcome: Outcome
) -> RunningTask:
    """Settle a task, lose the answer, and return the next one as it is found again."""
    first = await settle_unheard(store, connection, task, outcome)
    again = await settle_again(store, connection, task, outcome)
    assert isinstance(again, Written)
    assert again.next is not None
    assert again.next == first.next
    return again.next


async def a_call(store: Store) -> RunningTask:
    key = await store.ready()
    return await store.run_task(a_request(key))


class TestASettlementWhoseAnswerWasLost:
    @pytest.mark.parametrize("outcome", OUTCOMES)
    async def test_is_recognised_and_changes_nothing_more(
        self,
        store: Store,
        connection: Connection,
        observer: psycopg.Connection[Any],
        outcome: Outcome,
    ) -> None:
        call = await a_call(store)
        first = await settle_unheard(store, connection, call, outcome)
        before = dump(observer)

        again = await settle_again(store, connection, call, outcome)

        assert isinstance(again, Written)
        assert (again.settled_at, again.process) == (first.settled_at, first.process)
        assert dump(observer) == before

    async def test_goes_on_with_the_call_that_it_brought(
        self, store: Store, connection: Connection
    ) -> None:
        key = fresh_key()
        init = await store.start(key)
        await store.admit(a_request(key, args=b"next", caller_context={"who": "me"}))

        assert (await lost_next(store, connection, init, success(events=2))).args == b"next"

    async def test_goes_on_with_the_timer_that_it_set(
        self, store: Store, connection: Connection
    ) -> None:
        init = await store.start(fresh_key())
        outcome = success(SetTimer(after=NO_TIME, args=b"t"))

        assert (await lost_next(store, connection, init, outcome)).args == b"t"

    async def test_goes_on_with_all_that_is_known_of_the_next_task(
        self, store: Store, connection: Connection
    ) -> None:
        init, sender = await store.start(fresh_key()), await store.start(fresh_key())
        timers = {"a": SetTimer(after=NO_TIME)}
        timer = await store.next_of(init, success(timers=timers))
        await store.remember(timer, "pay")
        await store.settled(timer, UNREACHABLE)
        call = await store.run_task(a_request(init.key))
        message = Message(kind=MessageKind.NOTIFY, receiver=init.key)
        await store.settled(sender, success(messages=(message,)), continues=False)
        await Messages(store.context).deliver((sender.key,))
        store.clock.advance(dt.timedelta(hours=1))

        notify = await lost_next(store, connection, call, success())
        again = await lost_next(store, connection, notify, success())

        assert notify.sender is not None
        assert (again.timer_name, again.has_memos, again.tried_for) == ("a", True, SECOND)

    async def test_stands_in_a_batch_with_one_that_was_never_sent(
        self, store: Store, connection: Connection
    ) -> None:
        lost, new = await a_call(store), await a_call(store)
        await settle_unheard(store, connection, lost, success())

        settled = await store.settlements._plain._kind.write(
            connection, [store.entry(lost), store.entry(new)], True
        )

        assert [isinstance(each, Written) for each in settled] == [True, True]

    async def test_of_a_removal_is_answered_from_the_replies(
        self, store: Store, connection: Connection
    ) -> None:
        """The lease counts as lost; the caller is answered by the slow round over the results."""
        call = await a_call(store)
        await settle_unheard(store, connection, call, success(RemoveProcess(), response=b"bye"))

        again = await settle_again(store, connection, call, success(RemoveProcess()))

        assert again == LeaseLost()
        [result] = await store.results.fetch({call.task_id: call.key})
        assert result.response == b"bye"

    async def test_is_answered_from_the_replies_where_the_process_was_removed_since(
        self, store: Store, other: Store, connection: Connection
    ) -> None:
        """Its caller is noted in no row: the replica that carries the task is its caller's."""
        call = await a_call(store)
        await settle_unheard(store, connection, call, success(response=b"done"))
        await other.remove(call.key)

        again = await settle_again(store, connection, call, success(response=b"done"))

        assert again == LeaseLost()
        [result] = await store.results.fetch({call.task_id: call.key})
        assert (result.removed, result.response) == (False, b"done")


class TestASettlementThatSomebodyElseWasFasterThan:
    """Sent, never done; then the lease was collected as a zombie's, under the same token."""

    @pytest.mark.parametrize("outcome", [*OUTCOMES, UNREACHABLE])
    async def test_is_a_lease_lost_where_the_task_waits_for_its_next_attempt(
        self,
        store: Store,
        other: Store,
        connection: Connection,
        observer: psycopg.Connection[Any],
        outcome: Outcome,
    ) -> None:
        call = await a_call(store)
        await other.settled(call, Lost(), continues=False)
        before = dump(observer)

        again = await settle_again(store, connection, call, outcome)

        assert again == LeaseLost()
        assert dump(observer) == before

    @pytest.mark.parametrize("outcome", OUTCOMES)
    async def test_is_a_lease_lost_where_the_next_attempt_runs(
        self, store: Store, other: Store, connection: Connection, outcome: Outcome
    ) -> None:
        call = await a_call(store)
        await other.settled(call, Lost(), continues=False)
        await other.claim(call.key, call.task_id)

        assert await settle_again(store, connection, call, outcome) == LeaseLost()

    @pytest.mark.parametrize("outcome", OUTCOMES)
    async def test_is_a_lease_lost_where_the_zombie_broke_the_process(
        self, store: Store, other: Store, connection: Connection, outcome: Outcome
    ) -> None:
        call = await a_call(store)
        for _ in range(2):
            await other.settled(call, Lost(), continues=False)
            call = (await store.claim(call.key, call.task_id))[0].task
        await other.settled(call, Lost(), continues=False)

        assert await settle_again(store, connection, call, outcome) == LeaseLost()


class TestAnAdmissionWhoseAnswerWasLost:
    async def test_is_answered_by_its_idempotency_key(self, store: Store) -> None:
        asked = a_request(fresh_key(), TaskType.INIT, idempotency_key="once")
        first = await store.run_task(asked)

        again = await store.admit(asked)

        assert (again.task_id, again.running) == (first.task_id, None)

    async def test_leaves_a_lease_that_its_replica_finds_and_hands_back(self, store: Store) -> None:
        stray = await store.start(fresh_key())
        store.clock.advance(LEASE_TIMEOUT * 2)
        await store.beat()

        [zombie] = await store.find_zombies(known=())
        await store.collect(zombie, Released())

        assert (zombie.task_id, zombie.cause) == (stray.task_id, ZombieCause.UNKNOWN)
        [again] = await store.claim_due()
        assert (again.task.task_id, again.task.attempt) == (stray.task_id, 1)
