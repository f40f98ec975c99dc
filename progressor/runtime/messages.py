"""Delivers the messages that steps have sent.

The replica that settled a step delivers its messages at once: it collects senders while one batch
is under way, as a group commit does. Each batch is one transaction, and is safe to repeat. The scan
finds what a replica that died has left.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Sequence

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.processes.messages import Messages
from progressor.telemetry.logs import fields as log_fields

_log = logging.getLogger(__name__)

OVERDUE = dt.timedelta(seconds=1)
"""How long messages wait for the replica of their sender before the scan delivers them."""

SENDERS_MAX = 100
"""Senders whose messages one transaction delivers."""

SCANNED_MAX = 1000
"""Messages that one scan looks at to find senders."""

LOCKED_DELAY = dt.timedelta(seconds=1)
REFUSED_DELAY = dt.timedelta(minutes=1)
"""How long the messages of a sender wait whose receiver is locked, or that PostgreSQL rejects."""

_BACKOFF_SECONDS = 0.005, 0.5
_FLUSH_ROUNDS_MAX = 20
_HELD, _ADMITTED = "held", frozenset({"accepted", "held"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelivery:
    messages: Messages
    effects: EffectDispatcher
    context: Context

    async def run(self) -> None:
        """Deliver what the queue names; ends only by cancellation."""
        queue = self.effects.message_queue
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            await queue.changed.wait()
            if await self._deliver_queue():
                backoff.reset()
            else:
                # Other transactions have locked what comes first, or PostgreSQL is away.
                await asyncio.sleep(backoff.pause())

    async def flush(self) -> None:
        """Deliver what is queued as a replica ends; the scans of others find what is left."""
        queue = self.effects.message_queue
        for _ in range(_FLUSH_ROUNDS_MAX):
            if not queue.changed.is_set() or not await self._deliver_queue():
                return

    async def scan(self) -> None:
        for key in await self.messages.find_overdue(age=OVERDUE, limit=SCANNED_MAX):
            self.context.metrics.messages_scan_found.add(1, (key.namespace,))
            self.effects.message_queue.add(key)

    async def _deliver_queue(self) -> bool:
        """Look at each sender in the queue once; return whether anything was delivered."""
        queue = self.effects.message_queue
        senders, again, progresses = queue.take(), list[ProcessKey](), False
        try:
            for first in range(0, len(senders), SENDERS_MAX):
                remaining, progressed = await self._deliver(senders[first : first + SENDERS_MAX])
                again += remaining
                progresses |= progressed
        finally:
            queue.add(*again)
        return progresses

    async def _deliver(self, senders: Sequence[ProcessKey]) -> tuple[Sequence[ProcessKey], bool]:
        """Return the senders to be looked at again, and whether anything was delivered."""
        try:
            delivery, effects = await self.messages.deliver(senders)
        except (errors.StorageLockedError, errors.StorageRefusedError) as error:
            if len(senders) == 1:
                await self._defer(senders[0], error)
                return (), True
            # One of them is at fault.
            again, progresses = list[ProcessKey](), False
            for sender in senders:
                remaining, progressed = await self._deliver((sender,))
                again += remaining
                progresses |= progressed
            return again, progresses
        except errors.StorageError as error:
            _log.info("messages not delivered; retrying", extra={"why": str(error)})
            return senders, False
        self.effects.apply(effects)
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
        return delivery.remaining, bool(delivery.delivered)

    async def _defer(self, sender: ProcessKey, error: errors.StorageError) -> None:
        refused = isinstance(error, errors.StorageRefusedError)
        _log.log(
            logging.ERROR if refused else logging.INFO,
            "messages deferred",
            extra=log_fields.of_process(sender, {}) | {"why": str(error)},
        )
        delay = REFUSED_DELAY if refused else LOCKED_DELAY
        with contextlib.suppress(errors.StorageError):  # the scan finds them even so
            await self.messages.defer(sender, delay=delay)
