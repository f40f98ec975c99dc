"""Retention: the loop's share of what is old enough to go, in small batches.

Old task records are looked for slot by slot, some slots a round, so that no round reads more than a
small part of the table.
"""

import dataclasses
import datetime as dt
import itertools
from collections.abc import Iterator

from progressor.domain.processes.process import SLOT_COUNT
from progressor.settings.sections import Scanner
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.processes.results import Results
from progressor.storage.processes.retention import Retention
from progressor.storage.replicas.replicas import Replicas

SLOTS_PER_ROUND = 32
"""With a round each 30 s, all slots are seen within 16 minutes."""

REPLIES_AGE = dt.timedelta(minutes=10)
REPLICAS_AGE = dt.timedelta(hours=1)
BATCHES_MAX = 20
"""Batches of one kind in one round: what is left waits for the next."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetentionScan:
    """One round of deleting."""

    retention: Retention
    results: Results
    replicas: Replicas
    namespaces: Namespaces
    scanner: Scanner
    _slots: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.cycle(range(SLOT_COUNT))
    )

    async def scan(self) -> None:
        """Delete a share of what is old enough."""
        await self.results.delete_old_replies(age=REPLIES_AGE)
        await self.replicas.delete_dead(retention=REPLICAS_AGE)
        limit = self.scanner.retention_batch_max
        for namespace in self.namespaces.known():
            age = namespace.finished_process_retention
            if age is None:
                continue
            for _ in range(BATCHES_MAX):
                count = await self.retention.delete_finished(namespace.name, age=age, limit=limit)
                if count < limit:
                    break
        for slot in itertools.islice(self._slots, SLOTS_PER_ROUND):
            for namespace in self.namespaces.known():
                age = namespace.task_retention
                if age is not None:
                    await self.retention.delete_old_tasks(
                        slot, namespace.name, age=age, limit=limit
                    )
