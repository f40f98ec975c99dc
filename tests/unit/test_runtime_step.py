"""The step: one task from claimed to settled."""

import asyncio
import datetime as dt

import pytest

from progressor import errors
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import Leadership, Part
from progressor.domain.processes.settlement import Break, Finish, Remove, Retry
from progressor.domain.processes.task import TaskType
from progressor.runtime.core.leases import Ending
from progressor.runtime.step.step import TURNS_MAX
from progressor.storage.processes.settlements import Entry, LeaseLost
from tests.support.builders import (
    make_new_events,
    make_process,
    make_success,
    make_task,
    make_written,
    seconds,
)
from tests.support.step_bench import GRACE, Bench
from tests.support.virtual_time import in_virtual_time, settled


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
    bench.slots.reserve(bench.namespaces.known()[0])
    bench.slots.mark_backlog("orders")
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
    bench.slots.draining = True

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
async def test_an_answer_that_postgresql_refuses_fails_its_own_step() -> None:
    bench = Bench()
    bench.settlements.script.append(errors.StorageRefusedError("a value out of range"))

    await bench.carry()

    refused, instead = bench.settlements.entries
    assert isinstance(refused.settlement, Finish)
    assert isinstance(instead.settlement, Break)
    assert instead.token == refused.token
    assert [entry for entry, _ in bench.aftermath.heard] == [instead]


@in_virtual_time
async def test_nodes_for_a_job_that_cannot_be_read_fail_their_own_step() -> None:
    bench = Bench()
    action = StartNodes(nodes=(NodeSpec(name="a"),))
    bench.processor.script.append(make_success(action=action))
    leader = make_process(part=Part(led_by=Leadership.PROCESSOR))

    await bench.carry(make_task(process=leader, task_type=TaskType.CALL))

    [entry] = bench.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert (entry.settlement.error.reason, entry.plan) == ("JOB_UNREADABLE", None)


@in_virtual_time
async def test_a_settlement_that_was_found_again_later_hurts_nobody() -> None:
    # The answer to the first try was lost, and others have recorded events since.
    bench = Bench()
    bench.processor.script.append(make_success(events=make_new_events(2)))
    bench.settlements.script.append(make_written(process=make_process(last_event_id=3)))

    await bench.carry()

    assert bench.points["settled"] == 1


@in_virtual_time
async def test_a_process_about_which_nothing_can_be_written_is_left_to_the_zombies_scan() -> None:
    bench = Bench()
    bench.settlements.script.extend([errors.StorageRefusedError("its page is broken")] * 2)

    await bench.carry()

    assert len(bench.settlements.entries) == 2
    assert bench.points["abandoned"] == 1
    assert bench.leases.tokens() == []
