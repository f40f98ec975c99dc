"""The web console of an engine, whose address is the argument."""

import sys
from typing import Any

from bench.parts import orders
from progressor.console.app import build
from progressor.console.options import Options
from progressor.console.serving import serving
from progressor.settings.addresses import HttpBind


async def _obey(order: dict[str, Any]) -> orders.Answer:
    return order


async def _main() -> None:
    bind = HttpBind(host="127.0.0.1", port=0, or_above=False)
    async with serving(build(Options(address=sys.argv[1])), bind) as address:
        orders.tell({"address": address})
        await orders.obey(_obey)


if __name__ == "__main__":
    orders.run(_main())
