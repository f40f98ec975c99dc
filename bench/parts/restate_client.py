"""The client of Restate: many callers in one process, by HTTP, as Restate's ingress expects."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import aiohttp

from bench.parts import orders
from bench.parts.asks import Order
from bench.parts.loads import Ask
from bench.parts.restate_handlers import CONTENT_TYPE, SERVICE

_PATHS: Mapping[str, str] = MappingProxyType({
    "start": "start", "call": "call", "messages": "message/send", "steps": "steps/send",
})  # fmt: skip
"""What to send for each order; `send` does not wait for the end."""


class _Client:
    """Carries out one order at a time; connections stay open."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        wanted = Order.read(order)
        return await wanted.carried_out(self._ask(wanted))

    def _ask(self, order: Order) -> Ask:
        root, path = f"http://{order.targets[0]}/{SERVICE}", _PATHS[order.what]
        headers = {"content-type": CONTENT_TYPE}

        async def ask(number: int, process_id: str) -> None:
            url = f"{root}/{process_id}/{path}"
            async with self._http.post(url, data=order.args(number), headers=headers) as response:
                await response.read()
                response.raise_for_status()

        return ask


async def _main() -> None:
    # One connection for each caller: aiohttp speaks HTTP/1.1.
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=orders.SECONDS_MAX)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        orders.tell({})
        await orders.obey(_Client(http).obey)


if __name__ == "__main__":
    orders.run(_main())
