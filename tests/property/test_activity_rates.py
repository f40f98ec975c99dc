"""Rates of two answers: what was done over how long, never negative, by replica and in all."""

import dataclasses
import datetime as dt
import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from progressor.sdk.values.activity import (
    Activity,
    NamespaceActivity,
    ReplicaActivity,
    StepRate,
    StepTally,
    rates_between,
    rates_by_namespace,
)
from progressor.sdk.values.replicas import ReplicaState
from tests.support.builders import seconds
from tests.support.clock import START

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
    return StepTally(
        settled_count=before.settled_count + more.settled_count,
        attempt_count=before.attempt_count + more.attempt_count,
        failed_count=before.failed_count + more.failed_count,
        processor_time=before.processor_time + more.processor_time,
    )


def replica(
    replica_id: int,
    tallies: Mapping[str, StepTally | None],
    *,
    at: dt.datetime = START,
    state: ReplicaState = ReplicaState.SERVING,
    is_partial: bool = False,
) -> ReplicaActivity:
    return ReplicaActivity(
        replica_id=replica_id,
        name="host-1",
        version="1.2.3",
        state=state,
        heartbeat_at=at,
        heartbeat_age=dt.timedelta(),
        step_count=0,
        caller_count=0,
        namespaces=tuple(
            NamespaceActivity(
                namespace=name, busy_count=0, worker_count=1, unreachable_for=None, tally=tally
            )
            for name, tally in tallies.items()
        ),
        is_partial=is_partial,
    )


def activity(*replicas: ReplicaActivity) -> Activity:
    return Activity(
        read_at=START,
        replicas=replicas,
        queues=(),
        queues_age=dt.timedelta(),
        uncounted_namespace_count=0,
        exact_below=10_000,
    )


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
        st.integers(1, 10_000_000).map(lambda it: it / 1000),
        st.sampled_from((GONE, NEW, BOTH)),
    ),
    max_size=5,
)


def before_and_after(courses: list[Course]) -> tuple[Activity, Activity]:
    before = [
        replica(number, it.then) for number, it in enumerate(courses) if it.fate in {GONE, BOTH}
    ]
    after = [
        replica(
            number,
            {name: grown(it.then[name], done) for name, done in it.done.items()},
            at=START + seconds(it.lasting),
        )
        for number, it in enumerate(courses)
        if it.fate in {NEW, BOTH}
    ]
    return activity(*before), activity(*after)


@given(COURSES)
def test_a_rate_is_what_was_done_over_the_time_between_two_heartbeats(
    courses: list[Course],
) -> None:
    found = rates_between(*before_and_after(courses))

    assert found.keys() == {number for number, it in enumerate(courses) if it.fate == BOTH}
    for number, rates in found.items():
        course = courses[number]
        assert rates == {name: rate(done, course.lasting) for name, done in course.done.items()}


@given(COURSES, st.randoms())
def test_all_replicas_together_do_what_each_does_in_whatever_order_they_are(
    courses: list[Course], chance: object
) -> None:
    before, after = before_and_after(courses)
    found = rates_between(before, after)
    shuffled = list(before.replicas)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    together = rates_by_namespace(found)

    assert rates_between(dataclasses.replace(before, replicas=tuple(shuffled)), after) == found
    for name, total in together.items():
        each = [rates[name] for rates in found.values() if name in rates]
        assert math.isclose(total.settled_per_second, sum(it.settled_per_second for it in each))
        assert math.isclose(total.failed_per_second, sum(it.failed_per_second for it in each))


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
    before = activity(replica(1, then, is_partial=is_partial))
    after = activity(replica(1, now, at=START + dt.timedelta(milliseconds=lasting)))

    for rates in rates_between(before, after).values():
        for found in rates.values():
            assert min(dataclasses.astuple(found)) >= 0


@given(tallies(), tallies())
def test_the_mean_is_the_processor_time_per_attempt(then: StepTally, done: StepTally) -> None:
    before = activity(replica(1, {"orders": then}))
    after = activity(replica(1, {"orders": grown(then, done)}, at=START + seconds(2)))

    mean = rates_between(before, after)[1]["orders"].mean_processor_time

    if done.attempt_count:
        assert mean is not None
        expected = done.processor_time.total_seconds() / done.attempt_count
        assert math.isclose(mean.total_seconds(), expected, abs_tol=1e-6)
    else:
        assert mean is None


def test_a_namespace_missing_from_the_first_answer_counts_from_zero() -> None:
    done = StepTally(settled_count=10, attempt_count=10)
    after = activity(replica(1, {"orders": done}, at=START + seconds(5)))

    assert rates_between(activity(replica(1, {})), after)[1]["orders"] == rate(done, 5)


def test_a_namespace_missing_from_a_partial_answer_has_no_rate() -> None:
    after = activity(replica(1, {"orders": StepTally(settled_count=10)}, at=START + seconds(5)))
    before = activity(replica(1, {}, is_partial=True))

    assert rates_between(before, after) == {1: {}}


def test_without_a_new_heartbeat_the_known_rate_holds_until_the_replica_is_silent() -> None:
    known = {1: {"orders": StepRate(settled_per_second=3.0)}}
    before = activity(replica(1, {"orders": StepTally()}))
    silent = activity(replica(1, {"orders": StepTally()}, state=ReplicaState.SILENT))

    assert rates_between(before, before, known=known) == known
    assert rates_between(before, before) == {}
    assert rates_between(before, silent, known=known) == {}
    assert rates_between(activity(), before, known=known) == {}
