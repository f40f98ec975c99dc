"""A visitor's language: their words, plurals, numbers and instants.

English is in the code and in the templates; a catalog beside this file translates it. Texts that
are chosen at run time are marked by `mark`, so that the test that compares catalogs finds them.
"""

import dataclasses
import datetime as dt
import functools
import gettext
import io
import re
import zoneinfo
from collections.abc import Iterable, Mapping
from pathlib import Path

from babel.dates import format_datetime, format_skeleton, get_day_names
from babel.lists import format_list
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.numbers import format_decimal

CATALOGS = Path(__file__).parent / "catalogs"

LANGUAGES: Mapping[str, str] = {
    "en": "English",
    "de": "Deutsch",
    "ru": "Русский",
    "zh": "中文",
}
"""By their codes, in their own words."""


def mark(text: str) -> str:
    """Return a text as it is: one that catalogs translate, and that is looked up later."""
    return text


@functools.cache
def _catalog(language: str) -> gettext.NullTranslations:
    path = CATALOGS / f"{language}.po"
    if language == "en" or not path.exists():
        return gettext.NullTranslations()
    # Read as text, so that no compiled file has to be kept in step with it.
    compiled = io.BytesIO()
    with path.open("rb") as file:
        write_mo(compiled, read_po(file, locale=language))
    compiled.seek(0)
    return gettext.GNUTranslations(compiled)


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """One language and one time zone."""

    language: str
    zone: str = "UTC"

    @property
    def catalog(self) -> gettext.NullTranslations:
        return _catalog(self.language)

    def __call__(self, text: str, **values: object) -> str:
        """Return a text in this language, with its `%(name)s` filled in."""
        found = self.catalog.gettext(text)
        return found % values if values else found

    def plural(self, one: str, many: str, count: int, **values: object) -> str:
        """Return the form for a count, which is also the value `count`."""
        found = self.catalog.ngettext(one, many, count)
        return found % {"count": self.number(count), **values}

    def number(self, value: float, pattern: str | None = None) -> str:
        return format_decimal(value, pattern, locale=self.language)

    def instant(self, instant: dt.datetime) -> str:
        """Return an instant in this zone, to the millisecond."""
        local = instant.astimezone(zoneinfo.ZoneInfo(self.zone))
        form = _MILLISECOND_FORMS.get(self.language, _MILLISECOND_FORMS["en"])
        return format_datetime(local, form, locale=self.language)

    def listed(self, items: Iterable[object]) -> str:
        """Return items as a list, as in "1, 2 and 3"."""
        return format_list([str(it) for it in items], locale=self.language)

    def clock(self, times: Iterable[dt.time]) -> str:
        """Return a list of times of day, by 24 hours."""
        return self.listed(f"{it:%H:%M}" for it in times)

    def weekdays(self, days: Iterable[int]) -> str:
        """Return a list of days of the week, from 0 for Monday."""
        names = get_day_names("wide", context="stand-alone", locale=self.language)
        return self.listed(names[it] for it in days)

    def date(self, month: int, day: int) -> str:
        """Return a day of each year."""
        return format_skeleton("MMMMd", dt.date(2000, month, day), locale=self.language)

    def duration(self, duration: dt.timedelta) -> str:
        """Return a duration by its two largest units, in symbols that all these languages use."""
        seconds = abs(duration.total_seconds())
        milliseconds = round(seconds * 1000)
        sign = "-" if duration < dt.timedelta() and milliseconds else ""
        if seconds < 1:
            return f"{sign}{self.number(milliseconds)} ms"
        if seconds < _MINUTE:
            return f"{sign}{self.number(round(seconds, 1))} s"
        days, left = divmod(int(seconds), 86_400)
        hours, left = divmod(left, 3_600)
        minutes, whole = divmod(left, _MINUTE)
        units = ((days, "d"), (hours, "h"), (minutes, "min"), (whole, "s"))
        first = next(place for place, (count, _) in enumerate(units) if count)
        shown = [
            f"{self.number(count)} {unit}" for count, unit in units[first : first + 2] if count
        ]
        return sign + " ".join(shown)


_MINUTE = 60
_MILLISECOND_FORMS = {
    "en": "yyyy-MM-dd HH:mm:ss.SSS",
    "de": "dd.MM.yyyy HH:mm:ss,SSS",
    "ru": "dd.MM.yyyy HH:mm:ss,SSS",
    "zh": "yyyy-MM-dd HH:mm:ss.SSS",
}
_ACCEPTED = re.compile(r"\s*([A-Za-z]{2,3})(?:-[A-Za-z0-9]+)*\s*(?:;\s*q=([\d.]{1,5}))?\s*")
_ACCEPTED_MAX = 1000


def language_of(accepted: str) -> str:
    """Return the language of ours that an Accept-Language header prefers; English otherwise."""
    found: list[tuple[float, str]] = []
    for part in accepted[:_ACCEPTED_MAX].split(","):
        match = _ACCEPTED.fullmatch(part)
        if match is not None and match[1].lower() in LANGUAGES:
            try:
                weight = float(match[2] or 1)
            except ValueError:
                continue
            found.append((weight, match[1].lower()))
    return max(found, key=lambda it: it[0], default=(1.0, "en"))[1]


def is_zone(name: str) -> bool:
    """Return whether a time zone has this name."""
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
