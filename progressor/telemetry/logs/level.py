"""The log level, which can be changed while the engine runs."""

import datetime as dt
import logging
from collections.abc import Callable
from typing import Literal, Protocol

Level = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
"""From the most to the least verbose."""

_QUIET = ("asyncio", "grpc", "grpc._cython", "psycopg", "psycopg.pool")
"""Loggers whose routine messages are hidden; their warnings are shown."""

_log = logging.getLogger(__name__)


class Cancellable(Protocol):
    def cancel(self) -> object: ...


Later = Callable[[float, Callable[[], None]], Cancellable]
"""Calls the function after so many seconds."""


def apply(level: Level) -> None:
    """Log nothing below `level` in this process from now on."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def current() -> Level:
    level = logging.getLogger().level
    found: Level = "error"
    for each in reversed(LEVELS):
        if logging.getLevelNamesMapping()[each.upper()] >= level:
            found = each
    return found


class LogLevelSwitch:
    """Changes the level, for a time or until the next change; one per process."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._permanent: Level = current()
        self._reset: Cancellable | None = None

    def set(self, level: Level, lasting: dt.timedelta) -> Level:
        """Log nothing below `level` from now on, and return the previous level.

        After `lasting` it is reset to the last one that was set without a time, or that of the
        start. Zero: until the next change.
        """
        previous = current()
        if self._reset is None:
            self._permanent = previous
        else:
            self._reset.cancel()
            self._reset = None
        if lasting:
            self._reset = self._later(lasting.total_seconds(), self._end)
        self._change(level, lasting)
        return previous

    def _end(self) -> None:
        self._reset = None
        self._change(self._permanent, dt.timedelta())

    def _change(self, level: Level, lasting: dt.timedelta) -> None:
        facts: dict[str, object] = {"level_set": level}
        if lasting:
            facts["seconds"] = lasting.total_seconds()
        # At a level that is logged before or after: a reader of the log must see the change.
        apply(min(level, current(), key=LEVELS.index))
        _log.warning("log level changed", extra=facts)
        apply(level)
