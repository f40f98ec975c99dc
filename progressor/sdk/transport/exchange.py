"""One request as a value: the message, how to read the response, and whether it may be resent."""

import dataclasses
import datetime as dt
import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message

from progressor import errors
from progressor.sdk.codec.wire import Seconds, timedelta_of
from progressor.sdk.transport.failures import Status

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Rpc:
    """The path of an RPC, and the class of its response."""

    path: str
    response: type[Message]


def rpc_of(request: Message) -> Rpc:
    """Return the RPC of a request: GetGate of a GetGateRequest, in the service of its file."""
    kind: Any = type(request)  # the stubs of protobuf hide that it is hashable
    return _rpc_of_class(kind)


@functools.cache
def _rpc_of_class(request: type[Message]) -> Rpc:
    descriptor: Any = request.DESCRIPTOR  # two implementations of one class
    (service,) = descriptor.file.services_by_name.values()
    method = service.methods_by_name[descriptor.name.removesuffix("Request")]
    response = message_factory.GetMessageClass(method.output_type)
    return Rpc(f"/{service.full_name}/{method.name}", response)


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange(Generic[Result]):
    """A request and a function that reads its response.

    ``timeout`` is in seconds or a timedelta; None: the client's. ``repeatable``: sending it twice
    has the same effect as sending it once. ``awaited``: see `errors.DeadlineExceededError`.
    """

    request: Message
    parse: Callable[[Any], Result]
    timeout: Seconds | None
    repeatable: bool = dataclasses.field(default=False, kw_only=True)
    awaited: str = dataclasses.field(default="", kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Listing(Generic[Result]):
    """A list that is fetched page by page; ``parse`` reads the items of a page."""

    request: Message
    parse: Callable[[Any], Iterable[Result]]
    timeout: Seconds | None

    def page(self, token: str) -> Exchange[tuple[tuple[Result, ...], str]]:
        """Return the exchange for the page of a token, "" for the first: items and next token."""
        request = type(self.request)()
        request.CopyFrom(self.request)
        request.page_token = token  # type: ignore[attr-defined]  # every List request has one
        return Exchange(
            request,
            lambda message: (tuple(self.parse(message)), message.next_page_token),
            self.timeout,
            repeatable=True,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(Generic[Result]):
    """A request whose response is a stream of changes, resumed after a broken connection.

    ``request`` takes the revision after which the stream begins, at first ``after``.
    ``revision_of`` returns the revision of a value. ``timeout`` None: no limit. ``awaited``: see
    `errors.DeadlineExceededError`.
    """

    request: Callable[[int], Message]
    after: int
    parse: Callable[[Any], Result]
    revision_of: Callable[[Result], int]
    timeout: Seconds | None
    awaited: str = ""


def nothing(_message: Message, _path: str = "", _context: object = None) -> None:
    """Read a response that has no fields."""


def parsed(parse: Callable[[Any], Result], message: Message) -> Result:
    """Return what a response says; raise ValueError if it is invalid."""
    try:
        return parse(message)
    except errors.InvalidRequestError as error:
        text = f"the engine sent an invalid response: {error}"
        raise ValueError(text) from error


class Attempts:
    """Decides how often one request is sent: until its timeout, if it is repeatable."""

    def __init__(
        self,
        *,
        repeatable: bool,
        timeout: dt.timedelta,
        jitter: Callable[[], float],
        awaited: str = "",
    ) -> None:
        self.awaited = awaited
        self._repeatable = repeatable
        self._jitter = jitter
        self._count = 0
        self._ends_at = time.monotonic() + timeout.total_seconds()

    def remaining(self) -> float:
        """Return the remaining seconds, at least 0."""
        return max(0.0, self._ends_at - time.monotonic())

    def pause_after(self, status: Status, *, has_other_token: bool = False) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is none.

        Only UNAVAILABLE, a lost connection, a used up quota, of which nothing was accepted, and an
        expired token, if there is another one, are retried. Pauses double from 50 ms to 2 s, each
        shortened by up to a half; they are never shorter than the engine requested. An attempt
        must have at least as much time left as the pause before it: one with less would end with
        DEADLINE_EXCEEDED, which hides that the engine could not be reached.
        """
        is_away = status.is_lost or status.code is grpc.StatusCode.UNAVAILABLE
        is_expired = has_other_token and status.code is grpc.StatusCode.UNAUTHENTICATED
        is_over = status.reason == errors.QuotaExceededError.reason
        if not is_over and not (self._repeatable and (is_away or is_expired)):
            return None
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(self._count, 16))
        self._count += 1
        pause = longest * (1.0 - self._jitter() / 2.0)
        if status.retry_after is not None:
            pause = max(pause, status.retry_after.total_seconds())
        return pause if 2 * pause < self.remaining() else None


class Watch(Generic[Result]):
    """The position of one subscription, and how long it is resumed.

    Each response restarts the time for which the engine may be gone, which is the client's timeout.
    """

    def __init__(
        self,
        subscription: Subscription[Result],
        *,
        away_max: dt.timedelta,
        jitter: Callable[[], float],
    ) -> None:
        self._subscription, self.awaited = subscription, subscription.awaited
        self._away_max, self._jitter = away_max, jitter
        self._revision = subscription.after
        timeout = subscription.timeout
        self._ends_at = (
            math.inf
            if timeout is None
            else time.monotonic() + max(0.0, timedelta_of(timeout).total_seconds())
        )
        self._attempts = self._new_attempts()

    def request(self) -> Message:
        """Return the request for what has not been received yet."""
        return self._subscription.request(self._revision)

    def remaining(self) -> float | None:
        """Return the remaining seconds, at least 0; None: no limit."""
        return None if math.isinf(self._ends_at) else max(0.0, self._ends_at - time.monotonic())

    def take(self, message: Message) -> Result:
        """Return the value of a response and record its revision."""
        value = parsed(self._subscription.parse, message)
        self._revision = max(self._revision, self._subscription.revision_of(value))
        self._attempts = self._new_attempts()
        return value

    def pause_after(self, status: Status, *, has_other_token: bool = False) -> float | None:
        """Return the seconds until the stream is reopened; None: it is not."""
        pause = self._attempts.pause_after(status, has_other_token=has_other_token)
        remaining = self.remaining()
        if pause is None or (remaining is not None and pause >= remaining):
            return None
        return pause

    def _new_attempts(self) -> Attempts:
        return Attempts(repeatable=True, timeout=self._away_max, jitter=self._jitter)
