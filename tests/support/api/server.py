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

from progressor.api.server.server import ApiServer, Listening
from progressor.clock import SystemClock
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.replica_service_pb2_grpc import ReplicaServiceStub
from tests.support.engine.sessions import SessionStub

if TYPE_CHECKING:
    # The generated module has them in its stub alone.
    from progressor.v1.job_service_pb2_grpc import JobServiceAsyncStub
    from progressor.v1.namespace_service_pb2_grpc import NamespaceServiceAsyncStub
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub
    from progressor.v1.replica_service_pb2_grpc import ReplicaServiceAsyncStub
from tests.support.api.memory import (
    MemoryLogLevels,
    MemoryNamespaces,
    MemoryProcesses,
    MemoryRequests,
    MemoryRoster,
    memory_backend,
)
from tests.support.api.memory_jobs import MemoryJobs


@dataclasses.dataclass
class Engine:
    """A server, what stands behind it, and a channel to it."""

    server: ApiServer
    requests: MemoryRequests
    processes: MemoryProcesses
    namespaces: MemoryNamespaces
    jobs: MemoryJobs
    roster: MemoryRoster
    log_levels: MemoryLogLevels
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
        """Return what a health check says."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(response.status)


def build(
    listening: Listening,
) -> tuple[
    ApiServer,
    MemoryRequests,
    MemoryProcesses,
    MemoryNamespaces,
    MemoryJobs,
    MemoryRoster,
    MemoryLogLevels,
]:
    requests, processes, namespaces = MemoryRequests(), MemoryProcesses(), MemoryNamespaces()
    jobs, roster, log_levels = MemoryJobs(), MemoryRoster(), MemoryLogLevels()
    backend = memory_backend(
        requests=requests, processes=processes, namespaces=namespaces, jobs=jobs, roster=roster
    )
    server = ApiServer(
        lambda: backend,
        log_levels=log_levels,
        replica_name="host-1",
        clock=SystemClock(),
        listening=listening,
    )
    return server, requests, processes, namespaces, jobs, roster, log_levels


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
    server, requests, processes, namespaces, jobs, roster, log_levels = build(
        Listening(bind=("127.0.0.1:0",))
    )
    (address,) = await server.start()
    server.set_serving(serving=True)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Engine(
            server=server,
            requests=requests,
            processes=processes,
            namespaces=namespaces,
            jobs=jobs,
            roster=roster,
            log_levels=log_levels,
            address=address,
            channel=channel,
            in_sessions=in_sessions,
        )
        await server.drain(dt.timedelta(0))
