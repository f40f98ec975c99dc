"""The client: callers in closed loops, on the raw generated stubs."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from bench.parts import orders, plans
from bench.parts.percentiles import percentiles
from progressor.sdk import Client, NamespaceConfig
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub

if TYPE_CHECKING:
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub

_HANDOVER_LEAD_SECONDS = 0.005


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the bench asks for.

    Callers ask one after another until `seconds` have passed or `count` is reached. ``prefix`` and
    ``distinct`` give the ids of processes: a number below `distinct` follows the prefix, each in
    its turn.
    """

    what: str
    target: str
    namespace: str
    prefix: str
    distinct: int = 1 << 62
    callers: int = 64
    seconds: float = 3600.0
    count: int = 1 << 62
    plan: str = "e"
    number: float = 0.0
    step: float = 0.0

    def process_ids(self) -> Iterator[tuple[int, str]]:
        """Yield each number with its process id."""
        for number in range(self.count):
            yield number, f"{self.prefix}-{number % self.distinct}"


class _Client:
    """Carries out one order at a time."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        """Return how many calls ended in time, and their percentiles."""
        if order["what"] == "namespace":
            return await _create_namespace(order)
        wanted = _Order(**order)
        channel = self._channels.get(wanted.target)
        if channel is None:
            channel = grpc.aio.insecure_channel(wanted.target)
            self._channels[wanted.target] = channel
        stub: ProcessServiceAsyncStub = ProcessServiceStub(channel)
        ask = {"start": _start, "call": _call, "handover": _handover}[wanted.what](stub, wanted)
        return await _closed_loop(ask, wanted)

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()


async def _create_namespace(order: dict[str, Any]) -> orders.Answer:
    # The cost of a long history is a question of its own.
    config = NamespaceConfig(
        name=order["name"], processor_targets=(order["processor"],), history_last=0
    )
    async with Client(order["target"], namespace=config.name) as client:
        created = await client.create_namespace(config)
    return {"revision": created.revision}


_Ask = Callable[[int, str], Coroutine[Any, Any, float | None]]
"""Ask once; return the seconds to count, where they are not simply those it took."""


async def _closed_loop(ask: _Ask, order: _Order) -> orders.Answer:
    ids = order.process_ids()
    times: list[float] = []
    clock = time.perf_counter
    begun = clock()
    end = begun + order.seconds

    async def caller() -> None:
        for number, process_id in ids:
            sent = clock()
            if sent > end:
                return
            counted = await ask(number, process_id)
            if clock() <= end:
                times.append(clock() - sent if counted is None else counted)

    async with asyncio.TaskGroup() as group:
        for number in range(order.callers):
            group.create_task(caller(), name=f"caller {number}")
    seconds = min(clock() - begun, order.seconds)
    return {"count": len(times), "seconds": seconds, **percentiles(times)}


def _start(stub: "ProcessServiceAsyncStub", order: _Order) -> _Ask:
    async def ask(number: int, process_id: str) -> None:
        args = plans.plan(order.plan, order.number + number * order.step)
        request = pb.StartRequest(namespace=order.namespace, process_id=process_id, args=args)
        await stub.Start(request, timeout=orders.SECONDS_MAX)

    return ask


def _call(stub: "ProcessServiceAsyncStub", order: _Order) -> _Ask:
    args = plans.plan(order.plan, order.number)

    async def ask(_number: int, process_id: str) -> None:
        request = pb.CallRequest(namespace=order.namespace, process_id=process_id, args=args)
        await stub.Call(request, timeout=orders.SECONDS_MAX)

    return ask


def _handover(stub: "ProcessServiceAsyncStub", order: _Order) -> _Ask:
    """Ask two calls of one process, the second while the step of the first is held up."""
    held, plain = plans.plan("h", order.number), plans.plan("e")

    async def call(process_id: str, args: bytes) -> float:
        request = pb.CallRequest(namespace=order.namespace, process_id=process_id, args=args)
        await stub.Call(request, timeout=orders.SECONDS_MAX)
        return time.perf_counter()

    async def ask(_number: int, process_id: str) -> float:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(call(process_id, held), name="first")
            await asyncio.sleep(_HANDOVER_LEAD_SECONDS)
            second = group.create_task(call(process_id, plain), name="second")
        return second.result() - first.result()

    return ask


async def _main() -> None:
    client = _Client()
    orders.tell({})
    await orders.obey(client.obey)
    await client.close()


if __name__ == "__main__":
    orders.run(_main())
