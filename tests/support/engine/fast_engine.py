"""An engine in a process of its own, whose time, and PostgreSQL's for it, goes fast.

    python -m tests.support.engine.fast_engine SPEED BEGUN_AT key=value ...

BEGUN_AT is when time began, in seconds of the machine's clock; all engines of one database get the
same. Durations that replicas compare (leases, heartbeats) are of the fast kind; what an engine
sleeps by itself is not.
"""

import asyncio
import datetime as dt
import sys
import time

from progressor.engine import engine as app
from progressor.settings import config

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class FastClock:
    """Time since `begun_at`, `speed` times as fast, from START on."""

    def __init__(self, speed: float, begun_at: float) -> None:
        self._speed = speed
        self._begun_at = begun_at

    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=(time.time() - self._begun_at) * self._speed)

    def monotonic(self) -> float:
        """Return the machine's seconds: what is slept by them."""
        return time.monotonic()

    def pinned(self) -> dt.datetime | None:
        return self.now()


async def _serve(speed: float, begun_at: float, flags: dict[str, str]) -> None:
    loaded = config.load(environment={}, flags=flags)
    async with app.engine(loaded, clock=FastClock(speed, begun_at)) as engine:
        await engine.failed()


if __name__ == "__main__":
    asyncio.run(
        _serve(
            float(sys.argv[1]),
            float(sys.argv[2]),
            dict(flag.split("=", 1) for flag in sys.argv[3:]),
        )
    )
