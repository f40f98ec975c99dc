"""Watches PostgreSQL's clock, by which leases end: one that jumps ahead must not end them all.

A failover to a host whose clock is ahead makes every heartbeat look old, until the next one. So the
scan compares how far PostgreSQL's clock went since the last look with how much time passed here.
"""

import dataclasses
import datetime as dt

TOLERANCE = 0.1
"""The share of a lease timeout by which PostgreSQL's clock may run ahead between two looks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Jump:
    """PostgreSQL's clock went ahead by so much before its instant ``at``."""

    at: dt.datetime
    ahead: dt.timedelta


class ClockGuard:
    """What one replica knows of PostgreSQL's clock."""

    def __init__(self, lease_timeout: dt.timedelta) -> None:
        self._lease_timeout = lease_timeout
        self._last: tuple[dt.datetime, float] | None = None
        self._wary_until = float("-inf")
        self.jump: Jump | None = None
        """The last jump, if there was one."""

    def look(self, told: dt.datetime, *, asked_at: float, answered_at: float) -> Jump | None:
        """Compare the clocks; return the jump since the last look, if there was one.

        Args:
            told: PostgreSQL's clock.
            asked_at: Our monotonic seconds before it was asked.
            answered_at: Those after it.
        """
        last, self._last = self._last, (told, asked_at)
        if last is None:
            return None
        passed = dt.timedelta(seconds=answered_at - last[1])
        ahead = told - last[0] - passed
        if ahead <= TOLERANCE * self._lease_timeout:
            return None
        if self.jump is not None and self.is_wary(answered_at):
            ahead += self.jump.ahead
        self.jump = Jump(told, ahead)
        self._wary_until = answered_at + self._lease_timeout.total_seconds()
        return self.jump

    def is_wary(self, now: float) -> bool:
        """Return whether heartbeats may still look older than they are; `now` is monotonic."""
        return now < self._wary_until
