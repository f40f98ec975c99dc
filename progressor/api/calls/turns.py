"""Which caller may read next: turns between callers, by the bytes of their responses.

A page of a history may have megabytes. Four hundred such reads at once would delay the small reads
of all other callers, and their pages would stay in memory until the callers have received them.

Invariants:

- A caller may have READING_BYTES_MAX in progress and UNSENT_BYTES_MAX that it has not received, or
  one read of any size. Further reads wait in the order of their arrival.
- All callers together may have TOTAL_BYTES_MAX. Above it each caller may still have one read, so
  that none blocks the others; turns that become free are given out in rotation.
- The size of a response is not known in advance. The estimate is the size of the caller's last
  ones: a larger one replaces it, a smaller one is averaged in; it begins with FIRST_BYTES.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Hashable
from types import TracebackType

from progressor import errors
from progressor.api.calls.interceptors import RETRY_AFTER
from progressor.api.calls.traces import CallContext, grpc_context_of

READING_BYTES_MAX = 3 * 1024 * 1024
UNSENT_BYTES_MAX = 8 * 1024 * 1024
TOTAL_BYTES_MAX = 128 * 1024 * 1024
FIRST_BYTES = 1024 * 1024
WAITING_MAX = 100_000
"""Reads that wait for a turn, over which they are OVERLOADED."""

CALLERS_MAX = 1_000
"""Callers without a read that are remembered for the size of their answers."""

_LEAST_BYTES = 1024
_LARGE_BYTES = 64 * 1024
_PAUSE_TURNS = 48
"""Turns of the event loop between two large reads of a caller: gRPC takes up a request in a few."""


@dataclasses.dataclass(slots=True, eq=False)
class _CallerQueue:
    """The reads of one caller: in progress, not taken yet, and waiting."""

    caller: Hashable
    expected: int = FIRST_BYTES
    reading_count: int = 0
    reading: int = 0
    unsent: int = 0
    waiting: "collections.OrderedDict[asyncio.Future[Turn], None]" = dataclasses.field(
        default_factory=collections.OrderedDict
    )

    @property
    def is_idle(self) -> bool:
        return not (self.reading_count or self.unsent or self.waiting)


class Turn:
    """The right to read, and then the room of what was read, from `take` to `release`."""

    __slots__ = ("_is_reading", "_queue", "_size", "_turns")

    def __init__(self, turns: "Turns", queue: _CallerQueue, size: int) -> None:
        self._turns, self._queue, self._size, self._is_reading = turns, queue, size, True

    def weigh(self, size: int) -> None:
        """Set the size of the answer, once it has been read and is about to be sent."""
        if self._is_reading:
            self._turns.note_read(self._queue, self._size, size)
            self._size, self._is_reading = size, False

    def release(self) -> None:
        """Release the room: the client has read the answer, or there is none. Safe to repeat."""
        if self._is_reading:
            self._turns.note_read(self._queue, self._size, 0, is_answer=False)
        elif self._size:
            self._turns.note_sent(self._queue, self._size)
        self._size, self._is_reading = 0, False


class Turns:
    """The turns of all callers of a replica."""

    def __init__(self) -> None:
        self._queues: collections.OrderedDict[Hashable, _CallerQueue] = collections.OrderedDict()
        # Those that wait only because all together have too much, in order.
        self._short: collections.OrderedDict[_CallerQueue, None] = collections.OrderedDict()
        self._total = 0
        self._waiting_count = 0
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """Reads that wait for a turn."""
        return self._waiting_count

    def of(self, context: CallContext) -> "_Taking":
        """Return a scope with a turn of the caller; what was read counts until it has left."""
        return _Taking(self, context)

    def close(self) -> None:
        self._is_closed = True
        for queue in self._queues.values():
            while queue.waiting:
                future, _ = queue.waiting.popitem(last=False)
                self._waiting_count -= 1
                if not future.done():
                    future.set_exception(errors.ShuttingDownError(RETRY_AFTER))

    async def take(self, caller: Hashable) -> Turn:
        """Return once the caller may read; OverloadedError if WAITING_MAX wait already."""
        if self._is_closed:
            raise errors.ShuttingDownError(RETRY_AFTER)
        queue = self._queue_of(caller)
        if not queue.waiting and self._may_read(queue):
            return self._begin(queue)
        if self._waiting_count >= WAITING_MAX:
            raise errors.OverloadedError(f"{WAITING_MAX} reads are already waiting", RETRY_AFTER)
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        queue.waiting[future] = None
        self._waiting_count += 1
        try:
            return await future
        except asyncio.CancelledError:
            if future in queue.waiting:
                del queue.waiting[future]
                self._waiting_count -= 1
            elif not future.cancelled() and future.exception() is None:
                future.result().release()
            raise

    def note_read(
        self, queue: _CallerQueue, expected: int, size: int, *, is_answer: bool = True
    ) -> None:
        """Count what was read in place of what was expected."""
        queue.reading_count -= 1
        queue.reading -= expected
        queue.unsent += size
        self._total += size - expected
        if is_answer:
            smaller = max(_LEAST_BYTES, (queue.expected + size) // 2)
            queue.expected = size if size > queue.expected else smaller
        self._go_on(queue)

    def note_sent(self, queue: _CallerQueue, size: int) -> None:
        queue.unsent -= size
        self._total -= size
        self._go_on(queue)

    def _queue_of(self, caller: Hashable) -> _CallerQueue:
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = _CallerQueue(caller)
            self._forget_one()
        return queue

    def _forget_one(self) -> None:
        """Forget the caller that has been known for longest, if there are many; or keep it."""
        if len(self._queues) > CALLERS_MAX:
            caller, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(caller)
            if queue.is_idle:
                del self._queues[caller]

    def _may_read(self, queue: _CallerQueue) -> bool:
        if not queue.reading_count and not queue.unsent:
            return True
        if queue.reading_count and queue.reading + queue.expected > READING_BYTES_MAX:
            return False
        if queue.unsent + queue.reading + queue.expected > UNSENT_BYTES_MAX:
            return False
        if self._total + queue.expected > TOTAL_BYTES_MAX:
            self._short[queue] = None
            return False
        return True

    def _begin(self, queue: _CallerQueue) -> Turn:
        queue.reading_count += 1
        queue.reading += queue.expected
        self._total += queue.expected
        return Turn(self, queue, queue.expected)

    def _go_on(self, queue: _CallerQueue) -> None:
        """Give turns to those that wait; after a large answer, not before others were heard."""
        is_large = queue.expected >= _LARGE_BYTES and bool(queue.waiting or self._short)
        self._go_on_after(_PAUSE_TURNS if is_large else 0, queue)

    def _go_on_after(self, turns: int, queue: _CallerQueue) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._go_on_after, turns - 1, queue)
        else:
            self._give(queue)

    def _give(self, queue: _CallerQueue) -> None:
        """Give turns to those that may have one now; where all were short, one to each in turn."""
        while self._short:
            short = next(iter(self._short))
            if self._total + short.expected > TOTAL_BYTES_MAX:
                break
            del self._short[short]
            self._admit(short, 1)
            if short.waiting and self._may_read(short):
                self._short[short] = None
        self._admit(queue, len(queue.waiting))

    def _admit(self, queue: _CallerQueue, count_max: int) -> None:
        for _ in range(count_max):
            if not queue.waiting or not self._may_read(queue):
                return
            future, _nothing = queue.waiting.popitem(last=False)
            self._waiting_count -= 1
            if not future.done():
                future.set_result(self._begin(queue))


class _Taking:
    __slots__ = ("_context", "_turn", "_turns")

    def __init__(self, turns: Turns, context: CallContext) -> None:
        self._turns, self._context = turns, context

    async def __aenter__(self) -> Turn:
        self._turn = await self._turns.take(caller_of(self._context))
        return self._turn

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._turn.release()
        else:
            _when_sent(self._context, self._turn.release)


def caller_of(context: object) -> Hashable:
    """Return the caller that a call or a session counts as: its connection."""
    context = grpc_context_of(context)
    caller = getattr(context, "caller", None)
    if caller is None:
        peer = getattr(context, "peer", None)
        return "" if peer is None else str(peer())
    assert isinstance(caller, Hashable), "a caller is known by a key"
    return caller


def _when_sent(context: object, callback: Callable[[], None]) -> None:
    when_sent = getattr(grpc_context_of(context), "when_sent", None)
    if when_sent is not None:
        when_sent(callback)
        return
    # The task of a call of gRPC's ends when its answer has left. A callback of the context would
    # make a cycle.
    task = asyncio.current_task()
    assert task is not None, "each call runs in a task"
    task.add_done_callback(lambda _: callback())
