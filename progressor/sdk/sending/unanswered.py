"""The requests of a session that wait for their answers. No I/O.

What holds: each request ends once, with its answer, with an error, with its timeout or with its
caller's cancellation, whichever comes first; what comes after that finds nothing and does nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

# The field of the answer (of RawCallAnswer), and what is in it.
Answer: TypeAlias = tuple[str, bytes]


class Pending:
    """One request without an answer."""

    __slots__ = ("answer", "call_id", "data", "ends_at", "field", "is_written", "trace")

    def __init__(
        self,
        field: str,
        data: bytes,
        *,
        ends_at: float,
        trace: Sequence[tuple[str, str]] | None,
        answer: asyncio.Future[Answer],
    ) -> None:
        self.call_id = 0
        self.field, self.data, self.ends_at, self.trace = field, data, ends_at, trace
        self.answer = answer
        self.is_written = False


class Unanswered:
    """The requests of one session that wait: each leaves it once, by whatever comes first."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last_call_id = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._pending)

    def __contains__(self, pending: Pending) -> bool:
        """Tell whether a request still waits."""
        return pending.call_id in self._pending

    def add(self, pending: Pending) -> None:
        """Give a request its id."""
        self._last_call_id += 1
        pending.call_id = self._last_call_id
        self._pending[pending.call_id] = pending

    def resolve(self, call_id: int, answer: Answer) -> None:
        """End a request with its answer; nothing where it has ended already."""
        pending = self._pending.pop(call_id, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def give_up(self, pending: Pending, error: Exception | None = None) -> bool:
        """End a request with `error`, if it still waits, and tell whether the engine has it."""
        if self._pending.pop(pending.call_id, None) is None:
            return False
        if error is not None and not pending.answer.done():
            pending.answer.set_exception(error)
        return pending.is_written

    def fail(self, error: Callable[[], Exception]) -> None:
        """End every request with an error of its own."""
        pendings, self._pending = self._pending, {}
        for pending in pendings.values():
            if not pending.answer.done():
                pending.answer.set_exception(error())
