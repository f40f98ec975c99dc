"""The instants of schedules are computed off the event loop, by one thread."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from progressor.api.schedules.servicer import ScheduleServicer
from progressor.domain.processes.namespace import Namespace
from progressor.domain.schedules.schedule import Calendar, CronTimes, Upcoming, schedule_key
from progressor.v1 import schedule_service_pb2 as messages
from tests.support.api.memory import Memory, MemoryNamespaces
from tests.support.api.memory_schedules import MemoryScheduleRuns, MemorySchedules
from tests.support.clock import ManualClock
from tests.support.storage.schedules import a_spec


class Caller:
    """A caller without a deadline."""

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        return None


class Computing:
    """A computation of instants that lasts until it is let go, and notes who does it."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.begun = threading.Semaphore(0)
        self.free = threading.Event()

    def compute(self, first: Upcoming) -> list[Upcoming]:
        self.threads.append(threading.current_thread().name)
        self.begun.release()
        assert self.free.wait(30), "it was not released"
        return [first]


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Computing:
    made = Computing()

    def compute(_calendar: Calendar, first: Upcoming, _count: int) -> list[Upcoming]:
        return made.compute(first)

    monkeypatch.setattr(Calendar, "next", compute)
    return made


async def made() -> ScheduleServicer:
    schedules, namespaces = MemorySchedules(), MemoryNamespaces()
    await namespaces.create(Namespace(name="clocks", processor_targets=("127.0.0.1:1",)))
    spec = a_spec(times=CronTimes("0 0 29 2 */7", "UTC"))
    await schedules.create(schedule_key("clocks", "rare"), spec, paused=False, note="")
    backend = Memory(namespaces=namespaces).backend(
        schedules=schedules, schedule_runs=MemoryScheduleRuns(schedules)
    )
    return ScheduleServicer(lambda: backend, clock=ManualClock())


def asked(servicer: ScheduleServicer) -> "asyncio.Task[Any]":
    request = messages.GetScheduleRequest(namespace="clocks", schedule_id="rare", next_count=100)
    return asyncio.ensure_future(servicer.get_schedule(request, Caller()))


async def test_one_thread_computes_for_one_caller_at_a_time(computing: Computing) -> None:
    servicer = await made()
    gets = [asked(servicer) for _ in range(10)]
    await asyncio.to_thread(computing.begun.acquire)
    begun = len(computing.threads)
    computing.free.set()

    views = await asyncio.gather(*gets)

    assert begun == 1
    assert len(computing.threads) == 10
    assert {name.rsplit("_", 1)[0] for name in computing.threads} == {"calendars"}
    assert all(len(view.next_runs) == 1 for view in views)


async def test_nothing_is_computed_for_a_caller_that_has_left(computing: Computing) -> None:
    servicer = await made()
    first = asked(servicer)
    await asyncio.to_thread(computing.begun.acquire)
    gone = [asked(servicer) for _ in range(10)]
    await asyncio.sleep(0)
    last = asked(servicer)
    for get in gone:
        get.cancel()
    await asyncio.wait(gone)
    computing.free.set()

    await first
    await last

    assert len(computing.threads) == 2
