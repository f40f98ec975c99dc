"""A queue that takes from namespaces in turn: one with many entries keeps no other waiting."""

import collections
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from progressor.domain.processes.process import ProcessKey


class _Keyed(Protocol):
    @property
    def key(self) -> ProcessKey: ...


E = TypeVar("E", bound=_Keyed)


class FairQueue(Generic[E]):
    """Entries of a namespace keep their order; what was put first comes before all others."""

    def __init__(self) -> None:
        self._first: collections.deque[E] = collections.deque()
        # By namespace, in the order of their turns; none is empty.
        self._lines: dict[str, collections.deque[E]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[E]:
        yield from self._first
        for line in self._lines.values():
            yield from line

    @property
    def head(self) -> E:
        """The entry that `pop` returns next."""
        return self._first[0] if self._first else next(iter(self._lines.values()))[0]

    def append(self, entry: E) -> None:
        line = self._lines.get(entry.key.namespace)
        if line is None:
            line = self._lines[entry.key.namespace] = collections.deque()
        line.append(entry)
        self._count += 1

    def pop(self) -> E:
        """Remove and return the next entry."""
        self._count -= 1
        if self._first:
            return self._first.popleft()
        name, line = next(iter(self._lines.items()))
        entry = line.popleft()
        if not line:
            del self._lines[name]
        elif len(self._lines) > 1:
            self._lines[name] = self._lines.pop(name)
        return entry

    def put_first(self, entries: Iterable[E]) -> None:
        """Put entries, in their order, before all others."""
        before = len(self._first)
        self._first.extendleft(reversed(list(entries)))
        self._count += len(self._first) - before

    def clear(self) -> None:
        self._first.clear()
        self._lines.clear()
        self._count = 0
