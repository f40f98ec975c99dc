"""Replies: how the end of a task reaches the callers who wait for it in this replica.

A task that this replica runs is answered from memory the moment it is settled. A task that another
replica runs has this replica's id in its row (reply_to): the replica that settles it sends a
notification, and the result is read. Where notifications do not get through (a pooler, a broken
connection), a safety net reads the results of the oldest expected tasks once a second.

The same notifications say that awaited processes have ended (``ends``), that leases of this replica
were revoked, and that namespaces were paused or resumed.
"""

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskResult
from progressor.runtime.core.context import Context
from progressor.runtime.core.leases import Leases
from progressor.runtime.core.measures import MILLISECONDS
from progressor.runtime.effects.ends import Ends
from progressor.storage.postgres.rows.effects import AwaitedEnd, RevokedLease
from progressor.storage.processes.results import Results, Word
from progressor.telemetry.instruments import Labels

Waiter = asyncio.Future[TaskResult]

EARLY_MAX = 10_000
FETCH_MAX = 500
_SAFETY_SECONDS = 1.0
_BACKOFF_SECONDS = 0.5, 4.0
_LOCAL: Labels = ("local",)
_REMOTE: Labels = ("remote",)
_END: Labels = ("", "end")

OUTGOING_MAX = 100_000
"""Tasks of which other replicas are still to be notified; they find any others by themselves."""


@dataclasses.dataclass(slots=True)
class _Expected:
    key: ProcessKey
    waiters: list[Waiter]
    since: float


