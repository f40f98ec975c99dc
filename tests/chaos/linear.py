"""Whether some order explains what the clients of one process have seen.

An order explains a history if it keeps to time (what was answered before another was sent comes
first), and each operation in turn, done on the list as it then is, answers what was seen. This is
linearisability, decided as by Wing and Gong: of the operations that could come next try each, and
remember which sets of operations, done in whatever order to the same life, have led nowhere (Lowe).

- An operation of unknown outcome may be put anywhere after it was sent, or be left out.
- What changes nothing and fits is taken at once: putting it off cannot help. What changes nothing
  and whose end is unknown is left out.
- Answers, readings and the journals of processors tell the places of elements: an element in
  another place leads nowhere, no other element in its place leads anywhere, and no step comes
  where no processor was asked for it (`Facts`).

The last of these leaves hardly a choice; where it does, the search ends with `UNDECIDED` after so
many lives.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tests.chaos.history import (
    CANCELLED,
    FAILED,
    GATE_NOT_FOUND,
    GONE,
    NOT_FOUND,
    REJECTED,
    REMOVED,
    REPAIR_FAILED,
    TAIL,
    Accepted,
    Appended,
    Asked,
    Deed,
    Done,
    Kind,
    Operation,
    Outcome,
    Refused,
    Revived,
    Sight,
    Unknown,
)

LIVES_MAX = 20_000
UNDECIDED = "undecided: too many orders to try"
_LINES_MAX = 8

ONLY = ""
"""The life of a process that has had one at most."""

_UNASKED = frozenset(
    {Kind.PUT, Kind.BIRTH, Kind.EXPIRY, Kind.REMOVE, Kind.SIMPLE_REPAIR, Kind.RETRY}
)
_NO_BEGINNING = frozenset({"PROCESS_ALREADY_EXISTS", "OVERLOADED", "SHUTTING_DOWN", GATE_NOT_FOUND})

Place = tuple[str, int]
"""A life, and a place in its list, from 1."""

_ABSENT, _INIT, _RUNNING, _ERROR, _FINISHED = "absent", "init", "running", "error", "finished"


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """A process as it is at one instant; ``starting`` is the element of a start in hand."""

    status: str = _ABSENT
    elements: tuple[str, ...] = ()
    starting: str = ""

    def __str__(self) -> str:
        return f"{self.status}, {len(self.elements)} elements, ... {self.elements[-TAIL:]}"


NOTHING = Life()


def explained(
    operations: Iterable[Operation],
    journal: Collection[Asked],
    *,
    lives_max: int = LIVES_MAX,
) -> str | None:
    """Return None where an order explains the operations of one process, else a counterexample.

    After `lives_max` lives the search gives up, and returns `UNDECIDED`.
    """
    return _Search(_with_births(operations), journal).run(lives_max)


def after(life: Life, operation: Operation) -> tuple[Life, ...]:
    """Return what a life may be after an operation that ended as it did; empty: nothing.

    What was accepted and cannot be done is cancelled.
    """
    match operation.outcome:
        case Unknown():
            return _effects(life, operation)
        case Accepted():
            return _effects(life, operation) or (() if life.status == _INIT else (life,))
        case Done(result):
            if operation.kind is Kind.LOOK:
                return _seen(life, result)
            return tuple(
                effect
                for effect in _effects(life, operation)
                if _agrees(life, effect, operation, result)
            )
        case Refused(reason):
            return tuple(_refused(life, operation, reason))


class Facts:
    """The places of elements, and when processors were asked for them, before any order is tried.

    A process that was removed and started anew has had several lists. Each is known by its first
    element, since no two requests have the same: the *life* of a list. Answers, readings and
    processors' journals each show a piece of some life as it once was; together they tell nearly
    every place, and what is missing in a processor's journal was never done.

    ``contradiction`` says, where it is not "", how two of those who saw the lists saw them
    differently: then no order explains anything.
    """

    def __init__(self, operations: Sequence[Operation], journal: Collection[Asked]) -> None:
        self._has_one_life = sum(_begins(operation) for operation in operations) <= 1
        self._elements: dict[Place, str] = {}
        self._places: dict[str, Place] = {}
        self.contradiction = ""
        # What a step of a turn was shown ahead may never have been saved.
        shown = [line for line in journal if not line.is_ahead]
        for first, place, element in _pieces(operations, shown):
            if self._has_one_life or first:
                self._note((ONLY if self._has_one_life else first, place), element)
        self._asked: dict[str, set[Place]] = collections.defaultdict(set)
        for asked in journal:
            self._asked[asked.element].add((self._life(asked.first), asked.length))

    def fit(self, elements: Sequence[str]) -> bool:
        """Return whether a list's last element, which is the new one, is where others saw it."""
        if not elements:
            return True
        place = (self._life(elements[0]), len(elements))
        is_free = self._elements.get(place, elements[-1]) == elements[-1]
        return is_free and self._places.get(elements[-1], place) == place

    def allow(self, operation: Operation, elements: Sequence[str]) -> bool:
        """Return whether a processor was asked for an operation when the list was this one."""
        if not operation.element or operation.kind in _UNASKED:
            return True
        life = self._life(elements[0] if elements else "")
        return (life, len(elements)) in self._asked.get(operation.element, ())

    def was_seen(self, element: str) -> bool:
        return element in self._places

    def was_never_asked(self, element: str) -> bool:
        """Return whether it is known that no processor was asked for an element."""
        return element not in self._asked

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


