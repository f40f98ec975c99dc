"""What is counted of steps: how long they take, how they end, and what they write."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, cast

import pytest

from progressor.domain.processes.event import Event
from progressor.domain.processes.intent import (
    Complete,
    KeepTimer,
    Outcome,
    RemoveProcess,
    SetTimer,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import Leadership, Part, process_key
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import Claim, RunningTask, TaskType
from progressor.runtime.core.measures import count_ends
from progressor.storage.processes.settlements import LeaseLost, Payloads
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_error,
    make_key,
    make_new_events,
    make_process,
    make_success,
    make_task,
    make_written,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.harness import Harness
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.telemetry.measured import counted, recorded

UNAVAILABLE, NOT_FOUND = 14, 5


class SlowProcessor:
    """Succeeds, after 20 ms."""

    async def ask(
        self,
        _task: RunningTask,
        _history: tuple[Event, ...],
        *,
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> Outcome:
        assert namespace.step_timeout == timeout
        await asyncio.sleep(0.02)
        return make_success()


@in_virtual_time
async def test_an_attempt_takes_as_long_as_its_processor() -> None:
    harness = Harness()
    steps = dataclasses.replace(harness.steps, processor=cast("Any", SlowProcessor()))

    await steps.run(make_task(), harness.slots)

    assert recorded(harness.metrics.task_processing) == {("orders", "call"): (1, 20)}
    assert recorded(harness.metrics.task_completion) == {("orders", "call"): (1, 0)}


@in_virtual_time
async def test_a_settlement_takes_from_the_outcome_to_its_commit() -> None:
    harness = Harness()
    harness.settlements.held = []
    running = asyncio.ensure_future(harness.run_step(make_task(task_type=TaskType.TIMEOUT)))
    await asyncio.sleep(0.03)

    harness.settlements.held[0].set_result(make_written())
    await running

    labels = ("orders", "timeout")
    assert recorded(harness.metrics.task_completion) == {labels: (1, 30)}
    assert recorded(harness.metrics.task_processing) == {labels: (1, 0)}
    assert counted(harness.metrics.settled) == {(*labels, "finish"): 1}
    assert recorded(harness.metrics.process_removing) == {}


LATE = START + seconds(0.02)
CLAIM = Claim(due_at=START, sent_at=START, answered_at=START)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"claim": CLAIM}, (1, 20)),
        # One day since it was set for then, and by now it is retried.
        ({"claim": CLAIM, "attempt": 2, "scheduled_at": START - dt.timedelta(days=1)}, (1, 20)),
        ({"claim": CLAIM, "started_at": START}, (1, 0)),
        # Pushed aside by a call, and taken up in the worker of the call.
        ({"scheduled_at": START}, (1, 20)),
        ({"scheduled_at": START, "attempt": 2}, None),
        ({"scheduled_at": LATE}, None),
        ({"claim": CLAIM, "task_type": TaskType.REMOVE}, (1, 20)),
        ({"claim": CLAIM, "task_type": TaskType.CALL}, None),
    ],
    ids=[
        "claimed",
        "retried",
        "in time",
        "pushed aside",
        "retry pushed aside",
        "at once",
        "removal",
        "call",
    ],
)
@in_virtual_time
async def test_a_timer_is_late_from_its_instant_to_the_start_of_its_step(
    fields: Mapping[str, Any], expected: tuple[int, float] | None
) -> None:
    harness = Harness()

    await harness.run_step(
        make_task(**{"task_type": TaskType.TIMEOUT, "started_at": LATE} | dict(fields))
    )

    found = recorded(harness.metrics.timer_lateness)
    assert found == ({} if expected is None else {("orders",): expected})


@in_virtual_time
async def test_a_step_that_removes_its_process_is_a_removal() -> None:
    harness = Harness()
    harness.processor.script.append(make_success(RemoveProcess()))

    await harness.run_step()
    await harness.run_step(make_task(task_type=TaskType.REMOVE))

    assert recorded(harness.metrics.process_removing) == {
        ("orders", "call"): (1, 0),
        ("orders", "remove"): (1, 0),
    }
    assert counted(harness.metrics.settled) == {
        ("orders", "call", "remove"): 1,
        ("orders", "remove", "remove"): 1,
    }


@in_virtual_time
async def test_a_step_without_a_namespace_is_abandoned() -> None:
    harness = Harness()
    harness.namespaces.by_name.clear()

    await harness.run_step()

    assert counted(harness.metrics.abandoned) == {("orders", "call"): 1}
    assert recorded(harness.metrics.task_processing) == {}


def test_what_settlements_write_is_summed_by_namespace_and_kind() -> None:
    metrics = Metrics()
    events = make_new_events(2)
    size = sum(len(event.payload) for event in events)
    told = make_success(
        SetTimer(after=seconds(1), args=b"12345"), events=events, response=b"r", aux_state=b"state"
    )
    ended = make_success(Complete(result=b"123"), events=events[:1], response=b"")

    Payloads(metrics).add(
        [
            ("orders", Finish(told.intent)),
            ("orders", Finish(told.intent)),
            ("orders", Remove(response=b"gone")),
            ("invoices", Finish(ended.intent)),
            ("nothing", Retry(delay=seconds(1), attempt_count=1, error=None)),
        ]
    )

    assert counted(metrics.events_written) == {("orders",): 4, ("invoices",): 1}
    assert counted(metrics.bytes_written) == {
        ("orders", "events"): 2 * size,
        ("orders", "response"): 6,
        ("orders", "aux_state"): 10,
        ("orders", "args"): 10,
        ("invoices", "events"): len(events[0].payload),
        ("invoices", "result"): 3,
    }


LEADER = process_key("rollouts", "job")
FOLLOWS = Part(leader=LEADER, node=3)
LEADS = Part(led_by=Leadership.PROCESSOR)


@pytest.mark.parametrize(
    ("settlement", "node", "job"),
    [
        (Finish(make_success(Complete(result=b"")).intent), "done", "done"),
        (Remove(), "done", None),
        (Break(make_error()), "failed", "failed"),
        (Remove(error=make_error()), "failed", None),
        (Finish(make_success(KeepTimer()).intent), None, None),
        (Retry(delay=seconds(1), attempt_count=1, error=None), None, None),
        (Fail(make_error()), None, None),
    ],
)
def test_a_node_or_a_job_ends_with_the_step_that_ends_its_process(
    settlement: Settlement, node: str | None, job: str | None
) -> None:
    metrics = Metrics()

    count_ends(metrics, make_key(), FOLLOWS, TaskType.CALL, settlement)
    nodes = counted(metrics.job_nodes_ended), counted(metrics.jobs_ended)
    count_ends(metrics, make_key(), LEADS, TaskType.JOIN, settlement)

    assert nodes == ({("rollouts", node): 1} if node else {}, {})
    assert counted(metrics.job_nodes_ended) == nodes[0]
    assert counted(metrics.jobs_ended) == ({("orders", job): 1} if job else {})


@in_virtual_time
async def test_a_settlement_that_was_fenced_is_none_and_ends_nothing() -> None:
    harness = Harness()
    harness.processor.script.append(make_success(Complete(result=b"")))
    harness.settlements.script.append(LeaseLost())

    await harness.run_step(make_task(process=make_process(part=FOLLOWS)))

    assert counted(harness.metrics.fenced) == {("orders", "call"): 1}
    assert counted(harness.metrics.settled) == counted(harness.metrics.job_nodes_ended) == {}
