"""Makes methods of functions that build requests: coroutines, iterators and blocking calls."""

import functools
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

from progressor.sdk.codec.codecs import Codec, Typed
from progressor.sdk.codec.kinds import ANYTHING
from progressor.sdk.codec.wire import Seconds
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, Result, Subscription

P = ParamSpec("P")
Built = TypeVar("Built")
C = TypeVar("C", bound=Connection | BlockingConnection)
S = TypeVar("S", bound="Resource[Connection]")


class RequestOptions(TypedDict, total=False):
    """Options of the requests about the things of a namespace.

    ``timeout``: in seconds or a timedelta; None: the client's. Of a list, it applies to each page.
    ``namespace``: whose process, gate, job or schedule; "": the client's.
    """

    timeout: Seconds | None
    namespace: str


class Resource(Generic[C]):
    """The requests of one service; ``namespace`` is that of requests without one.

    A method is written as a function that builds a request, and becomes a coroutine (`sent`) or an
    iterator (`iterated`, `streamed`). The class of a blocking client has the same methods, made of
    the same functions by `blocking` and so on.
    """

    def __init__(self, connection: C, *, namespace: str, codec: Codec) -> None:
        self.connection, self.namespace, self.codec = connection, namespace, codec


def exchange(  # noqa: PLR0913  # how a request is sent and read
    resource: Resource[Any],
    request: Any,  # noqa: ANN401  # any message with a namespace
    read: Callable[[Any, str, Any], Result],
    *,
    kind: object = ANYTHING,
    field: str = "",
    repeatable: bool = False,
    awaited: str = "",
    timeout: Seconds | None = None,
    namespace: str = "",
) -> Exchange[Result]:
    """Return the exchange of a request, whose namespace this sets.

    `read` makes a value of the response, or of its `field`, whose main payload is a `kind`.
    """
    request.namespace = namespace or resource.namespace
    context = Typed(resource.codec, kind)

    def parse(message: Any) -> Result:  # noqa: ANN401  # of any kind
        return read(getattr(message, field) if field else message, "", context)

    return Exchange(request, parse, timeout, repeatable=repeatable, awaited=awaited)


def listing(
    resource: Resource[Any],
    request: Any,  # noqa: ANN401  # any message with a namespace
    read: Callable[[Any, str, Any], Result],
    field: str,
    *,
    timeout: Seconds | None = None,
    namespace: str = "",
) -> Listing[Result]:
    """Return the listing of a request, whose namespace this sets; `field` has the items."""
    request.namespace = namespace or resource.namespace
    return listing_of(resource, request, read, field, timeout)


def listing_of(
    resource: Resource[Any],
    request: Any,  # noqa: ANN401  # any message
    read: Callable[[Any, str, Any], Result],
    field: str,
    timeout: Seconds | None,
) -> Listing[Result]:
    """Return the listing of a request; `field` has the items."""
    context = Typed(resource.codec)

    def parse(message: Any) -> Iterable[Result]:  # noqa: ANN401  # of any kind
        return [read(it, "", context) for it in getattr(message, field)]

    return Listing(request, parse, timeout)


_DEFAULTS: Mapping[object, object] = {str: "", bool: False, Sequence: ()}
"""Of options that do not take None."""


def _exact(build: Callable[P, Built]) -> Callable[P, Built]:
    """Return a function that has each of its options as a parameter, and refuses any other.

    So the signature names them, and none reaches `exchange` or `listing` as one of theirs.
    """
    signature = inspect.signature(build)
    *named, rest = signature.parameters.values()
    if rest.kind is not rest.VAR_KEYWORD:
        return build
    for name, hint in get_args(rest.annotation)[0].__annotations__.items():
        default = _DEFAULTS.get(get_origin(hint) or hint)
        named.append(
            rest.replace(name=name, kind=rest.KEYWORD_ONLY, annotation=hint, default=default)
        )
    names = frozenset(it.name for it in named)

    @functools.wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Built:
        unknown = kwargs.keys() - names
        if unknown:
            message = f"{build.__name__}() got an unexpected keyword argument {min(unknown)!r}"
            raise TypeError(message)
        return build(*args, **kwargs)

    checked.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]  # for help() and mocks
    return checked


def sent(
    build: Callable[Concatenate[S, P], Exchange[Result]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, Result]]:
    """Return the method that sends an exchange."""
    build = _exact(build)

    @functools.wraps(build)
    async def send(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return await self.connection.send(build(self, *args, **kwargs))

    return send


class Items(AsyncIterator[Result]):
    """The items of a listing, one by one, or page by page by their tokens."""

    def __init__(self, connection: Connection, listing: Listing[Result]) -> None:
        self._connection, self._listing = connection, listing
        self._all = self._each()

    async def page(self, token: str = "") -> tuple[tuple[Result, ...], str]:
        """Return the items of one page, and the token of the next; "": it is the last.

        Args:
            token: Of the page, as returned with the page before; "": the first page.
        """
        return await self._connection.send(self._listing.page(token))

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Result]:
        return self._all.__anext__()

    async def aclose(self) -> None:
        """End the iteration. Safe to repeat."""
        await self._all.aclose()

    async def _each(self) -> AsyncGenerator[Result]:
        token = ""
        while True:  # ends with the last page
            items, token = await self.page(token)
            for item in items:
                yield item
            if not token:
                return


def iterated(
    build: Callable[Concatenate[S, P], Listing[Result]],
) -> Callable[Concatenate[S, P], Items[Result]]:
    """Return the method that iterates over a listing."""
    build = _exact(build)

    @functools.wraps(build)
    def iterate(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Items[Result]:
        return Items(self.connection, build(self, *args, **kwargs))

    return iterate


def streamed(
    build: Callable[Concatenate[S, P], Subscription[Result]],
) -> Callable[Concatenate[S, P], AsyncGenerator[Result]]:
    """Return the method that iterates over a subscription."""

    @functools.wraps(build)
    def stream(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Result]:
        return self.connection.stream(build(self, *args, **kwargs))

    return stream


@overload
def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Resource[BlockingConnection], P], Result]: ...
@overload
def blocking(
    method: Callable[Concatenate[Any, P], AsyncIterator[Result]],
) -> Callable[Concatenate[Resource[BlockingConnection], P], Iterator[Result]]: ...
def blocking(method: Any) -> Any:
    """Return the blocking method of one that is `sent`, `streamed` or `iterated`."""
    build = _exact(inspect.unwrap(method))

    @functools.wraps(build)
    def send(self: Resource[BlockingConnection], /, *args: object, **kwargs: object) -> object:
        built = build(self, *args, **kwargs)
        match built:
            case Exchange():
                return self.connection.send(built)
            case Listing():
                return _pages(self.connection, built)
            case _:
                return self.connection.stream(built)

    return send


def blocking_streamed(
    method: Callable[Concatenate[Any, P], AsyncGenerator[Result]],
) -> Callable[Concatenate[Resource[BlockingConnection], P], Generator[Result]]:
    """Return the blocking method of one that is `streamed`, a generator that can be closed."""
    return blocking(method)  # type: ignore[return-value]  # a third overload would be ambiguous


def _pages(connection: BlockingConnection, listing: Listing[Result]) -> Iterator[Result]:
    token = ""
    while True:  # ends with the last page
        items, token = connection.send(listing.page(token))
        yield from items
        if not token:
            return
