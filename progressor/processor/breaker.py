"""The breaker of one namespace in one replica: how many steps may start while none are taken.

cut       no target is connected: none; until one of them is connected
refusing  the targets refuse the steps: a probe after each pause, which doubles with each refusal;
          until a step is taken
ramp      after either, and after a pause: RAMP_FIRST steps in the first second, twice as many in
          each further one, and after RAMP_SECONDS any number

What is due meanwhile stays in the schedule, so that neither an outage nor its end costs a write or
a request per task. Once the processor has been unreachable for longer than the namespace's
patience, steps are let through again: they fail. Nothing here waits; `Reach` wakes who does.
"""

import datetime as dt
import enum

from progressor.clock import Clock

PROBE_SECONDS = 0.2
PROBE_SECONDS_MAX = 30.0

RAMP_FIRST = 100
RAMP_SECONDS = 10.0
RAMP_TICK_SECONDS = 0.02
"""Between two looks of those who wait for the ramp."""

UNLIMITED = 1 << 30


class BreakerState(enum.Enum):
    CUT = enum.auto()
    REFUSING = enum.auto()
    RAMP = enum.auto()


def pause_after(refusals: int) -> float:
    """Return the seconds to wait after so many refusals in a row, 1 or more."""
    return float(min(PROBE_SECONDS_MAX, PROBE_SECONDS * 2 ** min(refusals - 1, 30)))


class Breaker:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self.state = BreakerState.CUT
        self.patience: dt.timedelta | None = None
        """The namespace's, as of the last step that wanted to start."""
        self.unreachable_since = self._since
        """From when on patience counts."""
        self._refusals = 0
        self._probe_at = self._since
        self._is_probing = False
        self._started = 0

    @property
    def is_open(self) -> bool:
        """Whether steps that cannot be asked are handed back, to wait for the processor."""
        return self.state is not BreakerState.RAMP

    @property
    def is_over(self) -> bool:
        is_ramp = self.state is BreakerState.RAMP
        return is_ramp and self._clock.monotonic() - self._since >= RAMP_SECONDS

    def cut(self, unreachable_since: float) -> None:
        """Record that no target is connected, on the clock's monotonic time."""
        self.state, self.unreachable_since = BreakerState.CUT, unreachable_since

    def refuse(self, unreachable_since: float, retry_after: dt.timedelta | None) -> None:
        """Record that a step was refused; the next probe waits `retry_after`, up to the cap."""
        now = self._clock.monotonic()
        self.state, self.unreachable_since = BreakerState.REFUSING, unreachable_since
        if now < self._probe_at and not self._is_probing:
            # It was sent before the refusal that is known.
            return
        self._is_probing = False
        self._refusals += 1
        asked_for = 0.0 if retry_after is None else retry_after.total_seconds()
        self._probe_at = now + max(pause_after(self._refusals), min(asked_for, PROBE_SECONDS_MAX))

    def recover(self) -> None:
        """Begin the ramp, unless it has begun."""
        if self.is_open:
            self.state, self._since, self._started = BreakerState.RAMP, self._clock.monotonic(), 0

    def allowance(self) -> int:
        """Return how many steps may start now."""
        now = self._clock.monotonic()
        match self.state:
            case BreakerState.RAMP:
                return max(0, ramp(now - self._since) - self._started)
            case _ if self._gives_up(now):
                return UNLIMITED
            case BreakerState.REFUSING:
                return int(now >= self._probe_at)
            case BreakerState.CUT:
                return 0

    def take(self, count: int) -> None:
        """Record that `count` steps start, as allowed."""
        self._started += count
        if count and self.state is BreakerState.REFUSING:
            # Whether or not the probe comes to anything, the next one waits.
            self._is_probing = True
            self._probe_at = self._clock.monotonic() + pause_after(max(1, self._refusals))

    def wake_seconds(self) -> float | None:
        """Return after how long more may start than now; None: not by time alone."""
        now = self._clock.monotonic()
        if self.state is BreakerState.RAMP:
            return RAMP_TICK_SECONDS
        times = [self._probe_at] if self.state is BreakerState.REFUSING else []
        if self.patience is not None:
            times.append(self.unreachable_since + self.patience.total_seconds())
        ahead = [at - now for at in times if at > now]
        return min(ahead, default=None)

    def _gives_up(self, now: float) -> bool:
        patience = self.patience
        return patience is not None and now - self.unreachable_since >= patience.total_seconds()


def ramp(seconds: float) -> int:
    """Return how many steps may have started so many seconds after a recovery."""
    if seconds >= RAMP_SECONDS:
        return UNLIMITED
    whole = int(seconds)
    return int(RAMP_FIRST * (2**whole - 1) + RAMP_FIRST * 2**whole * (seconds - whole))
