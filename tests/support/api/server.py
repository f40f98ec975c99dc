"""A gRPC server over a real socket, with collaborators in memory, and how its calls end."""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import (
    error_details_pb2,
    status_pb2,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from progressor.api.server.places import Places
from progressor.api.server.server import ApiServer, Listening
from progressor.clock import SystemClock
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.replica_service_pb2_grpc import ReplicaServiceStub
from tests.support.api.memory import Memory
from tests.support.engine.sessions import SessionStub

if TYPE_CHECKING:
    # The generated module has them in its stub alone.
    from progressor.v1.job_service_pb2_grpc import JobServiceAsyncStub
    from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceAsyncStub
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub
    from progressor.v1.replica_service_pb2_grpc import ReplicaServiceAsyncStub


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine(Memory):
    server: ApiServer
    address: str
    channel: grpc.aio.Channel
    in_sessions: bool

    @property
    def process_service(self) -> "ProcessServiceAsyncStub":
        """Return a stub, whose requests go through sessions where the engine is to have them so."""
        stub = SessionStub if self.in_sessions else ProcessServiceStub
        return stub(self.channel)  # type: ignore[return-value]

    @property
    def namespace_service(self) -> "NamespaceServiceAsyncStub":
        return NamespaceServiceStub(self.channel)

    @property
    def job_service(self) -> "JobServiceAsyncStub":
        return JobServiceStub(self.channel)

    @property
    def replica_service(self) -> "ReplicaServiceAsyncStub":
        return ReplicaServiceStub(self.channel)

    async def health(self, service: str = "") -> int:
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(response.status)


def build(listening: Listening, memory: Memory | None = None) -> ApiServer:
    memory = memory or Memory()
    backend = memory.backend()
    return ApiServer(
        Places({"main": lambda: backend}),
        log_levels=memory.log_levels,
        replica_name="host-1",
        clock=SystemClock(),
        listening=listening,
    )


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def end_of(call: Any) -> tuple[grpc.StatusCode, error_details_pb2.ErrorInfo]:
    error = await failure(call)
    info = error_details_pb2.ErrorInfo()
    assert rich(error).details[0].Unpack(info)
    return error.code(), info


def rich(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    found = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert isinstance(found, status_pb2.Status)
    return found


def violations_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    bad = error_details_pb2.BadRequest()
    assert any(packed.Unpack(bad) for packed in rich(error).details)
    return {violation.field: violation.description for violation in bad.field_violations}


@contextlib.asynccontextmanager
async def running_engine(*, in_sessions: bool) -> AsyncIterator[Engine]:
    """Serve, and connect to it; requests on processes go by calls of their own, or by sessions."""
    memory = Memory()
    server = build(Listening(bind=("127.0.0.1:0",)), memory)
    (address,) = await server.start()
    server.set_serving(serving=True)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Engine(
            **vars(memory), server=server, address=address, channel=channel, in_sessions=in_sessions
        )
        await server.drain(dt.timedelta(0))
