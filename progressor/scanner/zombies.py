"""Zombies: leases that nobody carries any more, settled by the namespace's policy.

Every replica does this, safely at once: settling is fenced by the token of the lost lease, so the
first one wins and the others change nothing.
"""

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Sequence

from progressor import errors
from progressor.domain.intent import Lost, Released
from progressor.domain.settlement import settle
from progressor.settings.sections import Replica, Scanner
from progressor.storage.namespaces import Namespaces
from progressor.storage.replicas import Replicas, Zombie, ZombieCause
from progressor.storage.settlements import Entry, Settlements, Written
from progressor.worker.aftermath import Aftermath
from progressor.worker.leases import Leases
from progressor.worker.observer import Observers

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ZombieScan:
    """One round of collecting."""

    replicas: Replicas
    settlements: Settlements
    namespaces: Namespaces
    aftermath: Aftermath
    leases: Leases
    replica_id: Callable[[], int]
    replica: Replica
    scanner: Scanner
    spread: random.Random
    observers: Observers
    _suspects: set[int] = dataclasses.field(default_factory=set)
    """Tokens of our own leases that the last scan found and nobody here carried."""

    async def scan(self) -> None:
        """Find lost leases and settle them."""
        zombies = await self.replicas.find_zombies(
            replica_id=self.replica_id(),
            lease_timeout=self.replica.lease_timeout,
            limit=self.scanner.zombie_batch_max,
            known=self.leases.tokens(),
        )
        confirmed = self._confirm(zombies)
        async with asyncio.TaskGroup() as group:
            for zombie in zombies:
                if zombie.cause is not ZombieCause.UNKNOWN or zombie.token in confirmed:
                    group.create_task(self._collect(zombie), name=f"collect {zombie.task_id}")

    def _confirm(self, zombies: Sequence[Zombie]) -> set[int]:
        """Return the tokens of strays: unknown twice in a row.

        Where the event loop was held up, the answer that tells of a lease may still be on its way.
        """
        unknown = {each.token for each in zombies if each.cause is ZombieCause.UNKNOWN}
        unknown.difference_update(self.leases.tokens())
        confirmed = unknown & self._suspects
        self._suspects.clear()
        self._suspects.update(unknown)
        return confirmed

    async def _collect(self, zombie: Zombie) -> None:
        try:
            namespace = await self.namespaces.lookup(zombie.key.namespace)
        except errors.NamespaceNotFoundError:
            return
        # A lease that was never learned of was never asked about: the attempt has not begun.
        unknown = zombie.cause is ZombieCause.UNKNOWN
        settlement = settle(
            zombie,
            Released() if unknown else Lost(),
            namespace=namespace,
            now=zombie.found_at,
            spread=self.spread.uniform(-1, 1),
        )
        entry = Entry(
            key=zombie.key,
            task_id=zombie.task_id,
            task_type=zombie.task_type,
            attempt=zombie.attempt,
            token=zombie.token,
            settlement=settlement,
            process=None,
            continues=False,
            expires_after=namespace.step_timeout,
        )
        try:
            written = await self.settlements.submit(entry)
        except errors.StorageRefusedError as error:
            # The next scan finds it again; the others must not wait for it.
            extra = {"task_id": zombie.task_id, "why": str(error)}
            _log.error("zombie not collected", extra=extra)
            return
        if isinstance(written, Written):
            self.aftermath.of(entry, written)
            self.observers.tell(
                "zombie_collected",
                task_id=zombie.task_id,
                cause=zombie.cause,
                settlement=type(settlement).__name__,
            )
