"""The asynchronous client, for use in one event loop."""

import datetime as dt
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

import grpc

from progressor.sdk.client.gates import GateRequests, Gates
from progressor.sdk.client.jobs import JobRequests, Jobs
from progressor.sdk.client.namespaces import NamespaceRequests, Namespaces
from progressor.sdk.client.processes import Processes, ProcessRequests
from progressor.sdk.client.replicas import ReplicaRequests, Replicas
from progressor.sdk.client.schedules import ScheduleRequests, Schedules
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.sending.connection import Connection, Endpoint

TIMEOUT_DEFAULT = dt.timedelta(seconds=60)


class Client(Processes):
    """What a program asks of the engine.

    ``client.processes``, ``jobs``, ``gates``, ``schedules``, ``namespaces`` and ``replicas`` have
    the requests about those; those about processes are also methods of the client itself.

    ::

        async with Client("127.0.0.1:7420", namespace="orders") as client:
            answer = await client.start("order-1", {"item": "tea"}, idempotency_key="o1")
            gate = await client.gates.set("warehouse", 3)

    Requests that only read, and those with an idempotency key, are repeated within their timeout
    while the engine cannot be reached. All errors are classes of `progressor.sdk`.
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
        """Open nothing yet: the first request does.

        Args:
            target: "host:port", or "unix:/path".
            namespace: For requests that name none.
            codec: For all payloads.
            timeout: For requests that give none; more than 0.
            credentials: None: no TLS.
            session: Send start, call, notify, repair and get many to a frame, which costs a
                busy client and its engine much less; by itself it falls back to single calls
                where the engine has no sessions. False: always single calls.
            repeats: Repeat what is safe to repeat while the engine cannot be reached. False: fail
                at once.
            jitter: Numbers from 0 up to 1, by which the pauses between repeats differ.
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
        self.processes: Processes = self
        self.jobs = Jobs(JobRequests(namespace=namespace, codec=codec), connection)
        self.gates = Gates(GateRequests(namespace=namespace), connection)
        self.schedules = Schedules(ScheduleRequests(namespace=namespace, codec=codec), connection)
        self.namespaces = Namespaces(NamespaceRequests(), connection)
        self.replicas = Replicas(ReplicaRequests(), connection)

    async def close(self) -> None:
        """Close the connection. Safe to repeat."""
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
