"""The requests of a client: each RPC with the generated stubs, and in a session of the SDK."""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2
from opentelemetry import trace

from bench.parts import orders, plans
from bench.parts.loads import Ask, Ids, closed_loop, open_loop
from progressor.sdk import Client, Constraints
from progressor.v1 import gate_service_pb2, job_service_pb2, types_pb2
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.gate_service_pb2_grpc import GateServiceStub
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub

_HANDOVER_LEAD_SECONDS = 0.005
_PAGE_SIZE = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the bench.

    ``targets`` are called in turn, each over ``connections``. ``callers`` send one request after
    the other or, with a ``rate`` per second, at fixed instants, until `seconds` have passed or
    `count` is reached. ``prefix`` and ``distinct`` give the process ids: the prefix and a number
    below `distinct`, in turn; this client takes every ``stride``-th from ``first``. ``plan``,
    ``number`` and ``step`` make the args. ``history_last`` events go with a call, 0 for the setting
    of the namespace, which is none. In sessions, every ``traced_every``-th start is traced by its
    caller; 0 for none. A gated start uses one of ``gates`` gates, chosen by its number. With
    ``tls_ca``, sessions are over TLS and send the token in ``token_file``.
    """

    what: str
    targets: tuple[str, ...]
    namespace: str
    prefix: str
    session: bool = False
    connections: int = 1
    distinct: int = 1 << 62
    first: int = 0
    stride: int = 1
    callers: int = 64
    seconds: float = math.inf
    count: int = 1 << 62
    rate: float = 0.0
    plan: str = "e"
    number: float = 0.0
    step: float = 0.0
    history_last: int = 0
    traced_every: int = 0
    gates: int = 0
    tls_ca: str = ""
    token_file: str = ""

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "targets": tuple(fields["targets"])})

    def ids(self) -> Ids:
        for number in range(self.first, self.count, self.stride):
            yield number, f"{self.prefix}-{number % self.distinct}"

    def args(self, number: int) -> bytes:
        return plans.plan(self.plan, self.number + number * self.step)

    async def carried_out(self, ask: Ask) -> orders.Answer:
        """Return the times of the calls that ended, in microseconds, and the duration."""
        answer = await (
            open_loop(ask, self.ids(), rate=self.rate, seconds=self.seconds)
            if self.rate
            else closed_loop(ask, self.ids(), callers=self.callers, seconds=self.seconds)
        )
        times = answer.pop("times")
        return {**answer, "times_us": [round(1e6 * each) for each in times]}


class Unary:
    """Sends unary calls on one channel."""

    def __init__(self, channel: grpc.aio.Channel, order: Order) -> None:
        self._stub = ProcessServiceStub(channel)
        self._gates = GateServiceStub(channel)
        self._jobs = JobServiceStub(channel)
        self._check: grpc.aio.UnaryUnaryMultiCallable[
            health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        ] = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        self._order = order
        self._args = order.args(0)
        self._history = (
            types_pb2.HistoryRange(limit=order.history_last, direction=types_pb2.DIRECTION_BACKWARD)
            if order.history_last
            else None
        )

    async def start(self, number: int, process_id: str) -> None:
        await self._stub.Start(
            pb.StartRequest(
                namespace=self._order.namespace,
                process_id=process_id,
                args=self._order.args(number),
            ),
            timeout=orders.SECONDS_MAX,
        )

    async def gate(self, number: int, _process_id: str) -> None:
        """Set the capacity of a gate to `number` of the order."""
        await self._gates.SetGate(
            gate_service_pb2.SetGateRequest(
                namespace=self._order.namespace,
                gate=f"{self._order.prefix}-{number}",
                capacity=int(self._order.number),
            ),
            timeout=orders.SECONDS_MAX,
        )

    async def submit(self, _number: int, process_id: str) -> None:
        """Submit a job that the engine leads, with as many nodes as the order's number."""
        await self._jobs.SubmitJob(
            job_service_pb2.SubmitJobRequest(
                namespace=self._order.namespace,
                job_id=process_id,
                nodes=plans.nodes(int(self._order.number)),
            ),
            timeout=orders.SECONDS_MAX,
        )

    async def call(self, _number: int, process_id: str) -> None:
        await self._call(process_id, self._args)

    async def notify(self, _number: int, process_id: str) -> None:
        await self._stub.Notify(
            pb.NotifyRequest(
                namespace=self._order.namespace, process_id=process_id, args=self._args
            ),
            timeout=orders.SECONDS_MAX,
        )

    async def get(self, _number: int, process_id: str) -> None:
        answer = await self._stub.Get(
            pb.GetRequest(namespace=self._order.namespace, process_id=process_id),
            timeout=orders.SECONDS_MAX,
        )
        assert answer.history, "a process without the events that were recorded"

    async def trace(self, _number: int, process_id: str) -> None:
        answer = await self._stub.Trace(
            pb.TraceRequest(namespace=self._order.namespace, process_id=process_id),
            timeout=orders.SECONDS_MAX,
        )
        assert answer.tasks, "a process without tasks"

    async def list(self, _number: int, _process_id: str) -> None:
        answer = await self._stub.List(
            pb.ListRequest(
                filter=types_pb2.ProcessFilter(namespace=self._order.namespace),
                page_size=_PAGE_SIZE,
            ),
            timeout=orders.SECONDS_MAX,
        )
        assert answer.processes, "a namespace without processes"

    async def check(self, _number: int, _process_id: str) -> None:
        await self._check(health_pb2.HealthCheckRequest(), timeout=orders.SECONDS_MAX)

    async def handover(self, _number: int, process_id: str) -> float:
        """Call a process twice, the second time while the step of the first call is held."""

        async def call(args: bytes) -> float:
            await self._call(process_id, args)
            return time.perf_counter()

        async with asyncio.TaskGroup() as group:
            held = plans.plan("h", self._order.number)
            first = group.create_task(call(held), name="first")
            await asyncio.sleep(_HANDOVER_LEAD_SECONDS)
            second = group.create_task(call(plans.plan("e")), name="second")
        return second.result() - first.result()

    async def _call(self, process_id: str, args: bytes) -> None:
        await self._stub.Call(
            pb.CallRequest(
                namespace=self._order.namespace,
                process_id=process_id,
                args=args,
                history_range=self._history,
            ),
            timeout=orders.SECONDS_MAX,
        )


