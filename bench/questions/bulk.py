"""How long does a bulk retry of 3,334 among a million processes take, the engine killed twice?"""

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Sequence

import grpc

from bench.env import Env, Population, Stretch
from bench.filling.plan import FAILURES, Plan
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.parts.percentiles import curve
from bench.peers import Peer
from progressor.v1 import bulk_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.v1.bulk_service_pb2_grpc import BulkServiceStub

_PROCESS_COUNT = 1_000_000
_PROCESS_COUNT_MIN = 3_000
_BROKEN_SHARE = 0.01
_NAMESPACE = "operated"
_KILLED_AT = (1 / 3, 2 / 3)
_LOOK_SECONDS = 0.02
_SECONDS_MAX = 300.0
NAMES = ("bulk_retry", "bulk_retry_killed")


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Retry the processes that broke for one reason, without a limit of the rate.

    Each turn takes another reason; the time is from the request until the operation is done. The
    steps themselves run beside it. The engine that takes over from a killed one is started then,
    and waits for the lease of the operation to expire.
    """
    count = pace.count(_PROCESS_COUNT, least=_PROCESS_COUNT_MIN)
    plan = Plan(
        process_count=count, timer_count=0, broken_share=_BROKEN_SHARE, namespace=_NAMESPACE
    )
    measurements = []
    for name, kills in zip(NAMES, ((), _KILLED_AT), strict=True):
        if pace.wants(name):
            async with env.populated(plan) as population, contextlib.AsyncExitStack() as stack:
                operator = _Operator(population, stack, population.engine)
                reasons = [reason for reason, _ in FAILURES[: pace.long_turns]]
                turns = [await operator.retry(reason, kills) for reason in reasons]
            measurements.append(summed_up(name, turns, processes=count))
    return measurements


@dataclasses.dataclass(slots=True)
class _Operator:
    population: Population
    stack: contextlib.AsyncExitStack
    engine: Peer

    async def retry(self, reason: str, kills: Sequence[float]) -> Turn:
        """Retry what broke for a reason, and kill the engine at these shares of it."""
        request = pb.StartBulkRequest(
            operation_id=reason, kind=pb.BULK_KIND_RETRY, rate_unlimited=True,
            filter=types_pb2.ProcessFilter(failure_reason=reason),
        )  # fmt: skip
        begun = time.perf_counter()
        async with grpc.aio.insecure_channel(self.engine.address) as channel:
            await BulkServiceStub(channel).StartBulk(request)
        for share in kills:
            await self._reached(reason, share)
            os.kill(self.engine.pid, signal.SIGKILL)
            self.engine = await self.stack.enter_async_context(self.population.engine_beside())
        bulk = await self._reached(reason, 1.0)
        seconds = time.perf_counter() - begun
        assert bulk.state == pb.BULK_STATE_DONE, f"not done: {bulk}"
        assert bulk.matched_count == bulk.done_count > 0, f"not each was retried: {bulk}"
        return Stretch().turn(count=bulk.done_count, seconds=seconds, times_ms=curve([seconds]))

    async def _reached(self, operation_id: str, share: float) -> pb.BulkOperation:
        """Wait until a share of the processes is done; of all of them, until the operation is."""
        async with (
            asyncio.timeout(_SECONDS_MAX),
            grpc.aio.insecure_channel(self.engine.address) as channel,
        ):
            while True:
                answer = await BulkServiceStub(channel).GetBulk(
                    pb.GetBulkRequest(operation_id=operation_id)
                )
                bulk = answer.operation
                if bulk.HasField("ended_at") or 0 < share * bulk.matched_count <= bulk.done_count:
                    return bulk
                await asyncio.sleep(_LOOK_SECONDS)
