"""The audited request that is being served, for the statements that carry out what it asks for.

Each such statement inserts the entry itself, so that neither can be without the other. The entry
follows the request through a context variable, not through the arguments of every method between:
those serve the engine's own work too, which has no entry.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


class _Attempt:
    """What a request does until it ends; tasks that it has started may live longer."""

    __slots__ = ("entry",)

    def __init__(self, entry: str) -> None:
        self.entry: str | None = entry


_CURRENT: ContextVar[_Attempt | None] = ContextVar("audited request", default=None)


def current() -> str | None:
    """Return the entry of the request that is being served, as JSON; None: it needs none."""
    attempt = _CURRENT.get()
    return None if attempt is None else attempt.entry


@contextlib.contextmanager
def of(entry: str) -> Iterator[None]:
    """Have statements that change something insert an entry."""
    attempt = _Attempt(entry)
    token = _CURRENT.set(attempt)
    try:
        yield
    finally:
        attempt.entry = None
        _CURRENT.reset(token)
