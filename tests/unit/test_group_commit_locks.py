"""Group commit while another transaction locks a process: no other write waits for it."""

import asyncio

import pytest

from progressor import errors
from progressor.storage.commit.group_commit import BLOCKED_SECONDS_MAX, Insistence
from progressor.storage.commit.shard import PARKED_CHECK_SECONDS
from tests.support.commit_bench import AWAY, LOCKED, TIMEOUT_SECONDS, Bench, Item, crowd
from tests.support.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_an_item_whose_process_is_locked_waits_beside_the_line_until_it_is_let_go() -> None:
    bench = Bench()
    bench.locked.add("p2")
    async with bench.running():
        one, two, three = bench.submit(*crowd(1, 2, 3))
        await asyncio.wait([one, three])
        assert not two.done()
        bench.locked.clear()

        assert await two == 20

    assert bench.batches == [(1, 2, 3), (1, 3), (2,)]
    assert asyncio.get_running_loop().time() == pytest.approx(PARKED_CHECK_SECONDS)
    assert not any(bench.again)


@in_virtual_time
async def test_what_comes_for_a_locked_process_waits_behind_and_costs_nobody_a_write() -> None:
    bench = Bench()
    bench.locked.add("a")
    async with bench.running():
        first = bench.submit(Item(1, "a"))
        await settled()
        later = bench.submit(Item(2, "a"), Item(3, "b"), Item(4, "a"))
        await asyncio.wait({later[1]})
        waiting = bench.commit.waiting.count
        bench.locked.clear()
        await asyncio.wait([*first, *later])

    assert waiting == 3
    assert bench.batches == [(1,), (3,), (1,), (2,), (4,)]


@in_virtual_time
async def test_a_lock_that_is_gone_when_asked_for_costs_another_write() -> None:
    bench = Bench()
    bench.script.append(LOCKED)
    async with bench.running():
        futures = bench.submit(*crowd(1, 2))
        await asyncio.wait(futures)

    assert bench.batches == [(1, 2), (1,), (2,)]
    assert bench.asked == [("p1", "p2")]


def through(gate: str, *numbers: int) -> list[Item]:
    """Return items of as many processes that hold a gate."""
    return [Item(number, f"p{number}", gate=gate) for number in numbers]


@in_virtual_time
async def test_an_item_that_waits_for_an_unknown_row_is_found_by_halving() -> None:
    bench = Bench(Insistence.INSIST)
    bench.locked_gates.add("g")
    async with bench.running():
        others = bench.submit(*crowd(1, 2, 3))
        (blocked,) = bench.submit(*through("g", 4))
        await asyncio.wait(others)
        later = bench.submit(*crowd(5, 6))
        await asyncio.wait(later)
        assert not blocked.done()
        assert asyncio.get_running_loop().time() == 0
        bench.locked_gates.clear()

        assert await blocked == 40

    assert bench.batches == [(1, 2, 3, 4), (1, 2), (3, 4), (3,), (4,), (5, 6), (4,)]
    assert not any(bench.again)


@in_virtual_time
async def test_of_items_that_wait_for_the_same_row_one_is_tried_for_all() -> None:
    bench = Bench(Insistence.INSIST)
    bench.locked_gates.add("g")
    bench.named_gates.add("g")
    async with bench.running():
        blocked = bench.submit(*through("g", 1, 2, 3))
        (other,) = bench.submit(*crowd(4))
        assert await other == 40
        await asyncio.sleep(2 * TIMEOUT_SECONDS)
        tried = bench.batches[2:]
        bench.locked_gates.clear()
        await asyncio.wait(blocked)

    assert bench.batches[:2] == [(1, 2, 3, 4), (4,)]
    assert set(tried) == {(1,)}
    assert len(tried) <= 2 * TIMEOUT_SECONDS / BLOCKED_SECONDS_MAX + 5
    assert bench.batches[-1] == (2, 3)
    assert bench.commit.waiting.count == bench.commit.waiting.size == 0


@in_virtual_time
async def test_what_comes_for_a_blocked_process_waits_behind_it_in_order() -> None:
    bench = Bench(size=lambda item: item.number)
    bench.locked_gates.add("g")
    async with bench.running():
        first = bench.submit(Item(1, "a", gate="g"))
        await settled()
        later = bench.submit(Item(2, "a"), Item(3, "b"), Item(4, "a"))
        await asyncio.wait({later[1]})
        waiting = bench.commit.waiting.size
        bench.locked_gates.clear()
        await asyncio.wait([*first, *later])

    assert waiting == 7
    assert bench.batches == [(1,), (3,), (1,), (2,), (4,)]
    assert bench.commit.waiting.size == 0


