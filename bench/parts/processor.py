"""The processor, served by the SDK: unary or streaming; the relay uses the unary one.

The arguments are `unary` or `stream`, and for TLS and a token from the engine, which it then
requires, the certificate, the key and the file with the token.
"""

import asyncio
import collections
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from google.protobuf import timestamp_pb2

from bench.parts import orders, plans
from bench.parts.percentiles import curve
from progressor.sdk import Limits, ServerTls, Trust, running
from progressor.v1 import nodes_pb2, types_pb2
from progressor.v1 import processor_service_pb2 as pb

_EVENT = types_pb2.NewEvent(payload=b"e" * plans.SIZE, format_version=1)
_EVENTS = (_EVENT,)
_RESPONSE = b"r" * 16
_LIMITS = Limits(steps_max=30_000)


class _Processor:
    """Does what the args of a task say, and counts."""

    name = "bench"

    def __init__(self) -> None:
        self.answer_count = 0
        self.step_count = 0
        self.held_count = 0
        self.halted = False
        self.times: list[float] = []
        """How late timers were, or how long after the step before it each step came."""
        self.steps_by_bin: collections.Counter[int] = collections.Counter()
        """Steps begun in each hundredth of a second of the system's monotonic clock."""
        self._released = asyncio.Event()
        self._stepped_at: dict[str, float] = {}
        self._answered_at: float | None = None
        self._asked_at: dict[str, float] = {}
        self._plans: dict[str, Callable[[pb.ProcessRequest], pb.ProcessResponse]] = {
            "e": self._one_event,
            "g": self._through_the_gate,
            "j": self._lead,
            "m": self._many_events,
            "n": self._end_node,
            "s": self._step_on,
            "t": self._set_timer,
            "x": self._send,
        }

    async def answer(
        self, request: pb.ProcessRequest, threads: Executor, link: object = None
    ) -> pb.ProcessResponse:
        del threads, link
        if request.task.type == types_pb2.TASK_TYPE_JOIN:
            return self._end_node(request)
        letter = plans.letter_of(request.task.args)
        if letter == "h":
            await asyncio.sleep(plans.number_of(request.task.args))
        elif letter == "w":
            await self._hold()
        response = self._plans.get(letter, self._one_event)(request)
        self.answer_count += 1
        return response

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        """Return the counts; `halted` stops or resumes steps, `release` ends held ones."""
        self.halted = bool(order.get("halted", self.halted))
        if order.get("forget"):
            self.times.clear()
            self.steps_by_bin.clear()
            self._stepped_at.clear()
            self._answered_at = None
            self._asked_at.clear()
        if order.get("release"):
            self._released.set()
            self._released = asyncio.Event()
        return {
            "at": time.monotonic(),
            "answers": self.answer_count,
            "steps": self.step_count,
            "held": self.held_count,
            "count": len(self.times),
            "curve": curve(self.times),
            "asked": self._asked_at if order.get("asked") else {},
            "bins": self.steps_by_bin if order.get("bins") else {},
        }

    async def _hold(self) -> None:
        released = self._released
        self.held_count += 1
        try:
            await released.wait()
        finally:
            self.held_count -= 1

    def _one_event(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        del request
        return pb.ProcessResponse(events=_EVENTS, response=_RESPONSE)

    def _through_the_gate(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        self._asked_at[request.process.process_id] = time.time()
        if self._answered_at is not None:
            self.times.append(time.monotonic() - self._answered_at)
        self._answered_at = time.monotonic()
        return self._one_event(request)

    def _many_events(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        count = int(plans.number_of(request.task.args))
        return pb.ProcessResponse(events=count * _EVENTS, response=_RESPONSE)

    def _send(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        count = int(plans.number_of(request.task.args))
        sent = plans.messages(count, request.process.process_id)
        return pb.ProcessResponse(events=_EVENTS, response=_RESPONSE, messages=sent)

    def _lead(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        count = int(plans.number_of(request.task.args))
        return pb.ProcessResponse(start_nodes=nodes_pb2.StartNodes(nodes=plans.nodes(count)))

    def _end_node(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        del request
        return pb.ProcessResponse(complete=pb.Complete(result=_RESPONSE))

    def _step_on(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        now, process_id = time.monotonic(), request.process.process_id
        before = self._stepped_at.get(process_id)
        self._stepped_at[process_id] = now
        self.steps_by_bin[int(now * plans.BINS_PER_SECOND)] += 1
        if before is not None:
            self.step_count += 1
            self.times.append(now - before)
        timer = None if self.halted else types_pb2.SetTimer(args=request.task.args)
        return pb.ProcessResponse(events=_EVENTS, response=_RESPONSE, set_timer=timer)

    def _set_timer(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        args = request.task.args
        if request.task.type == types_pb2.TASK_TYPE_TIMEOUT:
            self.times.append(time.time() - plans.number_of(args))
            return self._one_event(request)
        timer = types_pb2.SetTimer(at=_instant(plans.number_of(args)), args=args)
        return pb.ProcessResponse(events=_EVENTS, response=_RESPONSE, set_timer=timer)


def _instant(seconds: float) -> timestamp_pb2.Timestamp:
    fraction, whole = math.modf(seconds)
    return timestamp_pb2.Timestamp(seconds=int(whole), nanos=int(fraction * 1e6) * 1000)


async def _main(kind: str, *security: str) -> None:
    processor = _Processor()
    tls = trust = None
    if security:
        certificate, key, token_file = security
        tls, trust = ServerTls(certificate=certificate, key=key), Trust(token_file=token_file)
    serving = running(
        processor, bind="127.0.0.1:0", limits=_LIMITS, streaming=kind == "stream", tls=tls,
        trust=trust,
    )  # fmt: skip
    async with serving as address:
        orders.tell({"address": address})
        await orders.obey(processor.obey)


if __name__ == "__main__":
    orders.run(_main(*sys.argv[1:]))
