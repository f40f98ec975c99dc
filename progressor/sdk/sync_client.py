"""The blocking client: the same `Calls`, sent over a channel that any thread may use."""

import functools
import random
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Concatenate, ParamSpec, Self

import grpc

from progressor.sdk.calls import Calls
from progressor.sdk.client import TIMEOUT_DEFAULT
from progressor.sdk.codecs import JSON, Codec
from progressor.sdk.connection import BlockingConnection, Endpoint
from progressor.sdk.exchange import Exchange, Listing, Result
from progressor.sdk.wire import Seconds, timedelta_of

Arguments = ParamSpec("Arguments")


def _sent(
    build: Callable[Concatenate[Calls, Arguments], Exchange[Result]],
) -> Callable[Concatenate["SyncClient", Arguments], Result]:
    @functools.wraps(build)
    def send(self: "SyncClient", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return self.connection.send(build(self.calls, *args, **kwargs))

    return send


def _iterated(
    build: Callable[Concatenate[Calls, Arguments], Listing[Result]],
) -> Callable[Concatenate["SyncClient", Arguments], Iterator[Result]]:
    @functools.wraps(build)
    def iterate(
        self: "SyncClient", /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Iterator[Result]:
        listing = build(self.calls, *args, **kwargs)
        token, more = "", True
        while more:  # ends with the last page
            page = self.connection.send(listing.page(token))
            yield from page.items
            token = page.next_page_token
            more = bool(token)

    return iterate


class SyncClient:
    """`Client` for programs without an event loop: same methods, blocking, safe in any thread.

    It has no loop of its own: a plain handler of a processor can call the engine through it. Each
    request is a call of its own: in a session, each would wait for two more threads to wake up.
    """

    def __init__(  # collaborators, keyword-only
        self,
        target: str,
        *,
        namespace: str = "default",
        codec: Codec = JSON,
        timeout: Seconds = TIMEOUT_DEFAULT,
        credentials: grpc.ChannelCredentials | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Open nothing yet: the first request does. Arguments as for `Client`."""
        self.calls = Calls(namespace=namespace, codec=codec)
        self.connection = BlockingConnection(
            Endpoint(
                target=target,
                timeout=timedelta_of(timeout),
                credentials=credentials,
                jitter=jitter,
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
