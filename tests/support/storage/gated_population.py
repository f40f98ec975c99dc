"""A task with constraints in every state: in line, available, at work and ended."""

import datetime as dt

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from tests.support.storage.store import BROKEN, NO_TIME, Store, a_request, fresh_key, success

HOUR = dt.timedelta(hours=1)


async def populate_gates(store: Store) -> None:
    mutex = {"mutex": 1}
    await _call(store, Constraints(gates=mutex))
    await _call(store, Constraints(gates=mutex, order=Order("rollout", Version((1, 9)))))
    await _call(store, Constraints(order=Order("rollout", Version((1, 10)))))
    await _call(store, Constraints(run_at=store.clock.now() + HOUR))
    await store.timed(HOUR, constraints=Constraints(gates={"by timers": 2}))
    await _claimed(store, await _call(store, Constraints(gates={"at work": 1})))
    await _ended(store, Constraints(gates={"for a step": 1}))
    await _ended(store, Constraints(gates={"for good": 1}, hold=GateHold.PROCESS))
    await _broken_by_timer(store)

    busy = fresh_key()
    await store.started(busy)
    await store.run_task(a_request(busy))
    await store.admit(a_request(busy, constraints=Constraints(gates={"free": 1})))

    unborn = fresh_key()
    late = Constraints(run_at=store.clock.now() + HOUR)
    await store.admit(a_request(unborn, TaskType.INIT, constraints=late))
    await store.admit(a_request(unborn))


async def _call(store: Store, constraints: Constraints) -> tuple[ProcessKey, int]:
    key = fresh_key()
    await store.started(key)
    admission = await store.admit(a_request(key, constraints=constraints), run=False)
    assert admission.task_id is not None, f"it is refused: {admission}"
    return key, admission.task_id


async def _claimed(store: Store, called: tuple[ProcessKey, int]) -> RunningTask:
    [claimed] = await store.claim(*called)
    return claimed.task


async def _ended(store: Store, constraints: Constraints) -> None:
    await store.settled(await _claimed(store, await _call(store, constraints)))


async def _broken_by_timer(store: Store) -> None:
    key = fresh_key()
    timer = SetTimer(after=NO_TIME, constraints=Constraints(gates={"by timers": 2}))
    store.told.clear()
    await store.settled(await store.start(key), success(timer))
    [due] = [due for promoted in store.told for due in promoted.due]
    await store.settled(await _claimed(store, due), BROKEN)
