"""A process of every kind in storage: at work, in line, timed, broken, imported."""

import datetime as dt

from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.storage.store import BROKEN, NO_TIME, Store, a_request, fresh_key, success

HOUR = dt.timedelta(hours=1)


async def populate(store: Store) -> None:
    """Make a process of every kind, with a line and a timer."""
    busy, timed, waiting = fresh_key(), fresh_key(), fresh_key()
    await store.started(busy, success(events=2))
    await store.run_task(a_request(busy, idempotency_key="k"))
    await store.admit(a_request(busy))
    await store.started(timed, success(SetTimer(after=HOUR)))
    await store.started(waiting, success(events=1))
    await store.admit(a_request(waiting), run=False)
    await store.broken(fresh_key())
    broken_by_timer = fresh_key()
    init = await store.start(broken_by_timer)
    timer = (await store.settled(init, success(SetTimer(after=NO_TIME)))).next
    assert timer is not None
    await store.settled(timer, BROKEN)
    await store.writes.simple_repair(broken_by_timer)
    await store.admit(a_request(broken_by_timer, TaskType.REPAIR), run=False)
    await store.writes.put(
        Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            history=(NewEvent(payload=b"imported"),),
            timer=SetTimer(after=HOUR),
        )
    )
