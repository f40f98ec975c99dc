"""A process of every kind in storage: at work, in line, timed, broken, imported."""

import datetime as dt

from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.storage import BROKEN, NO_TIME, Desk, a_request, fresh_key, success

HOUR = dt.timedelta(hours=1)


async def populate(desk: Desk) -> None:
    """Make a process of every kind, with a line and a timer."""
    busy, timed, waiting = fresh_key(), fresh_key(), fresh_key()
    await desk.started(busy, success(events=2))
    await desk.run_task(a_request(busy, idempotency_key="k"))
    await desk.admit(a_request(busy))
    await desk.started(timed, success(SetTimer(after=HOUR)))
    await desk.started(waiting, success(events=1))
    await desk.admit(a_request(waiting), run=False)
    await desk.broken(fresh_key())
    broken_by_timer = fresh_key()
    init = await desk.start(broken_by_timer)
    timer = (await desk.settled(init, success(SetTimer(after=NO_TIME)))).next
    assert timer is not None
    await desk.settled(timer, BROKEN)
    await desk.processes.simple_repair(broken_by_timer)
    await desk.admit(a_request(broken_by_timer, TaskType.REPAIR), run=False)
    await desk.processes.put(
        Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            history=(NewEvent(payload=b"imported"),),
            timer=SetTimer(after=HOUR),
        )
    )
