"""What all parts share: orders in, answers out, an event loop, and channel options."""

import asyncio
import contextlib
import json
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import uvloop

Answer = Mapping[str, Any]
Obey = Callable[[dict[str, Any]], Awaitable[Answer]]

SECONDS_MAX = 60.0
"""The deadline of every call, long enough that no call reaches it."""

SERVER_OPTIONS = (("grpc.so_reuseport", 0),)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a part until its input ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def tell(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


async def obey(obey_one: Obey) -> None:
    """Carry out orders, one at a time, until standard input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        tell(await _obeyed(obey_one, json.loads(line)))


async def _obeyed(obey_one: Obey, order: dict[str, Any]) -> Answer:
    """Return the answer to an order; an error is reported, and the next order still runs."""
    try:
        return await obey_one(order)
    except Exception as error:  # noqa: BLE001  the bench decides what becomes of it
        return {"failed": "".join(traceback.format_exception_only(_first(error)))}


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
