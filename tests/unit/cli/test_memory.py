"""Giving memory back: first what is free after growth, then what a collection frees."""

import dataclasses
import datetime as dt

from progressor.cli.engine.memory import (
    COLLECT_SECONDS,
    FREED_BYTES,
    GROWTH_BYTES,
    Memory,
    allocators_trim,
    resident_bytes,
)
from tests.support.clock import ManualClock

START = 100 * 1024 * 1024


@dataclasses.dataclass
class Process:
    """A process whose memory is what a test says; notes what is done about it."""

    resident: int = START
    freed_by_trim: int = 0
    freed_by_collection: int = 0
    done: list[str] = dataclasses.field(default_factory=list)

    def trim(self) -> None:
        self.done.append("trim")
        self.resident -= self.freed_by_trim
        self.freed_by_trim = 0

    def collect(self) -> None:
        self.done.append("collect")
        self.freed_by_trim += self.freed_by_collection
        self.freed_by_collection = 0


def memory_of(process: Process, clock: ManualClock | None = None) -> Memory:
    return Memory(
        clock=clock or ManualClock(),
        resident=lambda: process.resident,
        trim=process.trim,
        collect=process.collect,
    )


async def test_nothing_is_done_about_memory_that_does_not_grow() -> None:
    process = Process()
    memory = memory_of(process)
    process.resident += GROWTH_BYTES - 1

    await memory.look()

    assert process.done == []


async def test_what_is_free_is_given_back_without_a_collection() -> None:
    process = Process(freed_by_trim=GROWTH_BYTES)
    memory = memory_of(process)
    process.resident += GROWTH_BYTES

    await memory.look()

    assert process.done == ["trim"]


async def test_growth_that_is_not_free_is_collected() -> None:
    process = Process(freed_by_collection=GROWTH_BYTES)
    memory = memory_of(process)
    process.resident += GROWTH_BYTES

    await memory.look()

    assert process.done == ["trim", "collect", "trim"]
    assert process.resident == START


async def test_it_goes_on_for_as_long_as_something_comes_free() -> None:
    process = Process(freed_by_trim=GROWTH_BYTES)
    memory = memory_of(process)
    process.resident += GROWTH_BYTES
    await memory.look()
    process.freed_by_trim = FREED_BYTES - 1

    for _ in range(3):
        await memory.look()

    assert process.done == ["trim", "trim"]


async def test_growth_counts_from_the_least_there_was() -> None:
    process = Process()
    memory = memory_of(process)
    process.resident -= GROWTH_BYTES
    await memory.look()
    process.resident += GROWTH_BYTES

    await memory.look()

    assert "collect" in process.done


async def test_a_collection_follows_after_a_time_whatever_memory_does() -> None:
    process, clock = Process(), ManualClock()
    memory = memory_of(process, clock)
    clock.advance(dt.timedelta(seconds=COLLECT_SECONDS))

    await memory.look()
    await memory.look()

    assert process.done == ["trim", "collect", "trim"]


def test_this_process_occupies_memory_and_can_be_trimmed() -> None:
    assert resident_bytes() > 1024 * 1024
    allocators_trim()()
