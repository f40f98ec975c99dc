"""Cron: instants by the fields of a clock on the wall, in a time zone.

Where the offset of a zone changes, the clock leaves times out or shows them twice:

=====================  ==========================  ========================================
the expression fires   times that are left out     times that come twice
=====================  ==========================  ========================================
each hour              are left out                fire twice: an hour is an hour
at hours of the day    fire when the next span     fire the first time only
                       begins, together once
=====================  ==========================  ========================================

So a daily job runs once a day, and an hourly one 23, 24 or 25 times, as with Vixie's cron. The
times on the wall come from cronsim, which is asked without a zone: by itself it leaves out 02:00 in
Lord Howe on the day when clocks there go back by half an hour.
"""

import datetime as dt
import zoneinfo
from collections.abc import Mapping
from types import MappingProxyType

from cronsim import CronSim, CronSimError

EXPRESSION_BYTES_MAX = 256
_HOURS = 24
_FIELDS_WITH_SECONDS = 6
_DAY = dt.timedelta(days=1)
_SECOND = dt.timedelta(seconds=1)
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
_FIELDS = (
    ("second", 59),
    ("minute", 59),
    ("hour", 23),
    ("day-of-month", 31),
    ("month", 12),
    ("day-of-week", 7),
)
"""The fields, and the highest number of each."""

_SOME_DAY = dt.datetime(2000, 1, 1)  # noqa: DTZ001  times on the wall have no zone


class CronError(ValueError):
    """An invalid expression or time zone; the message says what is wrong."""


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """Return a zone of the IANA database; raises CronError if it has none of this name."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"{name!r} is not a time zone of the IANA database, as Europe/Berlin is"
        raise CronError(message) from error


class CronClock:
    """The instants of an expression in a zone."""

    __slots__ = ("_expression", "_has_one_offset", "_is_hourly", "_zone")

    def __init__(self, expression: str, time_zone: str) -> None:
        """Read both.

        Raises:
            CronError: One of them is invalid, or the expression never fires.
        """
        text = expression.strip()
        self._zone = zone_of(time_zone)
        self._expression = ALIASES.get(text.lower(), text)
        try:
            parsed = CronSim(self._expression, _SOME_DAY)
            next(parsed)
        except CronSimError as error:
            raise CronError(_explained(text, str(error))) from error
        except StopIteration as error:
            message = f"{text!r} never fires: no day is like that"
            raise CronError(message) from error
        except (AssertionError, ValueError, IndexError) as error:
            # What the library trips over instead of refusing, such as a step of the last day.
            message = f"{text!r} is not a cron expression"
            raise CronError(message) from error
        for name, field in zip(reversed(_FIELDS), reversed(self._expression.split()), strict=False):
            _check_steps(text, name, field)
        self._is_hourly = len(parsed.hours) == _HOURS
        self._has_one_offset = self._zone.utcoffset(None) is not None

    def after(self, instant: dt.datetime, until: dt.datetime | None = None) -> dt.datetime | None:
        """Return the first instant after `instant`, in UTC; None: there is none for 50 years.

        Where it is after `until`, that is all that is found out: None is returned, too. To find an
        instant costs a look at each day up to it, to find out so much one at each up to `until`.
        """
        at = instant.astimezone(dt.UTC)
        offset = self._offset(at)
        match = self._match_after(at.replace(tzinfo=None) + offset)
        while match is not None:
            candidate = match.replace(tzinfo=dt.UTC) - offset
            end = candidate if until is None else min(candidate, until)
            change = self._change_between(at, end, offset)
            if change is None:
                if end < candidate:
                    return None
                if self._is_hourly or not self._comes_again(candidate):
                    return candidate
                match = self._match_after(match)
                continue
            at, offset = change, self._offset(change)
            shown = change.replace(tzinfo=None) + offset
            if self._is_hourly:
                match = self._match_after(shown - _SECOND)
            elif match < shown:
                return change
        return None

    def _offset(self, instant: dt.datetime) -> dt.timedelta:
        offset = instant.astimezone(self._zone).utcoffset()
        assert offset is not None, "a zone has an offset at any instant"
        return offset

    def _comes_again(self, instant: dt.datetime) -> bool:
        """Return whether the local time of an instant occurs for the second time."""
        return instant.astimezone(self._zone).fold == 1

    def _match_after(self, shown: dt.datetime) -> dt.datetime | None:
        try:
            return next(CronSim(self._expression, shown))
        except (StopIteration, OverflowError):
            return None

    def _change_between(
        self, at: dt.datetime, until: dt.datetime, offset: dt.timedelta
    ) -> dt.datetime | None:
        """Return the first instant after `at`, up to `until`, with another offset.

        Two changes within one day would be overlooked: no zone has them.
        """
        if self._has_one_offset:
            return None
        while at < until:
            upper = min(at + _DAY, until)
            if self._offset(upper) != offset:
                return self._change_within(at, upper, offset)
            at = upper
        return None

    def _change_within(
        self, lower: dt.datetime, upper: dt.datetime, offset: dt.timedelta
    ) -> dt.datetime:
        # Offsets change at whole seconds.
        lower = lower.replace(microsecond=0)
        seconds = -((lower - upper) // _SECOND)
        low, high = 0, seconds
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(lower + middle * _SECOND) == offset:
                low = middle
            else:
                high = middle
        return lower + high * _SECOND


def _explained(expression: str, complaint: str) -> str:
    fields = expression.split()
    if len(fields) not in {_FIELDS_WITH_SECONDS - 1, _FIELDS_WITH_SECONDS}:
        return (
            f"{expression!r} has {len(fields)} fields, not 5 (minute, hour, day of month, month, "
            "day of week) or 6 (seconds before them)"
        )
    for (name, _), value in zip(_FIELDS[_FIELDS_WITH_SECONDS - len(fields) :], fields, strict=True):
        if complaint.endswith(f" {name}"):
            return f"{value!r} is not a valid {name.replace('-', ' ')}, in {expression!r}"
    return f"{expression!r} is not a cron expression: {complaint}"


def _check_steps(expression: str, field: tuple[str, int], value: str) -> None:
    """Refuse a step of the last day, or beyond the highest number: the library ignores these."""
    name, highest = field[0].replace("-", " "), field[1]
    for term in value.split(","):
        stepped, slash, step = term.partition("/")
        if not slash:
            continue
        if stepped.upper() in {"L", "LW"}:
            message = (
                f"{term!r} in {expression!r} has a step; the last day of the month cannot have one"
            )
            raise CronError(message)
        if int(step) > highest:
            message = (
                f"the step of {term!r} in {expression!r} must be at most {highest}, the highest "
                f"{name}"
            )
            raise CronError(message)
