"""Makes methods of functions that build requests: coroutines, iterators and blocking calls."""

import dataclasses
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from progressor.sdk.codec.codecs import Codec
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, Result, Subscription

Arguments = ParamSpec("Arguments")
R = TypeVar("R", bound="RequestBuilder")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestBuilder:
    """Builds requests; ``namespace`` and ``codec`` are the client's."""

    namespace: str
    codec: Codec

    def of(self, kind: type[R]) -> R:
        """Return the builder of other requests for the same client."""
        return kind(namespace=self.namespace, codec=self.codec)


class Resource(Generic[R]):
    """The requests of one service, and the connection that sends them."""

    def __init__(self, requests: R, connection: Connection) -> None:
        self.requests, self.connection = requests, connection


class BlockingResource(Generic[R]):
    """`Resource` with a blocking connection."""

    def __init__(self, requests: R, connection: BlockingConnection) -> None:
        self.requests, self.connection = requests, connection


def sent(
    build: Callable[Concatenate[R, Arguments], Exchange[Result]],
) -> Callable[Concatenate[Resource[R], Arguments], Coroutine[Any, Any, Result]]:
    """Return the method that sends an exchange."""

    @functools.wraps(build)
    async def send(
        self: Resource[R], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return await self.connection.send(build(self.requests, *args, **kwargs))

    return send


def iterated(
    build: Callable[Concatenate[R, Arguments], Listing[Result]],
) -> Callable[Concatenate[Resource[R], Arguments], AsyncIterator[Result]]:
    """Return the method that iterates over a listing."""

    @functools.wraps(build)
    async def iterate(
        self: Resource[R], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncIterator[Result]:
        listing = build(self.requests, *args, **kwargs)
        items, token = await self.connection.send(listing.page(""))
        while True:  # ends with the last page
            for item in items:
                yield item
            if not token:
                return
            items, token = await self.connection.send(listing.page(token))

    return iterate


def streamed(
    build: Callable[Concatenate[R, Arguments], Subscription[Result]],
) -> Callable[Concatenate[Resource[R], Arguments], AsyncGenerator[Result]]:
    """Return the method that iterates over a subscription."""

    @functools.wraps(build)
    def stream(
        self: Resource[R], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncGenerator[Result]:
        return self.connection.stream(build(self.requests, *args, **kwargs))

    return stream


def blocking_sent(
    build: Callable[Concatenate[R, Arguments], Exchange[Result]],
) -> Callable[Concatenate[BlockingResource[R], Arguments], Result]:
    """Return the method that sends an exchange and blocks."""

    @functools.wraps(build)
    def send(
        self: BlockingResource[R], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return self.connection.send(build(self.requests, *args, **kwargs))

    return send


def blocking_iterated(
    build: Callable[Concatenate[R, Arguments], Listing[Result]],
) -> Callable[Concatenate[BlockingResource[R], Arguments], Iterator[Result]]:
    """Return the method that iterates over a listing and blocks."""

    @functools.wraps(build)
    def iterate(
        self: BlockingResource[R], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Iterator[Result]:
        listing = build(self.requests, *args, **kwargs)
        items, token = self.connection.send(listing.page(""))
        while True:  # ends with the last page
            yield from items
            if not token:
                return
            items, token = self.connection.send(listing.page(token))

    return iterate


def blocking_streamed(
    build: Callable[Concatenate[R, Arguments], Subscription[Result]],
) -> Callable[Concatenate[BlockingResource[R], Arguments], Generator[Result]]:
    """Return the method that iterates over a subscription and blocks."""

    @functools.wraps(build)
    def stream(
        self: BlockingResource[R], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Generator[Result]:
        return self.connection.stream(build(self.requests, *args, **kwargs))

    return stream
