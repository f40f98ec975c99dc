"""A life: a start and two calls from outside, then a timer, two steps by itself, and the end."""

import datetime as dt
import time
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import grpc

from bench.parts import orders
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import processor_service_pb2 as answers
from progressor.v1 import types_pb2
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub

if TYPE_CHECKING:
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub

ASLEEP = dt.timedelta(seconds=2)
"""From the start until the timer."""

_PAYLOAD = b"x" * 96
_EVENTS = (types_pb2.NewEvent(payload=_PAYLOAD, format_version=1),)
_RESPONSE = b"r" * 16
_FIRST, _SECOND, _LAST = b"1", b"2", b"3"


class Lives:
    """The part of lives that clients see, and their durations.

    ``took`` has the seconds of successful lives since it was last emptied; at a constant rate they
    count from the instant at which a life was due, as in `open_loop`. ``failed`` counts those that
    an error ended.
    """

    size = 1
    """Lives that are asked for at once."""

    steps = 6
    """Settled steps of a life: start, two calls, timer, and two that follow it at once."""

    def __init__(self, channel: grpc.aio.Channel, namespace: str) -> None:
        self._stub: ProcessServiceAsyncStub = ProcessServiceStub(channel)
        self._namespace = namespace
        self._begun = 0.0
        self._rate = 0.0
        self.took: list[float] = []
        self.failed = 0

    def come_at(self, rate: float) -> None:
        """Start a new series: life n is due n / `rate` seconds from now."""
        self._begun, self._rate = time.perf_counter(), rate
        self.took.clear()
        self.failed = 0

    async def live(self, number: int, process_id: str) -> None:
        due = self._begun + number / self._rate if self._rate else time.perf_counter()
        name = self._namespace
        start = pb.StartRequest(namespace=name, process_id=process_id, args=_PAYLOAD)
        call = pb.CallRequest(namespace=name, process_id=process_id, args=_PAYLOAD)
        try:
            await self._stub.Start(start, timeout=orders.SECONDS_MAX)
            for _ in range(2):
                await self._stub.Call(call, timeout=orders.SECONDS_MAX)
        except grpc.aio.AioRpcError:
            self.failed += 1
        else:
            self.took.append(time.perf_counter() - due)


class FinishingProcessor:
    name = "bench.soaking"

    async def answer(
        self, request: answers.ProcessRequest, threads: Executor, link: object = None
    ) -> answers.ProcessResponse:
        del threads, link
        task = request.task
        response = answers.ProcessResponse(events=_EVENTS, response=_RESPONSE)
        if task.type == types_pb2.TASK_TYPE_INIT:
            response.set_timer.args = _FIRST
            response.set_timer.after.FromTimedelta(ASLEEP)
        elif task.type == types_pb2.TASK_TYPE_TIMEOUT and task.args == _LAST:
            response.complete.result = _RESPONSE
        elif task.type == types_pb2.TASK_TYPE_TIMEOUT:
            response.set_timer.args = _SECOND if task.args == _FIRST else _LAST
        return response
