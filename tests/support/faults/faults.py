"""What can happen to a statement on its way to PostgreSQL and back; `proxy` makes it happen."""

import asyncio
import concurrent.futures
import enum
import functools
from collections.abc import Callable, Mapping

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.postgres.wire import Turn


class Kind(enum.Enum):
    """What happens to a statement.

    ================  ===========================================================================
    CUT_BEFORE        it never reaches the server; the connection breaks
    CUT_AFTER         it is executed; the connection breaks before its answer
    CUT_IN            it is executed; the connection breaks in the middle of its answer
    CUT_UNCOMMITTED   its result has come, but not the word that it is committed, and it is not
    TERMINATED        the server ends the session when the statement is about to come
    REFUSED           the server undoes it with an SQLSTATE; the connection is as good as before
    STALLED_BEFORE    nothing passes any more, until `restore`: then it reaches the server, late
    STALLED_AFTER     it is executed, and nothing passes any more, until `restore`
    ================  ===========================================================================
    """

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

    def __init__(self, kind: Kind, text: str, code: str = "", *, number: int = 1) -> None:
        self.kind, self.text, self.code = kind, text, code
        self._left = number
        self._struck: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __repr__(self) -> str:
        return f"{self.kind.name.lower()}({self.text!r})"

    @property
    def is_stall(self) -> bool:
        return self.kind in {Kind.STALLED_BEFORE, Kind.STALLED_AFTER}

    @property
    def has_struck(self) -> bool:
        return self._struck.done()

    async def struck(self) -> None:
        """Wait until it has happened."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.shield(asyncio.wrap_future(self._struck))

    def matches(self, turn: Turn) -> bool:
        """Count a turn, and tell whether it is the one."""
        if self.has_struck or self._left < 1 or not any(self.text in text for text in turn.texts):
            return False
        self._left -= 1
        return self._left == 0

    def strike(self) -> None:
        self._struck.set_result(None)


Make = Callable[[str], Fault]
"""Makes a fault of a statement with a text in it."""

cut_before = functools.partial(Fault, Kind.CUT_BEFORE)
cut_after = functools.partial(Fault, Kind.CUT_AFTER)
terminated = functools.partial(Fault, Kind.TERMINATED)
refused = functools.partial(Fault, Kind.REFUSED)
stalled_before = functools.partial(Fault, Kind.STALLED_BEFORE)
stalled_after = functools.partial(Fault, Kind.STALLED_AFTER)

FAULTS: Mapping[str, Callable[..., Fault]] = {
    "cut before": cut_before,
    "cut after": cut_after,
    "cut in the answer": functools.partial(Fault, Kind.CUT_IN),
    "cut before the commit": functools.partial(Fault, Kind.CUT_UNCOMMITTED),
    "backend terminated": terminated,
    "serialisation failure": functools.partial(refused, code="40001"),
    "disk full": functools.partial(refused, code="53100"),
    "stalled before": stalled_before,
    "stalled after": stalled_after,
}

STALLS = ("stalled before", "stalled after")
"""Those that take long: a stall lasts until the engine gives its statement up."""
