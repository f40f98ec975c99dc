"""Invariants of the SDK: requests of a session, rates of activity."""

import asyncio
import dataclasses
import datetime as dt
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.views.replica import StepTally
from progressor.sdk.client.replicas import (
    Activity,
    ReplicaActivity,
    ReplicaState,
    StepRate,
    rates_between,
    rates_by_namespace,
)
from progressor.sdk.transport.session import Pending, Unanswered
from tests.support.builders import seconds
from tests.support.clock import START
from tests.support.engine.activities import a_namespace, a_replica, an_activity

MOVES = ("add", "write", "answer", "answer again", "expire", "cancel", "cut")

moves = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), max_size=60)


class CutError(Exception):
    """The session broke."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Ledger:
    """What should have become of each request, told in the simplest way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.unanswered = Unanswered()
        self.pendings: list[Pending] = []
        self.ends: dict[int, str] = {}

    def add(self) -> None:
        pending = Pending("call", b"", ends_at=0.0, trace=None, answer=self.loop.create_future())
        self.unanswered.add(pending)
        self.pendings.append(pending)

    def end(self, pending: Pending, how: str) -> bool:
        """Note an end unless there was one, and tell whether there was none."""
        return self.ends.setdefault(pending.call_id, how) == how

    def expire(self, pending: Pending) -> None:
        waits = pending in self.unanswered
        self.end(pending, "expired")
        assert self.unanswered.give_up(pending, TimeoutError()) == (waits and pending.is_written)

    def cancel(self, pending: Pending) -> None:
        # The caller is cancelled, and so is the future that it awaits.
        if not pending.answer.done():
            self.end(pending, "cancelled")
            pending.answer.cancel()
        self.unanswered.give_up(pending)

    def answer(self, pending: Pending) -> None:
        self.end(pending, "answered")
        self.unanswered.resolve(pending.call_id, ("call", b"%d" % pending.call_id))

    def cut(self) -> None:
        for pending in self.pendings:
            self.end(pending, "cut")
        self.unanswered.fail(CutError)


def end_of(pending: Pending) -> str | None:
    """Return how a request has ended, None while it has not."""
    future = pending.answer
    if not future.done():
        return None
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        assert future.result() == ("call", b"%d" % pending.call_id), "it is its own answer"
        return "answered"
    return "cut" if isinstance(error, CutError) else "expired"


@given(moves)
def test_each_request_ends_once_by_what_came_first(
    loop: asyncio.AbstractEventLoop, moves: list[tuple[str, int]]
) -> None:
    ledger = Ledger(loop)
    for move, number in moves:
        if move == "add":
            ledger.add()
        elif move == "cut":
            ledger.cut()
        elif ledger.pendings:
            pending = ledger.pendings[number % len(ledger.pendings)]
            if move == "write":
                pending.is_written = pending in ledger.unanswered or pending.is_written
            elif move == "expire":
                ledger.expire(pending)
            elif move == "cancel":
                ledger.cancel(pending)
            else:
                ledger.answer(pending)

    waiting = [each for each in ledger.pendings if each.call_id not in ledger.ends]
    assert [end_of(each) for each in ledger.pendings] == [
        ledger.ends.get(each.call_id) for each in ledger.pendings
    ]
    assert len(ledger.unanswered) == len(waiting)
    assert len({each.call_id for each in ledger.pendings}) == len(ledger.pendings)
    ledger.cut()
    assert all(each.answer.done() for each in ledger.pendings)


def test_an_answer_to_an_unknown_request_is_ignored() -> None:
    unanswered = Unanswered()
    unanswered.resolve(7, ("call", b""))

    assert len(unanswered) == 0


NAMES = ("orders", "payments", "parcels")
COUNTS = st.integers(0, 10**9)
MILLISECONDS = st.integers(0, 10**9)
GONE, NEW, BOTH = "gone", "new", "both"


@st.composite
def tallies(draw: st.DrawFn) -> StepTally:
    attempts = draw(COUNTS)
    return StepTally(
        settled_count=draw(COUNTS),
        attempt_count=attempts,
        failed_count=draw(st.integers(0, attempts)),
        processor_time=dt.timedelta(milliseconds=draw(MILLISECONDS)),
    )


def grown(before: StepTally, more: StepTally) -> StepTally:
    names = [field.name for field in dataclasses.fields(StepTally)]
    return StepTally(**{name: getattr(before, name) + getattr(more, name) for name in names})


def replica(
    replica_id: int, tallies: Mapping[str, StepTally | None], **fields: Any
) -> ReplicaActivity:
    namespaces = [
        dataclasses.replace(a_namespace(name), tally=tally) for name, tally in tallies.items()
    ]
    return dataclasses.replace(a_replica(replica_id, *namespaces), **fields)


