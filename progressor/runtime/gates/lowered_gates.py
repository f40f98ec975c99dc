"""Sends back holders of gates whose capacity was lowered, a few in a transaction.

The capacity is already in effect, so there is no hurry: a pause longer than a transaction follows
each one, to leave room for tasks that do not use these gates. A gate records its progress, so that
after the death of a replica the scan of another one continues.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from progressor import errors
from progressor.clock import Clock
from progressor.storage.gates.gates import GaveWay
from progressor.storage.postgres.backoff import Backoff, steady
from progressor.storage.rows.gate_effects import LoweredGate

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 0.05
_BACKOFF_SECONDS_MAX = 2.0

REST = 4.0
"""How long the rest is, in transactions."""

LOWERED_MAX = 10_000
"""Gates at once; beyond that the scan finds them."""


class Gates(Protocol):
    """The operations that this needs from storage."""

    async def give_way(self, lowered: LoweredGate) -> GaveWay:
        """Send back some surplus holders of a gate."""


class LoweredGates:
    """Takes turns between the lowered gates."""

    def __init__(self, *, gates: Gates, clock: Clock, jitter: Callable[[], float] = steady) -> None:
        self._gates = gates
        self._clock = clock
        self._jitter = jitter
        # A dict for its order: whose turn it is.
        self._lowered: dict[LoweredGate, None] = {}
        self._news = asyncio.Event()

    def heard(self, lowered: Sequence[LoweredGate]) -> None:
        """Take gates that were lowered; at once, without waiting."""
        for gate in lowered[: max(0, LOWERED_MAX - len(self._lowered))]:
            self._lowered[gate] = None
        if lowered:
            self._news.set()

    async def run(self) -> None:
        """Send surplus holders back; ends only by cancellation."""
        backoff = Backoff(first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self._jitter)
        while True:
            if not self._lowered:
                self._news.clear()
                await self._news.wait()
            gate = next(iter(self._lowered))
            del self._lowered[gate]
            began = self._clock.monotonic()
            try:
                gave_way = await self._gates.give_way(gate)
            except errors.StorageError as error:
                _log.info(
                    "could not send back the holders of a gate; retrying",
                    extra=_facts(gate, str(error)),
                )
                gave_way = GaveWay(0, is_done=False)
            if not gave_way.is_done:
                self._lowered[gate] = None
            if gave_way.count or gave_way.is_done:
                backoff.reset()
                await asyncio.sleep(REST * (self._clock.monotonic() - began))
            else:
                # Those who are to go are locked; or they all run, and the next ones are looked at.
                await asyncio.sleep(backoff.pause())


def _facts(gate: LoweredGate, why: str) -> dict[str, str]:
    return {"namespace": gate.namespace, "gate": gate.gate, "why": why}
