"""Durations are written as people write them."""

import datetime as dt

import pytest

from progressor.cli.input.job_documents import duration_of
from progressor.cli.output.output import duration_text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (dt.timedelta(), "0s"),
        (dt.timedelta(microseconds=300), "0s"),
        (dt.timedelta(milliseconds=20), "20ms"),
        (dt.timedelta(seconds=1.5), "1.5s"),
        (dt.timedelta(seconds=60), "1m"),
        (dt.timedelta(minutes=5), "5m"),
        (dt.timedelta(minutes=90), "1h30m"),
        (dt.timedelta(days=1), "1d"),
        (dt.timedelta(days=366), "366d"),
        (dt.timedelta(days=1, seconds=1.25), "1d1.25s"),
        (dt.timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_a_duration_is_printed_in_its_units(duration: dt.timedelta, text: str) -> None:
    assert duration_text(duration) == text


@pytest.mark.parametrize("seconds", [1, 1.5, 90, 5400, 86_400, 90_061.5])
def test_a_printed_duration_can_be_read_back(seconds: float) -> None:
    duration = dt.timedelta(seconds=seconds)

    assert duration_of(duration_text(duration)) == duration
