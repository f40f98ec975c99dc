"""The step: one task from claimed to settled."""

import asyncio
import datetime as dt
import random
from typing import Any, cast

import pytest

from progressor import errors
from progressor.domain.event import Direction, HistoryRange
from progressor.domain.intent import Released, RemoveProcess
from progressor.domain.namespace import HistoryMode, Namespace
from progressor.domain.settlement import Break, Finish, Remove, Retry
from progressor.domain.task import RunningTask, TaskType
from progressor.storage.settlements import Entry, LeaseLost, Settlements, Written
from progressor.telemetry.setup import SILENT
from progressor.worker.aftermath import Aftermath
from progressor.worker.leases import Ending, Leases
from progressor.worker.observer import Observers
from progressor.worker.snapshots import Snapshots
from progressor.worker.step import TURNS_MAX, Steps
from progressor.worker.workers import Workers
from tests.support.builders import (
    make_history,
    make_namespace,
    make_new_events,
    make_process,
    make_success,
    make_task,
    make_written,
    seconds,
)
from tests.support.memory import (
    MemoryHistories,
    MemoryNamespaces,
    MemoryProcessor,
    MemorySettlements,
)
from tests.support.virtual_time import LoopClock, in_virtual_time, settled

GRACE = seconds(2)


class HeardAftermath:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Entry, Written]] = []

    def of(self, entry: Entry, written: Written) -> None:
        self.heard.append((entry, written))


class Bench:
    """Steps among collaborators in memory, and workers to carry them."""

    def __init__(self, namespace: Namespace | None = None, *, snapshot_bytes: int = 10_000) -> None:
        self.processor = MemoryProcessor()
        self.settlements = MemorySettlements()
        self.histories = MemoryHistories()
        self.namespaces = MemoryNamespaces(*([] if namespace is None else [namespace]))
        self.snapshots = Snapshots(bytes_max=snapshot_bytes)
        self.aftermath = HeardAftermath()
        self.leases = Leases()
        self.observers = Observers()
        self.steps = Steps(
            processor=self.processor,
            settlements=cast("Settlements", self.settlements),
            histories=self.histories,
            namespaces=self.namespaces,
            snapshots=self.snapshots,
            aftermath=cast("Aftermath", self.aftermath),
            leases=self.leases,
            clock=LoopClock(),
            spread=random.Random(1),
            step_grace=GRACE,
            telemetry=SILENT,
            observers=self.observers,
        )
        self.workers = Workers(lambda task: self.steps.carry(task, self.workers))

    async def carry(self, task: RunningTask | None = None) -> None:
        await self.steps.carry(make_task() if task is None else task, self.workers)

    @property
    def points(self) -> dict[str, int]:
        return dict(self.observers.counts)

    def history_sent(self) -> tuple[int, ...]:
        """Return the ids of the events that went with the last task."""
        return tuple(event.event_id for event in self.processor.asked[-1][1])


def task_with_history(last: int, **fields: Any) -> RunningTask:
    return make_task(process=make_process(last_event_id=last), **fields)


@in_virtual_time
async def test_an_answer_is_settled_under_the_lease_of_the_task() -> None:
    bench = Bench()
    task = make_task(trace_context={"traceparent": "t"})

    await bench.carry(task)

    (entry,) = bench.settlements.entries
    assert entry == Entry(
        key=task.key,
        task_id=task.task_id,
        task_type=task.task_type,
        attempt=task.attempt,
        token=task.token,
        settlement=Finish(make_success().intent),
        process=task.process,
        continues=True,
        expires_after=bench.namespaces.known()[0].step_timeout + GRACE,
        trace_context={"traceparent": "t"},
    )


@in_virtual_time
async def test_a_settled_step_is_told_to_those_concerned() -> None:
    bench = Bench()

    await bench.carry()

    assert [entry for entry, _ in bench.aftermath.heard] == bench.settlements.entries
    assert bench.points == {"claimed": 1, "answered": 1, "settled": 1}


@in_virtual_time
async def test_a_step_that_was_fenced_off_tells_nobody() -> None:
    bench = Bench()
    bench.settlements.script.append(LeaseLost())

    await bench.carry()

    assert bench.aftermath.heard == []
    assert bench.points == {"claimed": 1, "answered": 1, "fenced": 1}


