"""Random deeds upon processes, some of whose tasks have constraints, in one replica's storage."""

import datetime as dt
import random

from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.intent import Outcome, SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from tests.support.clock import ManualClock
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    UNREACHABLE,
    Store,
    a_request,
    fresh_key,
    success,
)

_DEEDS = ("start", "call", "call", *["claim"] * 3, *["settle"] * 3, *["tick"] * 2)


class Walk:
    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.claimed: list[RunningTask] = []
        """What has begun since this was emptied."""
        self._store, self._clock = store, clock
        self._random = random.Random(seed)
        self._keys: list[ProcessKey] = []
        self._running: list[RunningTask] = []

    async def step(self) -> None:
        deed = self._random.choice(_DEEDS)
        await getattr(self, f"_{deed}")()

    async def _start(self) -> None:
        if len(self._keys) < 8:
            self._keys.append(fresh_key())
            await self._admit(self._keys[-1], TaskType.INIT)

    async def _call(self) -> None:
        if self._keys:
            await self._admit(self._random.choice(self._keys), TaskType.CALL)

    async def _admit(self, key: ProcessKey, task_type: TaskType) -> None:
        request = a_request(key, task_type, constraints=self._constraints())
        await self._store.admit(request, run=False)

    async def _claim(self) -> None:
        claimed = await self._store.claim_due(limit=self._random.randrange(1, 4))
        self._running += [each.task for each in claimed]
        self.claimed += [each.task for each in claimed]

    async def _settle(self) -> None:
        if not self._running:
            return
        task = self._running.pop(self._random.randrange(len(self._running)))
        timer = SetTimer(
            after=dt.timedelta(seconds=self._random.randrange(3)), constraints=self._constraints()
        )
        outcomes: list[Outcome] = [*[success(timer)] * 4, *[UNREACHABLE] * 3, success(), BROKEN]
        outcome = self._random.choice(outcomes)
        await self._store.settled(task, outcome, continues=False)
        if outcome is BROKEN:
            self._keys.remove(task.key)

    async def _tick(self) -> None:
        passed = dt.timedelta(seconds=self._random.choice((1, 2, 100)))
        self._clock.advance(passed + dt.timedelta(microseconds=self._random.randrange(1_000_000)))
        await self._store.gates.promote_due([NAMESPACE.name])

    def _constraints(self) -> Constraints | None:
        chosen = self._random
        if chosen.random() < 0.4:
            return None
        gates = dict.fromkeys(chosen.sample("abc", chosen.choice((0, 1, 1, 2))), 1)
        order = Order("v", Version((chosen.randrange(9),))) if chosen.random() < 0.3 else None
        return Constraints(gates=gates, order=order, priority=chosen.randrange(1, 6))
