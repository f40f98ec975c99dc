"""The step: one task from claimed to settled."""

import asyncio

import pytest

from progressor import errors
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import Leadership, Part
from progressor.domain.processes.settlement import Break, Finish, Retry
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
from tests.support.runtime.step import GRACE, Harness
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_an_answer_is_settled_under_the_lease_of_the_task() -> None:
    harness = Harness()
    task = make_task(trace_context={"traceparent": "t"})

    await harness.carry(task)

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


@in_virtual_time
async def test_a_fenced_step_notifies_nobody() -> None:
    harness = Harness()
    harness.settlements.script.append(LeaseLost())

    await harness.carry()

    assert harness.effects.entries == []
    assert harness.points == {"claimed": 1, "answered": 1, "fenced": 1}


@in_virtual_time
async def test_the_lease_of_the_next_task_replaces_the_last_one() -> None:
    harness = Harness()
    harness.settlements.script.append(make_written(next=make_task(task_id=8, token=80)))
    harness.processor.script.extend([make_success(), None])
    carrying = asyncio.ensure_future(harness.carry())

    await harness.processor.hanging.wait()

    assert (harness.leases.carries(7), harness.leases.carries(8)) == (False, True)
    assert list(harness.leases.tokens()) == [80]
    carrying.cancel()


@in_virtual_time
async def test_a_busy_process_yields_its_place_after_many_turns_if_others_wait() -> None:
    harness = Harness()
    harness.slots.reserve(harness.namespaces.known()[0])
    harness.slots.mark_backlog("orders")
    script = [make_written(next=make_task()) for _ in range(TURNS_MAX - 1)]
    harness.settlements.script.extend(script)

    await harness.carry()

    assert [entry.continues for entry in harness.settlements.entries] == (
        [True] * (TURNS_MAX - 1) + [False]
    )


@in_virtual_time
async def test_a_released_step_hands_its_task_to_others_at_once() -> None:
    harness = Harness()
    harness.processor.script.append(None)
    carrying = asyncio.ensure_future(harness.carry(make_task(attempt=2)))
    await harness.processor.hanging.wait()

    harness.leases.let_go(Ending.RELEASED)
    await carrying

    (entry,) = harness.settlements.entries
    assert entry.settlement == Retry(delay=seconds(0), attempt_count=1, error=None)


@in_virtual_time
async def test_a_task_that_follows_a_release_is_released_without_asking() -> None:
    harness = Harness()
    harness.settlements.held = []
    carrying = asyncio.ensure_future(harness.carry())
    await settled()

    harness.leases.let_go(Ending.RELEASED)
    (first,) = harness.settlements.held
    harness.settlements.held = None
    first.set_result(make_written(next=make_task(task_id=8)))
    await carrying

    assert len(harness.processor.asked) == 1
    assert isinstance(harness.settlements.entries[1].settlement, Retry)


@in_virtual_time
async def test_a_settlement_in_line_outlives_its_worker() -> None:
    harness = Harness()
    harness.settlements.held = []
    carrying = asyncio.ensure_future(harness.carry())
    await settled()

    carrying.cancel()
    await settled()

    assert len(harness.settlements.entries) == 1
    assert harness.leases.tokens() == []


@in_virtual_time
async def test_a_step_waits_for_postgresql_to_tell_its_namespace() -> None:
    harness = Harness()
    harness.namespaces.outage.remaining = 3

    await harness.carry()

    assert asyncio.get_running_loop().time() == pytest.approx(3.0)
    assert len(harness.settlements.entries) == 1


@in_virtual_time
async def test_a_step_whose_namespace_is_gone_hurts_no_neighbour() -> None:
    harness = Harness()
    harness.namespaces.by_name.clear()

    await harness.carry()

    assert harness.points == {"claimed": 1, "abandoned": 1}
    assert harness.leases.tokens() == []


@in_virtual_time
async def test_an_answer_that_postgresql_refuses_fails_its_own_step() -> None:
    harness = Harness()
    harness.settlements.script.append(errors.StorageRefusedError("a value out of range"))

    await harness.carry()

    refused, instead = harness.settlements.entries
    assert isinstance(refused.settlement, Finish)
    assert isinstance(instead.settlement, Break)
    assert instead.token == refused.token
    assert [entry for entry, _ in harness.effects.entries] == [instead]


@in_virtual_time
async def test_nodes_for_a_job_that_cannot_be_read_fail_their_own_step() -> None:
    harness = Harness()
    action = StartNodes(nodes=(NodeSpec(name="a"),))
    harness.processor.script.append(make_success(action=action))
    leader = make_process(part=Part(led_by=Leadership.PROCESSOR))

    await harness.carry(make_task(process=leader, task_type=TaskType.CALL))

    [entry] = harness.settlements.entries
    assert isinstance(entry.settlement, Break)
    assert (entry.settlement.error.reason, entry.plan) == ("JOB_UNREADABLE", None)


@in_virtual_time
async def test_a_settlement_that_was_found_again_later_hurts_nobody() -> None:
    # The answer to the first try was lost, and others have recorded events since.
    harness = Harness()
    harness.processor.script.append(make_success(events=make_new_events(2)))
    harness.settlements.script.append(make_written(process=make_process(last_event_id=3)))

    await harness.carry()

    assert harness.points["settled"] == 1


@in_virtual_time
async def test_a_process_about_which_nothing_can_be_written_is_left_to_the_zombies_scan() -> None:
    harness = Harness()
    harness.settlements.script.extend([errors.StorageRefusedError("its page is broken")] * 2)

    await harness.carry()

    assert len(harness.settlements.entries) == 2
    assert harness.points["abandoned"] == 1
    assert harness.leases.tokens() == []
