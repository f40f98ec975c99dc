"""A whole engine in this process; `process.py` runs one in a process of its own.

A `Env` on it is what most system tests play on: a namespace of its own, with a scripted
processor and a client.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.rpc import code_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.engine import engine as app
from progressor.sdk import BYTES, Client, NamespaceConfig, RetryPolicy
from progressor.sdk.codec.wire import duration_to_wire
from progressor.sdk.transport.failures import Status, read_status
from progressor.settings import config
from progressor.v1.processor_service_pb2 import Complete, ProcessResponse
from progressor.v1.types_pb2 import NewEvent, SetTimer
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.processor.scripted import Answer, Hang, ScriptedProcessor, Step, fail

# Quick enough that a test of the safety nets need not wait long.
SETTINGS: Mapping[str, str] = {
    "server.bind": "127.0.0.1:0",
    "telemetry.metrics_bind": "off",
    "server.drain_timeout_seconds": "5",
    "scanner.interval_seconds": "0.2",
    "scanner.overdue_seconds": "0.2",
    "replica.heartbeat_interval_seconds": "0.2",
    "replica.lease_timeout_seconds": "1",
    "replica.step_grace_seconds": "0.5",
}

QUIET: Mapping[str, str] = {
    "scanner.interval_seconds": "3600",
    "replica.lease_timeout_seconds": "30",
}
"""For an engine that no scan ever helps: whatever runs on it runs by itself."""

NOW_AND_THEN = RetryPolicy(
    initial_interval=dt.timedelta(milliseconds=10), coefficient=1.0, jitter=0.0, attempts_max=3
)
"""Three attempts, 10 ms apart."""

LONG_LEASE: Mapping[str, str] = {"replica.lease_timeout_seconds": "60"}
"""For an engine whose steps outlast an absence of PostgreSQL."""

SERVICES = (
    "",
    "progressor.v1.ProcessService",
    "progressor.v1.NamespaceService",
    "progressor.v1.GateService",
    "progressor.v1.ReplicaService",
)
"""Those that a health check can ask for; "" is all of them."""

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    engine: app.Engine
    points: Points

    @property
    def address(self) -> str:
        return self.engine.addresses[0]

    @contextlib.asynccontextmanager
    async def namespace(self, name: str, target: str, **options: Any) -> AsyncIterator[Client]:
        async with Client(self.address, namespace=name) as client:
            described = NamespaceConfig(name=name, processor_targets=(target,))
            await client.namespaces.create(dataclasses.replace(described, **options))
            yield client


@contextlib.asynccontextmanager
async def starting_replica(
    conninfo: str,
    settings: Mapping[str, str] = {},
    *,
    clock: Clock | None = None,
    paused: bool = False,
    file: Path | None = None,
) -> AsyncIterator[Replica]:
    """Run an engine, which may not have reached its database yet, until the context is left."""
    points, flags = Points(), {**SETTINGS, "database.dsn": conninfo, **settings}
    loaded = config.load(file=file, environment={}, flags=flags)
    async with app.engine(loaded, clock=clock, observers=points.observers, paused=paused) as engine:
        yield Replica(engine=engine, points=points)


@contextlib.asynccontextmanager
async def running_replica(
    conninfo: str,
    settings: Mapping[str, str] = {},
    *,
    clock: Clock | None = None,
    paused: bool = False,
    file: Path | None = None,
) -> AsyncIterator[Replica]:
    """Run an engine on a database until the context is left, which drains it."""
    starting = starting_replica(conninfo, settings, clock=clock, paused=paused, file=file)
    async with starting as replica:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await replica.engine.serving.wait()
        yield replica


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """A namespace of its own with a scripted processor, and a client with bytes for payloads."""

    replica: Replica
    processor: ScriptedProcessor
    client: Client
    session: bool = True

    @property
    def namespace(self) -> str:
        return self.client.namespace

    @property
    def points(self) -> Points:
        return self.replica.points

    def key(self, process_id: str) -> ProcessKey:
        return process_key(self.namespace, process_id)

    def client_at(self, address: str) -> Client:
        return Client(
            address,
            namespace=self.namespace,
            codec=BYTES,
            timeout=PATIENCE_SECONDS,
            session=self.session,
        )

    async def starting(
        self, process_id: str, *steps: Step, answer: ProcessResponse | None = None
    ) -> Hang:
        """Bring a process into init: its processor answers with `answer` once released."""
        hang = Hang(response=answer)
        self.processor.on_process(process_id, hang, *(steps or (Answer(),)))
        await self.client.start(process_id, accept_only=True)
        await self.asked(process_id)
        return hang

    async def running(self, process_id: str, *steps: Step) -> None:
        self.processor.on_process(process_id, answering(), *(steps or (Answer(),)))
        await self.client.start(process_id)

    async def timed(
        self, process_id: str, *steps: Step, after: float = 3600, **fields: Any
    ) -> None:
        self.processor.on_process(
            process_id, answering(set_timer=timer(after, **fields)), *(steps or (Answer(),))
        )
        await self.client.start(process_id)

    async def broken(self, process_id: str, *steps: Step) -> int:
        """Bring a process into error by a call, and return the task that broke it."""
        await self.running(process_id, broken(), *(steps or (Answer(),)))
        status = await refusal(self.client.call(process_id))
        return int(status.metadata["task_id"])

    async def finished(self, process_id: str, result: bytes = b"") -> None:
        await self.running(process_id, answering(complete=Complete(result=result)))
        await self.client.call(process_id)

    async def busy(
        self, process_id: str, *steps: Step, answer: ProcessResponse | None = None
    ) -> tuple[Hang, int]:
        """Bring a process into running, with a call in hand; return what to release, and the task.

        Once released the call is answered with `answer`, and the requests behind it by `steps`.
        """
        hang = Hang(response=answer)
        await self.running(process_id, hang, *(steps or (Answer(),)))
        accepted = await self.client.call(process_id, b"busy", accept_only=True)
        await self.asked(process_id, 2)
        return hang, accepted.task_id

    async def asked(self, process_id: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            seen = 0
            while len(self.asked_for(process_id)) < count:
                seen = max(seen, len(self.processor.requests)) + 1
                await self.processor.received(seen, seconds=PATIENCE_SECONDS)

    def asked_for(self, process_id: str) -> list[Any]:
        return [
            request
            for request in self.processor.requests
            if request.process.process_id == process_id
        ]

    async def settled(self, process_id: str, count: int = 1, **facts: object) -> None:
        await self.points.wait("settled", count, key=self.key(process_id), **facts)


@contextlib.asynccontextmanager
async def open_env(
    replica: Replica,
    *,
    one_at_a_time: bool = True,
    streaming: bool = True,
    session: bool = True,
    **options: Any,
) -> AsyncIterator[Env]:
    """Make a namespace on a replica; `options` are fields of NamespaceConfig.

    Without `streaming` the processor, without `session` the client speaks by single calls alone.

    Leaving it removes the processes, so that nothing of them is in hand when the engine drains, and
    the namespace: the port of its processor may be the next one's, and the engine would not try to
    connect there for a while.
    """
    name = f"env-{os.getpid()}-{next(_numbers)}"
    async with (
        ScriptedProcessor(one_at_a_time=one_at_a_time, streaming=streaming) as processor,
        Client(
            replica.address,
            namespace=name,
            codec=BYTES,
            timeout=PATIENCE_SECONDS,
            session=session,
        ) as client,
    ):
        fields = {"processor_targets": (processor.target,), **options}
        await client.namespaces.create(NamespaceConfig(name=name, **fields))
        yield Env(replica=replica, processor=processor, client=client, session=session)
        with contextlib.suppress(errors.NamespaceNotFoundError):
            async for process in client.list(page_size=1000):
                await _remove(client, process.process_id)
            await client.namespaces.delete(name)


async def _remove(client: Client, process_id: str) -> None:
    """Remove a process, though a test may have left connections that are cut."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with contextlib.suppress(errors.ProcessNotFoundError):
            while True:
                with contextlib.suppress(errors.StorageUnavailableError):
                    return await client.remove(process_id)


