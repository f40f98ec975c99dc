"""How long do failures, a preview, counts and lists take with a million processes?"""

import functools
import time
from collections.abc import Awaitable, Callable, Mapping

import grpc
from google.protobuf import struct_pb2

from bench.env import Env, Population, Stretch
from bench.filling.plan import FAILURES, Plan
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.parts.percentiles import curve
from progressor.v1 import bulk_service_pb2, types_pb2
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.bulk_service_pb2_grpc import BulkServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub

_PROCESS_COUNT = 1_000_000
_PROCESS_COUNT_MIN = 3_000
_BROKEN_SHARE = 0.01
_NAMESPACE = "operated"
_REQUESTS = 20
"""Requests of a turn, one after the other."""
_WARM_UP = 2
_FILTERS = ("all", "status", "created", "metadata", "failure", "reason", "broken", "prefix")
NAMES = (
    "failures", "preview", *(f"{what}_{name}" for what in ("count", "list") for name in _FILTERS),
)  # fmt: skip


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Ask one at a time; one process in a hundred is broken, for one of three reasons."""
    count = pace.count(_PROCESS_COUNT, least=_PROCESS_COUNT_MIN)
    plan = Plan(
        process_count=count, timer_count=0, broken_share=_BROKEN_SHARE, namespace=_NAMESPACE
    )
    async with (
        env.populated(plan) as population,
        grpc.aio.insecure_channel(population.engine.address) as channel,
    ):
        requests = await _requests(channel, population)
        wanted = {name: requests[name] for name in NAMES if pace.wants(name)}
        turns: Mapping[str, list[Turn]] = {name: [] for name in wanted}
        for _ in range(pace.turns):
            for name, request in wanted.items():
                for _ in range(_WARM_UP):
                    await request()
                async with env.measured(name) as stretch:
                    times = [await _timed(request) for _ in range(_REQUESTS)]
                turns[name].append(_turn(stretch, times))
    return [summed_up(name, own, processes=count) for name, own in turns.items()]


async def _requests(
    channel: grpc.aio.Channel, population: Population
) -> Mapping[str, Callable[[], Awaitable[object]]]:
    processes, bulks = ProcessServiceStub(channel), BulkServiceStub(channel)
    groups = await processes.ListFailures(pb.ListFailuresRequest())
    assert len(groups.failures) == len(FAILURES), "a group of each kind"
    group = groups.failures[0]
    newest = await processes.List(pb.ListRequest(page_size=1))
    last = population.plan.process_count - 1
    customer = struct_pb2.Struct()
    customer.update({"customer": "c-7"})
    filters = {
        "all": types_pb2.ProcessFilter(),
        "status": types_pb2.ProcessFilter(statuses=[types_pb2.PROCESS_STATUS_FINISHED]),
        "created": types_pb2.ProcessFilter(created_to=newest.processes[0].created_at),
        "metadata": types_pb2.ProcessFilter(metadata=customer),
        "failure": types_pb2.ProcessFilter(failure_id=group.failure_id),
        "reason": types_pb2.ProcessFilter(failure_reason=group.reason),
        "broken": types_pb2.ProcessFilter(broken_to=group.last_seen_at),
        "prefix": types_pb2.ProcessFilter(id_prefix=f"{population.plan.prefix}-{last}"),
    }
    preview = bulk_service_pb2.PreviewBulkRequest(
        kind=bulk_service_pb2.BULK_KIND_RETRY, filter=filters["failure"]
    )
    return {
        "failures": functools.partial(processes.ListFailures, pb.ListFailuresRequest()),
        "preview": functools.partial(bulks.PreviewBulk, preview),
        **{
            f"list_{name}": functools.partial(processes.List, pb.ListRequest(filter=it))
            for name, it in filters.items()
        },
        **{
            f"count_{name}": functools.partial(processes.Count, pb.CountRequest(filter=it))
            for name, it in filters.items()
        },
    }


async def _timed(request: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await request()
    return time.perf_counter() - begun


def _turn(stretch: Stretch, times: list[float]) -> Turn:
    return stretch.turn(count=len(times), seconds=sum(times), times_ms=curve(times))
