"""The usual shapes of the times of a schedule, so that templates can say them in any language.

A cron expression of another shape has no words: it is shown as it is.
"""

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from progressor.domain.schedules.cron import ALIASES
from progressor.sdk.client.schedules import Cron, Every, Times
from progressor.sdk.codec.wire import timedelta_of

Kind = Literal["interval", "hour", "day", "week", "month", "month_end", "year", "other"]
Unit = Literal["second", "minute", "hour", "day", ""]

_UNITS: Mapping[Unit, int] = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
_MINUTES, _HOURS = 60, 24
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIMES_MAX = 6
"""Times of day in one sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What times are like.

    ``count`` units: between two of them, of an interval. ``minute``: of each hour. ``clock``: the
    times of day. ``weekdays``: from 0 for Monday; ``days``: of the month; ``month``: from 1.
    """

    kind: Kind
    count: int = 1
    unit: Unit = ""
    interval: dt.timedelta | None = None
    minute: int = 0
    clock: tuple[dt.time, ...] = ()
    weekdays: tuple[int, ...] = ()
    days: tuple[int, ...] = ()
    month: int = 0


_OTHER = Shape(kind="other")


def times_of(times: Times) -> Shape:
    """Return the shape of times, "other" for one without words."""
    if isinstance(times, Every):
        return _every(timedelta_of(times.interval))
    return _cron(times)


def _every(interval: dt.timedelta) -> Shape:
    seconds = interval.total_seconds()
    for unit, length in _UNITS.items():
        if seconds % length == 0:
            return Shape(kind="interval", count=int(seconds) // length, unit=unit)
    return Shape(kind="interval", interval=interval)


def _cron(cron: Cron) -> Shape:
    text = cron.expression.strip().lower()
    fields = ALIASES.get(text, text).split()
    if len(fields) == len(_FIELDS):
        step = _step(fields[0], _MINUTES)
        if step and {*fields[1:]} == {"*"}:
            return Shape(kind="interval", count=step, unit="second")
        if fields.pop(0) != "0":
            return _OTHER
    if len(fields) != len(_FIELDS) - 1:
        return _OTHER
    minutes, hours, days, months, weekdays = fields
    if (days, months, weekdays) == ("*", "*", "*"):
        often = _often(minutes, hours)
        if often is not None:
            return often
    clock = _clock(minutes, hours)
    return _dated(clock, days, months, weekdays) if clock else _OTHER


_FIELDS = ("second", "minute", "hour", "day", "month", "weekday")


def _often(minutes: str, hours: str) -> Shape | None:
    """Return the shape of times that come within each hour, or every few hours."""
    step = _step(minutes, _MINUTES)
    if step and hours == "*":
        return Shape(kind="interval", count=step, unit="minute")
    minute = _numbers(minutes, 0, _MINUTES - 1)
    hour_step = _step(hours, _HOURS)
    if len(minute) == 1 and hour_step:
        return Shape(kind="hour", count=hour_step, minute=minute[0])
    return None


def _clock(minutes: str, hours: str) -> tuple[dt.time, ...]:
    """Return the times of day; none if they are too many for a sentence."""
    found = [
        dt.time(hour, minute)
        for hour in _numbers(hours, 0, _HOURS - 1)
        for minute in _numbers(minutes, 0, _MINUTES - 1)
    ]
    return tuple(found) if len(found) <= _TIMES_MAX else ()


def _dated(clock: tuple[dt.time, ...], days: str, months: str, weekdays: str) -> Shape:
    match (days, months, weekdays):
        case ("*", "*", "*"):
            return Shape(kind="day", clock=clock)
        case ("*", "*", _):
            found = sorted({(it - 1) % 7 for it in _numbers(weekdays, 0, 7, _DAYS)})
            return Shape(kind="week", clock=clock, weekdays=tuple(found)) if found else _OTHER
        case ("l", "*", "*"):
            return Shape(kind="month_end", clock=clock)
        case (_, _, "*"):
            return _on_dates(clock, _numbers(days, 1, 31), months)
        case _:
            return _OTHER


def _on_dates(clock: tuple[dt.time, ...], days: Sequence[int], months: str) -> Shape:
    if days and months == "*":
        return Shape(kind="month", clock=clock, days=tuple(days))
    month = _numbers(months, 1, 12, _MONTHS, first=1)
    if len(days) == len(month) == 1:
        return Shape(kind="year", clock=clock, days=tuple(days), month=month[0])
    return _OTHER


def _step(field: str, whole: int) -> int:
    """Return how far apart the values of a field are; 0: not evenly."""
    if field == "*":
        return 1
    found = re.fullmatch(r"\*/([0-9]{1,2})", field)
    step = int(found[1]) if found else 0
    return step if step and whole % step == 0 else 0


def _numbers(
    field: str, lowest: int, highest: int, names: Sequence[str] = (), *, first: int = 0
) -> list[int]:
    """Return the values of a list of numbers, names and ranges, in order; none of another field."""
    found: set[int] = set()
    for part in field.split(","):
        begin, dash, end = part.partition("-")
        low = _number(begin, names, first)
        high = _number(end, names, first) if dash else low
        if low is None or high is None or not lowest <= low <= high <= highest:
            return []
        found |= {*range(low, high + 1)}
    return sorted(found)


def _number(text: str, names: Sequence[str], first: int) -> int | None:
    if text in names:
        return names.index(text) + first
    return int(text) if re.fullmatch(r"[0-9]{1,2}", text) else None
