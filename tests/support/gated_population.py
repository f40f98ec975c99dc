"""A task with constraints in every state: in line, available, at work and ended."""

import datetime as dt

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from tests.support.storage import BROKEN, NO_TIME, Desk, a_request, fresh_key, success

HOUR = dt.timedelta(hours=1)


async def populate_gates(desk: Desk) -> None:
    """Make a process for each way of waiting, and of holding a gate."""
    mutex = {"mutex": 1}
    await _call(desk, Constraints(gates=mutex))
    await _call(desk, Constraints(gates=mutex, order=Order("rollout", Version((1, 9)))))
    await _call(desk, Constraints(order=Order("rollout", Version((1, 10)))))
    await _call(desk, Constraints(run_at=desk.clock.now() + HOUR))
    await desk.timed(HOUR, constraints=Constraints(gates={"by timers": 2}))
    await _claimed(desk, await _call(desk, Constraints(gates={"at work": 1})))
    await _ended(desk, Constraints(gates={"for a step": 1}))
    await _ended(desk, Constraints(gates={"for good": 1}, hold=GateHold.PROCESS))
    await _broken_by_timer(desk)

    busy = fresh_key()
    await desk.started(busy)
    await desk.run_task(a_request(busy))
    await desk.admit(a_request(busy, constraints=Constraints(gates={"free": 1})))

    unborn = fresh_key()
    late = Constraints(run_at=desk.clock.now() + HOUR)
    await desk.admit(a_request(unborn, TaskType.INIT, constraints=late))
    await desk.admit(a_request(unborn))


async def _call(desk: Desk, constraints: Constraints) -> tuple[ProcessKey, int]:
    key = fresh_key()
    await desk.started(key)
    admission = await desk.admit(a_request(key, constraints=constraints), run=False)
    assert admission.task_id is not None, f"it is refused: {admission}"
    return key, admission.task_id


async def _claimed(desk: Desk, called: tuple[ProcessKey, int]) -> RunningTask:
    [claimed] = await desk.claim(*called)
    return claimed.task


async def _ended(desk: Desk, constraints: Constraints) -> None:
    await desk.settled(await _claimed(desk, await _call(desk, constraints)))


async def _broken_by_timer(desk: Desk) -> None:
    key = fresh_key()
    timer = SetTimer(after=NO_TIME, constraints=Constraints(gates={"by timers": 2}))
    desk.told.clear()
    await desk.settled(await desk.start(key), success(timer))
    [due] = [due for promoted in desk.told for due in promoted.due]
    await desk.settled(await _claimed(desk, due), BROKEN)
