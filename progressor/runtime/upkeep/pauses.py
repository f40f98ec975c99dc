"""Pauses: this replica reads which namespaces are paused, and continues with those resumed."""

import asyncio
import dataclasses
import logging

from progressor import errors
from progressor.processor.reach import Reach
from progressor.runtime.core.context import Context
from progressor.runtime.core.slots import Slots
from progressor.storage.namespaces.namespaces import Namespaces

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.05, 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PauseWatch:
    namespaces: Namespaces
    slots: Slots
    reach: Reach
    schedules_changed: asyncio.Event
    context: Context

    async def run(self) -> None:
        """Read the paused namespaces whenever they may have changed; ends only by cancellation."""
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            await self.namespaces.pauses.changed.wait()
            try:
                await self.namespaces.refresh_pauses()
                backoff.reset()
            except errors.StorageError as error:
                _log.warning("pauses not read; retrying", extra={"why": str(error)})
                self.namespaces.pauses.changed.set()
                await asyncio.sleep(backoff.pause())
            self.context.observers.tell("pauses_read", names=tuple(self.namespaces.pauses.names))

    async def continue_resumed(self) -> None:
        """Claim what came due in a pause as soon as it ends; ends only by cancellation.

        The backlog claims it in full batches: whatever waits, the scan for overdue tasks has
        nothing to find.
        """
        pauses = self.namespaces.pauses
        while True:
            await pauses.resumed.wait()
            names = frozenset(pauses.take_resumed())
            for name in names:
                self.reach.resumed(name)
            for namespace in self.namespaces.known():
                if namespace.name in names:
                    self.slots.look_for_due(namespace)
            self.schedules_changed.set()
            self.context.observers.tell("resumed", names=tuple(names))
