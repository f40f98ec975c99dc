"""Looks at gates and tasks that a statement could not look at itself, as soon as possible.

A statement that leaves a gate promotes the next task in its own transaction. What it could only
have locked out of order, and another transaction held, it reports as an effect; it is looked at
here, in a transaction that locks in order and waits. A task that waits for an instant is looked at
when that comes. So no scan is needed unless a replica dies in between (``find_idle_gates``).
"""

import asyncio
import collections
import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from progressor import errors
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.gate_queue import GateQueue
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.rows.effects import Again, Effects

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 0.01
_BACKOFF_SECONDS_MAX = 1.0
_LOCKED_SECONDS = 0.1


class Gates(Protocol):
    """What is needed of storage's gates."""

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Effects:
        """Promote the tasks for which these have places."""

    async def promote_due(self, namespaces: Sequence[str]) -> Effects:
        """Look at tasks whose instant has come."""


class GateWakeUps:
    """Works through the gate queue."""

    def __init__(
        self, *, gates: Gates, queue: GateQueue, effects: EffectDispatcher, context: Context
    ) -> None:
        self._gates = gates
        self._queue = queue
        self._effects = effects
        self._context = context
        # What other transactions hold locked, the oldest first. One of them is tried at a time, so
        # that nothing else waits.
        self._locked: dict[Again, None] = {}

    async def run(self) -> None:
        """Process all gate wake-ups until cancelled."""
        backoff = Backoff(
            first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self._context.jitter
        )
        while True:
            # What is locked is retried anyway, however often it is reported.
            taken = {again: None for again in self._queue.take_again() if again not in self._locked}
            namespaces = self._queue.take_due()
            if not taken and not namespaces and not self._locked:
                await self._wait()
                continue
            try:
                await self._promote(namespaces)
                namespaces = []
                for namespace, mine in _by_namespace(taken).items():
                    self._locked |= dict.fromkeys(await self._look(namespace, mine))
                    for again in mine:
                        del taken[again]
                if await self._is_released():
                    backoff.reset()
                else:
                    await self._wait(backoff.pause())
            except errors.StorageError as error:
                # PostgreSQL's absence may last.
                _log.info("gates not promoted; retrying", extra={"why": str(error)})
                await asyncio.sleep(backoff.pause())
                self._queue.again = taken | self._queue.again
                for name in namespaces:
                    self._queue.delay(name)

    async def _promote(self, namespaces: Sequence[str]) -> None:
        """Look at the tasks of some namespaces whose instant has come, except locked ones."""
        if not namespaces:
            return
        try:
            effects = await self._gates.promote_due(namespaces)
        except errors.StorageLockedError as error:
            if len(namespaces) == 1:
                _log.info("gates not promoted; retrying", extra={"why": str(error)})
                self._queue.delay(namespaces[0], _LOCKED_SECONDS)
                return
            for name in namespaces:
                await self._promote([name])
        else:
            self._effects.apply(effects)

    async def _look(self, namespace: str, again: Sequence[Again]) -> Sequence[Again]:
        """Look at the reported gates of a namespace; return those that others hold locked."""
        try:
            effects = await self._gates.look_again(namespace, again)
        except errors.StorageLockedError as error:
            if len(again) == 1:
                _log.info("gates not promoted; retrying", extra={"why": str(error)})
                return again
        else:
            self._effects.apply(effects)
            return ()
        middle = len(again) // 2
        locked = await self._look(namespace, again[:middle])
        return [*locked, *await self._look(namespace, again[middle:])]

    async def _is_released(self) -> bool:
        """Look at one of those that were locked; once it is released, look at all of them."""
        if not self._locked:
            return True
        first = next(iter(self._locked))
        if await self._look(first.namespace, [first]):
            self._locked[first] = self._locked.pop(first)  # the others come first the next time
            return False
        del self._locked[first]
        self._queue.again, self._locked = self._locked | self._queue.again, {}
        return True

    async def _wait(self, seconds_max: float | None = None) -> None:
        """Wait until the queue changes or the next instant comes, for at most `seconds_max`."""
        if self._queue.again:
            return
        self._queue.changed.clear()
        seconds = self._queue.wait_seconds()
        if seconds is None or (seconds_max is not None and seconds_max < seconds):
            seconds = seconds_max
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._queue.changed.wait()


def _by_namespace(taken: dict[Again, None]) -> dict[str, list[Again]]:
    found: dict[str, list[Again]] = collections.defaultdict(list)
    for again in taken:
        found[again.namespace].append(again)
    return found
