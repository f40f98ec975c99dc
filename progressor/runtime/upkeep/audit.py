"""The audit: writes what was noted, seals entries into the chain, and deletes old ones."""

import dataclasses
import datetime as dt

from progressor.runtime.core.context import Context
from progressor.storage.access.audit import SEALED_MAX, Audit

BATCHES_MAX = 20
"""Batches that one round seals, or deletes; the next rounds do the rest."""


@dataclasses.dataclass(kw_only=True)
class AuditScan:
    audit: Audit
    retention: dt.timedelta | None
    context: Context
    unsealed_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Have metrics read for how long an entry has waited to be sealed."""
        self.context.metrics.audit_unsealed_age.read_from(lambda: [((), self.unsealed_seconds)])

    async def scan(self) -> None:
        metrics = self.context.metrics
        # Before it is sealed: if that fails, this still grows.
        self.unsealed_seconds = await self.audit.unsealed_seconds()
        metrics.audit_left_out.add(await self.audit.write_notes(), ())
        for _ in range(BATCHES_MAX):
            count = await self.audit.seal()
            metrics.audit_sealed.add(count, ())
            self.context.observers.tell("audit_sealed", count=count)
            if count < SEALED_MAX:
                break

    async def forget(self) -> None:
        if self.retention is None:
            return
        limit = self.context.scanner.retention_batch_max
        for _ in range(BATCHES_MAX):
            if await self.audit.forget(age=self.retention, limit=limit) < limit:
                break
