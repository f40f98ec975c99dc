"""The blocking client, over a channel that any thread may use."""

import functools
import random
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from progressor.sdk.client.client import TIMEOUT_DEFAULT
from progressor.sdk.client.processes import ProcessRequests, SyncProcesses
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.transport.connection import BlockingConnection, Endpoint

if TYPE_CHECKING:  # as for `Client`
    from progressor.sdk.client.gates import SyncGates
    from progressor.sdk.client.jobs import SyncJobs
    from progressor.sdk.client.namespaces import SyncNamespaces
    from progressor.sdk.client.replicas import SyncReplicas
    from progressor.sdk.client.schedules import SyncSchedules


class SyncClient(SyncProcesses):
    """`Client` for programs without an event loop: the same methods, blocking, safe in any thread.

    It runs no event loop, so a plain handler of a processor can call the engine through it. Each
    request is a call of its own; a session would wake two more threads for each request.
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

    @property
    def processes(self) -> SyncProcesses:
        """The requests about processes, which are those of the client."""
        return self

    @functools.cached_property
    def jobs(self) -> "SyncJobs":
        """The requests about jobs."""
        from progressor.sdk.client import jobs  # noqa: PLC0415  # a client without it starts sooner

        return jobs.SyncJobs(self.requests.of(jobs.JobRequests), self.connection)

    @functools.cached_property
    def gates(self) -> "SyncGates":
        """The requests about gates."""
        from progressor.sdk.client import gates  # noqa: PLC0415  # a client without it starts sooner

        return gates.SyncGates(self.requests.of(gates.GateRequests), self.connection)

    @functools.cached_property
    def schedules(self) -> "SyncSchedules":
        """The requests about schedules."""
        from progressor.sdk.client import schedules  # noqa: PLC0415  # a client without it starts sooner

        return schedules.SyncSchedules(
            self.requests.of(schedules.ScheduleRequests), self.connection
        )

    @functools.cached_property
    def namespaces(self) -> "SyncNamespaces":
        """The requests about namespaces."""
        from progressor.sdk.client import namespaces  # noqa: PLC0415  # a client without it starts sooner

        return namespaces.SyncNamespaces(
            self.requests.of(namespaces.NamespaceRequests), self.connection
        )

    @functools.cached_property
    def replicas(self) -> "SyncReplicas":
        """The requests about replicas."""
        from progressor.sdk.client import replicas  # noqa: PLC0415  # a client without it starts sooner

        return replicas.SyncReplicas(self.requests.of(replicas.ReplicaRequests), self.connection)

    def close(self) -> None:
        """Close the connection; requests in flight end with an error. Safe to repeat."""
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
