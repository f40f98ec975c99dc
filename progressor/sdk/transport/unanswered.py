"""The unanswered requests of a session. No I/O.

Each request ends once: with its answer, an error, its timeout or its caller's cancellation,
whichever comes first. Whatever comes later has no effect.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

# The field of the answer (of RawCallAnswer) and its content.
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
    """The unanswered requests of one session."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last_call_id = 0

    def __len__(self) -> int:
        """Return their number."""
        return len(self._pending)

    def __contains__(self, pending: Pending) -> bool:
        """Return whether a request is unanswered."""
        return pending.call_id in self._pending

    def add(self, pending: Pending) -> None:
        """Add a request and set its id."""
        self._last_call_id += 1
        pending.call_id = self._last_call_id
        self._pending[pending.call_id] = pending

    def resolve(self, call_id: int, answer: Answer) -> None:
        """End a request with its answer, unless it has ended."""
        pending = self._pending.pop(call_id, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def give_up(self, pending: Pending, error: Exception | None = None) -> bool:
        """End a request with `error`, unless it has ended; return whether it was written."""
        if self._pending.pop(pending.call_id, None) is None:
            return False
        if error is not None and not pending.answer.done():
            pending.answer.set_exception(error)
        return pending.is_written

    def fail(self, error: Callable[[], Exception]) -> None:
        """End every request, each with a new error."""
        pendings, self._pending = self._pending, {}
        for pending in pendings.values():
            if not pending.answer.done():
                pending.answer.set_exception(error())
