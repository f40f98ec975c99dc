"""The asynchronous client, for use in one event loop."""

import datetime as dt
import functools
import random
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from progressor.sdk.client.processes import Processes, ProcessRequests
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.transport.connection import Connection, Endpoint

if TYPE_CHECKING:  # loaded by the programs that use them
    from progressor.sdk.client.gates import Gates
    from progressor.sdk.client.jobs import Jobs
    from progressor.sdk.client.namespaces import Namespaces
    from progressor.sdk.client.replicas import Replicas
    from progressor.sdk.client.schedules import Schedules

TIMEOUT_DEFAULT = dt.timedelta(seconds=60)


class Client(Processes):
    """Sends requests to an engine.

    The requests about processes are methods of the client itself, and of ``client.processes``.
    Those about other things are in ``client.jobs``, ``gates``, ``schedules``, ``namespaces`` and
    ``replicas``.

    ::

        async with Client("127.0.0.1:7420", namespace="orders") as client:
            answer = await client.start("order-1", {"item": "tea"}, idempotency_key="o1")
            gate = await client.gates.set("warehouse", 3)

    While the engine cannot be reached, requests that only read and requests with an idempotency
    key are repeated until their timeout. All errors are classes of `progressor.sdk`.
    """

    def __init__(  # noqa: PLR0913 - settings, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        credentials: grpc.ChannelCredentials | None = None,
        session: bool = True,
        repeats: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Create a client; the first request connects.

        Args:
            target: "host:port", or "unix:/path".
            namespace: For requests without a namespace.
            codec: For all payloads.
            timeout: For requests without a timeout, in seconds or a timedelta; greater than 0.
            credentials: None: no TLS.
            session: Send start, call, notify, repair and get over a stream, many in a frame, which
                costs a busy client and its engine much less. With an engine that has no sessions,
                the client sends single calls. False: always send single calls.
            repeats: Repeat requests while the engine cannot be reached, if that is safe. False:
                fail at once.
            jitter: Returns numbers from 0 up to 1 that shorten the pauses between repeats.

        Raises:
            ValueError: The target has no port, or one out of range.
        """
        connection = Connection(
            Endpoint(
                target=target,
                timeout=timedelta_of(timeout),
                credentials=credentials,
                jitter=jitter,
                session=session,
                repeats=repeats,
            )
        )
        super().__init__(ProcessRequests(namespace=namespace, codec=codec), connection)

    @property
    def processes(self) -> Processes:
        """The requests about processes, which are those of the client."""
        return self

    @functools.cached_property
    def jobs(self) -> "Jobs":
        """The requests about jobs."""
        from progressor.sdk.client import jobs  # noqa: PLC0415  # a client without it starts sooner

        return jobs.Jobs(self.requests.of(jobs.JobRequests), self.connection)

    @functools.cached_property
    def gates(self) -> "Gates":
        """The requests about gates."""
        from progressor.sdk.client import gates  # noqa: PLC0415  # a client without it starts sooner

        return gates.Gates(self.requests.of(gates.GateRequests), self.connection)

    @functools.cached_property
    def schedules(self) -> "Schedules":
        """The requests about schedules."""
        from progressor.sdk.client import schedules  # noqa: PLC0415  # a client without it starts sooner

        return schedules.Schedules(self.requests.of(schedules.ScheduleRequests), self.connection)

    @functools.cached_property
    def namespaces(self) -> "Namespaces":
        """The requests about namespaces."""
        from progressor.sdk.client import namespaces  # noqa: PLC0415  # a client without it starts sooner

        return namespaces.Namespaces(
            self.requests.of(namespaces.NamespaceRequests), self.connection
        )

    @functools.cached_property
    def replicas(self) -> "Replicas":
        """The requests about replicas."""
        from progressor.sdk.client import replicas  # noqa: PLC0415  # a client without it starts sooner

        return replicas.Replicas(self.requests.of(replicas.ReplicaRequests), self.connection)

    async def close(self) -> None:
        """Close the connection; requests in flight end with an error. Safe to repeat."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.close()
