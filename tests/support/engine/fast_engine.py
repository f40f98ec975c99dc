"""An engine in a process of its own, whose time, and PostgreSQL's for it, goes fast.

    python -m tests.support.engine.fast_engine SPEED BEGUN_AT key=value ...

BEGUN_AT is when time began, in seconds of the machine's clock; all engines of one database get the
same. Durations that replicas compare (leases, heartbeats) are of the fast kind; what an engine
sleeps by itself is not.
"""

import asyncio
import sys

from progressor.engine import engine as app
from progressor.settings import config
from tests.support.clock import FastClock


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
