"""The step: one task from claimed to settled, and the history that goes with it."""

import asyncio
from typing import Any

import pytest

from progressor import errors
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.intent import RemoveProcess, Succeeded
from progressor.domain.processes.namespace import HistoryMode
from progressor.domain.processes.process import Leadership, Part, Process
from progressor.domain.processes.settlement import Break, Finish, Retry
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.runtime.core.leases import Ending
from progressor.runtime.step.histories import HistoryCache
from progressor.runtime.step.step import STEPS_MAX
from progressor.storage.steps.settlements import Entry, LeaseLost
from tests.support.builders import (
    make_event,
    make_history,
    make_key,
    make_namespace,
    make_new_events,
    make_process,
    make_success,
    make_task,
    make_written,
    seconds,
)
from tests.support.runtime.harness import GRACE, Harness
from tests.support.runtime.virtual_time import settled


def task_with_history(last: int, **fields: Any) -> RunningTask:
    return make_task(process=make_process(last_event_id=last), **fields)


async def test_an_answer_is_settled_under_the_lease_of_the_task(harness: Harness) -> None:
    task = make_task(trace_context={"traceparent": "t"})

    await harness.run_step(task)

    (entry,) = harness.settlements.entries
    assert entry == Entry(
        key=task.key,
        task_id=task.task_id,
        task_type=task.task_type,
        attempt=task.attempt,
        token=task.token,
        settlement=Finish(make_success().intent),
        process=task.process,
        continues=True,
        expires_after=harness.namespaces.known()[0].step_timeout + GRACE,
        trace_context={"traceparent": "t"},
    )


async def test_a_fenced_step_notifies_nobody(harness: Harness) -> None:
    harness.settlements.script.append(LeaseLost())
    waiter = harness.expect()

    await harness.run_step()

    assert not waiter.done()
    assert harness.points == {"claimed": 1, "answered": 1, "fenced": 1}


async def test_the_lease_of_the_next_task_replaces_the_last_one(harness: Harness) -> None:
    harness.settlements.script.append(make_written(next=make_task(task_id=8, token=80)))
    harness.processor.script.extend([make_success(), None])
    running = asyncio.ensure_future(harness.run_step())

    await harness.processor.hanging.wait()

    assert (harness.leases.holds(7), harness.leases.holds(8)) == (False, True)
    assert list(harness.leases.tokens()) == [80]
    running.cancel()


async def test_a_busy_process_yields_its_place_after_many_turns_if_others_wait() -> None:
    harness = Harness()
    harness.slots.reserve(harness.namespaces.known()[0])
    harness.slots.mark_backlog("orders")
    script = [make_written(next=make_task()) for _ in range(STEPS_MAX - 1)]
    harness.settlements.script.extend(script)

    await harness.run_step()

    assert [entry.continues for entry in harness.settlements.entries] == (
        [True] * (STEPS_MAX - 1) + [False]
    )


async def test_a_released_step_hands_its_task_to_others_at_once(harness: Harness) -> None:
    harness.processor.script.append(None)
    running = asyncio.ensure_future(harness.run_step(make_task(attempt=2)))
    await harness.processor.hanging.wait()

    harness.leases.let_go(Ending.RELEASED)
    await running

    (entry,) = harness.settlements.entries
    assert entry.settlement == Retry(delay=seconds(0), attempt_count=1, error=None)


async def test_a_task_that_follows_a_release_is_released_without_asking(harness: Harness) -> None:
    harness.settlements.held = []
    running = asyncio.ensure_future(harness.run_step())
    await settled()

    harness.leases.let_go(Ending.RELEASED)
    (first,) = harness.settlements.held
    harness.settlements.held = None
    first.set_result(make_written(next=make_task(task_id=8)))
    await running

    assert len(harness.processor.asked) == 1
    assert isinstance(harness.settlements.entries[1].settlement, Retry)


async def test_a_queued_settlement_outlives_its_worker(harness: Harness) -> None:
    harness.settlements.held = []
    running = asyncio.ensure_future(harness.run_step())
    await settled()

    running.cancel()
    await settled()

    assert len(harness.settlements.entries) == 1
    assert harness.leases.tokens() == []


