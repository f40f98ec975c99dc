"""Detects handlers that block the event loop, by the time of each turn of their coroutines."""

import functools
import logging
import time
import types
from collections.abc import Coroutine, Generator
from typing import Any

LIMIT_SECONDS = 0.1
"""A longer turn is logged as a warning. asyncio's debug mode has the same limit."""

_PAUSE_SECONDS = 60.0

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
    return await _turns(coroutine, warning, awaited)


@types.coroutine
def _turns(
    coroutine: Coroutine[Any, Any, Any], warning: BlockingWarning, awaited: object
) -> Generator[object, Any, Any]:
    """Run a coroutine that awaits something after its first turn, and time the further turns."""
    while True:  # ends with the coroutine
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001  # a cancellation, too, is the coroutine's
            turn = functools.partial(coroutine.throw, error)
        else:
            turn = functools.partial(coroutine.send, value)
        began = clock()
        try:
            awaited = turn()
        except StopIteration as end:
            return end.value
        finally:
            took = clock() - began
            if took > LIMIT_SECONDS:
                warning.note(took)