def rate(done: StepTally, lasting: float) -> StepRate:
    return StepRate(
        settled_per_second=done.settled_count / lasting,
        attempts_per_second=done.attempt_count / lasting,
        failed_per_second=done.failed_count / lasting,
        processor_seconds_per_second=done.processor_time.total_seconds() / lasting,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """What one replica did, in some namespaces, and between which heartbeats."""

    then: Mapping[str, StepTally]
    done: Mapping[str, StepTally]
    lasting: float
    fate: str


COURSES = st.lists(
    st.builds(
        Course,
        st.fixed_dictionaries(dict.fromkeys(NAMES, tallies())),
        st.dictionaries(st.sampled_from(NAMES), tallies()),
        st.integers(1, 10_000_000).map(lambda one: one / 1000),
        st.sampled_from((GONE, NEW, BOTH)),
    ),
    max_size=5,
)


def before_and_after(courses: list[Course]) -> tuple[Activity, Activity]:
    before = [
        replica(number, course.then)
        for number, course in enumerate(courses)
        if course.fate in {GONE, BOTH}
    ]
    after = [
        replica(
            number,
            {name: grown(course.then[name], done) for name, done in course.done.items()},
            heartbeat_at=START + seconds(course.lasting),
        )
        for number, course in enumerate(courses)
        if course.fate in {NEW, BOTH}
    ]
    return an_activity(*before), an_activity(*after)


@given(COURSES)
def test_a_rate_is_what_was_done_over_the_time_between_two_heartbeats(
    courses: list[Course],
) -> None:
    found = rates_between(*before_and_after(courses))

    assert found.keys() == {number for number, each in enumerate(courses) if each.fate == BOTH}
    for number, rates in found.items():
        course = courses[number]
        assert rates == {name: rate(done, course.lasting) for name, done in course.done.items()}


@given(COURSES, st.randoms())
def test_all_replicas_together_do_what_each_does_in_whatever_order_they_are(
    courses: list[Course], chance: random.Random
) -> None:
    before, after = before_and_after(courses)
    found = rates_between(before, after)
    shuffled = an_activity(*chance.sample(before.replicas, len(before.replicas)))

    together = rates_by_namespace(found)

    assert rates_between(shuffled, after) == found
    for name, total in together.items():
        each = [rates[name] for rates in found.values() if name in rates]
        assert math.isclose(total.settled_per_second, sum(one.settled_per_second for one in each))
        assert math.isclose(total.failed_per_second, sum(one.failed_per_second for one in each))


@given(
    st.dictionaries(st.sampled_from(NAMES), st.none() | tallies()),
    st.dictionaries(st.sampled_from(NAMES), st.none() | tallies()),
    st.integers(-10_000, 10_000),
    st.booleans(),
)
def test_no_rate_is_negative_whatever_the_answers_say(
    then: Mapping[str, StepTally | None],
    now: Mapping[str, StepTally | None],
    lasting: int,
    is_partial: bool,
) -> None:
    before = an_activity(replica(1, then, is_partial=is_partial))
    after = an_activity(replica(1, now, heartbeat_at=START + dt.timedelta(milliseconds=lasting)))

    for rates in rates_between(before, after).values():
        for found in rates.values():
            assert min(dataclasses.astuple(found)) >= 0


@given(tallies(), tallies())
def test_the_mean_is_the_processor_time_per_attempt(then: StepTally, done: StepTally) -> None:
    before = an_activity(replica(1, {"orders": then}))
    after = an_activity(replica(1, {"orders": grown(then, done)}, heartbeat_at=START + seconds(2)))

    mean = rates_between(before, after)[1]["orders"].mean_processor_time

    if done.attempt_count:
        assert mean is not None
        expected = done.processor_time.total_seconds() / done.attempt_count
        assert math.isclose(mean.total_seconds(), expected, abs_tol=1e-6)
    else:
        assert mean is None


def test_a_namespace_missing_from_the_first_answer_counts_from_zero() -> None:
    done = StepTally(settled_count=10, attempt_count=10)
    after = an_activity(replica(1, {"orders": done}, heartbeat_at=START + seconds(5)))

    assert rates_between(an_activity(replica(1, {})), after)[1]["orders"] == rate(done, 5)


def test_a_namespace_missing_from_a_partial_answer_has_no_rate() -> None:
    after = an_activity(
        replica(1, {"orders": StepTally(settled_count=10)}, heartbeat_at=START + seconds(5))
    )
    before = an_activity(replica(1, {}, is_partial=True))

    assert rates_between(before, after) == {1: {}}


def test_without_a_new_heartbeat_the_known_rate_holds_until_the_replica_is_silent() -> None:
    known = {1: {"orders": StepRate(settled_per_second=3.0)}}
    before = an_activity(replica(1, {"orders": StepTally()}))
    silent = an_activity(replica(1, {"orders": StepTally()}, state=ReplicaState.SILENT))

    assert rates_between(before, before, known=known) == known
    assert rates_between(before, before) == {}
    assert rates_between(before, silent, known=known) == {}
    assert rates_between(an_activity(), before, known=known) == {}