@in_virtual_time
async def test_a_worker_goes_on_with_what_the_settlement_says_is_next() -> None:
    bench = Bench()
    following = make_task(task_id=8, token=80)
    bench.settlements.script.append(make_written(next=following))

    await bench.carry()

    assert [entry.token for entry in bench.settlements.entries] == [70, 80]
    assert bench.leases.tokens() == []


@in_virtual_time
async def test_the_lease_of_the_next_task_replaces_the_last_one() -> None:
    bench = Bench()
    bench.settlements.script.append(make_written(next=make_task(task_id=8, token=80)))
    bench.processor.script.extend([make_success(), None])
    carrying = asyncio.ensure_future(bench.carry())

    await bench.processor.hanging.wait()

    assert (bench.leases.carries(7), bench.leases.carries(8)) == (False, True)
    assert list(bench.leases.tokens()) == [80]
    carrying.cancel()


@in_virtual_time
async def test_a_busy_process_yields_its_place_after_many_turns_if_others_wait() -> None:
    bench = Bench()
    bench.workers.reserve(bench.namespaces.known()[0])
    bench.workers.mark_backlog("orders")
    script = [make_written(next=make_task()) for _ in range(TURNS_MAX - 1)]
    bench.settlements.script.extend(script)

    await bench.carry()

    assert [entry.continues for entry in bench.settlements.entries] == (
        [True] * (TURNS_MAX - 1) + [False]
    )


@in_virtual_time
async def test_a_busy_process_keeps_its_place_if_nobody_waits() -> None:
    bench = Bench()
    bench.settlements.script.extend(make_written(next=make_task()) for _ in range(TURNS_MAX))

    await bench.carry()

    assert all(entry.continues for entry in bench.settlements.entries)


@in_virtual_time
async def test_a_draining_worker_does_not_go_on() -> None:
    bench = Bench()
    bench.workers.draining = True

    await bench.carry()

    assert [entry.continues for entry in bench.settlements.entries] == [False]


@in_virtual_time
async def test_a_due_removal_asks_nobody() -> None:
    bench = Bench()

    await bench.carry(make_task(task_type=TaskType.REMOVE))

    assert bench.processor.asked == []
    assert [entry.settlement for entry in bench.settlements.entries] == [Remove()]


@pytest.mark.parametrize(
    ("own", "expected"), [(None, seconds(30)), (seconds(3), seconds(3))], ids=["namespace", "own"]
)
@in_virtual_time
async def test_the_timeout_of_the_task_goes_before_the_namespaces(
    own: dt.timedelta | None, expected: dt.timedelta
) -> None:
    bench = Bench()

    await bench.carry(make_task(step_timeout=own))

    assert [timeout for _, _, timeout in bench.processor.asked] == [expected]


@in_virtual_time
async def test_an_abandoned_step_settles_nothing() -> None:
    bench = Bench()
    bench.processor.script.append(None)
    carrying = asyncio.ensure_future(bench.carry())
    await bench.processor.hanging.wait()

    bench.leases.let_go(Ending.ABANDONED)
    await carrying

    assert bench.settlements.entries == []
    assert bench.points == {"claimed": 1, "abandoned": 1}


@in_virtual_time
async def test_a_released_step_hands_its_task_to_others_at_once() -> None:
    bench = Bench()
    bench.processor.script.append(None)
    carrying = asyncio.ensure_future(bench.carry(make_task(attempt=2)))
    await bench.processor.hanging.wait()

    bench.leases.let_go(Ending.RELEASED)
    await carrying

    (entry,) = bench.settlements.entries
    assert entry.settlement == Retry(delay=seconds(0), attempt_count=1, error=None)


@in_virtual_time
async def test_a_task_that_follows_a_release_is_released_without_asking() -> None:
    bench = Bench()
    bench.settlements.held = []
    carrying = asyncio.ensure_future(bench.carry())
    await settled()

    bench.leases.let_go(Ending.RELEASED)
    (first,) = bench.settlements.held
    bench.settlements.held = None
    first.set_result(make_written(next=make_task(task_id=8)))
    await carrying

    assert len(bench.processor.asked) == 1
    assert isinstance(bench.settlements.entries[1].settlement, Retry)


