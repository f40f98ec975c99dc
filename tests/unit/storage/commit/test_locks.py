"""Group commit while another transaction locks a process: no other write waits for it."""

import asyncio

import pytest

from progressor import errors
from progressor.storage.commit.group_commit import BLOCKED_SECONDS_MAX, Insistence
from progressor.storage.commit.shard import PARKED_CHECK_SECONDS
from tests.support.runtime.commit import AWAY, LOCKED, TIMEOUT_SECONDS, Harness, Item, crowd
from tests.support.runtime.virtual_time import in_virtual_time, settled


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


@in_virtual_time
async def test_a_lock_that_is_gone_when_asked_for_costs_another_write() -> None:
    harness = Harness()
    harness.script.append(LOCKED)
    async with harness.running():
        futures = harness.submit(*crowd(1, 2))
        await asyncio.wait(futures)

    assert harness.batches == [(1, 2), (1,), (2,)]
    assert harness.asked == [("p1", "p2")]


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
async def test_a_caller_waits_for_a_blocked_item_as_long_as_for_a_statement() -> None:
    harness = Harness()
    harness.locked_gates.add("g")
    async with harness.running():
        (future,) = harness.submit(*through("g", 1))

        with pytest.raises(errors.StorageLockedError):
            await future

    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_SECONDS, abs=2)
    assert harness.commit.waiting.count == 0


@in_virtual_time
async def test_what_is_decided_and_blocked_is_written_also_when_closed() -> None:
    harness = Harness(Insistence.INSIST)
    harness.locked_gates.add("g")
    async with harness.running():
        (future,) = harness.submit(*through("g", 1))
        harness.commit.close()
        await asyncio.sleep(100 * TIMEOUT_SECONDS)
        assert not future.done()
        harness.locked_gates.clear()

        assert await future == 10


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


@in_virtual_time
async def test_a_caller_waits_for_a_locked_process_as_long_as_for_a_statement() -> None:
    harness = Harness()
    harness.locked.add("p1")
    async with harness.running():
        (future,) = harness.submit(*crowd(1))

        with pytest.raises(errors.StorageLockedError, match="locked for 10 s"):
            await future

    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_SECONDS, abs=1)
    assert harness.commit.waiting.count == 0
    assert harness.commit.waiting.size == 0


@in_virtual_time
async def test_what_is_decided_waits_for_a_locked_process_without_end_also_when_closed() -> None:
    harness = Harness(Insistence.INSIST)
    harness.locked.add("p1")
    async with harness.running():
        (future,) = harness.submit(*crowd(1))
        harness.commit.close()
        await asyncio.sleep(100 * TIMEOUT_SECONDS)
        assert not future.done()
        harness.locked.clear()

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
