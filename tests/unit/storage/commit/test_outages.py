"""Group commit while PostgreSQL is away, and while processes are locked."""

import asyncio
import itertools
import struct
from typing import Any

import psycopg_pool
import pytest

from progressor import errors
from progressor.storage.commit.group_commit import (
    BLOCKED_SECONDS_MAX,
    CONFLICT_ATTEMPTS_MAX,
    QUEUE_BYTES_MAX,
    Insistence,
)
from progressor.storage.commit.shard import PARKED_CHECK_SECONDS
from tests.support.runtime.commit import (
    AWAY,
    CONFLICT,
    TIMEOUT_SECONDS,
    Harness,
    Item,
    crowd,
)
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_an_outage_fails_every_waiting_caller() -> None:
    harness = Harness(batch_max=2)
    harness.script.append(AWAY)
    futures = harness.submit(*crowd(1, 2, 3))
    async with harness.running():
        await asyncio.wait(futures)

    raised = {type(future.exception()) for future in futures}
    assert raised == {errors.StorageUnavailableError}
    assert harness.batches == [(1, 2)]


@in_virtual_time
async def test_a_pool_that_is_away_fails_all_who_wait() -> None:
    harness = Harness()
    harness.pool.outages = 1
    (future,) = harness.submit(*crowd(1))
    async with harness.running():
        await asyncio.wait({future})

    assert isinstance(future.exception(), errors.StorageUnavailableError)


@in_virtual_time
async def test_a_caller_who_has_gone_is_not_failed() -> None:
    harness = Harness()
    gone, there = harness.submit(*crowd(1, 2))
    gone.cancel()
    harness.script.append(AWAY)
    async with harness.running():
        await asyncio.wait({there})

    assert gone.cancelled()


@in_virtual_time
async def test_a_settlement_is_retried_until_postgresql_answers() -> None:
    harness = Harness(Insistence.INSIST)
    harness.script.extend([AWAY, AWAY])
    harness.pool.outages = 1
    futures = harness.submit(*crowd(1, 2))
    async with harness.running():
        await asyncio.wait(futures)

    assert [future.result() for future in futures] == [10, 20]
    assert harness.batches == [(1, 2), (1,), (1,), (2,)]
    assert harness.again == [False, True, True, True]


@in_virtual_time
async def test_an_outage_keeps_the_order_within_a_process() -> None:
    harness = Harness(Insistence.INSIST)
    harness.script.append(AWAY)
    harness.open.clear()
    async with harness.running():
        futures = harness.submit(Item(1, "a"), Item(2, "b"))
        await settled()
        futures += harness.submit(Item(3, "a"), Item(4, "b"))
        harness.open.set()
        await asyncio.wait(futures)

    assert harness.batches == [(1, 2), (1,), (2, 3), (4,)]


@in_virtual_time
async def test_a_worker_who_has_gone_leaves_its_settlement_to_be_written_again() -> None:
    harness = Harness(Insistence.INSIST)
    harness.script.append(AWAY)
    harness.open.clear()
    async with harness.running():
        (future,) = harness.submit(*crowd(1))
        await settled()
        future.cancel()
        harness.open.set()
        await asyncio.sleep(1)

    assert harness.batches == [(1,), (1,)]


@in_virtual_time
async def test_the_pauses_of_an_outage_grow_up_to_a_second_and_then_start_over() -> None:
    harness = Harness(Insistence.INSIST)
    harness.script.extend([AWAY] * 7)
    async with harness.running():
        (first,) = harness.submit(*crowd(1))
        await asyncio.wait({first})
        harness.script.append(AWAY)
        (second,) = harness.submit(*crowd(2))
        await asyncio.wait({second})

    pauses = [later - earlier for earlier, later in itertools.pairwise(harness.times)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.0, 0.05])


@in_virtual_time
async def test_the_pauses_of_an_outage_are_spread() -> None:
    harness = Harness(Insistence.INSIST, jitter=lambda: 1.0)
    harness.script.extend([AWAY] * 3)
    async with harness.running():
        (future,) = harness.submit(*crowd(1))
        await asyncio.wait({future})

    pauses = [later - earlier for earlier, later in itertools.pairwise(harness.times)]
    assert pauses == pytest.approx([0.05 * 1.25, 0.1 * 1.25, 0.2 * 1.25])


