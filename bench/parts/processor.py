"""The processor: a bare grpc.aio servicer, the same for the engine and for the relay."""

import asyncio
import math
import time
from typing import Any

import grpc
from google.protobuf import timestamp_pb2

from bench.parts import orders, plans
from bench.parts.percentiles import percentiles
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import processor_service_pb2_grpc, types_pb2

_EVENT = types_pb2.NewEvent(payload=b"e" * plans.SIZE, format_version=1)
_RESPONSE = b"r" * 16


class _Processor(processor_service_pb2_grpc.ProcessorServiceServicer):
    """Does what the args of a task ask for, and keeps count."""

    def __init__(self) -> None:
        self.halted = False
        self.step_count = 0
        self.request_bytes = 0
        self.times: list[float] = []
        """How late timers were, or how long after the step before it each step came."""
        self._stepped_at: dict[str, float] = {}

    async def Process(  # noqa: N802  the RPC's name
        self, request: pb.ProcessRequest, context: object
    ) -> pb.ProcessResponse:
        del context
        self.request_bytes = request.ByteSize()
        args = request.task.args
        is_timeout = request.task.type == types_pb2.TASK_TYPE_TIMEOUT
        match plans.letter_of(args):
            case "s":
                self._count_step(request.process.process_id)
                timer = None if self.halted else types_pb2.SetTimer(args=args)
                return pb.ProcessResponse(events=(_EVENT,), response=_RESPONSE, set_timer=timer)
            case "t" if is_timeout:
                self.times.append(time.time() - plans.number_of(args))
            case "t":
                timer = types_pb2.SetTimer(at=_instant(plans.number_of(args)), args=args)
                return pb.ProcessResponse(events=(_EVENT,), response=_RESPONSE, set_timer=timer)
            case "h":
                await asyncio.sleep(plans.number_of(args))
            case _:
                pass
        return pb.ProcessResponse(events=(_EVENT,), response=_RESPONSE)

    def _count_step(self, process_id: str) -> None:
        now = time.monotonic()
        before = self._stepped_at.get(process_id)
        self._stepped_at[process_id] = now
        if before is not None:
            self.step_count += 1
            self.times.append(now - before)

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        """Tell the counts; `halted` says whether steps go on."""
        self.halted = bool(order.get("halted", self.halted))
        if order.get("forget"):
            self.times.clear()
            self._stepped_at.clear()
        return {
            "at": time.monotonic(),
            "steps": self.step_count,
            "request_bytes": self.request_bytes,
            "count": len(self.times),
            **percentiles(self.times),
        }


def _instant(seconds: float) -> timestamp_pb2.Timestamp:
    fraction, whole = math.modf(seconds)
    return timestamp_pb2.Timestamp(seconds=int(whole), nanos=int(fraction * 1e6) * 1000)


async def _main() -> None:
    server = grpc.aio.server(options=orders.SERVER_OPTIONS)
    processor = _Processor()
    processor_service_pb2_grpc.add_ProcessorServiceServicer_to_server(processor, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    orders.tell({"address": f"127.0.0.1:{port}"})
    await orders.obey(processor.obey)
    await server.stop(None)


if __name__ == "__main__":
    orders.run(_main())
