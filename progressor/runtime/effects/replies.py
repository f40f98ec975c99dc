"""Replies: how the end of a task reaches the callers who wait for it in this replica.

A task that this replica carries is answered from memory the moment it is settled. A task that
another replica carries has this replica's id in its row (reply_to): who settles it sends a
notification, and the result is read. Where notifications do not get through (a pooler, a broken
connection), a slow round over the oldest expectations finds the result all the same.
"""

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Protocol

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskResult
from progressor.runtime.core.measures import MILLISECONDS
from progressor.runtime.core.observer import Observers
from progressor.storage.postgres.backoff import Backoff, steady
from progressor.storage.processes.results import Word
from progressor.telemetry.instruments import Labels
from progressor.telemetry.metrics.registry import Metrics

Waiter = asyncio.Future[TaskResult]

EARLY_MAX = 10_000
FETCH_MAX = 500
_SAFETY_SECONDS = 1.0
_BACKOFF_SECONDS = 0.5
_BACKOFF_SECONDS_MAX = 4.0
_LOCAL: Labels = ("local",)
_REMOTE: Labels = ("remote",)

OUTGOING_MAX = 100_000
"""Tasks of which other replicas are still to be told; what is more they find out by themselves."""


class Results(Protocol):
    """What replies need of storage."""

    async def fetch(self, tasks: Mapping[int, ProcessKey]) -> list[TaskResult]:
        """Return how tasks ended, for those that have."""

    async def notify(self, ended: Mapping[int, list[int]]) -> None:
        """Tell replicas of ended tasks."""


@dataclasses.dataclass(slots=True)
class _Expected:
    key: ProcessKey
    waiters: list[Waiter]
    since: float


