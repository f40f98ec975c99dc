"""The history of a step: what is read, what is remembered, and what goes to the processor."""

import pytest

from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.intent import RemoveProcess
from progressor.domain.processes.namespace import HistoryMode
from progressor.domain.processes.settlement import Break, Retry
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
from tests.support.runtime.step import Harness, task_with_history
from tests.support.runtime.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_step_without_its_history_is_handed_on_uncounted() -> None:
    harness = Harness()
    harness.histories.outage.remaining = 1

    await harness.carry(task_with_history(3))

    (entry,) = harness.settlements.entries
    assert entry.settlement == Retry(delay=seconds(0), attempt_count=0, error=None)
    assert harness.processor.asked == []


@in_virtual_time
async def test_a_history_too_large_for_a_message_breaks_its_process() -> None:
    harness = Harness()
    harness.histories.cut = True

    await harness.carry(task_with_history(3))

    (entry,) = harness.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert entry.settlement.error.reason == "HISTORY_TOO_LARGE"


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
    harness = Harness()
    harness.histories.events = make_history(5)
    if remembered:
        harness.history_cache.remember(make_process(last_event_id=5), make_history(5))

    await harness.carry(task_with_history(5, history_range=wanted))

    assert harness.history_sent() == expected
    assert not (remembered and harness.histories.reads)


@in_virtual_time
async def test_a_history_that_was_read_whole_is_not_read_again() -> None:
    harness = Harness()
    harness.histories.events = make_history(3)

    await harness.carry(task_with_history(3))
    await harness.carry(task_with_history(3))

    assert len(harness.histories.reads) == 1
    assert harness.history_sent() == (1, 2, 3)


@in_virtual_time
async def test_no_processor_is_asked_about_a_process_that_went_while_its_history_was_read() -> None:
    harness = Harness()
    harness.histories.events = ()

    await harness.carry(task_with_history(3))

    assert harness.processor.asked == []
    (entry,) = harness.settlements.entries
    assert isinstance(entry.settlement, Retry)


LAST_TWO = HistoryRange(direction=Direction.BACKWARD, limit=2)


@pytest.mark.parametrize("wanted", [HistoryRange(limit=2), LAST_TWO], ids=repr)
@in_virtual_time
async def test_a_piece_of_a_history_is_not_taken_for_the_whole(wanted: HistoryRange) -> None:
    harness = Harness()
    harness.histories.events = make_history(3)

    await harness.carry(task_with_history(3, history_range=wanted))
    await harness.carry(task_with_history(3))

    assert len(harness.histories.reads) == 2


@in_virtual_time
async def test_the_last_events_of_a_long_history_are_read_once() -> None:
    harness = Harness()
    harness.histories.events = make_history(1000)
    after = make_process(last_event_id=1001)
    harness.processor.script.append(make_success(events=make_new_events(1)))
    next_task = make_task(process=after, history_range=LAST_TWO)
    harness.settlements.script.append(make_written(process=after, next=next_task))

    await harness.carry(task_with_history(1000, history_range=LAST_TWO))

    assert len(harness.histories.reads) == 1
    assert harness.history_sent() == (1001, 1000)


@in_virtual_time
async def test_what_a_step_records_is_known_to_the_next() -> None:
    harness = Harness()
    harness.processor.script.append(make_success(events=make_new_events(2)))
    after = make_process(last_event_id=2)
    harness.settlements.script.append(make_written(process=after, next=make_task(process=after)))

    await harness.carry()

    assert harness.history_sent() == (1, 2)
    assert [event.payload for event in harness.processor.asked[-1][1]] == [b"new 1", b"new 2"]
    assert harness.histories.reads == []


@in_virtual_time
async def test_a_removed_process_is_not_remembered() -> None:
    harness = Harness()
    harness.processor.script.append(make_success(RemoveProcess()))
    harness.settlements.script.append(make_written(process=None))

    await harness.carry()

    assert harness.points["settled"] == 1


@in_virtual_time
async def test_the_last_events_are_sent_where_the_namespace_says_so() -> None:
    harness = Harness(make_namespace(history_mode=HistoryMode.LAST, history_last=2))
    harness.histories.events = make_history(5)

    await harness.carry(task_with_history(5))

    assert harness.history_sent() == (4, 5)


@in_virtual_time
async def test_a_history_that_postgresql_cannot_read_breaks_its_process() -> None:
    harness = Harness()
    harness.histories.refuses = True

    await harness.carry(task_with_history(3))

    (entry,) = harness.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert entry.settlement.error.reason == "HISTORY_UNREADABLE"
    assert harness.processor.asked == []
