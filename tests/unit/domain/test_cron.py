"""Cron: expressions, and what clocks that go forward or back make of them.

The tables were made by hand, from the zones' rules for 2026. `by_the_minute` computes the same in a
way that has nothing in common with the code: it looks at each minute of UTC, and at what the wall
shows then.
"""

import datetime as dt
import zoneinfo

import pytest

from progressor.domain.schedules.cron import CronClock, CronError

MINUTE = dt.timedelta(minutes=1)
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

# When clocks change, in UTC: an hour in the first two, half an hour in the third.
#   Berlin     2026-03-29 02:00 -> 03:00 (01:00Z),  2026-10-25 03:00 -> 02:00 (01:00Z)
#   New York   2026-03-08 02:00 -> 03:00 (07:00Z),  2026-11-01 02:00 -> 01:00 (06:00Z)
#   Lord Howe  2026-10-04 02:00 -> 02:30 (15:30Z the day before),
#              2026-04-05 02:00 -> 01:30 (15:00Z the day before)
FORWARD = [
    # Daily, in the time that is left out: when it would be over.
    (BERLIN, "30 2 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T00:30"]),
    (BERLIN, "0 2 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T00:00"]),
    (NEW_YORK, "30 2 * * *", "2026-03-07T12:00Z", ["03-08T07:00", "03-09T06:30"]),
    (LORD_HOWE, "15 2 * * *", "2026-10-03T12:00Z", ["10-03T15:30", "10-04T15:15"]),
    # Several of them: together once.
    (BERLIN, "0,20,40 2 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T00:00"]),
    # Together with the one that is due right then: once.
    (BERLIN, "0 2,3 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T00:00"]),
    # Just before and just behind it.
    (BERLIN, "59 1 * * *", "2026-03-28T12:00Z", ["03-29T00:59", "03-29T23:59"]),
    (BERLIN, "0 3 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T01:00"]),
    (LORD_HOWE, "30 2 * * *", "2026-10-03T12:00Z", ["10-03T15:30", "10-04T15:30"]),
    # Every hour: an hour that is left out is left out.
    (BERLIN, "30 * * * *", "2026-03-29T00:00Z", ["03-29T00:30", "03-29T01:30"]),
    (BERLIN, "0 * * * *", "2026-03-29T00:30Z", ["03-29T01:00", "03-29T02:00"]),
    (NEW_YORK, "*/30 * * * *", "2026-03-08T06:15Z", ["03-08T06:30", "03-08T07:00"]),
    (LORD_HOWE, "*/15 * * * *", "2026-10-03T15:10Z", ["10-03T15:15", "10-03T15:30"]),
    (LORD_HOWE, "10 * * * *", "2026-10-03T14:00Z", ["10-03T14:40", "10-03T16:10"]),
    # Each second hour: a daily table of hours, not an hourly one.
    (BERLIN, "0 */2 * * *", "2026-03-28T23:30Z", ["03-29T01:00", "03-29T02:00"]),
]
BACK = [
    # Daily, in the time that comes twice: the first time.
    (BERLIN, "30 2 * * *", "2026-10-24T12:00Z", ["10-25T00:30", "10-26T01:30"]),
    (BERLIN, "0 2 * * *", "2026-10-24T12:00Z", ["10-25T00:00", "10-26T01:00"]),
    (NEW_YORK, "30 1 * * *", "2026-10-31T12:00Z", ["11-01T05:30", "11-02T06:30"]),
    (LORD_HOWE, "45 1 * * *", "2026-04-04T12:00Z", ["04-04T14:45", "04-05T15:15"]),
    # Asked in between, or in the second of both hours.
    (BERLIN, "30 2 * * *", "2026-10-25T00:45Z", ["10-26T01:30", "10-27T01:30"]),
    (BERLIN, "30 2 * * *", "2026-10-25T01:15Z", ["10-26T01:30", "10-27T01:30"]),
    # Just before, and just behind.
    (BERLIN, "59 1 * * *", "2026-10-24T12:00Z", ["10-24T23:59", "10-26T00:59"]),
    (BERLIN, "0 3 * * *", "2026-10-24T12:00Z", ["10-25T02:00", "10-26T02:00"]),
    (LORD_HOWE, "0 2 * * *", "2026-04-04T12:00Z", ["04-04T15:30", "04-05T15:30"]),
    (LORD_HOWE, "0 */2 * * *", "2026-04-04T13:45Z", ["04-04T15:30", "04-04T17:30"]),
    # Every hour: an hour that comes twice fires twice.
    (BERLIN, "30 * * * *", "2026-10-25T00:00Z", ["10-25T00:30", "10-25T01:30"]),
    (NEW_YORK, "0 * * * *", "2026-11-01T04:30Z", ["11-01T05:00", "11-01T06:00"]),
    (LORD_HOWE, "45 * * * *", "2026-04-04T14:00Z", ["04-04T14:45", "04-04T15:15"]),
    (BERLIN, "0 */2 * * *", "2026-10-24T23:30Z", ["10-25T00:00", "10-25T03:00"]),
]
EXPRESSIONS = (
    "30 2 * * *", "15 2 * * *", "0 2 * * *", "30 1 * * *", "45 1 * * *", "0 0 * * *",
    "5 3 * * *", "0 * * * *", "45 * * * *", "*/30 * * * *", "* * * * *", "0 */2 * * *",
    "0,30 1-3 * * *", "* 2 * * *", "*/7 1,2 * * 0", "59 23 * * *", "0 2 1,15 * 1",
    "17 1-4 * * sat,sun",
)  # fmt: skip


def instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def following(clock: CronClock, after: dt.datetime, count: int) -> list[dt.datetime]:
    found: list[dt.datetime] = []
    for _ in range(count):
        upcoming = clock.after(after)
        assert upcoming is not None
        found.append(upcoming)
        after = upcoming
    return found


@pytest.mark.parametrize(("zone", "expression", "after", "expected"), FORWARD + BACK)
def test_clocks_that_go_forward_and_back(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    found = following(CronClock(expression, zone), instant(after), len(expected))

    assert [f"{each:%m-%dT%H:%M}" for each in found] == expected


def matches(expression: str, shown: dt.datetime) -> bool:
    """Tell whether a wall that shows this fires; of the expressions above alone."""
    minute, hour, day, month, weekday = expression.split()
    names = {name: n for n, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}

    def fits(field: str, value: int) -> bool:
        for part in field.split(","):
            span, _, step = part.partition("/")
            low, _, high = span.partition("-")
            first = 0 if low == "*" else names[low] if low in names else int(low)
            last = 10_000 if low == "*" else int(high) if high else first
            if first <= value <= last and (value - first) % int(step or 1) == 0:
                return True
        return False

    days = fits(day, shown.day), fits(weekday, shown.isoweekday() % 7)
    either = not (day.startswith("*") or weekday.startswith("*"))
    return (
        fits(minute, shown.minute)
        and fits(hour, shown.hour)
        and fits(month, shown.month)
        and (any(days) if either else all(days))
    )


def by_the_minute(
    expression: str, zone: str, start: dt.datetime, end: dt.datetime
) -> list[dt.datetime]:
    """Look at each minute from `start` to before `end`."""
    info = zoneinfo.ZoneInfo(zone)
    hours = expression.split()[1]
    is_hourly = hours == "*"
    found: list[dt.datetime] = []
    seen: set[dt.datetime] = set()
    at = start - 3 * 60 * MINUTE
    before: dt.datetime | None = None
    while at < end:
        shown = at.astimezone(info).replace(tzinfo=None, fold=0)
        skipped = 0 if before is None else max(0, (shown - before) // MINUTE - 1)
        left_out = [shown - (n + 1) * MINUTE for n in range(skipped)]
        fires = matches(expression, shown) and (is_hourly or shown not in seen)
        fires = fires or (not is_hourly and any(matches(expression, each) for each in left_out))
        if fires and at >= start:
            found.append(at)
        seen.add(shown)
        before = shown
        at += MINUTE
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        (BERLIN, "2026-03-28"), (BERLIN, "2026-10-24"), (NEW_YORK, "2026-03-07"),
        (NEW_YORK, "2026-10-31"), (LORD_HOWE, "2026-10-03"), (LORD_HOWE, "2026-04-04"),
    ],
)  # fmt: skip
def test_around_each_clock_change_it_matches_a_search_by_minutes(
    zone: str, day: str, expression: str
) -> None:
    start = instant(f"{day}T12:00Z")
    end = start + dt.timedelta(hours=20)
    clock = CronClock(expression, zone)

    found: list[dt.datetime] = []
    upcoming = clock.after(start - dt.timedelta(microseconds=1))
    while upcoming is not None and upcoming < end:
        found.append(upcoming)
        upcoming = clock.after(upcoming)

    assert found == by_the_minute(expression, zone, start, end)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * *", "2026-01-01T00:15Z"),
        ("@daily", "2026-01-02T00:00Z"),
        ("@Midnight", "2026-01-02T00:00Z"),
        ("@hourly", "2026-01-01T01:00Z"),
        ("@weekly", "2026-01-04T00:00Z"),
        ("@monthly", "2026-02-01T00:00Z"),
        ("@yearly", "2027-01-01T00:00Z"),
        ("@annually", "2027-01-01T00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00Z"),
        ("0 0 L * *", "2026-01-31T00:00Z"),
        ("0 0 LW * *", "2026-01-30T00:00Z"),
        ("0 0 * * mon#2", "2026-01-12T00:00Z"),
        ("0 0 * * 5L", "2026-01-30T00:00Z"),
        ("0 0 13 * 5", "2026-01-02T00:00Z"),
        ("0 0 * feb 7", "2026-02-01T00:00Z"),
        ("30 * * * * *", "2026-01-01T00:00:30Z"),
        ("*/20 59 23 31 12 *", "2026-12-31T23:59Z"),
        ("*/59 * * * *", "2026-01-01T00:59Z"),
        ("0 0 29 2 */7", "2032-02-29T00:00Z"),
    ],
)
def test_an_expression_is_read(expression: str, expected: str) -> None:
    assert CronClock(expression, "UTC").after(START) == instant(expected)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("61 * * * *", "'61' is not a valid minute, in '61 * * * *'"),
        ("* 25 * * *", "'25' is not a valid hour"),
        ("* * 32 * *", "'32' is not a valid day of month"),
        ("* * * 13 *", "'13' is not a valid month"),
        ("* * * * 8", "'8' is not a valid day of week"),
        ("60 * * * * *", "'60' is not a valid second"),
        ("*/0 * * * *", "'*/0' is not a valid minute"),
        ("5-1 * * * *", "'5-1' is not a valid minute"),
        ("* * *", "has 3 fields, not 5 (minute, hour, day of month, month, day of week) or 6"),
        ("", "has 0 fields"),
        ("@reboot", "has 1 fields"),
        ("0 0 30 2 *", "'30' is not a valid day of month"),
        ("0 0 31 4 *", "'31' is not a valid day of month"),
        ("0 0 * 2 1#6", "'1#6' is not a valid day of week"),
        ("L * * * *", "'L' is not a valid minute"),
        (
            "0 0 L/2 * *",
            "'L/2' in '0 0 L/2 * *' has a step; the last day of the month cannot have one",
        ),
        ("0 0 1,lw/2 * *", "'lw/2' in '0 0 1,lw/2 * *' has a step"),
        ("*/60 * * * *", "the step of '*/60' in '*/60 * * * *' must be at most 59, the highest"),
        ("0 1,*/24 * * *", "the step of '*/24' in '0 1,*/24 * * *' must be at most 23"),
        ("0 0 */32 * *", "must be at most 31, the highest day of month"),
        ("0 0 1 2/13 *", "must be at most 12, the highest month"),
        ("0 0 * * 1-5/8", "must be at most 7, the highest day of week"),
        ("5/99999999999999999999 0 0 * * *", "must be at most 59, the highest second"),
    ],
)
def test_a_bad_expression_says_what_is_wrong(expression: str, complaint: str) -> None:
    with pytest.raises(CronError) as caught:
        CronClock(expression, "UTC")

    assert complaint in str(caught.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "Europe"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(CronError, match="is not a time zone of the IANA database"):
        CronClock("* * * * *", zone)


def test_after_the_last_year_that_can_be_told_there_is_none() -> None:
    assert CronClock("0 0 1 1 *", "UTC").after(instant("9999-06-01T00:00Z")) is None


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("zone", ["UTC", BERLIN, LORD_HOWE])
@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24", "2026-04-04"])
def test_up_to_an_instant_the_same_is_found_and_nothing_behind_it(
    zone: str, day: str, expression: str
) -> None:
    clock, after = CronClock(expression, zone), instant(f"{day}T12:00Z")
    found = following(clock, after, 40)
    last = found[-1]

    for each in found:
        assert clock.after(after, last) == each
        assert clock.after(after, each) == each
        assert clock.after(after, each - dt.timedelta(microseconds=1)) is None
        after = each
