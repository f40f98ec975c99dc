"""Wakes the tasks that wait at gates, and sends holders back when a capacity is lowered.

A statement that leaves a gate promotes the next task in its own transaction. What it could only
have locked out of order, and another transaction held, it reports as an effect; `GateWakeUps` looks
at it in a transaction that locks in order and waits. A task that waits for an instant is looked at
when that comes. `GateScan` is the safety net, for replicas that die in between.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Sequence

from progressor import errors
from progressor.domain.gates.gate import Gate
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.gates.gates import BEFORE_ALL, Evicted, Gates, IdleUntil
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.rows.effects import Again, Effects

_log = logging.getLogger(__name__)

_WAKE_UP_BACKOFF_SECONDS = 0.01, 1.0
_LOWERED_BACKOFF_SECONDS = 0.05, 2.0
_LOCKED_SECONDS = 0.1

REST = 4.0
"""How long the pause after sending holders back is, in transactions."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateCapacities:
    gates: Gates
    effects: EffectDispatcher

    async def set(
        self, namespace: str, gate: str, *, capacity: int, expected_revision: int
    ) -> Gate:
        """Set a capacity and return the gate; raises what `Gates.set` in storage raises."""
        effects = await self.gates.set(
            namespace, gate, capacity=capacity, expected_revision=expected_revision
        )
        self.effects.apply(effects)
        return await self.gates.read(namespace, gate)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateWakeUps:
    gates: Gates
    effects: EffectDispatcher
    context: Context

    async def run(self) -> None:
        queue = self.effects.gate_queue
        backoff = self.context.backoff(*_WAKE_UP_BACKOFF_SECONDS)
        while True:
            taken, namespaces = queue.take_again(), queue.take_due()
            if not taken and not namespaces and not queue.locked:
                await self._wait()
                continue
            try:
                await self._promote(namespaces)
                namespaces = []
                for namespace in dict.fromkeys(again.namespace for again in taken):
                    mine = [again for again in taken if again.namespace == namespace]
                    queue.locked.update(dict.fromkeys(await self._look(namespace, mine)))
                    for again in mine:
                        del taken[again]
                if await self._is_released():
                    backoff.reset()
                else:
                    await self._wait(backoff.pause())
            except errors.StorageError as error:
                # PostgreSQL may be unavailable for a long time.
                _log.info("gates not promoted; retrying", extra={"why": str(error)})
                await asyncio.sleep(backoff.pause())
                queue.again = taken | queue.again
                for name in namespaces:
                    queue.delay(name)

    async def _promote(self, namespaces: Sequence[str]) -> None:
        if not namespaces:
            return
        try:
            effects = await self.gates.promote_due(namespaces)
        except errors.StorageLockedError as error:
            if len(namespaces) == 1:
                _log.info("gates not promoted; retrying", extra={"why": str(error)})
                self.effects.gate_queue.delay(namespaces[0], _LOCKED_SECONDS)
                return
            for name in namespaces:
                await self._promote([name])
        else:
            self.effects.apply(effects)

    async def _look(self, namespace: str, again: Sequence[Again]) -> Sequence[Again]:
        """Look at the reported gates of a namespace; return those that others hold locked."""
        try:
            effects = await self.gates.look_again(namespace, again)
        except errors.StorageLockedError as error:
            if len(again) == 1:
                _log.info("gates not promoted; retrying", extra={"why": str(error)})
                return again
        else:
            self.effects.apply(effects)
            return ()
        middle = len(again) // 2
        locked = await self._look(namespace, again[:middle])
        return [*locked, *await self._look(namespace, again[middle:])]

    async def _is_released(self) -> bool:
        """Look at one of those that were locked, so that nothing else waits.

        Once it is released, look at all of them.
        """
        queue = self.effects.gate_queue
        if not queue.locked:
            return True
        first = next(iter(queue.locked))
        if await self._look(first.namespace, [first]):
            queue.locked[first] = queue.locked.pop(first)  # the others come first the next time
            return False
        del queue.locked[first]
        queue.again = queue.locked | queue.again
        queue.locked.clear()
        return True

    async def _wait(self, seconds_max: float | None = None) -> None:
        """Wait until the queue changes or the next instant comes, for at most `seconds_max`."""
        queue = self.effects.gate_queue
        if queue.again:
            return
        queue.changed.clear()
        seconds = queue.wait_seconds()
        if seconds is None or (seconds_max is not None and seconds_max < seconds):
            seconds = seconds_max
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await queue.changed.wait()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoweredGates:
    """Sends back holders of gates whose capacity was lowered, a few in a transaction, by turns.

    The capacity is already in effect, so a pause longer than a transaction follows each one. A gate
    records its progress, so that after the death of a replica the scan of another one continues.
    """

    gates: Gates
    effects: EffectDispatcher
    context: Context

    async def run(self) -> None:
        """Send surplus holders back; ends only by cancellation."""
        queue, clock = self.effects.gate_queue, self.context.clock
        backoff = self.context.backoff(*_LOWERED_BACKOFF_SECONDS)
        while True:
            if not queue.lowered:
                queue.lowered_changed.clear()
                await queue.lowered_changed.wait()
            gate = next(iter(queue.lowered))
            del queue.lowered[gate]
            began = clock.monotonic()
            try:
                evicted, effects = await self.gates.evict_holders(gate)
                self.effects.apply(effects)
            except errors.StorageError as error:
                _log.info(
                    "could not send back the holders of a gate; retrying",
                    extra={"namespace": gate.namespace, "gate": gate.gate, "why": str(error)},
                )
                evicted = Evicted(0, is_done=False)
            if not evicted.is_done:
                queue.lowered[gate] = None
            if evicted.count or evicted.is_done:
                backoff.reset()
                await asyncio.sleep(REST * (clock.monotonic() - began))
            else:
                # The holders to send back are locked; or they all run, and the next call looks at
                # the next ones.
                await asyncio.sleep(backoff.pause())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateScan:
    """One scan over the gates, by their indexes: finds what no replica has looked at.

    What only this scan finds is counted as ``gates_scan_found``; in a healthy engine it stays at
    zero. It also remembers tasks whose instants were too far ahead, or whose replica is gone.
    """

    gates: Gates
    namespaces: Namespaces
    effects: EffectDispatcher
    context: Context
    _suspects: set[Again] = dataclasses.field(default_factory=set)
    """Found once: another replica may be working on them. The next scan checks them again."""
    _after: list[IdleUntil] = dataclasses.field(default_factory=lambda: [BEFORE_ALL])
    """Where the next scan starts."""

    async def scan(self) -> None:
        names = [namespace.name for namespace in self.namespaces.known()]
        if not names:
            return
        scanner = self.context.scanner
        late = await self.gates.promote_due(names, overdue=scanner.overdue)
        queue = self.effects.gate_queue
        missed = [(key, task_id) for key, task_id in late.due if not queue.knows_instant(task_id)]
        self.effects.apply(late)
        for key, task_id in missed:
            self._report(key.namespace, task_id=task_id)
        # Those that are late are among them: from here on this replica has a wake-up for them.
        upcoming = await self.gates.find_upcoming(
            names, horizon=scanner.horizon, limit=scanner.batch_max
        )
        self.effects.apply(upcoming)
        found = await self._find_idle(names)
        lowered = await self.gates.find_lowered(names)
        self.effects.apply(Effects(again=tuple(found), lowered=lowered))
        for gate in lowered:
            self._report(gate.namespace, what=gate)
        for again in found:
            self._report(again.namespace, what=again)

    async def _find_idle(self, names: Sequence[str]) -> set[Again]:
        """Find what this replica has no wake-up for, at a second look if others may have one.

        A replica that is starved of CPU, or waits for locks, may have a wake-up for several scans.
        """
        [after], queue = self._after, self.effects.gate_queue
        self._suspects.difference_update([it for it in self._suspects if queue.knows(it)])
        found, until = await self.gates.find_idle(names, after)
        idle = {it for it in found if not queue.knows(it)}
        if self._suspects or not idle:
            # They were checked for the second time, or there are none.
            confirmed = idle & self._suspects
            self._suspects.clear()
            self._after[:] = [until]
            return confirmed
        self._suspects.update(idle)
        return set()

    def _report(self, namespace: str, **facts: object) -> None:
        self.context.metrics.gates_scan_found.add(1, (namespace,))
        self.context.observers.tell("gates_scan_found", namespace=namespace, **facts)
