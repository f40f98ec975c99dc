"""Frames fill while one is being written, keep the order, and keep to their bounds."""

import asyncio
from collections.abc import Sequence

import pytest

from progressor.wire.frames import Outbox


class Wire:
    """What is written, frame by frame; each write waits until it is let through."""

    def __init__(self, *, open_at_once: bool = True) -> None:
        self.frames: list[Sequence[bytes]] = []
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        if open_at_once:
            self.gate.set()

    async def write(self, frame: Sequence[bytes]) -> None:
        self.frames.append(frame)
        self.begun.set()
        await self.gate.wait()


async def test_what_comes_while_a_frame_is_written_goes_with_the_next() -> None:
    wire = Wire(open_at_once=False)
    outbox = Outbox[bytes](size=len)

    async with asyncio.TaskGroup() as group:
        group.create_task(outbox.run(wire.write))
        outbox.put(b"a")
        await wire.begun.wait()
        outbox.put(b"b")
        outbox.put(b"c")
        wire.gate.set()
        outbox.close()

    assert wire.frames == [[b"a"], [b"b", b"c"]]


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [
        ([1, 1, 1], [2, 1]),  # count_max
        ([6, 5], [1, 1]),  # together more than bytes_max
        ([5, 5], [2]),
        ([11, 1], [1, 1]),  # alone more than bytes_max: a frame of its own
    ],
)
async def test_a_frame_keeps_to_its_bounds(sizes: list[int], frames: list[int]) -> None:
    wire = Wire()
    outbox = Outbox[bytes](size=len, count_max=2, bytes_max=10)
    for size in sizes:
        outbox.put(b"x" * size)
    outbox.close()

    await outbox.run(wire.write)

    assert [len(frame) for frame in wire.frames] == frames


async def test_a_write_that_fails_ends_it() -> None:
    async def write(frame: Sequence[bytes]) -> None:
        raise ConnectionResetError(len(frame))

    outbox = Outbox[bytes](size=len)
    outbox.put(b"a")

    with pytest.raises(ConnectionResetError):
        await outbox.run(write)