def _pieces(
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
    for line in journal:
        for place, element in enumerate(line.before, line.length - len(line.before) + 1):
            yield line.first, place, element


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


@dataclasses.dataclass(frozen=True, slots=True)
class _Path:
    operation: Operation
    before: "_Path | None"


class _Search:
    """Depth first, the operations whose end is known before the others."""

    def __init__(self, operations: Iterable[Operation], journal: Collection[Asked]) -> None:
        self._operations = sorted(operations, key=lambda operation: operation.sent_at)
        self._required = _mask(
            index for index, operation in enumerate(self._operations) if _is_required(operation)
        )
        self._facts = Facts(self._operations, journal)
        self._furthest: tuple[int, Life, _Path | None] = (0, NOTHING, None)

    def run(self, lives_max: int) -> str | None:
        if self._facts.contradiction:
            name = self._operations[0].process_id
            return f"no order explains {name}: {self._facts.contradiction}"
        stack: list[tuple[int, Life, _Path | None]] = [(0, NOTHING, None)]
        seen: set[tuple[int, Life]] = set()
        while stack:
            done, life, path = stack.pop()
            done, path = self._read(done, life, path)
            if done & self._required == self._required:
                return None
            if (done, life) in seen:
                continue
            if len(seen) >= lives_max:
                return UNDECIDED
            seen.add((done, life))
            if (done & self._required).bit_count() >= self._progress():
                self._furthest = (done, life, path)
            stack.extend(self._steps(done, life, path))
        return self._counterexample()

    def _steps(
        self, done: int, life: Life, path: _Path | None
    ) -> Iterator[tuple[int, Life, _Path | None]]:
        """Yield what may come next, the likeliest last: the stack turns it around."""
        choices = sorted(
            self._next(done), key=lambda index: self._operations[index].answered_at, reverse=True
        )
        for index in choices:
            operation = self._operations[index]
            for following in after(life, operation):
                if self._leads_on(life, operation, following):
                    yield done | 1 << index, following, _Path(operation, path)

    def _leads_on(self, life: Life, operation: Operation, following: Life) -> bool:
        """Return whether something may come of an operation that is done here."""
        if following == life:
            # It is irrelevant whether something without effect was done; what is listed was done.
            is_lost = isinstance(operation.outcome, Unknown)
            is_there = isinstance(operation.outcome, Accepted) and self._facts.was_seen(
                operation.element
            )
            return not (is_lost or is_there)
        if operation.kind is Kind.EXPIRY and operation.element not in life.elements:
            return False  # Its timer was set by that step.
        return self._facts.allow(operation, life.elements) and self._facts.fit(following.elements)

    def _read(self, done: int, life: Life, path: _Path | None) -> tuple[int, _Path | None]:
        """Take all readings that fit; each may let others come."""
        more = True
        while more:  # ends: each round takes one reading at least
            more = False
            for index in self._next(done):
                operation = self._operations[index]
                if self._only_reads(operation) and after(life, operation) == (life,):
                    done, path, more = done | 1 << index, _Path(operation, path), True
        return done, path

    def _only_reads(self, operation: Operation) -> bool:
        """Return whether an operation cannot change anything in any life."""
        if operation.kind in {Kind.LOOK, Kind.RETRY}:
            return True
        match operation.outcome:
            case Refused(reason):
                changes = operation.deed in {Deed.REJECT, Deed.FAIL}
                return not changes and not (operation.key and reason in GONE)
            case Accepted():
                # It was refused by its processor, or cancelled with its line.
                never_asked = self._facts.was_never_asked(operation.element)
                return never_asked or operation.deed is Deed.REJECT
            case _:
                return False

    def _next(self, done: int) -> list[int]:
        """Return what may come next: nothing that is left was answered before it was sent."""
        found: list[int] = []
        first = math.inf
        for index, operation in enumerate(self._operations):  # in the order in which they were sent
            if operation.sent_at > first:
                break
            if not done >> index & 1:
                found.append(index)
                if self._required >> index & 1:
                    first = min(first, operation.answered_at)
        return found

    def _progress(self) -> int:
        return (self._furthest[0] & self._required).bit_count()

    def _counterexample(self) -> str:
        done, life, path = self._furthest
        before: list[str] = []
        while path is not None and len(before) < _LINES_MAX:
            before.append(str(path.operation))
            path = path.before
        stuck = [
            str(self._operations[index])
            for index in self._next(done)
            if self._required >> index & 1
        ]
        following = self._facts.following(life.elements, TAIL)
        lines = [
            f"no order explains {self._operations[0].process_id}. After",
            *(f"    {line}" for line in reversed(before)),
            f"it is {life}; next there must be one of",
            *(f"    {line}" for line in stuck[:_LINES_MAX]),
            f"and others have seen as elements {len(life.elements) + 1} ...: {following}",
        ]
        return "\n".join(lines)


_POSSIBLE_IN: Mapping[Kind, frozenset[str]] = {
    Kind.START: frozenset({_ABSENT, _INIT}),
    Kind.PUT: frozenset({_ABSENT}),
    Kind.BIRTH: frozenset({_ABSENT}),
    Kind.CALL: frozenset({_RUNNING}),
    Kind.NOTIFY: frozenset({_RUNNING}),
    Kind.REPAIR: frozenset({_ERROR}),
    Kind.SIMPLE_REPAIR: frozenset({_ERROR}),
    Kind.RETRY: frozenset({_ERROR}),
    # Running: it had to wait for its gates, and a repair was first; then it fails as before.
    Kind.RERUN: frozenset({_RUNNING, _ERROR}),
    # In error: a timer that broke the process runs again.
    Kind.TICK: frozenset({_RUNNING, _ERROR}),
    Kind.REMOVE: frozenset({_INIT, _RUNNING, _ERROR, _FINISHED}),
    Kind.EXPIRY: frozenset({_RUNNING}),
}


def _effects(life: Life, operation: Operation) -> tuple[Life, ...]:
    """Return what the operation makes of a life if it is done; empty: it cannot be."""
    if not _is_possible(life, operation):
        return ()
    match operation.kind:
        case Kind.REMOVE | Kind.EXPIRY:
            return (NOTHING,)
        case Kind.RETRY:
            return (life,)
        case Kind.SIMPLE_REPAIR:
            # Which of them the answer tells: it runs, or its timer is to run first.
            return (dataclasses.replace(life, status=_RUNNING), life)
        case Kind.START | Kind.PUT | Kind.BIRTH:
            return (_begun(operation),)
        case _:
            return (_stepped(life, operation),)


def _is_possible(life: Life, operation: Operation) -> bool:
    if life.status == _INIT and operation.kind is Kind.START and life.starting != operation.element:
        return False
    if life.status == _RUNNING and operation.kind is Kind.RERUN and operation.deed is Deed.APPEND:
        return False
    return life.status in _POSSIBLE_IN.get(operation.kind, frozenset())


def _begun(operation: Operation) -> Life:
    if operation.kind is Kind.BIRTH:
        return Life(_INIT, starting=operation.element)
    if operation.kind is Kind.PUT:
        return Life(_RUNNING, operation.imported)
    if operation.deed is Deed.REJECT:
        return NOTHING
    if operation.deed is Deed.FAIL:
        return Life(_ERROR)
    return Life(_RUNNING, (operation.element,))


def _stepped(life: Life, operation: Operation) -> Life:
    appended = (*life.elements, operation.element)
    match operation.deed:
        case Deed.REJECT:
            return life
        case Deed.FAIL:
            return Life(_ERROR, life.elements)
        case Deed.REMOVE:
            return NOTHING
        case Deed.COMPLETE:
            return Life(_FINISHED, appended)
        case Deed.APPEND | Deed.TIMER | Deed.EXPIRE:
            return Life(_RUNNING, appended)


def _agrees(life: Life, effect: Life, operation: Operation, result: object) -> bool:
    """Return whether this effect would have been answered by this result."""
    if operation.deed in {Deed.REJECT, Deed.FAIL}:
        return False
    match result:
        case Appended(length, before, first):
            elements = () if life.status == _ABSENT else life.elements
            is_there = (length, before) == (len(elements) + 1, elements[-TAIL:])
            return is_there and first in {"", (*elements, operation.element)[0]}
        case Revived(timer):
            return timer is (effect.status == _ERROR)
        case _:
            return True


def _seen(life: Life, result: object) -> tuple[Life, ...]:
    assert isinstance(result, Sight), f"a reader saw {result}"
    if result.status not in {"", life.status} or life.status == _ABSENT:
        return ()
    if result.length != len(life.elements):
        return ()
    return (life,) if result.elements in {None, life.elements} else ()


_STATUSES_OF: Mapping[str, frozenset[str]] = {
    "PROCESS_FINISHED": frozenset({_FINISHED}),
    "PROCESS_ALREADY_EXISTS": frozenset({_INIT, _RUNNING, _ERROR, _FINISHED}),
    NOT_FOUND: frozenset({_ABSENT}),
    # A caller who waits for a start's turn hears it too, when that start is refused.
    REMOVED: frozenset({_ABSENT}),
    FAILED: frozenset({_ERROR}),
    "NOTHING_TO_RETRY": frozenset({_ERROR}),
    CANCELLED: frozenset({_ABSENT, _INIT, _RUNNING, _ERROR, _FINISHED}),
    GATE_NOT_FOUND: frozenset({_ABSENT, _INIT, _RUNNING, _ERROR, _FINISHED}),
    "OVERLOADED": frozenset({_ABSENT, _INIT, _RUNNING, _ERROR, _FINISHED}),
    "SHUTTING_DOWN": frozenset({_ABSENT, _INIT, _RUNNING, _ERROR, _FINISHED}),
}
"""In which status of the process a request can be refused so, and change nothing."""


def _refused(life: Life, operation: Operation, reason: str) -> Iterator[Life]:
    statuses = _STATUSES_OF.get(reason, frozenset())
    if reason == "PROCESS_IS_RUNNING":
        statuses = frozenset({_INIT, _RUNNING})
        if operation.kind in {Kind.SIMPLE_REPAIR, Kind.RETRY}:
            statuses |= {_ERROR}  # A repair, or the task run again, is under way.
    if life.status in statuses:
        yield life
    # Cancelled: when it was about to run again.
    own = {
        REJECTED: Deed.REJECT, FAILED: Deed.FAIL, REPAIR_FAILED: Deed.FAIL, CANCELLED: Deed.FAIL
    }.get(reason)  # fmt: skip
    is_repeated = bool(operation.key) and reason in GONE
    if own is operation.deed or is_repeated:
        yield from _effects(life, operation)


def _is_required(operation: Operation) -> bool:
    return not isinstance(operation.outcome, Unknown)


def _with_births(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operations and those no client sends: a running start, a timer that removes."""
    whole = list(operations)
    unseen: Outcome = Unknown()
    for operation in tuple(whole):
        kind = Kind.BIRTH if may_be_born(operation) else None
        if operation.deed is Deed.EXPIRE:
            kind = Kind.EXPIRY
        if kind is not None:
            whole.append(
                dataclasses.replace(
                    operation,
                    kind=kind,
                    outcome=unseen,
                    deed=Deed.APPEND,
                    answered_at=math.inf,
                )
            )
    return whole


def _mask(indices: Iterable[int]) -> int:
    return sum(1 << index for index in set(indices))


def together(*histories: Iterable[Operation]) -> dict[str, list[Operation]]:
    by_process: dict[str, list[Operation]] = {}
    for operation in itertools.chain.from_iterable(histories):
        by_process.setdefault(operation.process_id, []).append(operation)
    return by_process
