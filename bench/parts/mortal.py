"""The processor of the soak: processes that finish; a streaming one."""

from typing import Any

from bench.parts import orders
from bench.soaking.lives import Mortal
from progressor.sdk import Limits, running

_LIMITS = Limits(steps_max=30_000)


async def _obey(order: dict[str, Any]) -> orders.Answer:
    return order


async def _main() -> None:
    async with running(Mortal(), bind="127.0.0.1:0", limits=_LIMITS, streaming=True) as address:
        orders.tell({"address": address})
        await orders.obey(_obey)


if __name__ == "__main__":
    orders.run(_main())