@in_virtual_time
async def test_a_settlement_in_line_outlives_its_worker() -> None:
    bench = Bench()
    bench.settlements.held = []
    carrying = asyncio.ensure_future(bench.carry())
    await settled()

    carrying.cancel()
    await settled()

    assert len(bench.settlements.entries) == 1
    assert bench.leases.tokens() == []


@in_virtual_time
async def test_a_step_waits_for_postgresql_to_tell_its_namespace() -> None:
    bench = Bench()
    bench.namespaces.outage.remaining = 3

    await bench.carry()

    assert asyncio.get_running_loop().time() == pytest.approx(3.0)
    assert len(bench.settlements.entries) == 1


@in_virtual_time
async def test_a_step_whose_namespace_is_gone_hurts_no_neighbour() -> None:
    bench = Bench()
    bench.namespaces.by_name.clear()

    await bench.carry()

    assert bench.points == {"claimed": 1, "abandoned": 1}
    assert bench.leases.tokens() == []


@in_virtual_time
async def test_a_step_without_its_history_is_handed_on_uncounted() -> None:
    bench = Bench()
    bench.histories.outage.remaining = 1

    await bench.carry(task_with_history(3))

    (entry,) = bench.settlements.entries
    assert entry.settlement == Retry(delay=seconds(0), attempt_count=0, error=None)
    assert bench.processor.asked == []


@in_virtual_time
async def test_a_history_too_large_for_a_message_breaks_its_process() -> None:
    bench = Bench()
    bench.histories.cut = True

    await bench.carry(task_with_history(3))

    (entry,) = bench.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert entry.settlement.error.reason == "HISTORY_TOO_LARGE"


