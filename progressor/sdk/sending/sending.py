"""How requests that were said once become methods: coroutines and async iterators, or blocking."""

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from progressor.sdk.sending.connection import BlockingConnection, Connection
from progressor.sdk.sending.exchange import Exchange, Listing, Result, Subscription

Arguments = ParamSpec("Arguments")
Said = TypeVar("Said")
Said_co = TypeVar("Said_co", covariant=True)


class Sender(Protocol[Said_co]):
    """What has such methods: requests, and the way to the engine."""

    @property
    def calls(self) -> Said_co:
        """Builds the requests."""

    @property
    def connection(self) -> Connection:
        """Sends them."""


class BlockingSender(Protocol[Said_co]):
    """What has blocking ones."""

    @property
    def calls(self) -> Said_co:
        """Builds the requests."""

    @property
    def connection(self) -> BlockingConnection:
        """Sends them."""


def sent(
    build: Callable[Concatenate[Said, Arguments], Exchange[Result]],
) -> Callable[Concatenate[Sender[Said], Arguments], Coroutine[Any, Any, Result]]:
    """Return the method that sends an exchange."""

    @functools.wraps(build)
    async def send(
        self: Sender[Said], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return await self.connection.send(build(self.calls, *args, **kwargs))

    return send


def iterated(
    build: Callable[Concatenate[Said, Arguments], Listing[Result]],
) -> Callable[Concatenate[Sender[Said], Arguments], AsyncIterator[Result]]:
    """Return the method that goes through a listing."""

    @functools.wraps(build)
    async def iterate(
        self: Sender[Said], /, *args: Arguments.args, **kwargs: Arguments.kwargs
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


def streamed(
    build: Callable[Concatenate[Said, Arguments], Subscription[Result]],
) -> Callable[Concatenate[Sender[Said], Arguments], AsyncGenerator[Result]]:
    """Return the method that goes through what a subscription brings."""

    @functools.wraps(build)
    def stream(
        self: Sender[Said], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncGenerator[Result]:
        return self.connection.stream(build(self.calls, *args, **kwargs))

    return stream


def blocking_sent(
    build: Callable[Concatenate[Said, Arguments], Exchange[Result]],
) -> Callable[Concatenate[BlockingSender[Said], Arguments], Result]:
    """Return the method that sends an exchange and blocks."""

    @functools.wraps(build)
    def send(
        self: BlockingSender[Said], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return self.connection.send(build(self.calls, *args, **kwargs))

    return send


def blocking_iterated(
    build: Callable[Concatenate[Said, Arguments], Listing[Result]],
) -> Callable[Concatenate[BlockingSender[Said], Arguments], Iterator[Result]]:
    """Return the method that goes through a listing and blocks."""

    @functools.wraps(build)
    def iterate(
        self: BlockingSender[Said], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Iterator[Result]:
        listing = build(self.calls, *args, **kwargs)
        token, more = "", True
        while more:  # ends with the last page
            page = self.connection.send(listing.page(token))
            yield from page.items
            token = page.next_page_token
            more = bool(token)

    return iterate


def blocking_streamed(
    build: Callable[Concatenate[Said, Arguments], Subscription[Result]],
) -> Callable[Concatenate[BlockingSender[Said], Arguments], Generator[Result]]:
    """Return the method that goes through what a subscription brings and blocks."""

    @functools.wraps(build)
    def stream(
        self: BlockingSender[Said], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Generator[Result]:
        return self.connection.stream(build(self.calls, *args, **kwargs))

    return stream
