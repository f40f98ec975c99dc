"""Access: reads bindings and tokens whenever a heartbeat says that they have changed."""

import asyncio
import dataclasses
import logging

from progressor import errors
from progressor.runtime.core.context import Context
from progressor.storage.access.access import Access

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.05, 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessWatch:
    access: Access
    context: Context

    async def run(self) -> None:
        """Read whatever has changed; ends only by cancellation."""
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            await self.access.changed.wait()
            try:
                await self.access.refresh()
                backoff.reset()
            except errors.StorageError as error:
                _log.warning("bindings not read; retrying", extra={"why": str(error)})
                self.access.changed.set()
                await asyncio.sleep(backoff.pause())
            self.context.observers.tell("access_read")
