"""How long do requests wait in a namespace beside another one that is flooded?"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator

from bench.env import SESSION, UNARY, Env
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.parts.plans import plan
from bench.questions.rounds import processes
from progressor.errors import RequestError
from progressor.sdk import BYTES, Client, Quotas

_WHATS = ("start", "call")
_CASES = ("alone", "flooded", "flooded_quota")
_RATE = 50
"""Requests per second whose wait is measured."""

_CALLERS = 128
"""Those who flood the other namespace, half of them by sessions."""

_QUOTAS = Quotas(starts_per_second=100, calls_per_second=100)
NAMES = tuple(f"neighbour_{what}_{case}" for what in _WHATS for case in _CASES)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Measure one namespace at a low rate: alone, beside a flood, and beside one with a quota."""
    count = pace.count(1000, least=64)
    prefix = await processes(env, UNARY, count, events=10)
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    for _ in range(pace.turns):
        for case in _CASES:
            async with contextlib.AsyncExitStack() as stack:
                if case != "alone":
                    quotas = _QUOTAS if case == "flooded_quota" else Quotas()
                    await stack.enter_async_context(_flooded(env, quotas))
                    await asyncio.sleep(pace.warm_up)
                for what in _WHATS:
                    order: dict[str, object] = {
                        "what": what, "rate": _RATE, "seconds": pace.seconds,
                    }  # fmt: skip
                    if what == "call":
                        order |= {"prefix": prefix, "distinct": count}
                    name = f"neighbour_{what}_{case}"
                    turns[name].append(await env.turn(name, order, UNARY))
    return [summed_up(name, found, callers=_CALLERS) for name, found in turns.items()]


@contextlib.asynccontextmanager
async def _flooded(env: Env, quotas: Quotas) -> AsyncIterator[None]:
    """Flood the other namespace with starts and calls while the context lasts."""
    address, name = env.engines[0].address, env.namespaces[SESSION.stream]
    prefix, numbers, args = env.prefix(), itertools.count(), plan("e")
    async with (
        Client(address, namespace=name, codec=BYTES, session=True) as session,
        Client(address, namespace=name, codec=BYTES, session=False) as unary,
        asyncio.TaskGroup() as group,
    ):
        config = await session.namespaces.get(name)
        await _set_quotas(session, name, quotas)

        async def flood(client: Client) -> None:
            while True:
                process_id = f"{prefix}{next(numbers)}"
                with contextlib.suppress(RequestError):
                    await client.start(process_id, args)
                    await client.call(process_id, args)

        floods = [
            group.create_task(flood(client), name="flood")
            for client in (session, unary)
            for _ in range(_CALLERS // 2)
        ]
        yield
        for task in floods:
            task.cancel()
        await _set_quotas(session, name, config.quotas)


async def _set_quotas(client: Client, name: str, quotas: Quotas) -> None:
    stored = await client.namespaces.get(name)
    await client.namespaces.update(dataclasses.replace(stored, quotas=quotas), fields=["quotas"])
