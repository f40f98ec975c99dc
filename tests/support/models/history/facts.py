"""What is known of the lists of one process before any order is tried.

A process that was removed and started anew has had several lists. Each is known by its first
element, since no two requests have the same: the *life* of a list. Answers, readings and
processors' journals each show a piece of some life as it once was; together they tell nearly every
place, and what is missing in a processor's journal was never done.
"""

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence

from tests.support.models.history.history import (
    GATE_NOT_FOUND,
    REJECTED,
    Appended,
    Asked,
    Done,
    Kind,
    Operation,
    Refused,
    Sight,
)

ONLY = ""
"""The life of a process that has had one at most."""

_UNASKED = frozenset({Kind.PUT, Kind.BIRTH, Kind.EXPIRY, Kind.REMOVE, Kind.SIMPLE_REPAIR})
_NO_BEGINNING = frozenset({"PROCESS_ALREADY_EXISTS", "OVERLOADED", "SHUTTING_DOWN", GATE_NOT_FOUND})

Place = tuple[str, int]
"""A life, and a place in its list, from 1."""


class Facts:
    """The places of elements, and when processors were asked for them.

    ``contradiction`` says, where it is not "", how two of those who saw the lists saw them
    differently: then no order explains anything.
    """

    def __init__(self, operations: Sequence[Operation], journal: Collection[Asked] | None) -> None:
        """Gather what is known; `journal` None: none was kept."""
        self._has_one_life = sum(_begins(operation) for operation in operations) <= 1
        self._elements: dict[Place, str] = {}
        self._places: dict[str, Place] = {}
        self.contradiction = ""
        for first, place, element in _seen(operations, journal or ()):
            if self._has_one_life or first:
                self._note((ONLY if self._has_one_life else first, place), element)
        self._asked: dict[str, set[Place]] | None = None
        if journal is not None:
            self._asked = collections.defaultdict(set)
            for it in journal:
                self._asked[it.element].add((self._life(it.first), it.length))

    def fit(self, elements: Sequence[str]) -> bool:
        """Return whether a list's last element, which is the new one, is where others saw it."""
        if not elements:
            return True
        place = (self._life(elements[0]), len(elements))
        is_free = self._elements.get(place, elements[-1]) == elements[-1]
        return is_free and self._places.get(elements[-1], place) == place

    def allow(self, operation: Operation, elements: Sequence[str]) -> bool:
        """Return whether a processor was asked for an operation when the list was this one."""
        if self._asked is None or not operation.element or operation.kind in _UNASKED:
            return True
        life = self._life(elements[0] if elements else "")
        return (life, len(elements)) in self._asked.get(operation.element, ())

    def was_seen(self, element: str) -> bool:
        return element in self._places

    def was_never_asked(self, element: str) -> bool:
        """Return whether it is known that no processor was asked for an element."""
        return self._asked is not None and element not in self._asked

    def following(self, elements: Sequence[str], count: int) -> list[str]:
        """Return what was seen behind a list, "?" where that is not known."""
        life, length = self._life(elements[0] if elements else ""), len(elements)
        return [self._elements.get((life, length + 1 + offset), "?") for offset in range(count)]

    def _life(self, first: str) -> str:
        return ONLY if self._has_one_life else first

    def _note(self, place: Place, element: str) -> None:
        there = self._elements.setdefault(place, element)
        if there != element:
            self.contradiction = f"as element {place[1]} there were seen {there} and {element}"
        other = self._places.setdefault(element, place)
        if other != place:
            self.contradiction = f"{element} was seen as element {place[1]} and as {other[1]}"


def _seen(
    operations: Iterable[Operation], journal: Iterable[Asked]
) -> Iterator[tuple[str, int, str]]:
    """Yield a list's first element, or "" where it is not known, a place, and what is there."""
    for operation in operations:
        match operation.outcome:
            case Done(Appended(length, before, first)):
                known = first or (
                    (*before, operation.element)[0] if length <= len(before) + 1 else ""
                )
                for place, element in enumerate((*before, operation.element), length - len(before)):
                    yield known, place, element
            case Done(Sight(elements=tuple() as elements)):
                for place, element in enumerate(elements, 1):
                    yield elements[0], place, element
            case _:
                pass
    for it in journal:
        for place, element in enumerate(it.before, it.length - len(it.before) + 1):
            yield it.first, place, element


def _begins(operation: Operation) -> bool:
    """Return whether a process may have come to be by it, and have had a list."""
    match operation.outcome:
        case Refused(reason) if reason in _NO_BEGINNING | {REJECTED}:
            return False
        case _:
            return operation.kind in {Kind.START, Kind.PUT}


def may_be_born(operation: Operation) -> bool:
    """Return whether a process may have been seen in init because of it."""
    match operation.outcome:
        case Refused(reason) if reason in _NO_BEGINNING:
            return False
        case _:
            return operation.kind is Kind.START
