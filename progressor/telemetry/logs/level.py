"""The level of the log, changed while the engine runs."""

import datetime as dt
import logging
from collections.abc import Callable
from typing import Literal, Protocol

Level = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
"""The least said last."""

_QUIET = ("asyncio", "grpc", "grpc._cython", "psycopg", "psycopg.pool")
"""Loggers whose routine messages are hidden; their warnings are shown."""

_log = logging.getLogger(__name__)


class Cancellable(Protocol):
    """Something that was put off."""

    def cancel(self) -> object:
        """See that it does not happen, if it has not."""


Later = Callable[[float, Callable[[], None]], Cancellable]
"""Calls the function so many seconds later."""


def apply(level: Level) -> None:
    """Have this process say nothing below `level` from now on."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def current() -> Level:
    """Return the least that this process says."""
    level = logging.getLogger().level
    found: Level = "error"
    for each in reversed(LEVELS):
        if logging.getLevelNamesMapping()[each.upper()] >= level:
            found = each
    return found


class LogLevel:
    """Changes the level for a while or until it is changed; one for each process."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._standing: Level = current()
        self._ending: Cancellable | None = None

    def set(self, level: Level, lasting: dt.timedelta) -> Level:
        """Say nothing below `level` from now on, and return what it was until now.

        Args:
            level: The least that is said.
            lasting: After which the level is again what it was set to last without an end, or
                at the start. Zero: until it is changed.
        """
        previous = current()
        if self._ending is None:
            self._standing = previous
        else:
            self._ending.cancel()
            self._ending = None
        if lasting:
            self._ending = self._later(lasting.total_seconds(), self._end)
        self._change(level, lasting)
        return previous

    def _end(self) -> None:
        self._ending = None
        self._change(self._standing, dt.timedelta())

    def _change(self, level: Level, lasting: dt.timedelta) -> None:
        facts: dict[str, object] = {"level_set": level}
        if lasting:
            facts["seconds"] = lasting.total_seconds()
        # At a level that is heard before or after: whoever reads the log must see the seam.
        apply(min(level, current(), key=LEVELS.index))
        _log.warning("log level changed", extra=facts)
        apply(level)