def answering(*events: bytes, **fields: Any) -> Answer:
    return Answer(response(*events, **fields))


def response(*events: bytes, **fields: Any) -> ProcessResponse:
    return ProcessResponse(events=[NewEvent(payload=payload) for payload in events], **fields)


def timer(after: float = 0.0, **fields: Any) -> SetTimer:
    return SetTimer(after=duration_to_wire(dt.timedelta(seconds=after)), **fields)


def broken(message: str = "it broke") -> Answer:
    """Return the step that breaks the process: a failure that is not retried."""
    return fail(code_pb2.INTERNAL, reason="BROKEN", message=message)


def unavailable(message: str = "not now") -> Answer:
    """Return the step that fails in a way that is retried."""
    return fail(code_pb2.ABORTED, reason="NOT_NOW", message=message)


async def refusal(request: Awaitable[object]) -> Status:
    """Return how a request was refused, as it was on the wire.

    Raises:
        AssertionError: It was not.
    """
    try:
        answer = await request
    except grpc.aio.AioRpcError as error:
        return read_status(error, "")
    except errors.ProgressorError as error:
        if not isinstance(error.__cause__, grpc.aio.AioRpcError):
            raise
        return read_status(error.__cause__, "")
    message = f"not refused: {answer}"
    raise AssertionError(message)


async def health_of(address: str, services: Sequence[str] = SERVICES) -> dict[str, int]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return {
            service: (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
            for service in services
        }


async def serving(address: str, *, patience: float = PATIENCE_SECONDS) -> None:
    await health_becomes(address, health_pb2.HealthCheckResponse.SERVING, patience=patience)


async def health_becomes(
    address: str, status: int, *, service: str = "", patience: float = PATIENCE_SECONDS
) -> None:
    """Wait until a service at an address, which may not listen yet, has this health."""
    options = (
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 50),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)
        async with asyncio.timeout(patience):
            async for told in watch:
                if told.status == status:
                    return
    message = f"{address} stopped before its health was {status}"
    raise AssertionError(message)
