"""Activities: what the replicas are doing and what is waiting, for monitoring."""

import functools
from collections import Counter

from progressor.domain.views.activity import Activity
from progressor.domain.views.replica import Facts
from progressor.storage.replicas.queues import QueueWatch
from progressor.storage.replicas.status import Watch


class Activities:
    """Reads what goes on, at what it may cost: see `Watch` and `QueueWatch`."""

    def __init__(self, *, watch: Watch, queues: QueueWatch) -> None:
        self._watch = watch
        self._queues = queues

    async def read(self) -> Activity:
        """Return what the replicas told last, and what waits.

        Raises:
            StorageUnavailableError: PostgreSQL is unreachable.
        """
        facts = await self._watch.facts()
        counts = await self._queues.counts(functools.partial(_busy, facts))
        return Activity(facts=facts, counts=counts)


def _busy(facts: Facts) -> Counter[str]:
    """Return how many steps are in hand in each namespace."""
    found: Counter[str] = Counter()
    for replica in facts.replicas.values():
        for name, load in (replica.loads or {}).items():
            found[name] += load.busy_count
    return found
