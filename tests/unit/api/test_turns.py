"""Turns of readers: by the bytes of their answers, and in turn between callers."""

import asyncio
import random
from collections.abc import Hashable

import pytest

from progressor import errors
from progressor.api.calls import turns as module
from progressor.api.calls.turns import (
    _PAUSE_TURNS,
    CALLERS_MAX,
    FIRST_BYTES,
    READING_BYTES_MAX,
    TOTAL_BYTES_MAX,
    UNSENT_BYTES_MAX,
    Turn,
    Turns,
)

LARGE = 3 * 1024 * 1024
SMALL = 1000
CROWD = 400


class Crowd:
    """Callers who want to read, and what they got."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.got: list[tuple[Hashable, Turn]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def want(self, caller: Hashable, count: int = 1) -> None:
        """Ask for turns, and see who gets one at once."""
        self.tasks += [asyncio.create_task(self._take(caller)) for _ in range(count)]
        await settled()

    async def _take(self, caller: Hashable) -> None:
        self.got.append((caller, await self.turns.take(caller)))

    def count(self, caller: Hashable) -> int:
        """Return how many turns a caller has had."""
        return sum(each == caller for each, _ in self.got)

    async def leave(self) -> None:
        """Have all who wait go away."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settled() -> None:
    for _ in range(_PAUSE_TURNS + 10):
        await asyncio.sleep(0)


async def read(turns: Turns, caller: Hashable, size: int) -> Turn:
    """Read an answer of some size, which is not taken yet."""
    turn = await turns.take(caller)
    turn.weigh(size)
    return turn


async def known(turns: Turns, caller: Hashable, size: int) -> None:
    """Have a caller read, and take, answers of some size, until they are expected to be."""
    for _ in range(20):
        (await read(turns, caller, size)).release()


async def test_a_caller_that_reads_much_does_not_delay_another() -> None:
    crowd = Crowd(Turns())
    await crowd.want("much", CROWD)
    await crowd.want("little")

    assert 0 < crowd.count("much") <= READING_BYTES_MAX / FIRST_BYTES
    assert crowd.count("little") == 1
    await crowd.leave()


async def test_who_does_not_take_its_answers_reads_no_more_until_it_does() -> None:
    turns = Turns()
    unsent = [await read(turns, "a", LARGE) for _ in range(UNSENT_BYTES_MAX // LARGE)]
    crowd = Crowd(turns)
    await crowd.want("a")
    before = crowd.count("a")
    unsent[0].release()
    await settled()

    assert (before, crowd.count("a")) == (0, 1)


async def test_freed_turns_go_around_the_callers() -> None:
    turns = Turns()
    held = [await read(turns, number, LARGE) for number in range(TOTAL_BYTES_MAX // LARGE + 1)]
    crowd = Crowd(turns)
    for caller in ("a", "b"):
        await known(turns, caller, SMALL)
        await crowd.want(caller, CROWD)
    before = crowd.count("a"), crowd.count("b")
    for turn in held:
        turn.release()
    await settled()

    assert before[0] < CROWD
    assert (crowd.count("a"), crowd.count("b")) == (CROWD, CROWD)


async def test_a_caller_that_leaves_gives_its_turn_to_the_next() -> None:
    turns = Turns()
    first = await read(turns, "a", UNSENT_BYTES_MAX)
    crowd = Crowd(turns)
    await crowd.want("a", 3)
    crowd.tasks[0].cancel()
    first.release()
    # The second has its turn by now, and does not know it yet.
    crowd.tasks[1].cancel()
    await settled()

    assert crowd.count("a") == 1
    assert turns.waiting_count == 0


async def test_a_turn_is_given_back_once() -> None:
    turns = Turns()
    turn = await read(turns, "a", UNSENT_BYTES_MAX)
    turn.release()
    turn.release()
    unread = await turns.take("a")
    unread.release()
    unread.release()
    await read(turns, "a", UNSENT_BYTES_MAX)
    crowd = Crowd(turns)
    await crowd.want("a")

    assert crowd.count("a") == 0
    await crowd.leave()


async def test_those_that_wait_and_those_that_come_are_refused_at_the_end() -> None:
    turns = Turns()
    await read(turns, "a", UNSENT_BYTES_MAX)
    waiting = asyncio.create_task(turns.take("a"))
    await settled()
    turns.close()

    with pytest.raises(errors.ShuttingDownError):
        await waiting
    with pytest.raises(errors.ShuttingDownError):
        await turns.take("b")


async def test_more_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    turns = Turns()
    await read(turns, "a", UNSENT_BYTES_MAX)
    crowd = Crowd(turns)
    await crowd.want("a", 2)

    with pytest.raises(errors.OverloadedError):
        await turns.take("a")
    await crowd.leave()


async def test_callers_that_have_gone_are_forgotten() -> None:
    turns = Turns()
    for number in range(3 * CALLERS_MAX):
        await known(turns, number, SMALL)

    assert len(turns._queues) <= CALLERS_MAX + 1


@pytest.mark.parametrize("seed", range(20))
async def test_no_read_waits_forever_and_no_state_is_left(seed: int) -> None:
    turns, chance = Turns(), random.Random(seed)
    crowd = Crowd(turns)
    given = 0
    for _ in range(300):
        match chance.randrange(4):
            case 0 | 1:
                await crowd.want(chance.randrange(5), chance.randrange(1, 8))
            case 2 if crowd.tasks:
                chance.choice(crowd.tasks).cancel()
            case _:
                for _, turn in crowd.got[given:]:
                    if chance.random() < 0.8:
                        turn.weigh(chance.choice([0, SMALL, LARGE, UNSENT_BYTES_MAX]))
                    turn.release()
                given = len(crowd.got)
    await settled()
    while given < len(crowd.got):
        for _, turn in crowd.got[given:]:
            turn.release()
            given += 1
        await settled()

    assert all(task.done() for task in crowd.tasks)
    assert turns.waiting_count == 0
    assert turns._total == 0
