"""Timers that are due when a test says so."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass
class _Timer:
    due_at: float
    function: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualTimers:
    """Calls what was put off while time is moved on, in the order in which it is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[_Timer] = []

    @property
    def waiting(self) -> int:
        return sum(not timer.cancelled for timer in self._timers)

    def monotonic(self) -> float:
        return self.now

    def later(self, seconds: float, function: Callable[[], None]) -> _Timer:
        timer = _Timer(self.now + seconds, function)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self._timers if timer.due_at <= end]:
            first = min(due, key=lambda each: each.due_at)
            self._timers.remove(first)
            self.now = first.due_at
            if not first.cancelled:
                first.function()
        self.now = end