class Replies:
    """The callers who wait here. ``listen`` yields notifications until its connection breaks."""

    def __init__(
        self,
        *,
        results: Results,
        listen: Callable[[], AsyncIterator[Word]],
        leases: Leases,
        context: Context,
        pauses_changed: asyncio.Event | None = None,
    ) -> None:
        self._results = results
        self._listen = listen
        self._leases = leases
        self._context = context
        self.ends = Ends(results=results, context=context)
        self._clock, self._metrics = context.clock, context.metrics
        self._metrics.callers_waiting.read_from(lambda: [((), self.waiting_count)])
        self.work_is_due = asyncio.Event()
        """Set when another replica leaves due tasks to this one."""
        self.pauses_changed = asyncio.Event() if pauses_changed is None else pauses_changed
        """Set when a namespace was paused or resumed, or may have been."""
        self._expected: dict[int, _Expected] = {}
        # Tasks that ended recently. Admissions and settlements are answered over different
        # connections: a caller who joined a task in time may learn of it after its end.
        self._early: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._wanted: dict[int, None] = {}
        self._outgoing: dict[int, list[int]] = {}
        self._outgoing_revoked: dict[int, list[int]] = {}
        self._outgoing_labels: set[Labels] = set()
        self._outgoing_count = 0
        self._fetch_wanted = asyncio.Event()
        self._send_wanted = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        return len(self._expected) + self.ends.waiting_count

    def expect(self, task_id: int, key: ProcessKey, waiter: Waiter) -> None:
        expected = self._expected.get(task_id)
        if expected is None:
            expected = _Expected(key, [], self._clock.monotonic())
            self._expected[task_id] = expected
        expected.waiters.append(waiter)
        if task_id in self._early:
            self._want([task_id])

    def forget(self, task_id: int, waiter: Waiter) -> None:
        expected = self._expected.get(task_id)
        if expected is not None and waiter in expected.waiters:
            expected.waiters.remove(waiter)
            if not expected.waiters:
                del self._expected[task_id]

    def deliver(
        self, result: TaskResult, reply_to: Iterable[int] = (), *, namespace: str = ""
    ) -> None:
        """Answer the callers on this replica, and notify the other replicas in `reply_to`."""
        self._answer(result, _LOCAL)
        for replica_id in reply_to:
            if replica_id != self._context.replica_id:
                self._queue_notification(replica_id, result.task_id, (namespace, result.task_type))

    def announce_end(self, end: AwaitedEnd) -> None:
        """Notify the replicas, this one too, where callers wait for the end of a process."""
        self.ends.look([end.init_task_id])
        for replica_id in end.awaited_by:
            if replica_id != self._context.replica_id:
                self._queue_notification(replica_id, end.init_task_id, _END)

    def revoke(self, lease: RevokedLease) -> None:
        """Stop the step of a revoked lease, here or in the replica that runs it."""
        if lease.replica_id == self._context.replica_id:
            self._leases.revoke(lease.token)
            return
        self._outgoing_revoked.setdefault(lease.replica_id, []).append(lease.token)
        self._send_wanted.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.ends.run(), name="process ends")
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

    def _queue_notification(self, replica_id: int, task_id: int, labels: Labels) -> None:
        if self._outgoing_count >= OUTGOING_MAX:
            self._lose_notifications(1)
            return
        self._outgoing.setdefault(replica_id, []).append(task_id)
        self._outgoing_labels.add(labels)
        self._outgoing_count += 1
        self._send_wanted.set()

    def _lose_notifications(self, count: int) -> None:
        self._metrics.notifications_lost.add(count)
        self._context.observers.tell("notification_lost", replicas=count)

    def _want(self, task_ids: Iterable[int]) -> None:
        self._wanted.update(dict.fromkeys(task_ids))
        self._fetch_wanted.set()

    async def _run_listener(self) -> None:
        backoff = self._context.backoff(*_BACKOFF_SECONDS)
        while True:
            try:
                async for word in self._listen():
                    backoff.reset()
                    self._take_in(word)
            except errors.StorageError:
                await asyncio.sleep(backoff.pause())

    def _take_in(self, word: Word) -> None:
        if word.work_is_due:
            self.work_is_due.set()
        elif word.revoked:
            for token in word.revoked:
                self._leases.revoke(token)
        elif word.pauses:
            self.pauses_changed.set()
        elif not word.task_ids:
            # Listening (again): the ends of tasks before this were missed.
            self._want(task_id for task_id in self._expected if not self._leases.holds(task_id))
            self.ends.look_at_all()
            self.pauses_changed.set()
        self.ends.look(word.task_ids)
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
        backoff = self._context.backoff(*_BACKOFF_SECONDS)
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
                    # The safety net retries.
                    await asyncio.sleep(backoff.pause())
                    break
                for result in found:
                    self._answer(result, _REMOTE)
                    self._context.observers.tell("reply_fetched", task_id=result.task_id)

    async def _run_sender(self) -> None:
        while True:
            await self._send_wanted.wait()
            self._send_wanted.clear()
            outgoing, self._outgoing = self._outgoing, {}
            all_labels, self._outgoing_labels = self._outgoing_labels, set()
            self._outgoing_count = 0
            revoked, self._outgoing_revoked = self._outgoing_revoked, {}
            begun_at = self._clock.monotonic()
            try:
                if revoked:
                    await self._results.revoke(revoked)
                await self._results.notify(outgoing)
            except errors.StorageError:
                # The callers' replicas find the results by themselves, a little later; a step
                # whose lease was revoked finds that when it is settled.
                self._lose_notifications(len(outgoing) + len(revoked))
            else:
                seconds = self._clock.monotonic() - begun_at
                for labels in all_labels:
                    self._metrics.notification.record(seconds * MILLISECONDS, labels)
                self._context.observers.tell("notified", replicas=len(outgoing))

    async def _run_safety_net(self) -> None:
        while True:
            await asyncio.sleep(_SAFETY_SECONDS)
            before = self._clock.monotonic() - _SAFETY_SECONDS
            old: list[int] = []
            for task_id, expected in self._expected.items():
                if expected.since > before or len(old) == FETCH_MAX:
                    break
                if not self._leases.holds(task_id):
                    old.append(task_id)
            # These go to the end of the queue, so that all have their turn.
            for task_id in old:
                expected = self._expected.pop(task_id)
                expected.since = self._clock.monotonic()
                self._expected[task_id] = expected
            if old:
                self._want(old)
