"""Frames: items of a stream on their way out, as many to a message as have come together.

While one frame is being written, the next one fills; at low load a frame holds one item.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")

COUNT_MAX = 512
"""Items of one frame."""

BYTES_MAX = 1024 * 1024
"""Bytes of one frame, unless a single item has more."""


class Outbox(Generic[Item]):
    """Items in order, written frame by frame; the callers of `put` bound its length."""

    def __init__(
        self,
        *,
        size: Callable[[Item], int],
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """Create an empty outbox; `size` returns the bytes of an item."""
        self._size = size
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._items: collections.deque[Item] = collections.deque()
        self._filled = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Append an item; the next frame with room for it takes it."""
        assert not self._closed, "the outbox is closed"
        self._items.append(item)
        self._filled.set()

    def clear(self) -> Sequence[Item]:
        items = tuple(self._items)
        self._items.clear()
        return items

    def close(self) -> None:
        """Take no more items; `run` ends once all are written."""
        self._closed = True
        self._filled.set()

    async def run(self, write: Callable[[Sequence[Item]], Awaitable[None]]) -> None:
        """Write until `close`, and then until nothing waits; raises what `write` raises.

        Cancelled, it does not write what waits. `write` returns when the next frame may follow.
        """
        while True:
            # The writer that fills it wakes this last: all that is ready by then goes into the
            # frame.
            await self._filled.wait()
            self._filled.clear()
            while self._items:
                await write(self._frame())
            if self._closed:
                return

    def _frame(self) -> Sequence[Item]:
        items, taken, room = self._items, [self._items.popleft()], self._bytes_max
        room -= self._size(taken[0])
        while items and len(taken) < self._count_max:
            room -= self._size(items[0])
            if room < 0:
                break
            taken.append(items.popleft())
        return taken
