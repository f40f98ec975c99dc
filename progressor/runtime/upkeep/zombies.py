"""Zombies: leases that no replica holds any longer, settled by the namespace's policy.

Every replica does this, safely at once: settling is fenced by the token of the lost lease, so the
first one wins and the others change nothing.
"""

import asyncio
import dataclasses
import datetime as dt
import functools
import logging
from collections.abc import Callable, Sequence

from progressor import errors
from progressor.domain.processes.intent import Lost, Released
from progressor.domain.processes.policy import ZombiePolicy
from progressor.domain.processes.process import NO_OPTIONS, ProcessKey
from progressor.domain.processes.settlement import Settlement, settle
from progressor.runtime.core.context import Context
from progressor.runtime.core.leases import Leases
from progressor.runtime.core.scan_measures import ScanMeasures
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.upkeep.clock_guard import ClockGuard
from progressor.settings.sections import ReplicaSettings, Scanner
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.processes.admissions import Admissions
from progressor.storage.processes.claims import Claims
from progressor.storage.processes.settlements import Entry, Outcome, Settlements, Written
from progressor.storage.replicas.replicas import Replicas, Zombie, ZombieCause
from progressor.telemetry.logs import fields as log_fields
from progressor.telemetry.traces.spans import UNTRACED, Span

_log = logging.getLogger(__name__)
_NO_TIME = dt.timedelta()

