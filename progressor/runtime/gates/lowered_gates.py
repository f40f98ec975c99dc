"""Sends back holders of gates whose capacity was lowered, a few in a transaction.

The capacity is already in effect, so there is no hurry: a pause longer than a transaction follows
each one, to leave room for tasks that do not use these gates. A gate records its progress, so that
after the death of a replica the scan of another one continues.
"""

import asyncio
import logging
from typing import Protocol

from progressor import errors
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.gate_queue import GateQueue
from progressor.storage.gates.gates import GaveWay
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.rows.effects import Effects, LoweredGate

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 0.05
_BACKOFF_SECONDS_MAX = 2.0

REST = 4.0
"""How long the pause is, in transactions."""


class Gates(Protocol):
    """What is needed of storage's gates."""

    async def evict_holders(self, lowered: LoweredGate) -> tuple[GaveWay, Effects]:
        """Send back some surplus holders of a gate."""


class LoweredGates:
    """Takes turns between the lowered gates."""

    def __init__(
        self, *, gates: Gates, queue: GateQueue, effects: EffectDispatcher, context: Context
    ) -> None:
        self._gates = gates
        self._queue = queue
        self._effects = effects
        self._context = context

    async def run(self) -> None:
        """Send surplus holders back; ends only by cancellation."""
        queue, clock = self._queue, self._context.clock
        backoff = Backoff(
            first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self._context.jitter
        )
        while True:
            if not queue.lowered:
                queue.lowered_changed.clear()
                await queue.lowered_changed.wait()
            gate = next(iter(queue.lowered))
            del queue.lowered[gate]
            began = clock.monotonic()
            try:
                gave_way, effects = await self._gates.evict_holders(gate)
                self._effects.apply(effects)
            except errors.StorageError as error:
                _log.info(
                    "could not send back the holders of a gate; retrying",
                    extra=_facts(gate, str(error)),
                )
                gave_way = GaveWay(0, is_done=False)
            if not gave_way.is_done:
                queue.lowered[gate] = None
            if gave_way.count or gave_way.is_done:
                backoff.reset()
                await asyncio.sleep(REST * (clock.monotonic() - began))
            else:
                # The holders to send back are locked; or they all run, and the next call looks at
                # the next ones.
                await asyncio.sleep(backoff.pause())


def _facts(gate: LoweredGate, why: str) -> dict[str, str]:
    return {"namespace": gate.namespace, "gate": gate.gate, "why": why}