class InSession:
    """Sends requests by the SDK's client, in a session."""

    def __init__(self, client: Client, order: Order) -> None:
        self._client = client
        self._order = order
        self._args = order.args(0)

    async def start(self, number: int, process_id: str) -> None:
        every = self._order.traced_every
        with _traced(number) if every and number % every == 0 else contextlib.nullcontext():
            await self._client.start(
                process_id, self._order.args(number), namespace=self._order.namespace
            )

    async def gated(self, number: int, process_id: str) -> None:
        """Start a process whose first step needs a gate, without waiting for it."""
        gate = f"{self._order.prefix}-{number % self._order.gates}"
        await self._client.start(
            process_id, self._order.args(number), namespace=self._order.namespace,
            accept_only=True, constraints=Constraints(gates=[gate]),
        )  # fmt: skip

    async def call(self, _number: int, process_id: str) -> None:
        await self._client.call(process_id, self._args, namespace=self._order.namespace)

    async def notify(self, _number: int, process_id: str) -> None:
        await self._client.notify(process_id, self._args, namespace=self._order.namespace)

    async def get(self, _number: int, process_id: str) -> None:
        snapshot = await self._client.get(process_id, namespace=self._order.namespace)
        assert snapshot.history, "a process without the events that were recorded"


@contextlib.contextmanager
def _traced(number: int) -> Iterator[None]:
    sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(number + 1, number + 1, is_remote=False, trace_flags=sampled)
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield


UNARY: Mapping[str, Callable[[Unary], Ask]] = MappingProxyType({
    "start": lambda unary: unary.start,
    "gate": lambda unary: unary.gate,
    "submit": lambda unary: unary.submit,
    "call": lambda unary: unary.call,
    "notify": lambda unary: unary.notify,
    "get": lambda unary: unary.get,
    "trace": lambda unary: unary.trace,
    "list": lambda unary: unary.list,
    "check": lambda unary: unary.check,
    "handover": lambda unary: unary.handover,
})  # fmt: skip
IN_SESSION: Mapping[str, Callable[[InSession], Ask]] = MappingProxyType({
    "start": lambda session: session.start,
    "gated": lambda session: session.gated,
    "call": lambda session: session.call,
    "notify": lambda session: session.notify,
    "get": lambda session: session.get,
})  # fmt: skip
