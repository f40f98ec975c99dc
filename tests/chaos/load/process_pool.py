"""The processes that clients ask for, as far as the clients know them, and what may be asked.

What keeps the histories explainable:

- A process goes only once its start, or import, is known to have ended and is not repeated: else
  the repetition would start it anew, as the engine promises, and the same request were done twice.
- It is started anew under its id only if no word about it was ever lost: a request that lingers
  somewhere could reach either of its lives.
"""

import dataclasses
import itertools
import random
from typing import Any

from progressor.sdk import Constraints
from tests.chaos.history import ENDING_DEEDS, Deed, Kind
from tests.chaos.load import messages
from tests.chaos.load.gates import draw, draw_timer
from tests.chaos.plan import TIMER_SECONDS, TIMERS_MAX

_SIZE = 36
"""Processes that are asked for at a time."""

_REQUESTS = (15, 60)
"""How many requests a process gets until it is left alone: a longer history takes long to judge."""


@dataclasses.dataclass(slots=True, eq=False)
class Subject:
    """A process; ``known`` are requests under a key whose end is known, to be asked again.

    ``cancellable`` are those that may wait for gates, ``cancelled`` those that a client has asked
    to cancel. ``begun``: its start has been acknowledged. ``completes``: a request that finishes it
    was sent, which gives back the keys of what has not begun.
    ``starting`` counts the starts in hand, ``in_flight`` all requests.
    """

    process_id: str
    left: int
    begun: bool = False
    broken: bool = False
    ending: bool = False
    completes: bool = False
    over: bool = False
    clean: bool = True
    starting: int = 0
    in_flight: int = 0
    version: int | None = None  # that its starts have in their orders
    known: list["Request"] = dataclasses.field(default_factory=list)
    cancellable: list["Request"] = dataclasses.field(default_factory=list)
    cancelled: list["Request"] = dataclasses.field(default_factory=list)

    @property
    def may_end(self) -> bool:
        return self.begun and not self.starting

    @property
    def may_begin_anew(self) -> bool:
        """Whether its id can be used again, once it is gone."""
        return self.clean and self.ending and not self.in_flight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: what it is, and all that the processor gets. ``key`` "": none."""

    kind: Kind
    subject: Subject
    element: str
    deed: Deed = Deed.APPEND
    key: str = ""
    order: dict[str, Any] = dataclasses.field(default_factory=dict)
    constraints: Constraints | None = None
    accept_only: bool = False
    timeout: float = 5.0

    @property
    def may_lose_its_key(self) -> bool:
        """Whether it can have been cancelled before its step, although it was acknowledged."""
        waits = self.accept_only or self.kind is Kind.NOTIFY
        return self in self.subject.cancelled or (waits and self.subject.completes)


class ProcessPool:
    """The processes of a run, a few of them asked for much more often than the others."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._subjects: list[Subject] = []

    def pick(self) -> Subject | None:
        """Return the process to ask next; None: it is time for a new one."""
        self._subjects = [each for each in self._subjects if each.left > 0 and not each.over]
        if len(self._subjects) < _SIZE:
            return None
        subject = self._subjects[int(len(self._subjects) * self._random.random() ** 2)]
        subject.left -= 1
        return subject

    def grow(self) -> Subject:
        """Return a new one, which everybody may ask for at once."""
        number = next(self._numbers)
        subject = Subject(f"p{number}", self._random.randint(*_REQUESTS))
        self._subjects.append(subject)
        return subject


class Requester:
    """Makes up requests, for one client."""

    def __init__(self, name: str, chosen: random.Random) -> None:
        self._name = name
        self._random = chosen
        self._numbers = itertools.count(1)

    def ask(self, kind: Kind, subject: Subject) -> Request:
        """Return a request of a kind, its deed such as the process can take now."""
        chosen = self._random
        number = next(self._numbers)
        element = f"{self._name}-{number}"
        deed = self._deed(kind, subject)
        if subject.version is None:
            subject.version = number
        constraints = draw(
            chosen,
            kind,
            deed,
            subject.version if kind is Kind.START else number,
            floor=subject.version,
        )
        # Starts are repeated until they are known.
        has_key = kind in {Kind.START, Kind.PUT, Kind.NOTIFY} or chosen.random() < 0.85
        subject.completes = subject.completes or deed is Deed.COMPLETE
        return Request(
            kind=kind,
            subject=subject,
            element=element,
            deed=deed,
            key=f"key-{element}" if has_key else "",
            order=self._order(element, deed, gated=constraints is not None),
            constraints=constraints,
            accept_only=kind is Kind.CALL
            and has_key
            and chosen.random() < (0.1 if constraints is None else 0.5),
            timeout=chosen.uniform(0.02, 1.0) if chosen.random() < 0.06 else 5.0,
        )

    def _deed(self, kind: Kind, subject: Subject) -> Deed:
        chosen = self._random
        if kind is Kind.PUT:
            return Deed.APPEND
        deeds = {Deed.APPEND: 80.0, Deed.TIMER: 10.0, Deed.REJECT: 4.0, Deed.FAIL: 1.5}
        if kind in {Kind.CALL, Kind.NOTIFY}:
            deeds |= {Deed.COMPLETE: 0.7, Deed.REMOVE: 0.5, Deed.EXPIRE: 0.5}
        deed = chosen.choices(list(deeds), list(deeds.values()))[0]
        return Deed.APPEND if deed in ENDING_DEEDS and not subject.may_end else deed

    def _order(self, element: str, deed: Deed, *, gated: bool) -> dict[str, Any]:
        chosen = self._random
        order: dict[str, Any] = {"id": element, "do": deed, **messages.draw(chosen)}
        if gated:
            order["gated"] = True
        if deed in {Deed.TIMER, Deed.EXPIRE}:
            order["timer"] = self.timer()
        fate = chosen.random()
        if fate < 0.25:
            order["delay"] = chosen.uniform(0.0, 0.05)
        elif fate < 0.255:
            order["delay"] = chosen.uniform(0.2, 2.5)
        elif fate < 0.30:
            order["flaky"] = chosen.randint(1, 2)
        elif fate < 0.302:
            order["stall"] = True
        elif fate < 0.33:
            order["unset"] = True
        return order

    def timer(self) -> dict[str, Any]:
        chosen = self._random
        after = 0.0 if chosen.random() < 0.3 else chosen.uniform(0.0, TIMER_SECONDS)
        chain = chosen.randrange(TIMERS_MAX)
        told = {"after": after, "chain": chain, "do": self._timer_deed(), "by": ""}
        gates = draw_timer(chosen)
        return {**told, "gates": gates} if gates else told

    def _timer_deed(self) -> Deed:
        return Deed.FAIL if self._random.random() < 0.15 else Deed.APPEND
