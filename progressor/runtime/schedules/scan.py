"""Schedules: run when they are due, by whichever replica comes first.

The loop knows when the next one is due and wakes for it; what others make, or change, it sees
within an interval. A claim divides the work; that each instant runs once is the business of one
transaction (``run_schedules``), so it does not matter who else is at it, or how late.

Runs that are queued are looked at each interval, some schedules a round, in the order of their
keys.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence

from progressor import errors
from progressor.domain.processes.process import SLOT_COUNT
from progressor.domain.schedules.cron import CronError
from progressor.domain.schedules.schedule import Calendar, Missed
from progressor.runtime.core.context import Context
from progressor.runtime.schedules.runs import ScheduleRuns
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.schedules.runs import (
    FIRST,
    DeletedTo,
    DueSchedule,
    Item,
    QueuedRun,
    StoredRuns,
    item_of,
)

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.25
_BACKOFF_SECONDS_MAX = 2.0

BATCH_MAX = 100
"""Schedules that one claim takes, and one transaction runs."""

QUEUED_MAX = 500
"""Schedules whose queued runs one round looks at."""

SLOTS_PER_ROUND = 32
"""Slots whose old runs one round deletes: with a round each 30 s, all are seen in 16 minutes."""

WINDOW = 1000
"""Runs that one transaction looks at to delete the old ones: some ten milliseconds."""

WINDOWS_PER_ROUND = 200
"""Windows per round; the rest is left to the next round."""

KEPT = 100
"""Runs of a schedule that are kept at most."""

KEPT_FOR = dt.timedelta(days=30)

CONFLICTS_MAX = 3
"""How often a batch that PostgreSQL undid for the sake of another is run again at once."""

# A timer of the event loop may come a little early, by PostgreSQL's clock.
_MARGIN_SECONDS = 0.001


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleScan:
    """Runs what is due, and what was queued."""

    runs: StoredRuns
    schedule_runs: ScheduleRuns
    interval: dt.timedelta
    lease: dt.timedelta
    context: Context
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set where a schedule was made or changed in this replica."""
    _cursor: list[QueuedRun] = dataclasses.field(default_factory=list)
    """The last one that the last round looked at, if there may be more behind it."""

    _slots: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.cycle(range(SLOT_COUNT))
    )
    _rest: list[tuple[int, DeletedTo]] = dataclasses.field(default_factory=list)
    """The slot in which the last round ended, and where in it."""

    async def run(self) -> None:
        """Run what is due, when it is due; ends only by cancellation."""
        backoff = Backoff(
            first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self.context.jitter
        )
        while True:
            self.changed.clear()
            try:
                if await self.run_due() < BATCH_MAX:
                    await self._next()
                backoff.reset()
            except errors.StorageUnavailableError as error:
                _log.warning("schedules not run", extra={"why": error.why})
                self.context.metrics.scans_failed.add(1, ("schedules",))
                await asyncio.sleep(backoff.pause())
            except errors.StorageRefusedError as error:
                _log.error("schedules not run", extra={"why": str(error)})
                self.context.metrics.scans_failed.add(1, ("schedules",))
                await asyncio.sleep(backoff.pause())

    async def run_due(self) -> int:
        """Run what is due, at most BATCH_MAX; return how many were."""
        due = await self.runs.claim_due(limit=BATCH_MAX, lease=self.lease)
        self.context.observers.tell("schedules_claimed", count=len(due))
        planned: list[Item] = []
        for each in due:
            item = self.planned(each)
            if item is not None:
                planned.append(item)
                if isinstance(item.what, Missed):
                    # To count what was missed in a long downtime takes a while for each.
                    await asyncio.sleep(0)
        for items in _by_kind(planned):
            await self._run_batch(items)
        return len(due)

    async def scan(self) -> None:
        """Start queued runs of which nothing is at work any more."""
        after = self._cursor.pop().schedule.key if self._cursor else FIRST
        found = await self.runs.find_queued(after=after, limit=QUEUED_MAX)
        if len(found) == QUEUED_MAX:
            self._cursor.append(found[-1])
        ready = (_queued_item(each) for each in found if each.is_ready)
        for items in _by_kind(ready):
            await self._run_batch(items)

    async def forget(self) -> None:
        """Delete the record of old runs, of some slots a round, a window in a transaction."""
        windows = WINDOWS_PER_ROUND
        for _ in range(SLOTS_PER_ROUND):
            at: DeletedTo | None
            slot, at = self._rest.pop() if self._rest else (next(self._slots), DeletedTo())
            while at is not None and windows:
                deleted = await self.runs.delete_old(
                    slot, at, kept=KEPT, age=KEPT_FOR, limit=WINDOW
                )
                at = deleted.next
                windows -= 1
            if at is not None:
                self._rest.append((slot, at))
                return

    async def _next(self) -> None:
        seconds = await self.runs.seconds_until_due()
        wait = self.interval.total_seconds()
        if seconds is not None:
            wait = min(wait, seconds + _MARGIN_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self.changed.wait()

    def planned(self, due: DueSchedule) -> Item | None:
        """Return what is to be done with a schedule that is due; None: this replica cannot tell."""
        try:
            calendar = Calendar(due.schedule.key, due.timing)
        except CronError as error:
            # Checked when it was made: this replica knows fewer zones than that one.
            key = due.schedule.key
            facts = {"namespace": key.namespace, "schedule_id": key.schedule_id, "why": str(error)}
            _log.error("schedule not run", extra=facts)
            return None
        return item_of(due, calendar.plan(due.upcoming, due.now))

    async def _run_batch(self, items: Sequence[Item]) -> None:
        """Run a batch; where it fails as a whole, each alone."""
        for _ in range(CONFLICTS_MAX):
            try:
                await self.schedule_runs.run(items)
            except errors.StorageLockedError:
                break
            except errors.StorageConflictError:
                continue
            except errors.StorageRefusedError as error:
                if len(items) == 1:
                    self._tell_refused(items[0], error)
                break
            return
        if len(items) > 1:
            for item in items:
                await self._run_batch([item])

    def _tell_refused(self, item: Item, error: errors.StorageRefusedError) -> None:
        # Its claim runs out, and it is tried again: nothing that runs it differently.
        key = item.schedule.key
        facts = {"namespace": key.namespace, "schedule_id": key.schedule_id, "why": str(error)}
        _log.error("schedule not run", extra=facts)
        self.context.metrics.scans_failed.add(1, ("schedules",))


def _by_kind(items: Iterable[Item]) -> list[list[Item]]:
    kinds: dict[str, list[Item]] = {}
    for item in items:
        kinds.setdefault(item.schedule.kind, []).append(item)
    return list(kinds.values())


def _queued_item(queued: QueuedRun) -> Item:
    return Item(
        schedule=queued.schedule,
        what=queued.upcoming,
        cause=queued.cause,
        policy=queued.policy,
        was_queued=True,
    )
