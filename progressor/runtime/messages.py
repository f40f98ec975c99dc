"""Delivers the messages that steps have sent.

The replica that settled a step delivers its messages at once: it collects senders while one batch
is under way, as a group commit does. Each batch is one transaction, and is safe to repeat. The scan
finds what a replica that died has left.

A batch that fails is divided: fewer senders, then one message of one sender. A message that fails
alone is deferred, with the later ones to the same receiver; all others are delivered.
"""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Iterable, Sequence

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.queues import KEYS_MAX
from progressor.storage.steps.messages import BATCH_MAX, Delivery, Messages
from progressor.telemetry.logs import fields as log_fields

_log = logging.getLogger(__name__)

OVERDUE = dt.timedelta(seconds=1)
"""How long messages wait for the replica of their sender before the scan delivers them."""

SENDERS_MAX = 100
"""Senders whose messages one transaction delivers."""

SCANNED_MAX = 1000
"""Messages that one scan looks at to find senders."""

LOCKED_DELAY = dt.timedelta(seconds=1)
"""How long a message waits whose receiver is locked, or its sender."""

FAILED_DELAYS = dt.timedelta(minutes=1), dt.timedelta(hours=1)
"""The least and the longest that a message waits that PostgreSQL rejects, or does not manage."""

_BACKOFF_SECONDS = 0.005, 0.5
_FLUSH_ROUNDS_MAX = 20
_HELD, _ADMITTED = "held", frozenset({"accepted", "held"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """At most `limit` messages of some senders.

    ``answers``: of one message that failed while PostgreSQL may have been away: it has answered
    since.
    """

    senders: tuple[ProcessKey, ...]
    limit: int = BATCH_MAX
    answers: bool = False


def _batches(senders: Sequence[ProcessKey], size: int) -> Iterable[_Batch]:
    return (_Batch(tuple(senders[first : first + size])) for first in range(0, len(senders), size))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelivery:
    messages: Messages
    effects: EffectDispatcher
    context: Context
    _batches: collections.deque[_Batch] = dataclasses.field(
        default_factory=collections.deque, init=False
    )

    async def run(self) -> None:
        """Deliver what the queue names; ends only by cancellation."""
        queue = self.effects.message_queue
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            if not self._batches:
                await queue.changed.wait()
            if await self._deliver_queue():
                backoff.reset()
            else:
                # Other transactions have locked what comes first, or PostgreSQL is unavailable.
                await asyncio.sleep(backoff.pause())

    async def flush(self) -> None:
        """Deliver what is queued as a replica ends; the scans of others find what is left."""
        queue = self.effects.message_queue
        for _ in range(_FLUSH_ROUNDS_MAX):
            if not (self._batches or queue.changed.is_set()) or not await self._deliver_queue():
                return

    async def scan(self) -> None:
        for key in await self.messages.find_overdue(age=OVERDUE, limit=SCANNED_MAX):
            self.context.metrics.messages_scan_found.add(1, (key.namespace,))
            self.effects.message_queue.add(key)

    async def _deliver_queue(self) -> bool:
        """Look at each sender once; return whether anything was delivered or deferred."""
        divided = {key for batch in self._batches for key in batch.senders}
        if len(divided) < KEYS_MAX:
            fresh = [key for key in self.effects.message_queue.take() if key not in divided]
            self._batches.extend(_batches(fresh, SENDERS_MAX))
        progresses = False
        for batch in tuple(self._batches):
            try:
                delivery, effects = await self.messages.deliver(batch.senders, limit=batch.limit)
            except errors.StorageError as error:
                progresses |= await self._divide(batch, error)
                is_away = _may_be_away(error)
            else:
                self.effects.apply(effects)
                self._count(delivery)
                self._add_remaining(batch, delivery.remaining)
                progresses |= bool(delivery.delivered)
                is_away = False
            self._batches.popleft()
            if is_away:
                # The others would fail too. They are next after a pause, and this one is the last.
                break
        return progresses

    def _count(self, delivery: Delivery) -> None:
        for it in delivery.delivered:
            self.context.observers.tell("messages", namespace=it.namespace, verdict=it.verdict)
            if it.verdict in _ADMITTED:
                held = "yes" if it.verdict == _HELD else "no"
                self.context.metrics.messages_delivered.add(
                    it.message_count, (it.namespace, it.kind, held)
                )
            else:
                self.context.metrics.messages_refused.add(
                    it.message_count, (it.namespace, it.kind, it.verdict.upper())
                )

    def _add_remaining(self, batch: _Batch, remaining: tuple[ProcessKey, ...]) -> None:
        """Have the senders that have more messages looked at again."""
        if batch.limit < BATCH_MAX and remaining:
            # The message at fault may be among them.
            self._batches.append(_Batch(remaining, min(BATCH_MAX, 2 * batch.limit)))
        else:
            self.effects.message_queue.add(*remaining)

    async def _divide(self, batch: _Batch, error: errors.StorageError) -> bool:
        """Have what failed tried again in smaller batches; return whether one was deferred."""
        senders = batch.senders
        if len(senders) > 1:
            locked = isinstance(error, errors.StorageLockedError)
            self._batches.extend(_batches(senders, 1 if locked else (len(senders) + 1) // 2))
        elif batch.limit > 1:
            self._batches.append(_Batch(senders, 1))
        elif _may_be_away(error) and not batch.answers:
            self._batches.append(_Batch(senders, 1, answers=await self._answers()))
        else:
            return await self._defer(batch, error)
        _log.info("messages not delivered; retrying", extra={"why": str(error)})
        return False

    async def _answers(self) -> bool:
        """Return whether PostgreSQL answers."""
        with contextlib.suppress(errors.StorageError):
            await self.messages.find_overdue(age=OVERDUE, limit=1)
            return True
        return False

    async def _defer(self, batch: _Batch, error: errors.StorageError) -> bool:
        [sender] = batch.senders
        locked = isinstance(error, errors.StorageConflictError)
        at_least, at_most = (LOCKED_DELAY, LOCKED_DELAY) if locked else FAILED_DELAYS
        try:
            message = await self.messages.defer(sender, at_least=at_least, at_most=at_most)
        except errors.StorageError:
            self._batches.append(_Batch(batch.senders, 1))
            return False
        self.effects.message_queue.add(sender)
        if message is not None:
            _log.log(
                logging.INFO if locked else logging.ERROR,
                "message deferred",
                extra=log_fields.of_process(sender, {}) | message._asdict() | {"why": str(error)},
            )
        return True


def _may_be_away(error: errors.StorageError) -> bool:
    """Return whether PostgreSQL may not be there, as opposed to a batch that is at fault."""
    return isinstance(error, errors.StorageUnavailableError) and not isinstance(
        error, errors.StorageConflictError
    )
