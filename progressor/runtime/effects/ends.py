"""Ends: how the end of a process reaches the callers who wait for it in this replica.

The process has this replica's id in its row (``awaited_by``). Whatever ends it, or breaks it,
reports that with the id of its init task, here or by a notification (``replies``); then the end is
read. Where notifications do not get through, a safety net reads the oldest waits every few seconds.
It also finds the end of a follower that got a new init task by a retry of its job.

The instant of its creation distinguishes a process from a later one with the same id.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Iterable, Sequence

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import End, ProcessEnd
from progressor.runtime.core.context import Context
from progressor.storage.processes.results import Results

EARLY_MAX = 10_000
FETCH_MAX = 100
SAFETY_SECONDS = 5.0
_BACKOFF_SECONDS = 0.5, 4.0

EndWaiter = asyncio.Future[ProcessEnd]


@dataclasses.dataclass(slots=True, eq=False)
class _Awaited:
    key: ProcessKey
    begun: ProcessEnd
    since: float
    waiters: dict[EndWaiter, bool] = dataclasses.field(default_factory=dict)
    """True: waits until the process is finished, through any error."""


class Ends:
    """The callers in this replica who wait for ends of processes."""

    def __init__(self, *, results: Results, context: Context) -> None:
        self._results, self._context, self._clock = results, context, context.clock
        self._awaited: dict[int, _Awaited] = {}
        # Processes that ended recently: the end may be reported before the wait has begun.
        self._early: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._wanted: dict[int, None] = {}
        self._fetch_wanted = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        return sum(len(awaited.waiters) for awaited in self._awaited.values())

    def expect(
        self, key: ProcessKey, begun: ProcessEnd, waiter: EndWaiter, *, until_finished: bool
    ) -> None:
        """Resolve a future with the end of a process, which had not ended as it was read."""
        task_id = begun.init_task_id
        awaited = self._awaited.get(task_id)
        if awaited is None:
            awaited = self._awaited[task_id] = _Awaited(key, begun, self._clock.monotonic())
        awaited.waiters[waiter] = until_finished
        if task_id in self._early:
            self._want([task_id])

    def forget(self, begun: ProcessEnd, waiter: EndWaiter) -> None:
        awaited = self._awaited.get(begun.init_task_id)
        if awaited is not None:
            awaited.waiters.pop(waiter, None)
            if not awaited.waiters:
                del self._awaited[begun.init_task_id]

    def look(self, init_task_ids: Iterable[int]) -> None:
        """Read the ends of awaited processes, given by their init tasks."""
        for task_id in init_task_ids:
            if task_id in self._awaited:
                self._want([task_id])
            else:
                self._early[task_id] = None
                if len(self._early) > EARLY_MAX:
                    self._early.popitem(last=False)

    def look_at_all(self) -> None:
        self._want(self._awaited)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_fetcher(), name="ends fetcher")
            group.create_task(self._run_safety_net(), name="ends safety net")

    def _want(self, task_ids: Iterable[int]) -> None:
        self._wanted.update(dict.fromkeys(task_ids))
        self._fetch_wanted.set()

    async def _run_fetcher(self) -> None:
        backoff = self._context.backoff(*_BACKOFF_SECONDS)
        while True:
            await self._fetch_wanted.wait()
            self._fetch_wanted.clear()
            while self._wanted:
                ids = list(self._wanted)[:FETCH_MAX]
                # Removed before they are read: what is reported meanwhile is read again.
                for task_id in ids:
                    del self._wanted[task_id]
                batch = [self._awaited[task_id] for task_id in ids if task_id in self._awaited]
                if not batch:
                    continue
                try:
                    found = await self._results.read_ends([awaited.key for awaited in batch])
                    backoff.reset()
                except errors.StorageError:
                    # The safety net retries.
                    await asyncio.sleep(backoff.pause())
                    break
                self._deliver(batch, found)

    def _deliver(self, batch: Sequence[_Awaited], found: Sequence[ProcessEnd | None]) -> None:
        for awaited, read in zip(batch, found, strict=True):
            end = read
            if end is None or end.created_at != awaited.begun.created_at:
                end = dataclasses.replace(awaited.begun, verdict=End.REMOVED)
            for waiter, until_finished in awaited.waiters.items():
                if end.ends_wait(until_finished=until_finished) and not waiter.done():
                    waiter.set_result(end)
            self._context.observers.tell("end_fetched", key=awaited.key, end=end.verdict)

    async def _run_safety_net(self) -> None:
        while True:
            await asyncio.sleep(SAFETY_SECONDS)
            before = self._clock.monotonic() - SAFETY_SECONDS
            old: list[int] = []
            for task_id, awaited in self._awaited.items():
                if awaited.since > before or len(old) == FETCH_MAX:
                    break
                old.append(task_id)
            # These go to the end of the queue, so that all have their turn.
            for task_id in old:
                awaited = self._awaited.pop(task_id)
                awaited.since = self._clock.monotonic()
                self._awaited[task_id] = awaited
            self._want(old)