class Replies:
    """The callers who wait here."""

    def __init__(  # noqa: PLR0913  a composition root's business
        self,
        *,
        results: Results,
        listen: Callable[[], AsyncIterator[Word]],
        on_due: Callable[[], None],
        carried: Callable[[int], bool],
        clock: Clock,
        observers: Observers,
        jitter: Callable[[], float] = steady,
        metrics: Metrics | None = None,
    ) -> None:
        """Open nothing.

        Args:
            results: Where results are read and notifications sent.
            listen: Yields what other replicas say until the connection breaks.
            on_due: Called when another replica leaves due tasks to this one.
            carried: Whether this replica carries a task at the moment.
            clock: For the age of expectations.
            observers: Told of what only the slow round has found.
            jitter: Spreads the pauses of an outage, from -1 to 1.
            metrics: Where to count.
        """
        self._results = results
        self._listen = listen
        self._on_due = on_due
        self._carried = carried
        self._clock = clock
        self._observers = observers
        self._jitter = jitter
        self._metrics = metrics or Metrics()
        self._metrics.callers_waiting.read_from(lambda: [((), self.waiting_count)])
        self._expected: dict[int, _Expected] = {}
        # Tasks that have ended lately. An admission and a settlement answer over different
        # connections: a caller who joined a task in time may be told so after its end was.
        self._early: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._wanted: dict[int, None] = {}
        self._outgoing: dict[int, list[int]] = {}
        self._outgoing_labels: set[Labels] = set()
        self._outgoing_count = 0
        self._fetch_wanted = asyncio.Event()
        self._send_wanted = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Tasks that are waited for."""
        return len(self._expected)

    def expect(self, task_id: int, key: ProcessKey, waiter: Waiter) -> None:
        """Resolve `waiter` once the task has ended."""
        expected = self._expected.get(task_id)
        if expected is None:
            expected = _Expected(key, [], self._clock.monotonic())
            self._expected[task_id] = expected
        expected.waiters.append(waiter)
        if task_id in self._early:
            self._want([task_id])

    def forget(self, task_id: int, waiter: Waiter) -> None:
        """Drop a waiter whose caller has gone."""
        expected = self._expected.get(task_id)
        if expected is not None and waiter in expected.waiters:
            expected.waiters.remove(waiter)
            if not expected.waiters:
                del self._expected[task_id]

    def deliver(
        self,
        result: TaskResult,
        *,
        reply_to: Iterable[int] = (),
        own: int = 0,
        namespace: str = "",
    ) -> None:
        """Answer those who wait here, and send word to the other replicas in `reply_to`."""
        self._answer(result, _LOCAL)
        for replica_id in reply_to:
            if replica_id != own:
                self._tell(replica_id, result.task_id, (namespace, result.task_type))

    async def run(self) -> None:
        """Listen, fetch, send and look after, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_listener(), name="replies listener")
            group.create_task(self._run_fetcher(), name="replies fetcher")
            group.create_task(self._run_sender(), name="replies sender")
            group.create_task(self._run_safety_net(), name="replies safety net")

    def _answer(self, result: TaskResult, way: Labels) -> None:
        self._note_early(result.task_id)
        expected = self._expected.pop(result.task_id, None)
        if expected is not None:
            self._metrics.replies.add(1, way)
            for waiter in expected.waiters:
                if not waiter.done():
                    waiter.set_result(result)

    def _tell(self, replica_id: int, task_id: int, labels: Labels) -> None:
        if self._outgoing_count >= OUTGOING_MAX:
            self._lose_notifications(1)
            return
        self._outgoing.setdefault(replica_id, []).append(task_id)
        self._outgoing_labels.add(labels)
        self._outgoing_count += 1
        self._send_wanted.set()

    def _lose_notifications(self, count: int) -> None:
        self._metrics.notifications_lost.add(count)
        self._observers.tell("notification_lost", replicas=count)

    def _backoff(self) -> Backoff:
        return Backoff(first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self._jitter)

    def _want(self, task_ids: Iterable[int]) -> None:
        self._wanted.update(dict.fromkeys(task_ids))
        self._fetch_wanted.set()

    async def _run_listener(self) -> None:
        backoff = self._backoff()
        while True:
            try:
                async for word in self._listen():
                    backoff.reset()
                    self._heard(word)
            except errors.StorageError:
                await asyncio.sleep(backoff.pause())

    def _heard(self, word: Word) -> None:
        if word.work_is_due:
            self._on_due()
        elif not word.task_ids:
            # Listening (again): whatever ended before this was not heard of.
            self._want(task_id for task_id in self._expected if not self._carried(task_id))
        for task_id in word.task_ids:
            if task_id in self._expected:
                self._want([task_id])
            else:
                self._note_early(task_id)

    def _note_early(self, task_id: int) -> None:
        self._early[task_id] = None
        if len(self._early) > EARLY_MAX:
            self._early.popitem(last=False)

    async def _run_fetcher(self) -> None:
        backoff = self._backoff()
        while True:
            await self._fetch_wanted.wait()
            self._fetch_wanted.clear()
            while self._wanted:
                ids = list(self._wanted)[:FETCH_MAX]
                asked = {
                    task_id: self._expected[task_id].key
                    for task_id in ids
                    if task_id in self._expected
                }
                for task_id in ids:
                    del self._wanted[task_id]
                try:
                    found = await self._results.fetch(asked) if asked else []
                    backoff.reset()
                except errors.StorageError:
                    # The safety net asks again.
                    await asyncio.sleep(backoff.pause())
                    break
                for result in found:
                    self._answer(result, _REMOTE)
                    self._observers.tell("reply_fetched", task_id=result.task_id)

    async def _run_sender(self) -> None:
        while True:
            await self._send_wanted.wait()
            self._send_wanted.clear()
            outgoing, self._outgoing = self._outgoing, {}
            all_labels, self._outgoing_labels = self._outgoing_labels, set()
            self._outgoing_count = 0
            begun_at = self._clock.monotonic()
            try:
                await self._results.notify(outgoing)
            except errors.StorageError:
                # The callers' replicas find the results by themselves, a little later.
                self._lose_notifications(len(outgoing))
            else:
                seconds = self._clock.monotonic() - begun_at
                for labels in all_labels:
                    self._metrics.notification.record(seconds * MILLISECONDS, labels)
                self._observers.tell("notified", replicas=len(outgoing))

    async def _run_safety_net(self) -> None:
        while True:
            await asyncio.sleep(_SAFETY_SECONDS)
            before = self._clock.monotonic() - _SAFETY_SECONDS
            old: list[int] = []
            for task_id, expected in self._expected.items():
                if expected.since > before or len(old) == FETCH_MAX:
                    break
                if not self._carried(task_id):
                    old.append(task_id)
            # Those asked for go to the end of the line, so that all have their turn.
            for task_id in old:
                expected = self._expected.pop(task_id)
                expected.since = self._clock.monotonic()
                self._expected[task_id] = expected
            if old:
                self._want(old)
