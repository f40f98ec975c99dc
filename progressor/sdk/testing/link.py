"""What a step in a rehearsal asks for while it runs."""

import datetime as dt
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from progressor.sdk.processor.links import Answer, Pending, StepLink


class RehearsedLink(StepLink):
    """Keeps memos with the task, and gives as much time as is asked for."""

    def __init__(self, memos: dict[str, bytes], now: dt.datetime, latest: dt.datetime) -> None:
        self._memos, self._now, self._latest = memos, now, latest

    async def remember(self, key: str, value: bytes) -> bytes | None:
        """Store a memo, or return the one that is stored."""
        earlier = self._memos.get(key)
        self._memos.setdefault(key, value)
        return earlier

    async def extend(self, by: dt.timedelta) -> dt.datetime:
        """Return the new deadline."""
        return min(self._now + by, self._latest)

    def expect_thread(self) -> None:
        """Accept the thread of the test."""

    def wait_for(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine that waits for nothing."""
        try:
            asked.send(None)
        except StopIteration as end:
            value: Answer = end.value
            return value
        asked.close()
        message = "in a rehearsal, a plain handler can run only plain functions once"
        raise RuntimeError(message)

    def begin(self, asked: Coroutine[Any, Any, Answer]) -> Pending[Answer]:
        """Drop what would run beside the handler."""
        asked.close()
        return Future()
