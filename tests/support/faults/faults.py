"""What can happen to a statement on its way to PostgreSQL and back; `proxy` makes it happen.

As of the statement ``settle_tasks``:

==================  ===========================================================================
`cut_before`        it never reaches the server; the connection breaks
`cut_after`         it is done; the connection breaks before its answer
`cut_in`            it is done; the connection breaks in the middle of its answer
`cut_uncommitted`   its result has come, but not the word that it is committed, and it is not
`terminated`        the server ends the session when the statement is about to come
`refused`           the server undoes it with an SQLSTATE; the connection is as good as before
`stalled_before`    nothing is passed on any more, until `restore`: then it reaches the server, late
`stalled_after`     it is done, and nothing is passed on any more, until `restore`
==================  ===========================================================================
"""

import asyncio
import concurrent.futures
import enum
import functools
from collections.abc import Callable, Mapping

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.postgres.wire import Turn


class Kind(enum.Enum):
    """What happens to a statement."""

    CUT_BEFORE = enum.auto()
    CUT_AFTER = enum.auto()
    CUT_IN = enum.auto()
    CUT_UNCOMMITTED = enum.auto()
    TERMINATED = enum.auto()
    REFUSED = enum.auto()
    STALLED_BEFORE = enum.auto()
    STALLED_AFTER = enum.auto()


class Fault:
    """What is to happen, once, to the n-th execution of a statement with `text` in it."""

    def __init__(self, kind: Kind, text: str, *, number: int = 1, code: str = "") -> None:
        self.kind, self.text, self.code = kind, text, code
        self._left = number
        self._struck: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __repr__(self) -> str:
        """Return what a failing test shows."""
        return f"{self.kind.name.lower()}({self.text!r})"

    @property
    def is_stall(self) -> bool:
        """Whether it lasts until the proxy is restored."""
        return self.kind in {Kind.STALLED_BEFORE, Kind.STALLED_AFTER}

    @property
    def has_struck(self) -> bool:
        """Whether it has happened."""
        return self._struck.done()

    async def struck(self) -> None:
        """Wait until it has happened.

        Raises:
            TimeoutError: It has not, within 30 s.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.shield(asyncio.wrap_future(self._struck))

    def matches(self, turn: Turn) -> bool:
        """Count a turn, and tell whether it is the one."""
        if self.has_struck or self._left < 1 or not any(self.text in it for it in turn.texts):
            return False
        self._left -= 1
        return self._left == 0

    def strike(self) -> None:
        """Note that it happens."""
        self._struck.set_result(None)


def cut_before(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a connection that breaks before the statement reaches the server."""
    return Fault(Kind.CUT_BEFORE, text, number=number)


def cut_after(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a connection that breaks after the statement, before its answer."""
    return Fault(Kind.CUT_AFTER, text, number=number)


def cut_in(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a connection that breaks in the middle of the answer."""
    return Fault(Kind.CUT_IN, text, number=number)


def cut_uncommitted(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a server that dies between the result and the commit."""
    return Fault(Kind.CUT_UNCOMMITTED, text, number=number)


def terminated(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a session that is terminated just before the statement."""
    return Fault(Kind.TERMINATED, text, number=number)


def refused(text: str, code: str, *, number: int = 1) -> Fault:
    """Return the fault of a statement that the server undoes with this SQLSTATE."""
    return Fault(Kind.REFUSED, text, number=number, code=code)


def stalled_before(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a way on which nothing moves, with the statement still on it."""
    return Fault(Kind.STALLED_BEFORE, text, number=number)


def stalled_after(text: str, *, number: int = 1) -> Fault:
    """Return the fault of a way on which nothing moves, with the answer still on it."""
    return Fault(Kind.STALLED_AFTER, text, number=number)


Make = Callable[[str], Fault]
"""Makes a fault of a statement with a text in it."""

FAULTS: Mapping[str, Make] = {
    "cut before": cut_before,
    "cut after": cut_after,
    "cut in the answer": cut_in,
    "cut before the commit": cut_uncommitted,
    "backend terminated": terminated,
    "serialisation failure": functools.partial(refused, code="40001"),
    "disk full": functools.partial(refused, code="53100"),
    "stalled before": stalled_before,
    "stalled after": stalled_after,
}