@in_virtual_time
async def test_a_caller_waits_for_a_blocked_item_as_long_as_for_a_statement() -> None:
    bench = Bench()
    bench.locked_gates.add("g")
    async with bench.running():
        (future,) = bench.submit(*through("g", 1))

        with pytest.raises(errors.StorageLockedError):
            await future

    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_SECONDS, abs=2)
    assert bench.commit.waiting.count == 0


@in_virtual_time
async def test_what_is_decided_and_blocked_is_written_also_when_closed() -> None:
    bench = Bench(Insistence.INSIST)
    bench.locked_gates.add("g")
    async with bench.running():
        (future,) = bench.submit(*through("g", 1))
        bench.commit.close()
        await asyncio.sleep(100 * TIMEOUT_SECONDS)
        assert not future.done()
        bench.locked_gates.clear()

        assert await future == 10


@in_virtual_time
async def test_an_outage_while_a_blocked_item_is_tried_leaves_it_to_the_next_try() -> None:
    bench = Bench(Insistence.INSIST)
    bench.locked_gates.add("g")
    async with bench.running():
        (future,) = bench.submit(*through("g", 1))
        await settled()
        bench.script.append(AWAY)
        bench.locked_gates.clear()

        assert await future == 10

    assert bench.again == [False, False, True]


@in_virtual_time
async def test_a_caller_waits_for_a_locked_process_as_long_as_for_a_statement() -> None:
    bench = Bench()
    bench.locked.add("p1")
    async with bench.running():
        (future,) = bench.submit(*crowd(1))

        with pytest.raises(errors.StorageLockedError, match="locked for 10 s"):
            await future

    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_SECONDS, abs=1)
    assert bench.commit.waiting.count == 0
    assert bench.commit.waiting.size == 0


@in_virtual_time
async def test_what_is_decided_waits_for_a_locked_process_without_end_also_when_closed() -> None:
    bench = Bench(Insistence.INSIST)
    bench.locked.add("p1")
    async with bench.running():
        (future,) = bench.submit(*crowd(1))
        bench.commit.close()
        await asyncio.sleep(100 * TIMEOUT_SECONDS)
        assert not future.done()
        bench.locked.clear()

        assert await future == 10


@in_virtual_time
async def test_what_waits_for_a_lock_counts_as_waiting_and_is_refused_when_too_much() -> None:
    bench = Bench(queue_max=2)
    bench.locked.update({"p1", "p2"})
    async with bench.running():
        bench.submit(*crowd(1, 2))
        await settled()

        with pytest.raises(errors.OverloadedError):
            bench.commit.submit(Item(3, "p3"))


@in_virtual_time
async def test_an_outage_fails_those_who_wait_for_a_lock_too() -> None:
    bench = Bench()
    bench.locked.add("p1")
    async with bench.running():
        (locked,) = bench.submit(*crowd(1))
        await settled()
        bench.script.append(AWAY)
        (other,) = bench.submit(*crowd(2))
        await asyncio.wait([locked, other])

    assert isinstance(locked.exception(), errors.StorageUnavailableError)
    assert isinstance(other.exception(), errors.StorageUnavailableError)


@in_virtual_time
@pytest.mark.parametrize("insistence", Insistence)
async def test_a_line_knows_the_bytes_of_those_who_wait_for_a_lock(insistence: Insistence) -> None:
    bench = Bench(insistence, size=lambda item: item.number)
    bench.locked.add("p5")
    async with bench.running():
        futures = bench.submit(*crowd(5, 7))
        await asyncio.wait({futures[1]})
        await settled()
        waiting = bench.commit.waiting.size
        bench.locked.clear()
        await asyncio.wait(futures)

    assert waiting == 5
    assert bench.commit.waiting.size == 0


@in_virtual_time
async def test_what_may_have_been_written_is_given_up_where_a_blocked_item_is_tried() -> None:
    bench = Bench()
    bench.locked_gates.add("g")
    bench.named_gates.add("g")
    async with bench.running():
        first, second = bench.submit(*through("g", 1, 2))
        await settled()
        bench.script.append(AWAY)
        bench.locked_gates.clear()

        with pytest.raises(errors.StorageUnavailableError):
            await first
        assert await second == 20

    assert bench.batches == [(1, 2), (1,), (2,)]
    assert bench.commit.waiting.count == bench.commit.waiting.size == 0


@in_virtual_time
async def test_patience_is_not_lost_with_a_blocked_item_that_is_being_tried() -> None:
    bench = Bench()
    bench.locked_gates.add("g")
    async with bench.running():
        (future,) = bench.submit(*through("g", 1))
        await asyncio.sleep(TIMEOUT_SECONDS - 1)
        bench.locked_gates.clear()
        bench.seconds = 3.0

        assert await future == 10
