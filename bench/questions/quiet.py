"""Waits for a processor to finish its steps."""

import asyncio

from bench.peers import Peer

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


async def until_quiet(processor: Peer) -> None:
    """Wait until no more steps run."""
    seen = -1
    while (now := (await processor.ask())["answers"]) != seen:
        seen = now
        await asyncio.sleep(_POLL_SECONDS)


async def until_reached(processor: Peer, field: str, count: int, *, poll: float = 0.02) -> None:
    """Wait until one of the processor's counts is at least `count`.

    Raises:
        TimeoutError: It takes more than a minute.
    """
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            if (await processor.ask())[field] >= count:
                return
            await asyncio.sleep(poll)
