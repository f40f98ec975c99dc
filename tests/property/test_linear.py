"""Every history that a correct engine can make is explained, and no history with a fault in it."""

import dataclasses
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.models.history.history import (
    REJECTED,
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
    Sight,
    Unknown,
)
from tests.support.models.history.linear import explained

SEEDS = st.integers(0, 2**32)
KINDS = (Kind.CALL, Kind.CALL, Kind.NOTIFY, Kind.LOOK, Kind.REPAIR)


class Engine:
    """Does requests one by one, each at an instant, and says of each what its client saw."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.elements: list[str] = []
        self.status = "absent"
        self.instant = 0.0
        self.history: list[Operation] = []
        self.journal: list[Asked] = []

    def run(self, count: int) -> list[Operation]:
        self._do(Kind.START, "s")
        for number in range(count):
            self._do(self.random.choice(KINDS), f"e{number}")
        self.instant += 1000.0
        self._note(Kind.LOOK, "", self._sight(), Deed.APPEND, spread=0.0)
        return self.history

    def _do(self, kind: Kind, element: str) -> None:
        self.instant += self.random.random()
        deed = self.random.choice([Deed.APPEND] * 6 + [Deed.REJECT, Deed.FAIL])
        if kind is Kind.LOOK:
            self._note(kind, "", self._sight(), Deed.APPEND)
        elif kind is Kind.START:
            self._note(kind, element, self._step(element, Deed.APPEND), Deed.APPEND)
        elif kind is Kind.REPAIR and self.status == "running":
            self._note(kind, element, Refused("PROCESS_IS_RUNNING"), deed)
        elif kind is not Kind.REPAIR and self.status == "error":
            self._note(kind, element, Refused("PROCESS_FAILED"), deed)
        elif kind is Kind.REPAIR and deed is Deed.FAIL:
            self._ask(element, deed)
            self._note(kind, element, Refused("REPAIR_FAILED"), deed)
        else:
            self._note(kind, element, self._step(element, deed), deed)

    def _ask(self, element: str, deed: Deed) -> None:
        self.journal.append(
            Asked(
                process_id="p",
                task_id=len(self.journal) + 1,
                task_type="call",
                element=element,
                deed=deed,
                at=self.instant,
                first="".join(self.elements[:1]),
                length=len(self.elements),
                before=tuple(self.elements[-TAIL:]),
            )
        )

    def _step(self, element: str, deed: Deed) -> Outcome:
        self._ask(element, deed)
        if deed is Deed.REJECT:
            return Refused(REJECTED)
        if deed is Deed.FAIL:
            self.status = "error"
            return Refused("PROCESS_FAILED")
        before = tuple(self.elements[-TAIL:])
        self.elements.append(element)
        self.status = "running"
        return Done(Appended(len(self.elements), before))

    def _sight(self) -> Outcome:
        return Done(Sight(self.status, len(self.elements), tuple(self.elements)))

    def _note(
        self, kind: Kind, element: str, outcome: Outcome, deed: Deed, spread: float = 3.0
    ) -> None:
        """Record it as sent a little before its instant, and answered a little after, or lost."""
        answered_at = self.instant + spread * self.random.random()
        if kind is Kind.NOTIFY and outcome != Refused("PROCESS_FAILED"):
            outcome, answered_at = Accepted(), self.instant + 500.0
        elif kind is not Kind.LOOK and self.random.random() < 0.1:
            outcome, answered_at = Unknown(), math.inf
        sent_at = self.instant - spread * self.random.random()
        self.history.append(
            Operation(
                process_id="p",
                kind=kind,
                element=element,
                deed=deed,
                outcome=outcome,
                sent_at=sent_at,
                answered_at=answered_at,
            )
        )


@given(seed=SEEDS, count=st.integers(0, 40))
def test_a_correct_engine_is_explained(seed: int, count: int) -> None:
    assert explained(Engine(seed).run(count)) is None


@given(seed=SEEDS, count=st.integers(3, 40), data=st.data())
def test_a_step_that_is_in_no_journal_is_found(seed: int, count: int, data: st.DataObject) -> None:
    engine = Engine(seed)
    history = engine.run(count)
    done = data.draw(st.sampled_from(engine.elements))
    journal = [it for it in engine.journal if it.element != done]

    assert explained(history, journal) is not None


@given(seed=SEEDS, count=st.integers(3, 40), data=st.data())
def test_an_acknowledged_element_that_the_last_reading_lacks_is_found(
    seed: int, count: int, data: st.DataObject
) -> None:
    *history, last = Engine(seed).run(count)
    seen = _elements_of(last)
    known = [it.element for it in history if isinstance(it.outcome, Done) and it.element in seen]
    if not known:
        return
    lost = data.draw(st.sampled_from(known))
    left = tuple(element for element in seen if element != lost)

    assert explained([*history, _reading(last, left)]) is not None


@given(seed=SEEDS, count=st.integers(3, 40), data=st.data())
def test_two_elements_that_have_changed_places_are_found(
    seed: int, count: int, data: st.DataObject
) -> None:
    *history, last = Engine(seed).run(count)
    seen = list(_elements_of(last))
    known = {it.element for it in history if isinstance(it.outcome, Done)}
    places = [place for place in range(1, len(seen)) if {seen[place - 1], seen[place]} <= known]
    if not places:
        return
    place = data.draw(st.sampled_from(places))
    seen[place - 1], seen[place] = seen[place], seen[place - 1]

    assert explained([*history, _reading(last, tuple(seen))]) is not None


@given(seed=SEEDS, count=st.integers(3, 40), data=st.data())
def test_an_element_that_is_there_twice_is_found(
    seed: int, count: int, data: st.DataObject
) -> None:
    *history, last = Engine(seed).run(count)
    seen = _elements_of(last)
    if not seen:
        return
    twice = data.draw(st.sampled_from(seen))

    assert explained([*history, _reading(last, (*seen, twice))]) is not None


@given(seed=SEEDS, count=st.integers(3, 40), data=st.data())
def test_a_stale_reading_is_found(seed: int, count: int, data: st.DataObject) -> None:
    *history, last = Engine(seed).run(count)
    seen = _elements_of(last)
    if not seen:
        return
    stale = data.draw(st.integers(0, len(seen) - 1))

    second = dataclasses.replace(
        _reading(last, seen[:stale]),
        sent_at=last.sent_at + 1.0,
        answered_at=last.answered_at + 1.0,
    )

    assert explained([*history, last, second]) is not None


def _elements_of(reading: Operation) -> tuple[str, ...]:
    assert isinstance(reading.outcome, Done)
    assert isinstance(reading.outcome.result, Sight)
    return reading.outcome.result.elements or ()


def _reading(like: Operation, elements: tuple[str, ...]) -> Operation:
    assert isinstance(like.outcome, Done)
    assert isinstance(like.outcome.result, Sight)
    sight = Sight(like.outcome.result.status, len(elements), elements)
    return dataclasses.replace(like, outcome=Done(sight))
