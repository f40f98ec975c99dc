"""Rates: what the engine did between two answers, kept for as long as a chart shows."""

import collections
import datetime as dt
from typing import NamedTuple

from progressor.domain.access.answers import Identity
from progressor.sdk.client.overview import Meter, Overview
from progressor.sdk.client.replicas import Activity

SHOWN = dt.timedelta(minutes=5)
_IDENTITIES_MAX = 200


class Rate(NamedTuple):
    """Settled and failed steps per second at an instant."""

    at: dt.datetime
    settled: float
    failed: float


class _Course:
    def __init__(self) -> None:
        self.meter = Meter()
        self.rates: collections.deque[Rate] = collections.deque()
        self.last: Overview | None = None


class Meters:
    """The rates of an engine, for each identity: each may see other namespaces."""

    def __init__(self) -> None:
        self._courses: collections.OrderedDict[Identity, _Course] = collections.OrderedDict()

    def read(self, identity: Identity, activity: Activity) -> tuple[Overview, tuple[Rate, ...]]:
        """Return the overview of an activity, and the rates of the last minutes, oldest first."""
        course = self._courses.setdefault(identity, _Course())
        self._courses.move_to_end(identity)
        while len(self._courses) > _IDENTITIES_MAX:
            self._courses.popitem(last=False)
        if course.last is not None and activity.read_at <= course.last.read_at:
            return course.last, tuple(course.rates)
        course.last = overview = course.meter.read(activity)
        pace = overview.totals.pace
        if pace.settled_per_second is not None:
            failed = pace.failed_per_second or 0.0
            course.rates.append(Rate(activity.read_at, pace.settled_per_second, failed))
        while course.rates and course.rates[0].at < activity.read_at - SHOWN:
            course.rates.popleft()
        return overview, tuple(course.rates)

    def last(self, identity: Identity) -> tuple[Overview, tuple[Rate, ...]] | None:
        """Return what was read last; None: nothing was."""
        course = self._courses.get(identity)
        return None if course is None or course.last is None else (course.last, tuple(course.rates))
