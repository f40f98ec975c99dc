"""Keeps the counts of processes compact and exact: see storage's `counts`."""

import dataclasses
import logging

from progressor.runtime.core.context import Context
from progressor.storage.replicas.counts import Counts

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CountScan:
    counts: Counts
    context: Context

    async def scan(self) -> None:
        """Compact the counts, and scan the processes if that is due, which may take minutes."""
        compacted = await self.counts.compact()
        if not compacted.scan_due:
            return
        started_at = self.context.clock.monotonic()
        corrected = await self.counts.recount()
        if corrected is None:
            return
        seconds = round(self.context.clock.monotonic() - started_at, 3)
        facts = {"corrected": corrected, "seconds": seconds}
        if corrected and compacted.is_exact:
            _log.error("the counts of processes were wrong, and have been corrected", extra=facts)
        else:
            _log.info("processes counted", extra=facts)
        self.context.observers.tell("processes_counted", corrected=corrected)
