"""Runs the streaming processor of `bench.disturbed`."""

from bench.disturbing.processor import DisturbedProcessor
from bench.parts import orders
from progressor.sdk import Limits, running

_LIMITS = Limits(steps_max=30_000)


async def _main() -> None:
    processor = DisturbedProcessor()
    async with running(processor, bind="127.0.0.1:0", limits=_LIMITS, streaming=True) as address:
        orders.tell({"address": address})
        await orders.obey(processor.obey)


if __name__ == "__main__":
    orders.run(_main())
