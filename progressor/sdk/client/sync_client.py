"""The blocking client, over a channel that any thread may use."""

import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

import grpc

from progressor.sdk.client.client import TIMEOUT_DEFAULT
from progressor.sdk.client.gates import GateRequests, SyncGates
from progressor.sdk.client.jobs import JobRequests, SyncJobs
from progressor.sdk.client.namespaces import NamespaceRequests, SyncNamespaces
from progressor.sdk.client.processes import ProcessRequests, SyncProcesses
from progressor.sdk.client.replicas import ReplicaRequests, SyncReplicas
from progressor.sdk.client.schedules import ScheduleRequests, SyncSchedules
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.sending.connection import BlockingConnection, Endpoint


class SyncClient(SyncProcesses):
    """`Client` for programs without an event loop: same methods, blocking, safe in any thread.

    It has no loop of its own: a plain handler of a processor can call the engine through it. Each
    request is a call of its own: in a session, each would wait for two more threads to wake up.
    """

    def __init__(  # noqa: PLR0913 - settings, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        credentials: grpc.ChannelCredentials | None = None,
        repeats: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        connection = BlockingConnection(
            Endpoint(
                target=target,
                timeout=timedelta_of(timeout),
                credentials=credentials,
                jitter=jitter,
                repeats=repeats,
            )
        )
        super().__init__(ProcessRequests(namespace=namespace, codec=codec), connection)
        self.processes: SyncProcesses = self
        self.jobs = SyncJobs(JobRequests(namespace=namespace, codec=codec), connection)
        self.gates = SyncGates(GateRequests(namespace=namespace), connection)
        self.schedules = SyncSchedules(
            ScheduleRequests(namespace=namespace, codec=codec), connection
        )
        self.namespaces = SyncNamespaces(NamespaceRequests(), connection)
        self.replicas = SyncReplicas(ReplicaRequests(), connection)

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        self.connection.close()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()
