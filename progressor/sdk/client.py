"""The asynchronous client: `Calls`, sent in a session or one by one from one event loop."""

import datetime as dt
import functools
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

import grpc

from progressor.sdk.calls import Calls
from progressor.sdk.codecs import JSON, Codec
from progressor.sdk.connection import Connection, Endpoint
from progressor.sdk.exchange import Exchange, Listing, Result
from progressor.sdk.wire import Seconds, timedelta_of

Arguments = ParamSpec("Arguments")

TIMEOUT_DEFAULT = dt.timedelta(seconds=60)


def _sent(
    build: Callable[Concatenate[Calls, Arguments], Exchange[Result]],
) -> Callable[Concatenate["Client", Arguments], Coroutine[Any, Any, Result]]:
    @functools.wraps(build)
    async def send(self: "Client", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return await self.connection.send(build(self.calls, *args, **kwargs))

    return send


def _iterated(
    build: Callable[Concatenate[Calls, Arguments], Listing[Result]],
) -> Callable[Concatenate["Client", Arguments], AsyncIterator[Result]]:
    @functools.wraps(build)
    async def iterate(
        self: "Client", /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncIterator[Result]:
        listing = build(self.calls, *args, **kwargs)
        token, more = "", True
        while more:  # ends with the last page
            page = await self.connection.send(listing.page(token))
            for item in page.items:
                yield item
            token = page.next_page_token
            more = bool(token)

    return iterate


class Client:
    """What a program asks of the engine; each method's arguments are explained in `Calls`.

    ::

        async with Client("127.0.0.1:7420", namespace="orders") as client:
            answer = await client.start("order-1", {"item": "tea"}, idempotency_key="o1")

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
            jitter: Numbers from 0 up to 1, by which the pauses between repeats differ.
        """
        self.calls = Calls(namespace=namespace, codec=codec)
        self.connection = Connection(
            Endpoint(
                target=target,
                timeout=timedelta_of(timeout),
                credentials=credentials,
                jitter=jitter,
                session=session,
            )
        )

    start = _sent(Calls.start)
    call = _sent(Calls.call)
    notify = _sent(Calls.notify)
    repair = _sent(Calls.repair)
    simple_repair = _sent(Calls.simple_repair)
    get = _sent(Calls.get)
    put = _sent(Calls.put)
    remove = _sent(Calls.remove)
    trace = _sent(Calls.trace)
    list = _iterated(Calls.list)
    cancel = _sent(Calls.cancel)
    await_task = _sent(Calls.await_task)

    create_namespace = _sent(Calls.create_namespace)
    update_namespace = _sent(Calls.update_namespace)
    get_namespace = _sent(Calls.get_namespace)
    list_namespaces = _iterated(Calls.list_namespaces)
    delete_namespace = _sent(Calls.delete_namespace)

    list_gates = _iterated(Calls.list_gates)
    get_gate = _sent(Calls.get_gate)
    set_gate = _sent(Calls.set_gate)
    delete_gate = _sent(Calls.delete_gate)

    list_replicas = _iterated(Calls.list_replicas)
    activity = _sent(Calls.activity)
    set_log_level = _sent(Calls.set_log_level)

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
