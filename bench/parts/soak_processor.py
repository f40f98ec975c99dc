"""Runs the streaming processor of the soak, whose processes finish."""

from typing import Any

from bench.parts import orders
from bench.soaking.lives import FinishingProcessor
from progressor.sdk import Limits, running

_LIMITS = Limits(steps_max=30_000)


async def _obey(order: dict[str, Any]) -> orders.Answer:
    return order


async def _main() -> None:
    async with running(
        FinishingProcessor(), bind="127.0.0.1:0", limits=_LIMITS, streaming=True
    ) as address:
        orders.tell({"address": address})
        await orders.obey(_obey)


if __name__ == "__main__":
    orders.run(_main())