WAIT_SECONDS = 1.0
"""How long a scan waits until a lost lease is settled. Another session may hold its process locked,
and those that are found later must not wait for that."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ZombieScan:
    """One round of collecting, unless PostgreSQL's clock has just jumped."""

    replicas: Replicas
    admissions: Admissions
    settlements: Settlements
    claims: Claims
    namespaces: Namespaces
    effects: EffectDispatcher
    leases: Leases
    replica: ReplicaSettings
    scanner: Scanner
    context: Context
    guard: ClockGuard = dataclasses.field(init=False)
    _late: set[int] = dataclasses.field(default_factory=set)
    """Tokens of lost leases whose settlement waits for a lock."""
    _suspects: dict[int, int] = dataclasses.field(default_factory=dict)
    """Tokens of our own leases that the last scan found and nobody here carried; and how many
    claims had been begun by then."""

    def __post_init__(self) -> None:
        """Begin to compare clocks with the first scan."""
        object.__setattr__(self, "guard", ClockGuard(self.replica.lease_timeout))

    async def scan(self) -> None:
        """Find lost leases and settle them."""
        jump = self.guard.jump
        answered_count = self.claims.answered_count
        zombies = await self.replicas.find_zombies(
            replica_id=self.context.replica_id,
            lease_timeout=self.replica.lease_timeout,
            limit=self.scanner.zombie_batch_max,
            known=self.leases.tokens(),
            jumped_at=None if jump is None else jump.at,
            jump=_NO_TIME if jump is None else jump.ahead,
        )
        # Read after they were found, so that whatever made zombies of them shows.
        if await self._is_wary():
            self._suspects.clear()
            return
        zombies = tuple(zombie for zombie in zombies if zombie.token not in self._late)
        confirmed = self._confirm(zombies, answered_count)
        async with asyncio.TaskGroup() as group:
            for zombie in zombies:
                if zombie.cause is not ZombieCause.UNKNOWN or zombie.token in confirmed:
                    group.create_task(self._collect(zombie), name=f"collect {zombie.task_id}")

    async def _is_wary(self) -> bool:
        """Read PostgreSQL's clock; return whether leases may only seem to have expired."""
        asked_at = self.context.clock.monotonic()
        told = await self.replicas.read_clock()
        answered_at = self.context.clock.monotonic()
        jump = self.guard.look(told, asked_at=asked_at, answered_at=answered_at)
        if jump is not None:
            ahead = jump.ahead.total_seconds()
            pause = self.replica.lease_timeout.total_seconds()
            _log.warning(
                "PostgreSQL's clock has jumped ahead",
                extra={"ahead_seconds": round(ahead, 3), "pause_seconds": pause},
            )
            self.context.observers.tell("clock_jumped", ahead_seconds=ahead)
        return self.guard.is_wary(answered_at)

    def _confirm(self, zombies: Sequence[Zombie], answered_count: int) -> set[int]:
        """Return the tokens of strays: unknown twice in a row, and no answer can bring them yet.

        What told of a lease when it was found first was a write of its process that was under way
        by then, or is written again; or a claim that had been begun by then. And where the event
        loop is held up, what has been answered may not have been heard of.
        """
        carried = set(self.leases.tokens())
        suspects: dict[int, int] = {}
        confirmed: set[int] = set()
        for each in zombies:
            if each.cause is not ZombieCause.UNKNOWN or each.token in carried:
                continue
            begun_count = self._suspects.get(each.token)
            if begun_count is None:
                if not self._is_written(each.key):
                    suspects[each.token] = self.claims.begun_count
                continue
            suspects[each.token] = begun_count
            if begun_count <= answered_count:
                confirmed.add(each.token)
        self._suspects.clear()
        self._suspects.update(suspects)
        return confirmed

    def _is_written(self, key: ProcessKey) -> bool:
        return self.admissions.is_waiting(key) or self.settlements.is_waiting(key)

    async def _collect(self, zombie: Zombie) -> None:
        with self.context.tracing.collection(
            zombie, cause=zombie.cause, replica_id=zombie.replica_id
        ) as span:
            await self._settle(zombie, span)

    async def _settle(self, zombie: Zombie, span: Span) -> None:
        found_at = self.context.clock.monotonic()
        try:
            namespace = await self.namespaces.lookup(zombie.key.namespace)
        except errors.NamespaceNotFoundError:
            span.drop()
            return
        # A lease that was never learned of was never asked about: the attempt has not begun.
        unknown = zombie.cause is ZombieCause.UNKNOWN
        settlement = settle(
            zombie,
            Released() if unknown else Lost(),
            namespace=namespace,
            now=zombie.found_at,
            spread=self.context.jitter(),
            options=NO_OPTIONS if zombie.part is None else zombie.part.options,
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
            trace_context=zombie.trace_context,
            part=zombie.part,
            on_sent=span.on_sent,
        )
        end = functools.partial(self._end, zombie, entry, namespace.zombie_policy, found_at)
        future = self.settlements.submit(entry)
        try:
            await asyncio.wait({future}, timeout=WAIT_SECONDS)
        finally:
            # Also if this scan is cancelled: the settlement is written, and has effects.
            if future.done():
                end(span, future)
            else:
                span.drop()
                self._late.add(zombie.token)
                future.add_done_callback(functools.partial(self._end_late, zombie.token, end))

    def _end_late(
        self,
        token: int,
        end: Callable[[Span, asyncio.Future[Outcome]], None],
        future: asyncio.Future[Outcome],
    ) -> None:
        self._late.discard(token)
        if future.cancelled():
            return
        try:
            end(UNTRACED, future)
        except errors.StorageUnavailableError as error:
            _log.warning("zombie not collected", extra={"why": error.why})

    def _end(
        self,
        zombie: Zombie,
        entry: Entry,
        policy: ZombiePolicy,
        found_at: float,
        span: Span,
        future: asyncio.Future[Outcome],
    ) -> None:
        """Log and observe the result of a collection."""
        settlement = entry.settlement
        try:
            written = future.result()
        except errors.StorageRefusedError as error:
            # The next scan finds it again; the others must not wait for it.
            extra = _facts(zombie, settlement) | {"why": str(error)}
            _log.error("zombie not collected", extra=extra)
            span.fail(error.reason)
            return
        if not isinstance(written, Written):
            # Another replica was faster, and tells of it.
            span.drop()
            return
        seconds = self.context.clock.monotonic() - found_at
        ScanMeasures(self.context.metrics).collected(zombie, settlement, seconds, policy=policy)
        _log.info("lost lease collected", extra=_facts(zombie, settlement))
        self.effects.settled(entry, written)
        self.context.observers.tell(
            "zombie_collected",
            task_id=zombie.task_id,
            cause=zombie.cause,
            settlement=type(settlement).__name__,
        )
        span.settled(settlement, None)


def _facts(zombie: Zombie, settlement: Settlement) -> dict[str, object]:
    return log_fields.of_process(zombie.key, zombie.trace_context) | {
        "task_id": zombie.task_id,
        "attempt": zombie.attempt,
        "cause": str(zombie.cause),
        "lost_replica_id": zombie.replica_id,
        "settlement": type(settlement).__name__.lower(),
    }
