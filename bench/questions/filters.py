"""How long do List and Count take by any combination of filters, with a million processes?"""

import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import struct_pb2, timestamp_pb2

from bench.env import Env
from bench.filling.plan import FAILURES, Plan, default_timer_count
from bench.measurement import Measurement, Pace, summed_up
from bench.parts.percentiles import curve
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub

_PROCESS_COUNT = 1_000_000
_PROCESS_COUNT_MIN = 3_000
_COMBINATIONS_MIN = 30
_SLOWEST = 20
"""Combinations that are asked for `_AGAIN` times more."""
_AGAIN = 20
_NAMESPACE = "filtered"
_HOUR_SECONDS = 3600
NAMES = ("list_any", "count_any")

Fields = Mapping[str, Any]
Ask = Callable[[Fields], Awaitable[object]]


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Ask for each combination once, one at a time, and then for the slowest ones again.

    The times are those of the combinations; of the slowest ones, the p99.
    """
    count = pace.count(_PROCESS_COUNT, least=_PROCESS_COUNT_MIN)
    timers = default_timer_count(count)
    plan = Plan(process_count=count, timer_count=timers, namespace=_NAMESPACE)
    measured = []
    async with (
        env.populated(plan) as population,
        grpc.aio.insecure_channel(population.engine.address) as channel,
    ):
        values = await values_of(channel, population.plan)
        for name, (request, names) in requests(channel).items():
            if pace.wants(name):
                wanted = [*combinations({each: values[each] for each in names})]
                chosen = random.Random(1).sample(
                    wanted, min(len(wanted), pace.count(len(wanted), least=_COMBINATIONS_MIN))
                )
                measured.append(await _measured(env, name, request, chosen))
    return measured


async def _measured(
    env: Env, name: str, request: Ask, wanted: Sequence[tuple[str, Fields]]
) -> Measurement:
    async with env.measured(name) as stretch:
        times = {label: await timed(request, fields) for label, fields in wanted}
        slowest = sorted(times, key=times.__getitem__, reverse=True)[:_SLOWEST]
        by_label = dict(wanted)
        for label in slowest:
            again = [await timed(request, by_label[label]) for _ in range(_AGAIN)]
            times[label] = curve(again)[-1] / 1000
    worst = max(times, key=times.__getitem__)
    turn = stretch.turn(
        count=len(times), seconds=sum(times.values()), times_ms=curve(times.values()),
        done=len(times) + _AGAIN * len(slowest),
    )  # fmt: skip
    return summed_up(name, [turn], slowest=worst, slowest_ms=round(1000 * times[worst], 1))


def requests(channel: grpc.aio.Channel) -> Mapping[str, tuple[Ask, Sequence[str]]]:
    """Return by its name each request, and the fields that it has."""
    stub = ProcessServiceStub(channel)

    async def list_any(fields: Fields) -> object:
        causes = fields.get("causes", ())
        wanted = types_pb2.ProcessFilter(**_without(fields, "causes"))
        return await stub.List(pb.ListRequest(filter=wanted, causes=causes))

    async def count_any(fields: Fields) -> object:
        return await stub.Count(pb.CountRequest(filter=types_pb2.ProcessFilter(**fields)))

    filters = ("namespace", "status", "created", "metadata", "failure", "prefix")
    return {"list_any": (list_any, (*filters, "causes")), "count_any": (count_any, filters)}


def combinations(values: Mapping[str, Mapping[str, Fields]]) -> Iterator[tuple[str, Fields]]:
    """Yield each combination of values, one of each field or none of it, with a label.

    What only broken processes have is not asked of others.
    """
    for chosen in itertools.product(*({"": {}, **each}.items() for each in values.values())):
        named = {name: value for name, (value, _) in zip(values, chosen, strict=True) if value}
        if "failure" not in named or named.get("status", "error") == "error":
            label = " ".join(f"{name}={value}" for name, value in named.items())
            yield label, {key: it for _, fields in chosen for key, it in fields.items()}


async def values_of(channel: grpc.aio.Channel, plan: Plan) -> Mapping[str, Mapping[str, Fields]]:
    """Return values of each field that many, few or no processes have."""
    stub = ProcessServiceStub(channel)
    first = pb.ListRequest(filter=types_pb2.ProcessFilter(namespace=plan.namespace), page_size=1)
    newest = (await stub.List(first)).processes[0].created_at.seconds
    groups = await stub.ListFailures(pb.ListFailuresRequest())
    oldest = newest - plan.process_count
    return {
        "namespace": {"one": {"namespace": plan.namespace}},
        "status": {
            "many": {"statuses": [types_pb2.PROCESS_STATUS_RUNNING]},
            "few": {"statuses": [types_pb2.PROCESS_STATUS_FINISHED]},
            "none": {"statuses": [types_pb2.PROCESS_STATUS_INIT]},
            "error": {"statuses": [types_pb2.PROCESS_STATUS_ERROR]},
        },
        "created": {
            "late": {"created_from": _at(newest - _HOUR_SECONDS)},
            "early": {"created_to": _at(oldest + _HOUR_SECONDS)},
            "most": {"created_from": _at(oldest + 1), "created_to": _at(newest)},
        },
        "metadata": {
            "many": {"metadata": _struct(region="eu-3")},
            "few": {"metadata": _struct(customer="c-7")},
            "none": {"metadata": _struct(region="nowhere")},
        },
        "failure": {
            "group": {"failure_id": groups.failures[0].failure_id},
            "reason": {"failure_reason": FAILURES[0][0]},
            "no_reason": {"failure_reason": "UNKNOWN"},
            "broken_late": {"broken_from": _at(newest - _HOUR_SECONDS)},
            "broken_early": {"broken_to": _at(oldest + _HOUR_SECONDS)},
        },
        "prefix": {
            "all": {"id_prefix": f"{plan.prefix}-"},
            "few": {"id_prefix": f"{plan.prefix}-{plan.process_count // 1000}"},
            "none": {"id_prefix": "nothing"},
        },
        "causes": {
            "timer": {"causes": [types_pb2.WAIT_CAUSE_TIMER]},
            "none": {"causes": [types_pb2.WAIT_CAUSE_GATE]},
        },
    }  # fmt: skip


async def timed(request: Ask, fields: Fields) -> float:
    """Return the seconds that a request takes."""
    begun = time.perf_counter()
    await request(fields)
    return time.perf_counter() - begun


def _at(seconds: int) -> timestamp_pb2.Timestamp:
    return timestamp_pb2.Timestamp(seconds=seconds)


def _struct(**fields: str) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(fields)
    return struct


def _without(fields: Fields, name: str) -> dict[str, Any]:
    return {key: it for key, it in fields.items() if key != name}
