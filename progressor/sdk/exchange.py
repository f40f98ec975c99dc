"""One request as a value: what to send, how to read the answer, when it may be sent again."""

import dataclasses
import datetime as dt
import enum
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from progressor.sdk.failures import Status

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0


class Service(enum.Enum):
    """Which of the engine's services an RPC belongs to."""

    PROCESSES = enum.auto()
    NAMESPACES = enum.auto()
    REPLICAS = enum.auto()
    GATES = enum.auto()


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Result]):
    """A piece of a list; ``next_page_token`` "" on the last."""

    items: tuple[Result, ...]
    next_page_token: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Result]):
    """A list that is fetched page by page; ``page`` takes the token, "" for the first."""

    page: Callable[[str], Exchange[Page[Result]]]


class Attempts:
    """How often and how long one exchange is tried: within its timeout, if it may be repeated."""

    def __init__(
        self, exchange: Exchange[Any], *, timeout: dt.timedelta, jitter: Callable[[], float]
    ) -> None:
        """Start the clock; `timeout` is for an exchange without its own."""
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
        by its deadline, and no longer tell that nobody could be reached.
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
