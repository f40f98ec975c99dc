"""One request as a value: what to send, how to read the answer, when it may be sent again."""

import dataclasses
import datetime as dt
import enum
import math
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from progressor import errors
from progressor.sdk.sending.failures import Status

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0


class Service(enum.Enum):
    """Which of the engine's services an RPC belongs to."""

    PROCESSES = enum.auto()
    NAMESPACES = enum.auto()
    REPLICAS = enum.auto()
    GATES = enum.auto()
    JOBS = enum.auto()
    SCHEDULES = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Generic[Result]):
    """A request to be sent; ``repeatable`` where doing it twice does nothing more than once.

    ``timeout`` None: the client's.
    """

    rpc: str
    request: Message
    parse: Callable[[Any], Result]
    repeatable: bool
    timeout: dt.timedelta | None
    service: Service = Service.PROCESSES


def value_of(parse: Callable[[Any], Result], message: Message) -> Result:
    """Return what an answer of the engine says.

    Raises:
        ValueError: It is not valid; the request may well have been.
    """
    try:
        return parse(message)
    except errors.InvalidRequestError as error:
        text = f"the engine's answer is not valid: {error}"
        raise ValueError(text) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Result]):
    """A piece of a list; ``next_page_token`` "" on the last."""

    items: tuple[Result, ...]
    next_page_token: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Result]):
    """A list that is fetched page by page; ``page`` takes the token, "" for the first."""

    page: Callable[[str], Exchange[Page[Result]]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(Generic[Result]):
    """A request that is answered by a stream of what changes, and can be taken up where it broke.

    ``request`` takes the revision after which the stream begins, at first ``after``;
    ``revision_of`` tells up to which a value goes. ``timeout`` None: however long it takes.
    """

    rpc: str
    request: Callable[[int], Message]
    after: int
    parse: Callable[[Any], Result]
    revision_of: Callable[[Result], int]
    timeout: dt.timedelta | None
    service: Service


class Tried(Protocol):
    """What decides how often and how long something is tried."""

    @property
    def repeatable(self) -> bool:
        """Whether doing it twice does nothing more than once."""

    @property
    def timeout(self) -> dt.timedelta | None:
        """How long it may take; None: as long as is usual."""


class Attempts:
    """How often and how long one exchange is tried: within its timeout, if it may be repeated."""

    def __init__(
        self, exchange: Tried, *, timeout: dt.timedelta, jitter: Callable[[], float]
    ) -> None:
        self._repeatable = exchange.repeatable
        self._jitter = jitter
        self._count = 0
        self._ends_at = time.monotonic() + (exchange.timeout or timeout).total_seconds()

    def remaining(self) -> float:
        """Return the seconds that are left, 0 at the least."""
        return max(0.0, self._ends_at - time.monotonic())

    def pause_after(self, status: Status) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is none.

        Only UNAVAILABLE, or no word at all, is worth another attempt, and only where that does
        nothing twice. Pauses
        double from 50 ms to 2 s, each shortened by up to a half, and are no shorter than what
        the engine asked for. The attempt after it has at least as long: a shorter one would end
        by its deadline, and hide that the engine could not be reached.
        """
        is_away = status.is_lost or status.code is grpc.StatusCode.UNAVAILABLE
        if not self._repeatable or not is_away:
            return None
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(self._count, 16))
        self._count += 1
        pause = longest * (1.0 - self._jitter() / 2.0)
        if status.retry_after is not None:
            pause = max(pause, status.retry_after.total_seconds())
        return pause if 2 * pause < self.remaining() else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Reopened:
    """Opening a stream again, which only reads."""

    repeatable: bool = True
    timeout: dt.timedelta | None = None


class Watching(Generic[Result]):
    """How far one subscription has come, and how long it is still tried.

    The engine may be away for the client's timeout at a time; each answer begins it anew.
    """

    def __init__(
        self,
        subscription: Subscription[Result],
        *,
        patience: dt.timedelta,
        jitter: Callable[[], float],
    ) -> None:
        self._subscription = subscription
        self._patience, self._jitter = patience, jitter
        self._revision = subscription.after
        timeout = subscription.timeout
        self._ends_at = (
            math.inf if timeout is None else time.monotonic() + max(0.0, timeout.total_seconds())
        )
        self._attempts = self._fresh_attempts()

    def request(self) -> Message:
        """Return what asks for what has not come yet."""
        return self._subscription.request(self._revision)

    def remaining(self) -> float | None:
        """Return the seconds that are left, 0 at the least; None: no end of them."""
        return None if math.isinf(self._ends_at) else max(0.0, self._ends_at - time.monotonic())

    def take(self, message: Message) -> Result:
        """Return the value of an answer, and note how far it goes."""
        value = value_of(self._subscription.parse, message)
        self._revision = max(self._revision, self._subscription.revision_of(value))
        self._attempts = self._fresh_attempts()
        return value

    def pause_after(self, status: Status) -> float | None:
        """Return the seconds until the stream is opened again; None: it is not."""
        pause, remaining = self._attempts.pause_after(status), self.remaining()
        if pause is None or (remaining is not None and pause >= remaining):
            return None
        return pause

    def _fresh_attempts(self) -> Attempts:
        return Attempts(_Reopened(), timeout=self._patience, jitter=self._jitter)