async def test_a_step_waits_for_postgresql_to_tell_its_namespace(harness: Harness) -> None:
    harness.namespaces.outage.remaining = 3

    await harness.run_step()

    assert asyncio.get_running_loop().time() == pytest.approx(3.0)
    assert len(harness.settlements.entries) == 1


async def test_a_step_whose_namespace_is_gone_hurts_no_neighbour(harness: Harness) -> None:
    harness.namespaces.by_name.clear()

    await harness.run_step()

    assert harness.points == {"claimed": 1, "abandoned": 1}
    assert harness.leases.tokens() == []


async def test_an_answer_that_postgresql_refuses_fails_its_own_step(harness: Harness) -> None:
    harness.settlements.script.append(errors.StorageRefusedError("a value out of range"))
    waiter = harness.expect()

    await harness.run_step()

    refused, instead = harness.settlements.entries
    assert isinstance(refused.settlement, Finish)
    assert isinstance(instead.settlement, Break)
    assert instead.token == refused.token
    assert waiter.result().error == instead.settlement.error


async def test_nodes_for_a_job_that_cannot_be_read_fail_their_own_step(harness: Harness) -> None:
    action = StartNodes(nodes=(NodeSpec(name="a"),))
    harness.processor.script.append(make_success(action=action))
    leader = make_process(part=Part(led_by=Leadership.PROCESSOR))

    await harness.run_step(make_task(process=leader, task_type=TaskType.CALL))

    [entry] = harness.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert (entry.settlement.error.reason, entry.plan) == ("JOB_UNREADABLE", None)


@pytest.mark.parametrize(
    ("outcome", "process"),
    [
        # The answer to the first try was lost, and others have recorded events since.
        (make_success(events=make_new_events(2)), make_process(last_event_id=3)),
        (make_success(RemoveProcess()), None),
    ],
    ids=["found again later", "removed"],
)
async def test_a_step_ends_also_if_its_history_cannot_be_cached(
    harness: Harness, outcome: Succeeded, process: Process | None
) -> None:
    harness.processor.script.append(outcome)
    harness.settlements.script.append(make_written(process=process))

    await harness.run_step()

    assert harness.points["settled"] == 1


async def test_a_process_about_which_nothing_can_be_written_is_left_to_the_zombies_scan() -> None:
    harness = Harness()
    harness.settlements.script.extend([errors.StorageRefusedError("its page is broken")] * 2)

    await harness.run_step()

    assert len(harness.settlements.entries) == 2
    assert harness.points["abandoned"] == 1
    assert harness.leases.tokens() == []


@pytest.mark.parametrize(
    ("histories", "reason"),
    [
        # Handed on, and the attempt is not counted.
        ({"outages": 1}, None),
        # The process went while its history was read.
        ({"events": ()}, "HISTORY_INCOMPLETE"),
        ({"cut": True}, "HISTORY_TOO_LARGE"),
        ({"refuses": True}, "HISTORY_UNREADABLE"),
    ],
    ids=["away", "gone", "too large", "unreadable"],
)
async def test_no_processor_is_asked_without_the_history(
    harness: Harness, histories: dict[str, Any], reason: str | None
) -> None:
    harness.histories.outage.remaining = histories.get("outages", 0)
    for name, value in histories.items():
        setattr(harness.histories, name, value)

    await harness.run_step(task_with_history(3))

    assert harness.processor.asked == []
    (entry,) = harness.settlements.entries
    if reason is None:
        assert entry.settlement == Retry(delay=seconds(0), attempt_count=0, error=None)
    else:
        assert isinstance(entry.settlement, Retry if reason == "HISTORY_INCOMPLETE" else Break)
        assert entry.settlement.error is not None
        assert entry.settlement.error.reason == reason