@in_virtual_time
async def test_a_line_that_is_full_of_bytes_refuses_requests_until_there_is_room() -> None:
    harness = Harness(size=lambda _: QUEUE_BYTES_MAX // 2)
    harness.submit(*crowd(1, 2))

    with pytest.raises(errors.OverloadedError, match="bytes"):
        harness.submit(*crowd(3))

    async with harness.running():
        await settled()
        (late,) = harness.submit(*crowd(3))

        assert await late == 30


@in_virtual_time
@pytest.mark.parametrize("insistence", Insistence)
async def test_a_line_that_was_given_up_or_put_back_knows_its_bytes(insistence: Insistence) -> None:
    harness = Harness(insistence, size=lambda _: 7)
    harness.script.append(AWAY)
    async with harness.running():
        await asyncio.wait(harness.submit(*crowd(1, 2, 3, 4, 5, 6)))

    assert harness.commit.waiting.size == 0


@in_virtual_time
async def test_waiting_items_keep_their_place_when_only_connections_are_short() -> None:
    harness = Harness()
    harness.pool.outages = 2
    harness.pool.outage = psycopg_pool.TooManyRequests
    async with harness.running():
        (future,) = harness.submit(*crowd(1))

        assert await future == 10


@in_virtual_time
async def test_a_write_that_hangs_is_cut_off() -> None:
    harness = Harness()
    harness.open.clear()
    (future,) = harness.submit(*crowd(1))
    async with harness.running():
        await asyncio.wait({future})

    assert asyncio.get_running_loop().time() == TIMEOUT_SECONDS
    assert isinstance(future.exception(), errors.StorageUnavailableError)


@in_virtual_time
async def test_a_write_that_was_undone_for_another_is_repeated_at_once() -> None:
    harness = Harness()
    harness.script.append(CONFLICT)
    (future,) = harness.submit(*crowd(1))
    async with harness.running():
        assert await future == 10

    assert asyncio.get_running_loop().time() == 0
    assert harness.again == [False, False]


@in_virtual_time
async def test_a_write_that_is_undone_again_and_again_is_an_outage() -> None:
    harness = Harness()
    harness.script.extend([CONFLICT] * CONFLICT_ATTEMPTS_MAX)
    (future,) = harness.submit(*crowd(1))
    async with harness.running():
        await asyncio.wait({future})

    assert len(harness.batches) == CONFLICT_ATTEMPTS_MAX
    assert isinstance(future.exception(), errors.StorageConflictError)


@pytest.mark.parametrize("insistence", Insistence)
@in_virtual_time
async def test_an_item_that_postgresql_refuses_fails_alone(insistence: Insistence) -> None:
    harness = Harness(insistence)
    good, poisoned = crowd(1, 3, 4), Item(2, "p2", poisoned=True)
    futures = harness.submit(good[0], poisoned, *good[1:])
    async with harness.running():
        await asyncio.wait(futures)

    assert isinstance(futures[1].exception(), errors.StorageRefusedError)
    assert [futures[index].result() for index in (0, 2, 3)] == [10, 30, 40]


@pytest.mark.parametrize("insistence", Insistence)
@pytest.mark.parametrize("error", [struct.error, UnicodeError, TypeError, AttributeError])
@in_virtual_time
async def test_an_item_whose_columns_cannot_be_built_fails_alone(
    error: type[Exception], insistence: Insistence
) -> None:
    harness = Harness(insistence)
    harness.unsendable[2] = error
    futures = harness.submit(*crowd(1, 2, 3))
    async with harness.running():
        await asyncio.wait(futures)
        (later,) = harness.submit(*crowd(4))

        assert await later == 40

    refusal = futures[1].exception()
    assert isinstance(refusal, errors.StorageRefusedError)
    assert isinstance(refusal.__cause__, error)
    assert [futures[index].result() for index in (0, 2)] == [10, 30]


@pytest.mark.parametrize("measure", ["key", "size", "conflict_key"])
@in_virtual_time
async def test_an_item_that_cannot_be_put_in_line_is_refused_to_who_submits_it(
    measure: str,
) -> None:
    def spoilt(item: Item) -> None:
        raise AttributeError(f"item {item.number}")

    fields: dict[str, Any] = {measure: spoilt}
    harness = Harness(**fields)
    with pytest.raises(errors.StorageRefusedError, match="AttributeError: item 1"):
        harness.commit.submit(Item(1, "p1"))

    assert harness.commit.waiting.count == 0


@in_virtual_time
async def test_a_bug_in_a_write_ends_the_group() -> None:
    harness = Harness()
    harness.script.append(ZeroDivisionError)
    harness.submit(*crowd(1))

    with pytest.raises(ExceptionGroup) as caught:
        await harness.commit.run()

    assert caught.group_contains(ZeroDivisionError)


@in_virtual_time
async def test_an_item_whose_process_is_locked_waits_beside_the_line_until_it_is_let_go() -> None:
    harness = Harness()
    harness.locked.add("p2")
    async with harness.running():
        one, two, three = harness.submit(*crowd(1, 2, 3))
        await asyncio.wait([one, three])
        assert not two.done()
        harness.locked.clear()

        assert await two == 20

    assert harness.batches == [(1, 2, 3), (1, 3), (2,)]
    assert asyncio.get_running_loop().time() == pytest.approx(PARKED_CHECK_SECONDS)
    assert not any(harness.again)


@in_virtual_time
async def test_what_comes_for_a_locked_process_waits_behind_and_costs_nobody_a_write() -> None:
    harness = Harness()
    harness.locked.add("a")
    async with harness.running():
        first = harness.submit(Item(1, "a"))
        await settled()
        later = harness.submit(Item(2, "a"), Item(3, "b"), Item(4, "a"))
        await asyncio.wait({later[1]})
        waiting = harness.commit.waiting.count
        harness.locked.clear()
        await asyncio.wait([*first, *later])

    assert waiting == 3
    assert harness.batches == [(1,), (3,), (1,), (2,), (4,)]


def lock(harness: Harness, *, of_process: bool) -> None:
    """Lock the process of the first item, or its gate."""
    if of_process:
        harness.locked.add("p1")
    else:
        harness.locked_gates.add("g")


def through(gate: str, *numbers: int) -> list[Item]:
    """Return items of as many processes that hold a gate."""
    return [Item(number, f"p{number}", gate=gate) for number in numbers]


@in_virtual_time
async def test_an_item_that_waits_for_an_unknown_row_is_found_by_halving() -> None:
    harness = Harness(Insistence.INSIST)
    harness.locked_gates.add("g")
    async with harness.running():
        others = harness.submit(*crowd(1, 2, 3))
        (blocked,) = harness.submit(*through("g", 4))
        await asyncio.wait(others)
        later = harness.submit(*crowd(5, 6))
        await asyncio.wait(later)
        assert not blocked.done()
        assert asyncio.get_running_loop().time() == 0
        harness.locked_gates.clear()

        assert await blocked == 40

    assert harness.batches == [(1, 2, 3, 4), (1, 2), (3, 4), (3,), (4,), (5, 6), (4,)]
    assert not any(harness.again)


@in_virtual_time
async def test_of_items_that_wait_for_the_same_row_one_is_tried_for_all() -> None:
    harness = Harness(Insistence.INSIST)
    harness.locked_gates.add("g")
    harness.named_gates.add("g")
    async with harness.running():
        blocked = harness.submit(*through("g", 1, 2, 3))
        (other,) = harness.submit(*crowd(4))
        assert await other == 40
        await asyncio.sleep(2 * TIMEOUT_SECONDS)
        tried = harness.batches[2:]
        harness.locked_gates.clear()
        await asyncio.wait(blocked)

    assert harness.batches[:2] == [(1, 2, 3, 4), (4,)]
    assert set(tried) == {(1,)}
    assert len(tried) <= 2 * TIMEOUT_SECONDS / BLOCKED_SECONDS_MAX + 5
    assert harness.batches[-1] == (2, 3)
    assert harness.commit.waiting.count == harness.commit.waiting.size == 0


@in_virtual_time
async def test_what_comes_for_a_blocked_process_waits_behind_it_in_order() -> None:
    harness = Harness(size=lambda item: item.number)
    harness.locked_gates.add("g")
    async with harness.running():
        first = harness.submit(Item(1, "a", gate="g"))
        await settled()
        later = harness.submit(Item(2, "a"), Item(3, "b"), Item(4, "a"))
        await asyncio.wait({later[1]})
        waiting = harness.commit.waiting.size
        harness.locked_gates.clear()
        await asyncio.wait([*first, *later])

    assert waiting == 7
    assert harness.batches == [(1,), (3,), (1,), (2,), (4,)]
    assert harness.commit.waiting.size == 0


@in_virtual_time
async def test_an_outage_while_a_blocked_item_is_tried_leaves_it_to_the_next_try() -> None:
    harness = Harness(Insistence.INSIST)
    harness.locked_gates.add("g")
    async with harness.running():
        (future,) = harness.submit(*through("g", 1))
        await settled()
        harness.script.append(AWAY)
        harness.locked_gates.clear()

        assert await future == 10

    assert harness.again == [False, False, True]


@pytest.mark.parametrize("of_process", [True, False], ids=["process", "gate"])
@in_virtual_time
async def test_a_caller_waits_for_a_lock_as_long_as_for_a_statement(of_process: bool) -> None:
    harness = Harness()
    lock(harness, of_process=of_process)
    async with harness.running():
        (future,) = harness.submit(*through("g", 1))

        with pytest.raises(errors.StorageLockedError, match="locked for 10 s"):
            await future

    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_SECONDS, abs=2)
    assert harness.commit.waiting.count == harness.commit.waiting.size == 0


