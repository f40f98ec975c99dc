"""Whatever is done: a cause is that of the state, and no microsecond of a life is lost."""

import dataclasses
import datetime as dt
import random
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import FINAL_STATUSES, RunningTask, TaskStatus, TaskType
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    GatesFull,
    NoFreeWorker,
    Overrun,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    Wait,
)
from progressor.storage.postgres.context import STARVATION_TIMEOUT
from tests.support.clock import ManualClock
from tests.support.storage.constrained import on, whole
from tests.support.storage.store import UNREACHABLE, Store, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
INIT, CALL = TaskType.INIT, TaskType.CALL

CAUSES_OF: dict[str, tuple[type[Cause], ...]] = {
    "time": (RunAtNotDue, TimerNotDue, RetryNotDue),
    "order": (BehindVersion,),
    "process": (BehindTask,),
    "gates": (GatesFull,),
    "available": (NoFreeWorker, BehindTask, Running, Overrun),
}


class Walk:
    """Random deeds with tasks that have constraints; the causes are compared after each."""

    def __init__(
        self, store: Store, observer: psycopg.Connection[Any], clock: ManualClock, seed: int
    ) -> None:
        self.store, self.observer, self.clock = store, observer, clock
        self.random = random.Random(seed)
        self.keys: list[ProcessKey] = []
        self.running: dict[ProcessKey, RunningTask] = {}

    async def step(self) -> None:
        """Do something."""
        deeds = (self.admit, self.admit, self.carry, self.carry, self.carry, self.tick, self.cancel)
        await self.random.choice(deeds)()

    async def admit(self) -> None:
        chosen = self.random
        is_start = len(self.keys) < 6 and chosen.random() < 0.5
        if not is_start and not self.keys:
            return
        key = fresh_key() if is_start else chosen.choice(self.keys)
        constraints = None if chosen.random() < 0.3 else self.constraints()
        request = a_request(key, INIT if is_start else CALL, constraints=constraints)
        await self.store.admit(request, run=False)
        if is_start:
            self.keys.append(key)

    def constraints(self) -> Constraints:
        chosen = self.random
        order, run_at = None, None
        if chosen.random() < 0.3:
            order = Order("o", Version((chosen.randrange(4),)))
        if chosen.random() < 0.3:
            run_at = self.clock.now() + chosen.randrange(1, 30) * SECOND
        gates = chosen.sample(("a", "b", "c"), chosen.randrange(4))
        return on(*gates, order=order, run_at=run_at, priority=chosen.randrange(1, 6))

    async def carry(self) -> None:
        for claimed in await self.store.claim_due(limit=2):
            self.running[claimed.task.key] = claimed.task
        if not self.running:
            return
        task = self.running.pop(self.random.choice(sorted(self.running, key=str)))
        constraints = dataclasses.replace(self.constraints(), run_at=None)
        timer = SetTimer(after=10 * SECOND, constraints=constraints)
        outcome = self.random.choice((success(), success(), UNREACHABLE, success(timer)))
        await self.store.settled(task, outcome, continues=False)

    async def tick(self) -> None:
        self.clock.advance(
            self.random.choice((SECOND / 7, SECOND, 20 * SECOND, STARVATION_TIMEOUT))
        )
        await self.store.gates.promote_due(["orders"])

    async def cancel(self) -> None:
        rows = self.observer.execute(
            "SELECT slot, namespace, process_id, task_id FROM progressor.gated"
            " JOIN progressor.tasks USING (slot, namespace, process_id, task_id)"
            " WHERE gated.task_type = 'call' AND status = 'waiting' ORDER BY task_id"
        ).fetchall()
        if rows and self.random.random() < 0.3:
            *key, task_id = self.random.choice(rows)
            await self.store.cancel(ProcessKey(*key), task_id)

    async def look(self) -> int:
        """Compare the reported reasons with the tables; return how many have ended."""
        states = dict(self.observer.execute("SELECT task_id, state::text FROM progressor.gated"))
        unfinished = self.observer.execute(
            "SELECT count(*) FROM progressor.tasks WHERE finished_at IS NULL"
        ).fetchone()
        ended = told = 0
        await self.store.beat()
        for key in self.keys:
            waits = (await self.store.processes.get(key)).waits
            firsts = await self.store.processes.first_waits([key])
            assert list(firsts.values()) == list(waits[:1])
            told += len(waits)
            for wait in waits:
                self.check(wait, states.get(wait.task_id))
            for traced in await self.store.processes.trace(key, after=0, limit=100):
                if traced.constraints is None or traced.status not in FINAL_STATUSES:
                    assert traced.spent is None
                    continue
                assert traced.spent is not None
                assert traced.finished_at is not None
                assert whole(traced.spent) == traced.finished_at - traced.created_at
                ended += 1
        assert unfinished == (told,)
        return ended

    def check(self, wait: Wait, state: str | None) -> None:
        assert (state is None) == (wait.spent is None)
        if state is None or wait.spent is None:
            return
        assert isinstance(wait.cause, CAUSES_OF[state]), (state, wait)
        assert (wait.status is TaskStatus.AVAILABLE) == (
            state == "available" and not isinstance(wait.cause, Running | Overrun)
        )
        assert whole(wait.spent) == self.clock.now() - wait.created_at


@pytest.mark.parametrize("seed", range(4))
async def test_the_cause_is_that_of_the_state_and_no_microsecond_is_lost(
    store: Store, observer: psycopg.Connection[Any], seed: int
) -> None:
    walk = Walk(store, observer, store.clock, seed)
    ended = 0
    for _ in range(80):
        await walk.step()
        ended = await walk.look()

    assert ended > 2
