"""Memos, which the next attempt gets, and deadlines that move; both fenced by the lease."""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable

import pytest

from progressor.domain.processes.intent import (
    Complete,
    Failed,
    Lost,
    Outcome,
    Rejected,
    Released,
    RemoveProcess,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.processes.memo import MEMOS_BYTES_MAX, MEMOS_MAX, Extend
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.processes.histories import Histories
from tests.support.storage.store import (
    BROKEN,
    GRACE,
    Store,
    a_request,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILED = Failed(code=2, reason="KeyError", message="KeyError: 'x'", retryable=True)
REJECTED = Rejected(code=3, message="no")
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
UNREACHABLE = Failed(
    code=14, reason="PROCESSOR_UNAVAILABLE", message="no", retryable=True, unreachable=True
)


async def call_with_memos(store: Store, *keys: str) -> RunningTask:
    call = await store.run_task(a_request(await store.ready()))
    for key in keys:
        await store.remember(call, key, key.encode())
    return call


async def next_attempt(store: Store, task: RunningTask) -> RunningTask:
    store.clock.advance(HOUR)
    [claimed] = await store.claim(task.key, task.task_id)
    return claimed.task


async def memos_of(store: Store, task: RunningTask) -> dict[str, bytes] | None:
    return await Histories(store.context).memos(task.key, task.task_id, task.token)


@pytest.mark.parametrize("outcome", [FAILED, Lost(), Released(), UNREACHABLE])
async def test_the_next_attempt_has_the_memos(store: Store, outcome: Outcome) -> None:
    call = await call_with_memos(store, "pay", "ship")
    await store.settled(call, outcome)

    again = await next_attempt(store, call)

    assert (call.has_memos, again.has_memos) == (False, True)
    assert await memos_of(store, again) == {"pay": b"pay", "ship": b"ship"}
    assert await memos_of(store, call) is None
    await store.settled(again, success())
    assert await memos_of(store, again) is None
    assert await store.memos(call.key) == {}


@pytest.mark.parametrize(
    "outcome", [success(), success(Complete(b"")), success(RemoveProcess()), REJECTED]
)
async def test_memos_end_with_their_task(store: Store, outcome: Outcome) -> None:
    call = await call_with_memos(store, "pay")

    await store.settled(call, outcome)

    assert await store.memos(call.key) == {}


async def test_a_late_attempt_stores_nothing(store: Store) -> None:
    call = await call_with_memos(store)
    await store.settled(call, FAILED)
    late = await store.remember(call, "late")
    again = await next_attempt(store, call)

    assert (late, await store.remember(call, "late")) == (None, None)
    assert await store.remember(again, "late") is not None
    assert await store.memos(call.key) == {call.task_id: ["late"]}


async def test_the_first_value_of_a_key_stays(store: Store) -> None:
    call = await call_with_memos(store, "pay")

    again = await store.remember(call, "pay", b"other")

    assert again is not None
    assert (again.verdict, again.value) == ("known", b"pay")
    assert await memos_of(store, call) == {"pay": b"pay"}


async def test_many_memos_of_one_task_in_one_batch_keep_its_limits(store: Store) -> None:
    call = await call_with_memos(store)
    keys = [f"k{number:03}" for number in range(MEMOS_MAX + 2)]

    found = await asyncio.gather(*(store.remember(call, key) for key in keys))

    assert [it and it.verdict for it in found] == ["stored"] * MEMOS_MAX + ["too_many"] * 2
    assert await store.memos(call.key) == {call.task_id: keys[:MEMOS_MAX]}


async def test_the_memos_of_a_task_have_a_limit_in_all(store: Store) -> None:
    call = await call_with_memos(store)
    first = await store.remember(call, "first", bytes(MEMOS_BYTES_MAX - 1))
    over, last = await store.remember(call, "over", b"12"), await store.remember(call, "last", b"1")

    assert [it and it.verdict for it in (first, over, last)] == ["stored", "too_large", "stored"]


async def test_a_memo_that_is_too_large_takes_no_room_from_its_neighbours(store: Store) -> None:
    call, other = await call_with_memos(store), await call_with_memos(store)
    await store.remember(call, "first", bytes(MEMOS_BYTES_MAX - 10))
    sizes = {"a": 4, "large": 100, "b": 3, "larger": 200, "c": 3, "last": 1}

    found = await asyncio.gather(
        *(store.remember(call, key, bytes(size)) for key, size in sizes.items()),
        store.remember(other, "large", bytes(100)),
    )

    assert [it and it.verdict for it in found] == [
        "too_large", "too_large", "stored", "too_large", "stored", "stored", "stored"
    ]  # fmt: skip
    assert await store.memos(call.key) == {call.task_id: ["b", "c", "first", "last"]}


async def recovered(store: Store, key: ProcessKey) -> None:
    await store.recover(key)


async def removed(store: Store, key: ProcessKey) -> None:
    await store.remove(key)


async def repaired(store: Store, key: ProcessKey) -> None:
    await store.settled(await store.run_task(a_request(key, TaskType.REPAIR)))


async def run_again(store: Store, key: ProcessKey) -> None:
    again = (await store.recover(key, retries=True)).task_id
    [claimed] = await store.claim(key, again)
    assert claimed.task.has_memos
    assert await memos_of(store, claimed.task) == {"pay": b"pay"}
    await store.settled(claimed.task, success())


async def rejected_again(store: Store, key: ProcessKey) -> None:
    again = (await store.recover(key, retries=True)).task_id
    [claimed] = await store.claim(key, again)
    await store.settled(claimed.task, REJECTED)


@pytest.mark.parametrize("end", [recovered, removed, repaired, run_again, rejected_again])
async def test_a_broken_task_keeps_its_memos_until_its_process_comes_back(
    store: Store, end: Callable[[Store, ProcessKey], Awaitable[None]]
) -> None:
    call = await call_with_memos(store, "pay")
    await store.settled(call, BROKEN)
    kept = await store.memos(call.key)
    # Neither of these brings it back.
    repair = await store.run_task(a_request(call.key, TaskType.REPAIR))
    await store.remember(repair, "fix")
    await store.settled(repair, BROKEN)
    cancelled = (await store.recover(call.key, retries=True)).task_id
    await store.cancel(call.key, call.task_id)
    kept_still = await store.memos(call.key)

    await end(store, call.key)

    assert cancelled == call.task_id
    assert kept == kept_still == {call.task_id: ["pay"]}
    assert await store.memos(call.key) == {}


@pytest.mark.parametrize("change", [SetTimer(after=HOUR), UnsetTimer(), Complete(b"")])
async def test_a_timer_that_is_cancelled_while_it_waits_for_a_retry_loses_its_memos(
    store: Store, change: SetTimer | UnsetTimer | Complete
) -> None:
    key, timer_id = await store.timed(SECOND)
    store.clock.advance(SECOND)
    [timer] = await store.claim(key, timer_id)
    await store.remember(timer.task, "tick")
    await store.settled(timer.task, FAILED)
    kept = await store.memos(key)

    await store.settled(await store.run_task(a_request(key)), success(change))

    assert kept == {timer_id: ["tick"]}
    assert await store.memos(key) == {}


async def test_a_worker_that_goes_on_with_a_retried_timer_knows_of_its_memos(store: Store) -> None:
    key, timer_id = await store.timed(SECOND)
    store.clock.advance(SECOND)
    [timer] = await store.claim(key, timer_id)
    await store.remember(timer.task, "tick")
    await store.settled(timer.task, FAILED)
    call = await store.run_task(a_request(key))
    store.clock.advance(HOUR)

    following = await store.next_of(call)

    assert (following.task_id, following.has_memos) == (timer_id, True)
    await store.settled(following, success())
    assert await store.memos(key) == {}


async def extended(store: Store, task: RunningTask, by: dt.timedelta) -> dt.timedelta | None:
    return await store.step_writes.extend(
        Extend(key=task.key, task_id=task.task_id, token=task.token, by=by, longest=HOUR)
    )


async def test_a_deadline_moves_ahead_up_to_the_longest_and_never_back(store: Store) -> None:
    call = await call_with_memos(store)
    first = await extended(store, call, 100 * SECOND)
    shorter = await extended(store, call, SECOND)
    store.clock.advance(HOUR - 10 * SECOND)
    last = await extended(store, call, 100 * SECOND)
    store.clock.advance(5 * SECOND)

    assert (first, shorter, last) == (100 * SECOND, 100 * SECOND, 10 * SECOND)
    # The lease expires a grace after it.
    await store.beat()
    assert await store.find_zombies() == ()
    store.clock.advance(5 * SECOND + GRACE + SECOND)
    await store.beat()
    assert [it.task_id for it in await store.find_zombies()] == [call.task_id]


async def test_a_lost_lease_gets_no_more_time(store: Store) -> None:
    call = await call_with_memos(store)
    await store.settled(call, FAILED)

    assert await extended(store, call, SECOND) is None


async def test_a_locked_process_delays_no_memo_of_another(store: Store) -> None:
    locked, other = await call_with_memos(store), await call_with_memos(store)
    async with store.pool.connection() as connection, connection.transaction():
        await connection.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
            [locked.key.process_id],
        )
        waiting = asyncio.ensure_future(store.remember(locked, "k"))
        stored = await store.remember(other, "k")
        is_waiting = not waiting.done()
    late = await waiting

    assert is_waiting
    assert stored is not None
    assert late is not None
