"""The client: many callers in one process, each on one of the targets."""

import itertools
from pathlib import Path
from typing import Any

import grpc

from bench.parts import orders
from bench.parts.asks import IN_SESSION, UNARY, InSession, Order, Unary
from bench.parts.loads import Ask
from progressor.sdk import BYTES, Client, NamespaceConfig, Role, Tls

_Line = tuple[str, int]
"""A connection: its target, and which one of those to it."""

# Otherwise the channels of a process share one connection to a target.
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


class _Client:
    """Carries out one order at a time; channels and sessions stay open."""

    def __init__(self) -> None:
        self._channels: dict[_Line, grpc.aio.Channel] = {}
        self._sessions: dict[_Line, Client] = {}

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        if order["what"] == "namespace":
            return await _create_namespace(order)
        wanted = Order.read(order)
        return await wanted.carried_out(self._ask(wanted))

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        for session in self._sessions.values():
            await session.close()

    def _ask(self, order: Order) -> Ask:
        """Return a function that sends one request, to each target in turn."""
        one = self._one_in_session if order.session else self._one_unary
        lines = itertools.product(order.targets, range(order.connections))
        asks = [one(line, order) for line in lines]
        if len(asks) == 1:
            return asks[0]
        following = itertools.cycle(asks)

        async def ask(number: int, process_id: str) -> float | None:
            return await next(following)(number, process_id)

        return ask

    def _one_unary(self, line: _Line, order: Order) -> Ask:
        channel = self._channels.get(line)
        if channel is None:
            channel = grpc.aio.insecure_channel(line[0], options=_OWN_CONNECTION)
            self._channels[line] = channel
        return UNARY[order.what](Unary(channel, order))

    def _one_in_session(self, line: _Line, order: Order) -> Ask:
        session = self._sessions.get(line)
        if session is None:
            session = Client(
                line[0], codec=BYTES, timeout=orders.SECONDS_MAX, session=True,
                **_security(order.tls_ca, order.token_file),
            )  # fmt: skip
            self._sessions[line] = session
        return IN_SESSION[order.what](InSession(session, order))


def _security(tls_ca: str, token_file: str) -> dict[str, Any]:
    return {"tls": Tls(ca=tls_ca), "token": Path(token_file)} if tls_ca else {}


async def _create_namespace(order: dict[str, Any]) -> orders.Answer:
    # The cost of a long history is a separate question.
    config = NamespaceConfig(
        name=order["name"],
        processor_targets=(order["processor"],),
        history_last=0,
        worker_count_max=order["workers"],
        processor_credentials=order.get("credentials", ""),
        turn_max=order.get("turn_max", 1),
    )
    security = _security(order.get("tls_ca", ""), order.get("token_file", ""))
    async with Client(order["target"], namespace=config.name, **security) as client:
        created = await client.namespaces.create(config)
        if security:
            caller = (await client.access.who_am_i()).principal
            await client.access.add_binding(caller, Role.CALLER, config.name)
    return {"revision": created.revision}


async def _main() -> None:
    client = _Client()
    orders.tell({})
    await orders.obey(client.obey)
    await client.close()


if __name__ == "__main__":
    orders.run(_main())
