"""Backoff: pauses that grow, are spread, and begin anew."""

import pytest

from progressor.storage.postgres.backoff import SPREAD, Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, longest=3.0)

    assert [backoff.pause() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_they_begin_anew_after_a_success() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    backoff.pause()
    backoff.pause()
    backoff.reset()

    assert backoff.pause() == 0.5


@pytest.mark.parametrize("jitter", [-1.0, 1.0])
def test_the_jitter_spreads_each_pause_and_not_the_next(jitter: float) -> None:
    backoff = Backoff(first=0.5, longest=3.0, jitter=lambda: jitter)

    pauses = [backoff.pause() for _ in range(5)]

    plain = [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pauses == [pause * (1 + SPREAD * jitter) for pause in plain]
