"""Giving memory back: first what is free after growth, then what a collection frees."""

import dataclasses
import datetime as dt

import pytest

from progressor.cli.engine.hosting import (
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


@pytest.mark.parametrize(
    ("process", "growth", "after_seconds", "look_count", "done"),
    [
        (Process(), GROWTH_BYTES - 1, 0.0, 1, []),
        (Process(freed_by_trim=GROWTH_BYTES), GROWTH_BYTES, 0.0, 1, ["trim"]),
        (
            Process(freed_by_collection=GROWTH_BYTES),
            GROWTH_BYTES,
            0.0,
            1,
            ["trim", "collect", "trim"],
        ),
        (Process(), 0, COLLECT_SECONDS, 2, ["trim", "collect", "trim"]),
    ],
    ids=["no growth", "growth that is free", "growth that is not free", "no growth for long"],
)
async def test_memory_is_trimmed_and_if_that_is_not_enough_collected(
    process: Process, growth: int, after_seconds: float, look_count: int, done: list[str]
) -> None:
    clock = ManualClock()
    memory = memory_of(process, clock)
    process.resident += growth
    clock.advance(dt.timedelta(seconds=after_seconds))

    for _ in range(look_count):
        await memory.look()

    assert process.done == done


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


def test_this_process_occupies_memory_and_can_be_trimmed() -> None:
    assert resident_bytes() > 1024 * 1024
    allocators_trim()()
