"""What a step in a rehearsal asks for while it runs."""

import contextlib
import datetime as dt
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from progressor.sdk.processor.links import Answer, Pending, StepLink
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.wire import fields


class RehearsedLink(StepLink):
    """Keeps memos with the task, and gives as much time as is asked for."""

    def __init__(
        self, memos: dict[str, bytes], now: dt.datetime, config: NamespaceConfig, *, scope: object
    ) -> None:
        self._memos, self._now, self._latest = memos, now, now + config.step_timeout_max
        self._payload_bytes_max, self.scope = config.payload_bytes_max, scope
        self._is_plain = False

    async def remember(self, key: str, value: bytes) -> bytes | None:
        """Store a memo, or return the one that is stored."""
        fields.check_payload(value, "value", self._payload_bytes_max)
        earlier = self._memos.get(key)
        self._memos.setdefault(key, value)
        return earlier

    async def extend(self, by: dt.timedelta) -> dt.datetime:
        """Return the new deadline."""
        return min(self._now + by, self._latest)

    def expect_thread(self) -> None:
        """Accept the thread of the test while a plain handler runs."""
        if not self._is_plain:
            super().expect_thread()

    @contextlib.contextmanager
    def plain_handler(self) -> Iterator[None]:
        """Run a plain handler inside, on the event loop of the test."""
        self._is_plain = True
        try:
            yield
        finally:
            self._is_plain = False

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
