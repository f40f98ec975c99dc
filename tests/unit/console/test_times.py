"""That the shape of a cron expression, which is said in words, means the same as the expression."""

import datetime as dt
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.console.rendering.times import Shape, times_of
from progressor.domain.schedules.cron import CronClock, CronError
from progressor.sdk.client.schedules import Cron, Every

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAYS = 800
COMPARED = 60
SECONDS = {"second": 1, "minute": 60, "hour": 3_600}

DAILY = dt.timedelta(days=1)


def instants(shape: Shape) -> Iterator[dt.datetime]:
    """Yield what the words of a shape mean, in UTC, from BEGIN on."""
    for number in range(DAYS):
        day = BEGIN + number * DAILY
        if is_on(shape, day.date()):
            yield from (day + it for it in of_a_day(shape))


def is_on(shape: Shape, day: dt.date) -> bool:
    match shape.kind:
        case "week":
            return day.weekday() in shape.weekdays
        case "month":
            return day.day in shape.days
        case "month_end":
            return (day + DAILY).day == 1
        case "year":
            return (day.month, day.day) == (shape.month, shape.days[0])
        case _:
            return True


def of_a_day(shape: Shape) -> list[dt.timedelta]:
    if shape.kind == "interval":
        step = shape.count * SECONDS[shape.unit]
        return [dt.timedelta(seconds=it) for it in range(0, 86_400, step)]
    if shape.kind == "hour":
        return [dt.timedelta(hours=it, minutes=shape.minute) for it in range(0, 24, shape.count)]
    return [dt.timedelta(hours=it.hour, minutes=it.minute) for it in shape.clock]


minutes = st.sampled_from(["*", "0", "5", "*/15", "*/7", "0,30", "59", "1-3", "*/60"])
hours = st.sampled_from(["*", "0", "2", "*/6", "*/5", "8,20", "22-23", "*/1"])
days = st.sampled_from(["*", "1", "15,31", "L", "29", "1-3"])
months = st.sampled_from(["*", "1", "feb", "12", "1,7", "*/2"])
weekdays = st.sampled_from(["*", "mon", "1-5", "mon-fri", "0", "7", "sat,sun", "6,0", "fri#2"])
fields = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
with_seconds = st.tuples(st.sampled_from(["0", "*/10", "*", "30"]), fields).map(" ".join)
aliases = st.sampled_from(["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly"])


@given(expression=st.one_of(fields, with_seconds, aliases))
def test_words_mean_what_the_expression_does(expression: str) -> None:
    shape = times_of(Cron(expression))
    try:
        clock = CronClock(expression, "UTC")
    except CronError:
        return
    if shape.kind == "other":
        return
    expected = [*itertools.islice(instants(shape), COMPARED)]
    found, at = list[dt.datetime](), BEGIN - dt.timedelta(seconds=1)
    while len(found) < len(expected):
        following = clock.after(at)
        assert following is not None
        found.append(following)
        at = following
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("0 2 * * *", "day"),
        ("*/15 * * * *", "interval"),
        ("*/20 * * * * *", "interval"),
        ("30 8 * * mon-fri", "week"),
        ("0 0 1 * *", "month"),
        ("0 0 L * *", "month_end"),
        ("@yearly", "year"),
        ("5 */6 * * *", "hour"),
        ("*/7 * * * *", "other"),
        ("0 0 1 * mon", "other"),
        ("0 0 * * 5L", "other"),
        ("* 1 * * *", "other"),
    ],
)
def test_usual_expressions_have_words_and_others_none(expression: str, kind: str) -> None:
    assert times_of(Cron(expression)).kind == kind


@pytest.mark.parametrize(
    ("seconds", "count", "unit"),
    [(900, 15, "minute"), (7_200, 2, "hour"), (86_400, 1, "day"), (90, 90, "second")],
)
def test_an_interval_is_said_in_its_largest_whole_unit(seconds: int, count: int, unit: str) -> None:
    shape = times_of(Every(seconds))
    assert (shape.count, shape.unit) == (count, unit)
