"""Repetition in the log: what says the same again and again is said five times, then counted.

A broken database makes a thousand requests say the same thing in a second. So the same message of
the same logger is said at most REPEATED_MAX times within WINDOW_SECONDS from its first; what comes
after that is held back and counted, and when the window is over the last of it is said once, with
``repeated``: how many were held back, and ``repeated_for``: the ids of what they were about, each
once, the first REPEATED_IDS_MAX of them. The first of anything is always said, at once.

"The same" is the text before its values are filled in, with the level and the namespace, if it is
about one, and where there is a traceback, the kind of error and the line that raised it.
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
"""Messages that are counted at a time; beyond that, what is new is said uncounted."""

_IDS = ("process_id", "task_id", "schedule_id", "gate", "trace_id")
"""Fields that say what a line is about, besides the namespace, which all of a window have."""

_Key = tuple[str, int, str, str, str]
_Ids = tuple[object, ...]


@dataclasses.dataclass(slots=True)
class _Window:
    ends_at: float
    count: int = 0
    held_back: int = 0
    last: logging.LogRecord | None = None
    ids: dict[_Ids, None] = dataclasses.field(default_factory=dict)
    """A set in the order in which they came."""

    def hold_back(self, record: logging.LogRecord) -> None:
        self.held_back += 1
        self.last = record
        if len(self.ids) < REPEATED_IDS_MAX:
            fields = record.__dict__
            self.ids[tuple([fields.get(name) for name in _IDS])] = None


class Repetition:
    """Decides which records are said; safe in any thread."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # In the order in which they end: all are of one length, and begin when they are put here.
        self._windows: dict[_Key, _Window] = {}

    def take(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """Return what is to be said now: what windows held back that are over, and `record`."""
        with self._lock:
            now = self._monotonic()
            said = self._close(now)
            if self._is_said(record, now):
                said.append(record)
            return said

    def over(self) -> list[logging.LogRecord]:
        """Return what windows held back that are over."""
        with self._lock:
            return self._close(self._monotonic())

    def rest(self) -> list[logging.LogRecord]:
        """Return what all windows held back, over or not."""
        with self._lock:
            return self._close(float("inf"))

    def seconds_left(self) -> float | None:
        """Return how long until the first window is over that held anything back; None: none."""
        with self._lock:
            ends = (it.ends_at for it in self._windows.values() if it.held_back)
            end = next(ends, None)
            return None if end is None else max(0.0, end - self._monotonic())

    def _is_said(self, record: logging.LogRecord, now: float) -> bool:
        key = _key(record)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= WINDOWS_MAX:
                return True
            window = self._windows[key] = _Window(now + WINDOW_SECONDS)
        window.count += 1
        if window.count <= REPEATED_MAX:
            return True
        window.hold_back(record)
        return False

    def _close(self, now: float) -> list[logging.LogRecord]:
        said = []
        while self._windows:  # ends with the last of at most WINDOWS_MAX
            key, window = next(iter(self._windows.items()))
            if window.ends_at > now:
                break
            del self._windows[key]
            if window.last is not None:
                said.append(_counted(window, window.last))
        return said


def _key(record: logging.LogRecord) -> _Key:
    error = record.exc_info[1] if record.exc_info else None
    place = "" if error is None else _place(error)
    # A crowd in one namespace hides nothing of another.
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
    counted.repeated = window.held_back
    named = [
        {name: value for name, value in zip(_IDS, ids, strict=True) if value is not None}
        for ids in window.ids
    ]
    if any(named):
        counted.repeated_for = [it for it in named if it]
    return counted
