"""The processor: it records one event per step, which names its request; it can be slowed down.

The first letter of the args selects what a step does:

w  no answer to the first attempt; the next one is answered at once
t  a timer in an hour
"""

import asyncio
import collections
import datetime as dt
import time
from concurrent.futures import Executor
from typing import Any

from bench.parts import orders
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2

HOLD, TIMED = b"w", b"t"
ARGS_SIZE = 64
"""Bytes of small args."""

_END = b"|"
_FAR = dt.timedelta(hours=1)
_RESPONSE = b"r" * 16


def args_of(name: str, *, letter: bytes = b"c", size: int = ARGS_SIZE) -> bytes:
    return (letter + name.encode() + _END).ljust(size, b".")


def name_in(args: bytes) -> bytes:
    return args[:ARGS_SIZE].partition(_END)[0]


class DisturbedProcessor:
    """Answers steps, and records when each held process was called."""

    name = "bench.disturbing"

    def __init__(self) -> None:
        self._seconds = 0.0
        self._asked_at: dict[str, list[float]] = collections.defaultdict(list)

    async def answer(
        self, request: pb.ProcessRequest, threads: Executor, link: object = None
    ) -> pb.ProcessResponse:
        del threads, link
        args = request.task.args
        if args.startswith(HOLD):
            self._asked_at[request.process.process_id].append(time.monotonic())
            if request.task.attempt == 1:
                await asyncio.get_running_loop().create_future()
        if self._seconds:
            await asyncio.sleep(self._seconds)
        event = types_pb2.NewEvent(payload=name_in(args), format_version=1)
        response = pb.ProcessResponse(events=(event,), response=_RESPONSE)
        if args.startswith(TIMED):
            response.set_timer.after.FromTimedelta(_FAR)
        return response

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        """Take `seconds` for each step from now on; return when each held process was called."""
        self._seconds = order.get("seconds", self._seconds)
        return {"asked_at": self._asked_at}
