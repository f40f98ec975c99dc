"""The three that claim: timers at their time, the backlog, and the safety net."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from progressor import errors
from progressor.domain.namespace import Namespace
from progressor.domain.task import RunningTask, TaskType
from progressor.scanner.backlog import Backlog
from progressor.scanner.due import PAGES_MAX, DueScan
from progressor.scanner.places import Places
from progressor.scanner.timers import Timers
from progressor.settings.sections import Replica, Scanner
from progressor.storage.claims import Claims
from progressor.storage.namespaces import Namespaces
from progressor.storage.pools import Pool
from progressor.worker.agenda import Agenda
from progressor.worker.observer import Observers
from progressor.worker.workers import Workers
from tests.support.builders import (
    make_claimed,
    make_due,
    make_key,
    make_namespace,
    make_process,
    make_task,
    seconds,
)
from tests.support.clock import START
from tests.support.memory import MemoryClaims, MemoryNamespaces
from tests.support.virtual_time import LoopClock, in_virtual_time, settled

POOL = cast("Pool", object())


class Bench:
    """The claiming scanners over one line of due tasks; steps last until they are ended."""

    def __init__(self, *namespaces: Namespace) -> None:
        self.claims = MemoryClaims()
        self.namespaces = MemoryNamespaces(*namespaces)
        self.carried: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.workers = Workers(self._carry)
        self.agenda = Agenda(clock=LoopClock(), horizon=seconds(5), size_max=1000)
        self.observers = Observers()
        self.places = Places(workers=self.workers, step_grace=seconds(2))
        claims = cast("Claims", self.claims)
        known = cast("Namespaces", self.namespaces)
        self.timers = Timers(
            agenda=self.agenda,
            claims=claims,
            namespaces=known,
            places=self.places,
            pool=POOL,
            batch_max=10,
            observers=self.observers,
        )
        self.backlog = Backlog(
            claims=claims,
            namespaces=known,
            places=self.places,
            pool=POOL,
            batch_max=10,
            observers=self.observers,
        )
        self.due = DueScan(
            claims=claims,
            namespaces=known,
            places=self.places,
            agenda=self.agenda,
            pool=POOL,
            scanner=Scanner(batch_max=10),
            replica=Replica(),
            observers=self.observers,
        )

    def make_due(
        self,
        *task_ids: int,
        namespace: str = "orders",
        task_type: TaskType = TaskType.TIMEOUT,
    ) -> None:
        """Make tasks due in storage."""
        for task_id in task_ids:
            process = make_process(key=make_key(f"p{task_id}", namespace=namespace))
            task = make_task(task_id=task_id, process=process, task_type=task_type)
            self.claims.add(make_claimed(task))

    def remember(self, *task_ids: int, ahead: float = 0.0, namespace: str = "orders") -> None:
        """Note tasks on the agenda."""
        for task_id in task_ids:
            key = make_key(f"p{task_id}", namespace=namespace)
            due_at = START + seconds(ahead)
            self.agenda.add(make_due(task_id, key=key, due_at=due_at), told_at=START)

    def end(self, task_id: int) -> None:
        """Let a step end."""
        self.ends[task_id].set()

    @contextlib.asynccontextmanager
    async def running(self, *scanners: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self.workers.run(asyncio.Event()))]
        await settled()
        tasks += [asyncio.ensure_future(scanner()) for scanner in scanners]
        await settled()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _carry(self, task: RunningTask) -> None:
        self.carried.append(task.task_id)
        end = self.ends[task.task_id] = asyncio.Event()
        await end.wait()


ONE_PLACE = make_namespace(worker_count_max=1)


@in_virtual_time
async def test_a_timer_is_claimed_the_moment_it_is_due() -> None:
    bench = Bench()
    bench.make_due(1)
    bench.remember(1, ahead=3)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(2.99)
        before = list(bench.carried)
        await asyncio.sleep(0.02)

        assert (before, bench.carried) == ([], [1])

    assert bench.observers.counts["timers_claimed"] == 1


@in_virtual_time
async def test_a_timer_that_is_set_while_all_wait_is_not_overslept() -> None:
    bench = Bench()
    bench.make_due(1, 2)
    bench.remember(1, ahead=4)
    async with bench.running(bench.timers.run):
        bench.remember(2, ahead=1)
        await asyncio.sleep(1.01)

        assert bench.carried == [2]


@in_virtual_time
async def test_a_timer_that_is_gone_is_nobodys_loss() -> None:
    bench = Bench()
    bench.remember(1)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.carried == []
        assert bench.workers.busy_count("orders") == 0

    assert bench.observers.counts["timers_claimed"] == 0


@in_virtual_time
async def test_a_timer_without_a_worker_joins_the_backlog() -> None:
    bench = Bench(ONE_PLACE)
    bench.workers.reserve(ONE_PLACE)
    bench.remember(1)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.workers.has_backlog("orders")

    assert bench.claims.asked == []


@in_virtual_time
async def test_a_timer_does_not_overtake_the_backlog() -> None:
    bench = Bench()
    bench.workers.reserve(bench.namespaces.known()[0])
    bench.workers.mark_backlog("orders")
    bench.make_due(1)
    bench.remember(1)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.carried == []
        assert bench.workers.backlogs() == {"orders": 2}


@in_virtual_time
async def test_the_timer_of_a_namespace_that_is_gone_is_passed_over() -> None:
    bench = Bench()
    bench.make_due(1)
    bench.remember(1)
    bench.remember(2, namespace="void")
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.carried == [1]


@in_virtual_time
async def test_an_outage_puts_timers_off_and_loses_none() -> None:
    bench = Bench()
    bench.make_due(1, 2)
    bench.remember(1, 2)
    bench.claims.outage.remaining = 2
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1.1)

        assert sorted(bench.carried) == [1, 2]
        assert bench.workers.busy_count("orders") == 2


@in_virtual_time
async def test_an_outage_on_the_way_to_a_namespace_keeps_no_place() -> None:
    bench = Bench()
    bench.remember(1, 2)
    bench.namespaces.outage.remaining = 1
    async with bench.running(bench.timers.run):
        await asyncio.sleep(0.1)

        assert bench.workers.busy_count("orders") == 0


async def _scan_as_called(bench: Bench) -> None:
    bench.due.called.set()
    await bench.due.run_called()


@pytest.mark.parametrize("scanner", ["timers", "backlog", "due", "called"])
@in_virtual_time
async def test_a_claim_that_a_drain_breaks_off_keeps_no_place(scanner: str) -> None:
    bench = Bench()
    bench.claims.hangs = True
    bench.make_due(1)
    bench.remember(1)
    if scanner == "backlog":
        bench.workers.give_back("orders", bench.workers.reserve_up_to(ONE_PLACE, 1))
        bench.workers.mark_backlog("orders")
    if scanner in {"due", "called"}:
        bench.claims.hangs_at = "claim_due"
    scans: dict[str, Callable[[], Awaitable[None]]] = {
        "timers": bench.timers.run,
        "backlog": bench.backlog.run,
        "due": bench.due.scan,
        "called": lambda: _scan_as_called(bench),
    }
    scanning = asyncio.ensure_future(scans[scanner]())
    await bench.claims.hanging.wait()
    while_claiming = bench.workers.busy_count("orders")

    scanning.cancel()
    await asyncio.wait({scanning})

    assert while_claiming > 0
    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_a_place_that_becomes_free_goes_to_the_oldest_in_the_backlog() -> None:
    bench = Bench(ONE_PLACE)
    async with bench.running(bench.backlog.run):
        bench.workers.reserve(ONE_PLACE)
        bench.workers.start(make_task(task_id=1))
        bench.make_due(2, 3)
        bench.workers.mark_backlog("orders")
        await settled()
        before = list(bench.carried)
        bench.end(1)
        await settled()

        assert (before, bench.carried) == ([1], [1, 2])


@in_virtual_time
async def test_a_backlog_is_worked_off_to_the_last() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1, 2, 3)
    bench.workers.reserve(ONE_PLACE)
    bench.workers.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.workers.give_back("orders")
        for task_id in (1, 2, 3):
            await settled()
            bench.end(task_id)
        await settled()

        assert bench.carried == [1, 2, 3]
        assert not bench.workers.has_backlog("orders")
        assert bench.workers.reserve(ONE_PLACE)


@in_virtual_time
async def test_a_fresh_call_waits_for_one_timer_of_a_crowd_at_most() -> None:
    bench = Bench(ONE_PLACE)
    crowd, calls = range(1, 101), (1001, 1002, 1003)
    bench.make_due(*crowd)
    bench.workers.reserve(ONE_PLACE)
    bench.workers.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.workers.give_back("orders")
        await settled()
        bench.make_due(*calls, task_type=TaskType.CALL)
        for _ in range(6):
            bench.end(bench.carried[-1])
            await settled()

        assert bench.carried[1:] in ([1001, 2, 1002, 3, 1003, 4], [2, 1001, 3, 1002, 4, 1003])


@in_virtual_time
async def test_a_crowd_of_calls_does_not_keep_a_timer_waiting() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1, 2)
    bench.make_due(*range(1001, 1101), task_type=TaskType.CALL)
    bench.workers.reserve(ONE_PLACE)
    bench.workers.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.workers.give_back("orders")
        await settled()
        for _ in range(3):
            bench.end(bench.carried[-1])
            await settled()

        assert {1, 2} < set(bench.carried)


@in_virtual_time
async def test_a_crowd_of_timers_without_places_does_not_hold_up_the_loop() -> None:
    bench = Bench(ONE_PLACE)
    bench.workers.reserve(ONE_PLACE)
    bench.remember(*range(1, 1001))
    bench.agenda.changed.clear()
    passed: list[int] = []

    async def look_on() -> None:
        while bench.agenda.wait_seconds() is not None:
            passed.append(len(passed))
            await asyncio.sleep(0)

    await asyncio.sleep(0.01)
    async with bench.running(bench.timers.run, look_on):
        await settled()

    assert len(passed) >= 20


@in_virtual_time
async def test_what_was_marked_during_a_claim_is_looked_for_again() -> None:
    bench = Bench()
    (namespace,) = bench.namespaces.known()
    bench.workers.reserve(namespace)
    marks = [lambda: bench.workers.mark_backlog("orders")]
    bench.claims.meanwhile = lambda: marks.pop()() if marks else None
    async with bench.running(bench.backlog.run):
        bench.workers.mark_backlog("orders")
        await settled()

    assert bench.claims.asked == ["claim_due overdue=0 wait=True"] * 2


@in_virtual_time
async def test_a_draining_replica_leaves_its_backlog_to_others() -> None:
    bench = Bench()
    bench.workers.reserve(bench.namespaces.known()[0])
    async with bench.running(bench.backlog.run):
        bench.workers.draining = True
        bench.workers.mark_backlog("orders")
        await settled()

    assert bench.claims.asked == []


@in_virtual_time
async def test_the_backlog_of_a_namespace_that_is_gone_is_forgotten() -> None:
    bench = Bench()
    bench.workers.reserve(make_namespace("void"))
    async with bench.running(bench.backlog.run):
        bench.workers.mark_backlog("void")
        await settled()

    assert not bench.workers.has_backlog("void")


@in_virtual_time
async def test_an_outage_puts_the_backlog_off_and_keeps_no_place() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1)
    bench.claims.outage.remaining = 1
    bench.workers.reserve(ONE_PLACE)
    bench.workers.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.workers.give_back("orders")
        await settled()
        during = bench.workers.busy_count("orders")
        await asyncio.sleep(0.6)

        assert (during, bench.carried) == (0, [1])


@in_virtual_time
async def test_the_scan_finds_what_nobody_claimed_at_its_time() -> None:
    bench = Bench()
    bench.make_due(1)
    async with bench.running():
        await bench.due.scan()
        await settled()

        assert bench.carried == [1]

    assert bench.observers.counts["scan_found"] == 1
    assert bench.claims.asked == [
        "find_upcoming",
        "find_overdue",
        "claim_due overdue=1 wait=False",
    ]


@in_virtual_time
async def test_a_scan_that_finds_nothing_claims_nothing() -> None:
    bench = Bench()

    await bench.due.scan()

    assert bench.claims.asked == ["find_upcoming", "find_overdue"]
    assert bench.namespaces.refresh_count == 1


@in_virtual_time
async def test_the_scan_puts_on_the_agenda_what_comes_soon() -> None:
    bench = Bench()
    bench.claims.upcoming = [make_due(due_at=START + seconds(3))]

    await bench.due.scan()

    assert bench.agenda.wait_seconds() == pytest.approx(3, abs=0.01)


@in_virtual_time
async def test_a_crowd_of_timers_is_read_page_by_page() -> None:
    bench = Bench()
    bench.claims.upcoming = [
        make_due(task_id, due_at=START + seconds(task_id / 100)) for task_id in range(1, 26)
    ]
    async with bench.running():
        await bench.due.scan()
        await asyncio.sleep(1)

    assert bench.claims.asked.count("find_upcoming") == 3
    assert len(bench.agenda.take_due(100)) == 25


@in_virtual_time
async def test_a_namespace_whose_timers_are_read_is_not_read_on() -> None:
    bench = Bench(make_namespace(), make_namespace("invoices"))
    due_at = START + seconds(1)
    bench.claims.upcoming = [
        *(make_due(task_id, due_at=due_at) for task_id in range(1, 13)),
        make_due(99, key=make_key(namespace="invoices"), due_at=due_at),
    ]

    await bench.due.scan()

    asked = [[room.namespace for room in rooms] for rooms in bench.claims.rooms]
    assert asked == [["orders", "invoices"], ["orders"]]


@in_virtual_time
async def test_one_scan_reads_only_so_many_pages() -> None:
    bench = Bench()
    bench.claims.upcoming = [
        make_due(task_id, due_at=START + seconds(task_id / 1000))
        for task_id in range(1, 10 * PAGES_MAX + 11)
    ]

    await bench.due.scan()

    assert bench.claims.asked.count("find_upcoming") == PAGES_MAX


@in_virtual_time
async def test_the_scan_of_a_draining_replica_only_reads_the_namespaces() -> None:
    bench = Bench()
    bench.workers.draining = True

    await bench.due.scan()

    assert (bench.namespaces.refresh_count, bench.claims.asked) == (1, [])


@in_virtual_time
async def test_what_the_scan_finds_no_worker_for_is_not_overtaken() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1)
    bench.workers.reserve(ONE_PLACE)

    await bench.due.scan()

    assert bench.workers.has_backlog("orders")


@in_virtual_time
async def test_what_the_scan_leaves_for_want_of_places_is_not_overtaken() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1, 2)
    async with bench.running():
        await bench.due.scan()

        assert bench.workers.has_backlog("orders")


@in_virtual_time
async def test_a_claim_of_the_scan_that_fails_keeps_no_place() -> None:
    bench = Bench()
    bench.make_due(1)
    bench.claims.fails_at = "claim_due"

    with pytest.raises(errors.StorageUnavailableError):
        await bench.due.scan()

    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_what_another_replica_leaves_is_taken_over_at_once() -> None:
    bench = Bench()
    async with bench.running(bench.due.run_called):
        bench.make_due(1)
        bench.due.called.set()
        await settled()

        assert bench.carried == [1]

    assert bench.claims.asked == ["find_overdue", "claim_due overdue=0 wait=False"]
    assert bench.observers.counts["scan_found"] == 0


@in_virtual_time
async def test_an_outage_leaves_what_was_called_for_to_the_scan() -> None:
    bench = Bench()
    bench.claims.outage.remaining = 1
    async with bench.running(bench.due.run_called):
        bench.make_due(1, 2)
        bench.due.called.set()
        await settled()
        first = list(bench.carried)
        bench.due.called.set()
        await settled()

        assert (first, sorted(bench.carried)) == ([], [1, 2])
