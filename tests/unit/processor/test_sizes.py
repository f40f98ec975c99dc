"""The largest recent steps: which are reported, and for how long."""

import pytest

from progressor.domain.views.replica import StepSize
from progressor.processor.sizes import TOLD_SECONDS, Sizes
from tests.support.builders import make_key, seconds
from tests.support.clock import ManualClock

KEY = make_key()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sizes(clock: ManualClock) -> Sizes:
    return Sizes(clock)


def step(size: int, process_id: str = KEY.process_id, limit: int = 100) -> StepSize:
    return StepSize(process_id=process_id, size_bytes=size, limit_bytes=limit)


@pytest.mark.parametrize(("size", "is_told"), [(49, False), (50, True), (100, True), (101, True)])
def test_a_step_is_told_from_half_of_its_limit_on(
    sizes: Sizes,
    size: int,
    is_told: bool,  # from the table
) -> None:
    sizes.note(KEY, size=size, limit=100)

    assert sizes.largest() == ({KEY.namespace: step(size)} if is_told else {})


def test_the_nearest_to_its_limit_is_told(sizes: Sizes) -> None:
    other = make_key("other")
    sizes.note(KEY, size=60, limit=100)
    sizes.note(other, size=70, limit=100)
    sizes.note(KEY, size=100, limit=200)

    assert sizes.largest() == {KEY.namespace: step(70, "other")}


def test_it_is_told_for_ten_minutes_unless_it_comes_again(sizes: Sizes, clock: ManualClock) -> None:
    sizes.note(KEY, size=60, limit=100)
    clock.advance(seconds(TOLD_SECONDS - 1))
    sizes.note(KEY, size=60, limit=100)
    clock.advance(seconds(TOLD_SECONDS - 1))
    again = sizes.largest()
    clock.advance(seconds(1))

    assert (again, sizes.largest()) == ({KEY.namespace: step(60)}, {})


def test_a_smaller_one_takes_the_place_of_one_that_is_old(sizes: Sizes, clock: ManualClock) -> None:
    sizes.note(KEY, size=90, limit=100)
    sizes.note(KEY, size=60, limit=100)
    clock.advance(seconds(TOLD_SECONDS))
    sizes.note(KEY, size=60, limit=100)

    assert sizes.largest() == {KEY.namespace: step(60)}
