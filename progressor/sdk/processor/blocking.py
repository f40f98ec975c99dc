"""Detects handlers that block the event loop, by the time of each turn of their coroutines."""

import logging
import time
from collections.abc import Coroutine, Generator
from typing import Any

LIMIT_SECONDS = 0.1
"""A longer turn is logged as a warning. asyncio's debug mode has the same limit."""

_PAUSE_SECONDS = 60.0
_PASSED = object()

clock = time.perf_counter

_log = logging.getLogger(__name__)


class BlockingWarning:
    """Logs that a handler blocks the event loop, at most once a minute."""

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self._quiet_until = 0.0
        self._left_out = 0

    def note(self, seconds: float) -> None:
        """Log a turn that took this long, or count it."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._left_out += 1
            return
        more = f", and {self._left_out} times since the last warning" if self._left_out else ""
        self._quiet_until, self._left_out = now + _PAUSE_SECONDS, 0
        _log.warning(
            "%s blocked the event loop for %.2f s%s: all other steps waited; await slow "
            "work, or make the handler a plain `def`, which runs in a thread",
            self._handler,
            seconds,
            more,
        )


async def watched(coroutine: Coroutine[Any, Any, Any], warning: BlockingWarning) -> Any:  # noqa: ANN401  # whatever it returns
    """Return what `coroutine` returns, and log turns that are too long.

    Most handlers end in the first turn, which is run here at half the cost.
    """
    began = clock()
    try:
        awaited = coroutine.send(None)
    except StopIteration as end:
        return end.value
    finally:
        took = clock() - began
        if took > LIMIT_SECONDS:
            warning.note(took)
    return await _Turns(coroutine, warning, awaited)


class _Turns:
    """A coroutine that awaits something after its first turn; the further turns are timed."""

    __slots__ = ("_awaited", "_coroutine", "_warning")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        warning: BlockingWarning,
        awaited: Any,  # noqa: ANN401  # a future, for the loop
    ) -> None:
        self._coroutine, self._warning, self._awaited = coroutine, warning, awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> "_Turns":
        return self

    def __next__(self) -> Any:  # noqa: ANN401  # as above
        return self.send(None)

    def send(self, value: Any) -> Any:  # noqa: ANN401  # as above
        if self._awaited is not _PASSED:
            awaited, self._awaited = self._awaited, _PASSED
            return awaited
        began = clock()
        try:
            return self._coroutine.send(value)
        finally:
            self._note(began)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401  # as above
        began = clock()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._note(began)

    def close(self) -> None:
        self._coroutine.close()

    def _note(self, began: float) -> None:
        took = clock() - began
        if took > LIMIT_SECONDS:
            self._warning.note(took)