@in_virtual_time
async def test_an_answer_that_postgresql_refuses_fails_its_own_step() -> None:
    bench = Bench()
    bench.settlements.script.append(errors.StorageRefusedError("a value out of range"))

    await bench.carry()

    refused, instead = bench.settlements.entries
    assert isinstance(refused.settlement, Finish)
    assert isinstance(instead.settlement, Break)
    assert instead.token == refused.token
    assert [entry for entry, _ in bench.aftermath.heard] == [instead]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (HistoryRange(), (1, 2, 3, 4, 5)),
        (HistoryRange(after=2), (3, 4, 5)),
        (HistoryRange(after=2, limit=2), (3, 4)),
        (HistoryRange(limit=2), (1, 2)),
        (HistoryRange(limit=0), ()),
        (HistoryRange(after=5), ()),
        (HistoryRange(after=6), ()),
        (HistoryRange(direction=Direction.BACKWARD), (5, 4, 3, 2, 1)),
        (HistoryRange(direction=Direction.BACKWARD, limit=2), (5, 4)),
        (HistoryRange(direction=Direction.BACKWARD, after=4), (3, 2, 1)),
        (HistoryRange(direction=Direction.BACKWARD, after=4, limit=2), (3, 2)),
        (HistoryRange(direction=Direction.BACKWARD, after=1), ()),
        (HistoryRange(direction=Direction.BACKWARD, after=2, limit=9), (1,)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("remembered", [False, True], ids=["read", "remembered"])
@in_virtual_time
async def test_a_range_means_the_same_read_and_remembered(
    remembered: bool, wanted: HistoryRange, expected: tuple[int, ...]
) -> None:
    bench = Bench()
    bench.histories.events = make_history(5)
    if remembered:
        bench.snapshots.remember(make_process(last_event_id=5), make_history(5))

    await bench.carry(task_with_history(5, history_range=wanted))

    assert bench.history_sent() == expected
    assert not (remembered and bench.histories.reads)


@in_virtual_time
async def test_a_process_without_events_is_not_read() -> None:
    bench = Bench()

    await bench.carry()

    assert bench.histories.reads == []


@in_virtual_time
async def test_a_history_that_was_read_whole_is_not_read_again() -> None:
    bench = Bench()
    bench.histories.events = make_history(3)

    await bench.carry(task_with_history(3))
    await bench.carry(task_with_history(3))

    assert len(bench.histories.reads) == 1
    assert bench.history_sent() == (1, 2, 3)


@in_virtual_time
async def test_no_processor_is_asked_about_a_process_that_went_while_its_history_was_read() -> None:
    bench = Bench()
    bench.histories.events = ()

    await bench.carry(task_with_history(3))

    assert bench.processor.asked == []
    (entry,) = bench.settlements.entries
    assert isinstance(entry.settlement, Retry)


LAST_TWO = HistoryRange(direction=Direction.BACKWARD, limit=2)


@pytest.mark.parametrize("wanted", [HistoryRange(limit=2), LAST_TWO], ids=repr)
@in_virtual_time
async def test_a_piece_of_a_history_is_not_taken_for_the_whole(wanted: HistoryRange) -> None:
    bench = Bench()
    bench.histories.events = make_history(3)

    await bench.carry(task_with_history(3, history_range=wanted))
    await bench.carry(task_with_history(3))

    assert len(bench.histories.reads) == 2


@in_virtual_time
async def test_the_last_events_of_a_long_history_are_read_once() -> None:
    bench = Bench()
    bench.histories.events = make_history(1000)
    after = make_process(last_event_id=1001)
    bench.processor.script.append(make_success(events=make_new_events(1)))
    next_task = make_task(process=after, history_range=LAST_TWO)
    bench.settlements.script.append(make_written(process=after, next=next_task))

    await bench.carry(task_with_history(1000, history_range=LAST_TWO))

    assert len(bench.histories.reads) == 1
    assert bench.history_sent() == (1001, 1000)


@in_virtual_time
async def test_what_a_step_records_is_known_to_the_next() -> None:
    bench = Bench()
    bench.processor.script.append(make_success(events=make_new_events(2)))
    after = make_process(last_event_id=2)
    bench.settlements.script.append(make_written(process=after, next=make_task(process=after)))

    await bench.carry()

    assert bench.history_sent() == (1, 2)
    assert [event.payload for event in bench.processor.asked[-1][1]] == [b"new 1", b"new 2"]
    assert bench.histories.reads == []


@in_virtual_time
async def test_a_settlement_that_was_found_again_later_hurts_nobody() -> None:
    # The answer to the first try was lost, and others have recorded events since.
    bench = Bench()
    bench.processor.script.append(make_success(events=make_new_events(2)))
    bench.settlements.script.append(make_written(process=make_process(last_event_id=3)))

    await bench.carry()

    assert bench.points["settled"] == 1


@in_virtual_time
async def test_a_removed_process_is_not_remembered() -> None:
    bench = Bench()
    bench.processor.script.append(make_success(RemoveProcess()))
    bench.settlements.script.append(make_written(process=None))

    await bench.carry()

    assert bench.points["settled"] == 1


@in_virtual_time
async def test_the_last_events_are_sent_where_the_namespace_says_so() -> None:
    bench = Bench(make_namespace(history_mode=HistoryMode.LAST, history_last=2))
    bench.histories.events = make_history(5)

    await bench.carry(task_with_history(5))

    assert bench.history_sent() == (4, 5)


@in_virtual_time
async def test_an_outcome_of_the_processor_is_settled_by_the_rules() -> None:
    bench = Bench()
    bench.processor.script.append(Released())

    await bench.carry(make_task(attempt=3))

    assert bench.settlements.entries[0].settlement == Retry(
        delay=seconds(0), attempt_count=2, error=None
    )


@in_virtual_time
async def test_a_process_about_which_nothing_can_be_written_is_left_to_the_zombies_scan() -> None:
    bench = Bench()
    bench.settlements.script.extend([errors.StorageRefusedError("its page is broken")] * 2)

    await bench.carry()

    assert len(bench.settlements.entries) == 2
    assert bench.points["abandoned"] == 1
    assert bench.leases.tokens() == []


@in_virtual_time
async def test_a_history_that_postgresql_cannot_read_breaks_its_process() -> None:
    bench = Bench()
    bench.histories.refuses = True

    await bench.carry(task_with_history(3))

    (entry,) = bench.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert entry.settlement.error.reason == "HISTORY_UNREADABLE"
    assert bench.processor.asked == []
