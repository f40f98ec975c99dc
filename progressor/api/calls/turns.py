"""Which caller may read next: turns between callers, by the bytes of their answers.

A page of a history is megabytes that PostgreSQL, this process and the wire carry one after the
other. Four hundred of them at once would keep everybody else's small reads waiting behind them, and
would stay in memory for as long as their caller does not take them.

What holds:

- A caller has READING_BYTES_MAX being read at a time, and UNSENT_BYTES_MAX that it has not taken;
  or one read, whatever its size. What is more waits, in the order in which it came.
- All callers together have TOTAL_BYTES_MAX. Beyond it each still has one read, so that no caller
  can keep others from reading; the turns that come free go around.
- How large an answer will be is not known before. It is taken to be as large as the last ones of
  its caller: a larger one counts at once, a smaller one by half; a new caller has FIRST_BYTES.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Hashable
from types import TracebackType

from progressor import errors
from progressor.api.calls.interceptors import RETRY_AFTER
from progressor.api.calls.ports import CallContext
from progressor.api.calls.trace_context import Known

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
class _Line:
    """What one caller reads, and waits for."""

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

    __slots__ = ("_is_reading", "_line", "_size", "_turns")

    def __init__(self, turns: "Turns", line: _Line, size: int) -> None:
        self._turns, self._line, self._size, self._is_reading = turns, line, size, True

    def weigh(self, size: int) -> None:
        """Set the size of the answer, once it has been read and is about to be sent."""
        if self._is_reading:
            self._turns.note_read(self._line, self._size, size)
            self._size, self._is_reading = size, False

    def release(self) -> None:
        """Release the room: the client has read the answer, or there is none. Safe to repeat."""
        if self._is_reading:
            self._turns.note_read(self._line, self._size, 0, is_answer=False)
        elif self._size:
            self._turns.note_sent(self._line, self._size)
        self._size, self._is_reading = 0, False


class Turns:
    """The turns of all callers of a replica."""

    def __init__(self) -> None:
        self._lines: collections.OrderedDict[Hashable, _Line] = collections.OrderedDict()
        # Those that wait only because all together have too much, the first in line first.
        self._short: collections.OrderedDict[_Line, None] = collections.OrderedDict()
        self._total = 0
        self._waiting_count = 0
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """Reads that wait for a turn."""
        return self._waiting_count

    def of(self, context: CallContext) -> "_Taking":
        """Return a scope that waits for a turn of the caller of a call, and yields it.

        What was read in it counts until the answer has left.
        """
        return _Taking(self, context)

    def close(self) -> None:
        """Refuse all waiting and future reads."""
        self._is_closed = True
        for line in self._lines.values():
            while line.waiting:
                future, _ = line.waiting.popitem(last=False)
                self._waiting_count -= 1
                if not future.done():
                    future.set_exception(errors.ShuttingDownError(RETRY_AFTER))

    async def take(self, caller: Hashable) -> Turn:
        """Return once the caller may read.

        Raises:
            OverloadedError: WAITING_MAX wait.
            ShuttingDownError: It has been closed.
        """
        if self._is_closed:
            raise errors.ShuttingDownError(RETRY_AFTER)
        line = self._line_of(caller)
        if not line.waiting and self._may_read(line):
            return self._begin(line)
        if self._waiting_count >= WAITING_MAX:
            raise errors.OverloadedError(f"{WAITING_MAX} reads are already waiting", RETRY_AFTER)
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        line.waiting[future] = None
        self._waiting_count += 1
        try:
            return await future
        except asyncio.CancelledError:
            if future in line.waiting:
                del line.waiting[future]
                self._waiting_count -= 1
            elif not future.cancelled() and future.exception() is None:
                future.result().release()
            raise

    def note_read(self, line: _Line, expected: int, size: int, *, is_answer: bool = True) -> None:
        """Count what was read in place of what was expected."""
        line.reading_count -= 1
        line.reading -= expected
        line.unsent += size
        self._total += size - expected
        if is_answer:
            smaller = max(_LEAST_BYTES, (line.expected + size) // 2)
            line.expected = size if size > line.expected else smaller
        self._go_on(line)

    def note_sent(self, line: _Line, size: int) -> None:
        """Count an answer that its client has read."""
        line.unsent -= size
        self._total -= size
        self._go_on(line)

    def _line_of(self, caller: Hashable) -> _Line:
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = _Line(caller)
            self._forget_one()
        return line

    def _forget_one(self) -> None:
        """Forget the caller that has been known for longest, if there are many; or keep it."""
        if len(self._lines) > CALLERS_MAX:
            caller, line = next(iter(self._lines.items()))
            self._lines.move_to_end(caller)
            if line.is_idle:
                del self._lines[caller]

    def _may_read(self, line: _Line) -> bool:
        if not line.reading_count and not line.unsent:
            return True
        if line.reading_count and line.reading + line.expected > READING_BYTES_MAX:
            return False
        if line.unsent + line.reading + line.expected > UNSENT_BYTES_MAX:
            return False
        if self._total + line.expected > TOTAL_BYTES_MAX:
            self._short[line] = None
            return False
        return True

    def _begin(self, line: _Line) -> Turn:
        line.reading_count += 1
        line.reading += line.expected
        self._total += line.expected
        return Turn(self, line, line.expected)

    def _go_on(self, line: _Line) -> None:
        """Give turns to those that wait; after a large answer, not before others were heard."""
        is_large = line.expected >= _LARGE_BYTES and bool(line.waiting or self._short)
        self._go_on_after(_PAUSE_TURNS if is_large else 0, line)

    def _go_on_after(self, turns: int, line: _Line) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._go_on_after, turns - 1, line)
        else:
            self._give(line)

    def _give(self, line: _Line) -> None:
        """Give turns to those that may have one now; where all were short, one to each in turn."""
        while self._short:
            short = next(iter(self._short))
            if self._total + short.expected > TOTAL_BYTES_MAX:
                break
            del self._short[short]
            self._admit(short, 1)
            if short.waiting and self._may_read(short):
                self._short[short] = None
        self._admit(line, len(line.waiting))

    def _admit(self, line: _Line, count_max: int) -> None:
        for _ in range(count_max):
            if not line.waiting or not self._may_read(line):
                return
            future, _nothing = line.waiting.popitem(last=False)
            self._waiting_count -= 1
            if not future.done():
                future.set_result(self._begin(line))


class _Taking:
    """The scope of a turn."""

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
    while isinstance(context, Known):
        context = context.inner
    caller = getattr(context, "caller", None)
    if caller is None:
        peer = getattr(context, "peer", None)
        return "" if peer is None else str(peer())
    assert isinstance(caller, Hashable), "a caller is known by a key"
    return caller


def _when_sent(context: object, callback: Callable[[], None]) -> None:
    while isinstance(context, Known):
        context = context.inner
    when_sent = getattr(context, "when_sent", None)
    if when_sent is not None:
        when_sent(callback)
        return
    # The task of a call of gRPC's ends when its answer has left. A callback of the context would
    # make a cycle.
    task = asyncio.current_task()
    assert task is not None, "each call runs in a task"
    task.add_done_callback(lambda _: callback())