@pytest.mark.parametrize("of_process", [True, False], ids=["process", "gate"])
@in_virtual_time
async def test_what_is_decided_waits_for_a_lock_without_end_also_when_closed(
    of_process: bool,
) -> None:
    harness = Harness(Insistence.INSIST)
    lock(harness, of_process=of_process)
    async with harness.running():
        (future,) = harness.submit(*through("g", 1))
        harness.commit.close()
        await asyncio.sleep(100 * TIMEOUT_SECONDS)
        assert not future.done()
        harness.locked.clear()
        harness.locked_gates.clear()

        assert await future == 10


@in_virtual_time
async def test_what_waits_for_a_lock_counts_as_waiting_and_is_refused_when_too_much() -> None:
    harness = Harness(queue_max=2)
    harness.locked.update({"p1", "p2"})
    async with harness.running():
        harness.submit(*crowd(1, 2))
        await settled()

        with pytest.raises(errors.OverloadedError):
            harness.commit.submit(Item(3, "p3"))


@in_virtual_time
async def test_what_may_have_been_written_is_given_up_where_a_blocked_item_is_tried() -> None:
    harness = Harness()
    harness.locked_gates.add("g")
    harness.named_gates.add("g")
    async with harness.running():
        first, second = harness.submit(*through("g", 1, 2))
        await settled()
        harness.script.append(AWAY)
        harness.locked_gates.clear()

        with pytest.raises(errors.StorageUnavailableError):
            await first
        assert await second == 20

    assert harness.batches == [(1, 2), (1,), (2,)]
    assert harness.commit.waiting.count == harness.commit.waiting.size == 0


@in_virtual_time
async def test_patience_is_not_lost_with_a_blocked_item_that_is_being_tried() -> None:
    harness = Harness()
    harness.locked_gates.add("g")
    async with harness.running():
        (future,) = harness.submit(*through("g", 1))
        await asyncio.sleep(TIMEOUT_SECONDS - 1)
        harness.locked_gates.clear()
        harness.seconds = 3.0

        assert await future == 10
