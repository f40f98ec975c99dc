"""Tallies: what this replica has done in each namespace, for the others to read off its heartbeats.

Beside the metrics, whose sets of labels are bounded: of hundreds of namespaces, by type and
settlement, some would end among the rest. A step costs 0.3 us here.
"""

import dataclasses
import datetime as dt

from progressor.domain.views.replica import Tally


@dataclasses.dataclass(slots=True)
class _Count:
    """A tally as it grows."""

    settled: int = 0
    attempts: int = 0
    failed: int = 0
    seconds: float = 0.0


class Tallies:
    """Counts on the event loop; read from any thread.

    One for each namespace that there is and that had a step here.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def answered(self, namespace: str, seconds: float, *, failed: bool) -> None:
        """Count an attempt that the processor answered or failed, after so long."""
        count = self._count(namespace)
        count.attempts += 1
        count.failed += failed
        count.seconds += seconds

    def settled(self, namespace: str) -> None:
        """Count an attempt whose outcome was written."""
        self._count(namespace).settled += 1

    def forget(self, namespace: str) -> None:
        """Let go of a namespace that was deleted; another of that name begins anew."""
        self._counts.pop(namespace, None)

    def of(self, namespace: str) -> Tally:
        """Return what was done in a namespace so far."""
        count = self._counts.get(namespace)
        if count is None:
            return Tally()
        return Tally(
            settled_count=count.settled,
            attempt_count=count.attempts,
            failed_count=count.failed,
            processor_time=dt.timedelta(seconds=count.seconds),
        )

    def _count(self, namespace: str) -> _Count:
        count = self._counts.get(namespace)
        if count is None:
            count = self._counts[namespace] = _Count()
        return count