@pytest.mark.parametrize("memos", [{"pay": b"paid"}, {}, None])
async def test_no_processor_is_asked_without_the_memos_that_went_with_the_lease(
    harness: Harness, memos: dict[str, bytes] | None
) -> None:
    harness.histories.kept_memos = memos

    await harness.run_step(make_task(has_memos=True))

    (entry,) = harness.settlements.entries
    if memos is None:
        assert harness.processor.asked == []
        assert entry.settlement == Retry(delay=seconds(0), attempt_count=0, error=None)
    else:
        assert [task.memos for task, _, _ in harness.processor.asked] == [memos]


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
async def test_a_range_means_the_same_read_and_remembered(
    remembered: bool, wanted: HistoryRange, expected: tuple[int, ...]
) -> None:
    harness = Harness()
    harness.histories.events = make_history(5)
    if remembered:
        harness.history_cache.remember(make_process(last_event_id=5), make_history(5))

    await harness.run_step(task_with_history(5, history_range=wanted))

    assert harness.history_sent() == expected
    assert not (remembered and harness.histories.reads)


async def test_a_history_that_was_read_whole_is_not_read_again(harness: Harness) -> None:
    harness.histories.events = make_history(3)

    await harness.run_step(task_with_history(3))
    await harness.run_step(task_with_history(3))

    assert len(harness.histories.reads) == 1
    assert harness.history_sent() == (1, 2, 3)


LAST_TWO = HistoryRange(direction=Direction.BACKWARD, limit=2)


@pytest.mark.parametrize("wanted", [HistoryRange(limit=2), LAST_TWO], ids=repr)
async def test_a_piece_of_a_history_is_not_taken_for_the_whole(wanted: HistoryRange) -> None:
    harness = Harness()
    harness.histories.events = make_history(3)

    await harness.run_step(task_with_history(3, history_range=wanted))
    await harness.run_step(task_with_history(3))

    assert len(harness.histories.reads) == 2


async def test_the_last_events_of_a_long_history_are_read_once(harness: Harness) -> None:
    harness.histories.events = make_history(1000)
    after = make_process(last_event_id=1001)
    harness.processor.script.append(make_success(events=make_new_events(1)))
    next_task = make_task(process=after, history_range=LAST_TWO)
    harness.settlements.script.append(make_written(process=after, next=next_task))

    await harness.run_step(task_with_history(1000, history_range=LAST_TWO))

    assert len(harness.histories.reads) == 1
    assert harness.history_sent() == (1001, 1000)


async def test_what_a_step_records_is_known_to_the_next(harness: Harness) -> None:
    harness.processor.script.append(make_success(events=make_new_events(2)))
    after = make_process(last_event_id=2)
    harness.settlements.script.append(make_written(process=after, next=make_task(process=after)))

    await harness.run_step()

    assert harness.history_sent() == (1, 2)
    assert [event.payload for event in harness.processor.asked[-1][1]] == [b"new 1", b"new 2"]
    assert harness.histories.reads == []


async def test_the_last_events_are_sent_where_the_namespace_says_so() -> None:
    harness = Harness(make_namespace(history_mode=HistoryMode.LAST, history_last=2))
    harness.histories.events = make_history(5)

    await harness.run_step(task_with_history(5))

    assert harness.history_sent() == (4, 5)


EVENT_BYTES = 400


def test_nothing_comes_after_the_end() -> None:
    assert HistoryCache(bytes_max=0).recall(make_process(last_event_id=3), after=3) == ()


def test_no_more_is_kept_than_will_be_asked_for_and_as_much_again() -> None:
    history_cache = HistoryCache(bytes_max=1_000_000)
    process = make_process()

    for last in range(1, 200):
        after = make_process(last_event_id=last)
        history_cache.extend(process, after, (make_event(last),), keep=10)
        process = after

    assert history_cache.recall(process, after=189) == make_history(199, first=190)
    assert history_cache.recall(process, after=150) is None


def test_the_least_recently_used_goes_first() -> None:
    history_cache = HistoryCache(bytes_max=2 * EVENT_BYTES)
    first, second, third = (make_process(key=make_key(name), last_event_id=1) for name in "abc")
    for process in (first, second):
        history_cache.remember(process, (make_event(payload=b"x" * 100),))
    history_cache.recall(first, after=0)

    history_cache.remember(third, (make_event(payload=b"x" * 100),))

    known = [history_cache.recall(each, after=0) is not None for each in (first, second, third)]
    assert known == [True, False, True]
