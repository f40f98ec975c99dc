"""Limits repetition in the log: the same message is logged five times, then counted.

A message of a logger is logged at most REPEATED_MAX times within WINDOW_SECONDS of the first one;
further ones are suppressed and counted. When the window ends, the last one is logged with
``repeated``, the number suppressed, and ``repeated_for``, the first REPEATED_IDS_MAX distinct ids
that they were about. Messages are the same if they have the same text before values are filled in,
level and namespace and, with a traceback, the same type of error raised by the same line.
"""

import copy
import dataclasses
import logging
import threading
from collections.abc import Callable

WINDOW_SECONDS = 10.0
REPEATED_MAX = 5
REPEATED_IDS_MAX = 50
WINDOWS_MAX = 1_000
"""Messages counted at a time; beyond that, new ones are logged without being counted."""

_IDS = ("process_id", "task_id", "schedule_id", "gate", "trace_id")
"""Fields that say what a line is about, besides the namespace, which a window shares."""

_Key = tuple[str, int, str, str, str]
_Ids = tuple[object, ...]


@dataclasses.dataclass(slots=True)
class _Window:
    ends_at: float
    count: int = 0
    suppressed: int = 0
    last: logging.LogRecord | None = None
    ids: dict[_Ids, None] = dataclasses.field(default_factory=dict)
    """An ordered set."""

    def suppress(self, record: logging.LogRecord) -> None:
        self.suppressed += 1
        self.last = record
        if len(self.ids) < REPEATED_IDS_MAX:
            fields = record.__dict__
            self.ids[tuple([fields.get(name) for name in _IDS])] = None


class Repetition:
    """Decides which records are logged; thread-safe."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # In the order of their ends: all have the same length, and begin when they are added.
        self._windows: dict[_Key, _Window] = {}

    def take(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        with self._lock:
            now = self._monotonic()
            released = self._close(now)
            if self._is_allowed(record, now):
                released.append(record)
            return released

    def expire(self) -> list[logging.LogRecord]:
        with self._lock:
            return self._close(self._monotonic())

    def close(self) -> list[logging.LogRecord]:
        with self._lock:
            return self._close(float("inf"))

    def seconds_left(self) -> float | None:
        """Return the time until the first window with suppressed records ends; None without one."""
        with self._lock:
            ends = (it.ends_at for it in self._windows.values() if it.suppressed)
            end = next(ends, None)
            return None if end is None else max(0.0, end - self._monotonic())

    def _is_allowed(self, record: logging.LogRecord, now: float) -> bool:
        key = _key(record)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= WINDOWS_MAX:
                return True
            window = self._windows[key] = _Window(now + WINDOW_SECONDS)
        window.count += 1
        if window.count <= REPEATED_MAX:
            return True
        window.suppress(record)
        return False

    def _close(self, now: float) -> list[logging.LogRecord]:
        released = []
        while self._windows:  # ends with the last of at most WINDOWS_MAX
            key, window = next(iter(self._windows.items()))
            if window.ends_at > now:
                break
            del self._windows[key]
            if window.last is not None:
                released.append(_counted(window, window.last))
        return released


def _key(record: logging.LogRecord) -> _Key:
    error = record.exc_info[1] if record.exc_info else None
    place = "" if error is None else _place(error)
    # Many messages about one namespace do not suppress those about another.
    namespace = str(getattr(record, "namespace", ""))
    return record.name, record.levelno, str(record.msg), namespace, place


def _place(error: BaseException) -> str:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    kind = type(error).__qualname__
    if traceback is None:
        return kind
    return f"{kind} {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


def _counted(window: _Window, last: logging.LogRecord) -> logging.LogRecord:
    counted = copy.copy(last)
    counted.repeated = window.suppressed
    named = [
        {name: value for name, value in zip(_IDS, ids, strict=True) if value is not None}
        for ids in window.ids
    ]
    if any(named):
        counted.repeated_for = [it for it in named if it]
    return counted
