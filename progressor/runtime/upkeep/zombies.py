"""Zombies: leases that no replica holds any longer, settled by the namespace's policy.

All replicas may do this at once: settling is fenced by the token of the lost lease, so the first
one wins and the others change nothing.
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
from progressor.domain.processes.process import NO_OPTIONS
from progressor.domain.processes.settlement import Settlement, settle
from progressor.runtime.core.context import Context
from progressor.runtime.core.leases import Leases
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.processes.admissions import Admissions
from progressor.storage.replicas.replicas import Replicas, Zombie, ZombieCause
from progressor.storage.steps.claims import Claims
from progressor.storage.steps.settlements import Entry, Outcome, Settlements, Written
from progressor.storage.steps.turns import Turns
from progressor.telemetry.logs import fields as log_fields
from progressor.telemetry.traces.spans import UNTRACED, Span

_log = logging.getLogger(__name__)
_NO_TIME = dt.timedelta()

WAIT_SECONDS = 1.0
"""How long a scan waits until a lost lease is settled. Another session may hold its process locked,
and zombies that are found later must not wait for that."""

TOLERANCE = 0.1
"""The share of a lease timeout by which PostgreSQL's clock may run ahead between two looks."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ZombieScan:
    """One round of collecting, unless PostgreSQL's clock has just jumped."""

    replicas: Replicas
    admissions: Admissions
    settlements: Settlements
    turns: Turns
    claims: Claims
    namespaces: Namespaces
    effects: EffectDispatcher
    leases: Leases
    context: Context
    _guard: "ClockGuard" = dataclasses.field(init=False)
    _late: set[int] = dataclasses.field(default_factory=set)
    """Tokens of lost leases whose settlement waits for a lock."""
    _suspects: dict[int, int] = dataclasses.field(default_factory=dict)
    """Tokens of our own leases that the last scan found and no worker here had, with the count of
    claims that had been begun by then."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_guard", ClockGuard(self.context.replica.lease_timeout))

    async def scan(self) -> None:
        jump = self._guard.jump
        answered_count = self.claims.answered_count
        zombies = await self.replicas.find_zombies(
            limit=self.context.scanner.zombie_batch_max,
            known=self.leases.tokens(),
            jumped_at=None if jump is None else jump.at,
            jump=_NO_TIME if jump is None else jump.ahead,
        )
        # Read after the zombies were found, so that a jump that made zombies of them shows.
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
        read = await self.replicas.read_clock()
        answered_at = self.context.clock.monotonic()
        jump = self._guard.look(read, asked_at=asked_at, answered_at=answered_at)
        if jump is not None:
            ahead = jump.ahead.total_seconds()
            pause = self.context.replica.lease_timeout.total_seconds()
            _log.warning(
                "PostgreSQL's clock has jumped ahead",
                extra={"ahead_seconds": round(ahead, 3), "pause_seconds": pause},
            )
            self.context.observers.tell("clock_jumped", ahead_seconds=ahead)
        return self._guard.is_wary(answered_at)

    def _confirm(self, zombies: Sequence[Zombie], answered_count: int) -> set[int]:
        """Return the tokens of strays: unknown twice in a row, and in no answer still to come.

        A lease that is unknown when it is found first may be in the answer of a write of its
        process that is in flight or repeated, or of a claim that had been begun by then. If the
        event loop is late, an answer may also have arrived without having been read.
        """
        running = set(self.leases.tokens())
        suspects: dict[int, int] = {}
        confirmed: set[int] = set()
        for each in zombies:
            if each.cause is not ZombieCause.UNKNOWN or each.token in running:
                continue
            begun_count = self._suspects.get(each.token)
            if begun_count is None:
                writes = (self.admissions, self.settlements, self.turns)
                if not any(it.is_waiting(each.key) for it in writes):
                    suspects[each.token] = self.claims.begun_count
                continue
            suspects[each.token] = begun_count
            if begun_count <= answered_count:
                confirmed.add(each.token)
        self._suspects.clear()
        self._suspects.update(suspects)
        return confirmed

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
        # No processor was asked about a lease that no worker knew of: the attempt has not begun.
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
            # Another replica was faster, and logs it.
            span.drop()
            return
        seconds = self.context.clock.monotonic() - found_at
        self.context.measures.collected(zombie, settlement, seconds, policy=policy)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Jump:
    """PostgreSQL's clock went ahead by so much before its instant ``at``."""

    at: dt.datetime
    ahead: dt.timedelta


class ClockGuard:
    """Watches PostgreSQL's clock, by which leases end: one that jumps ahead must not end them all.

    A failover to a host whose clock is ahead makes every heartbeat look old, until the next one.
    """

    def __init__(self, lease_timeout: dt.timedelta) -> None:
        self._lease_timeout = lease_timeout
        self._last: tuple[dt.datetime, float] | None = None
        self._wary_until = float("-inf")
        self.jump: Jump | None = None
        """The last jump, if there was one."""

    def look(self, read: dt.datetime, *, asked_at: float, answered_at: float) -> Jump | None:
        """Compare PostgreSQL's clock with ours; return the jump since the last look, if any."""
        last, self._last = self._last, (read, asked_at)
        if last is None:
            return None
        passed = dt.timedelta(seconds=answered_at - last[1])
        ahead = read - last[0] - passed
        if ahead <= TOLERANCE * self._lease_timeout:
            return None
        if self.jump is not None and self.is_wary(answered_at):
            ahead += self.jump.ahead
        self.jump = Jump(read, ahead)
        self._wary_until = answered_at + self._lease_timeout.total_seconds()
        return self.jump

    def is_wary(self, now: float) -> bool:
        """Return whether heartbeats may still look older than they are; `now` is monotonic."""
        return now < self._wary_until
