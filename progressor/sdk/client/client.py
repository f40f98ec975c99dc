"""The clients: one for use in one event loop, and a blocking one for any thread."""

import datetime as dt
import functools
import importlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from progressor.sdk.client.processes import Processes, SyncProcesses
from progressor.sdk.codec.codecs import JSON, Codec
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.transport.connection import BlockingConnection, Connection, Endpoint
from progressor.sdk.transport.security import Security, Tls, Token

if TYPE_CHECKING:  # loaded by the programs that use them
    from progressor.sdk.client.access import Access, SyncAccess
    from progressor.sdk.client.bulk import Bulk, SyncBulk
    from progressor.sdk.client.gates import Gates, SyncGates
    from progressor.sdk.client.jobs import Jobs, SyncJobs
    from progressor.sdk.client.namespaces import Namespaces, SyncNamespaces
    from progressor.sdk.client.replicas import Replicas, SyncReplicas
    from progressor.sdk.client.schedules import Schedules, SyncSchedules

TIMEOUT_DEFAULT = dt.timedelta(seconds=60)


def _resource(name: str, kind: str) -> Any:  # noqa: ANN401  # of the type that the class declares
    """Return a property that loads and makes a resource at its first use: few are used by most."""

    def make(client: Processes | SyncProcesses) -> object:
        module = importlib.import_module(f"progressor.sdk.client.{name}")
        return getattr(module, kind)(
            client.connection, namespace=client.namespace, codec=client.codec
        )

    make.__doc__ = f"The requests about {name}."
    return functools.cached_property(make)


class Client(Processes):
    """Sends requests to an engine.

    The requests about processes are methods of the client itself, and of ``client.processes``.
    Those about other things are in ``client.jobs``, ``gates``, ``schedules``, ``namespaces``,
    ``replicas``, ``bulk`` and ``access``.

    ::

        async with Client("127.0.0.1:7420", namespace="orders") as client:
            answer = await client.start("order-1", {"item": "tea"}, idempotency_key="o1")
            gate = await client.gates.set("warehouse", 3)

    While the engine cannot be reached, requests that only read and requests with an idempotency
    key are repeated until their timeout. All errors are classes of `progressor.sdk`.
    """

    jobs: "Jobs" = _resource("jobs", "Jobs")
    gates: "Gates" = _resource("gates", "Gates")
    schedules: "Schedules" = _resource("schedules", "Schedules")
    namespaces: "Namespaces" = _resource("namespaces", "Namespaces")
    replicas: "Replicas" = _resource("replicas", "Replicas")
    bulk: "Bulk" = _resource("bulk", "Bulk")
    access: "Access" = _resource("access", "Access")

    def __init__(  # noqa: PLR0913  # settings, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        tls: Tls | None = None,
        token: Token | None = None,
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
            tls: None: no TLS. `Tls()` trusts the authorities of the system.
            token: A bearer token, the path of a file that has it and is read again when it changes,
                or a function that returns it, called for each request and session. It is only sent
                over TLS, to this machine, or to a unix socket.
            session: Send start, call, notify, repair and get over a stream, many in a frame, which
                costs a busy client and its engine much less. With an engine that has no sessions,
                the client sends single calls. False: always send single calls.
            repeats: Repeat requests while the engine cannot be reached, if that is safe. False:
                fail at once.
            jitter: Returns numbers from 0 up to 1 that shorten the pauses between repeats.

        Raises:
            ValueError: The target has no port, or one out of range; a file cannot be used; or the
                token would be sent in the clear.
        """
        endpoint = Endpoint(
            target=target,
            timeout=timedelta_of(timeout),
            security=Security(target, tls, token),
            jitter=jitter,
            session=session,
            repeats=repeats,
        )
        super().__init__(Connection(endpoint), namespace=namespace, codec=codec)

    @property
    def processes(self) -> Processes:
        """The requests about processes; the client itself has the same methods."""
        return self

    async def close(self) -> None:
        """Close the connection; requests in flight end with an error. Safe to repeat."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close the connection."""
        await self.close()


class SyncClient(SyncProcesses):
    """`Client` for programs without an event loop: the same methods, blocking, safe in any thread.

    It runs no event loop, so a plain handler of a processor can call the engine through it. Each
    request is a call of its own; a session would wake two more threads for each request.
    """

    jobs: "SyncJobs" = _resource("jobs", "SyncJobs")
    gates: "SyncGates" = _resource("gates", "SyncGates")
    schedules: "SyncSchedules" = _resource("schedules", "SyncSchedules")
    namespaces: "SyncNamespaces" = _resource("namespaces", "SyncNamespaces")
    replicas: "SyncReplicas" = _resource("replicas", "SyncReplicas")
    bulk: "SyncBulk" = _resource("bulk", "SyncBulk")
    access: "SyncAccess" = _resource("access", "SyncAccess")

    def __init__(  # noqa: PLR0913  # settings, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        tls: Tls | None = None,
        token: Token | None = None,
        repeats: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        endpoint = Endpoint(
            target=target,
            timeout=timedelta_of(timeout),
            security=Security(target, tls, token),
            jitter=jitter,
            repeats=repeats,
        )
        super().__init__(BlockingConnection(endpoint), namespace=namespace, codec=codec)

    @property
    def processes(self) -> SyncProcesses:
        """The requests about processes; the client itself has the same methods."""
        return self

    def close(self) -> None:
        """Close the connection; requests in flight end with an error. Safe to repeat."""
        self.connection.close()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the connection."""
        self.close()
