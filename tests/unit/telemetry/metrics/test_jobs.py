"""How nodes and jobs end is counted where the step is settled that ends them, once for each."""

import pytest

from progressor.domain.processes.intent import Action, Complete, KeepTimer, RemoveProcess
from progressor.domain.processes.process import Leadership, Part, process_key
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.runtime.core.measures import count_ends
from progressor.storage.processes.settlements import LeaseLost
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_error,
    make_key,
    make_process,
    make_success,
    make_task,
    seconds,
)
from tests.support.runtime.harness import Harness
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.telemetry.measured import counted

LEADER = process_key("rollouts", "job")
FOLLOWS = Part(leader=LEADER, node=3)
LEADS = Part(led_by=Leadership.PROCESSOR)

COMPLETED = Finish(make_success(Complete(result=b"")).intent)
GONE_ON = Finish(make_success(KeepTimer()).intent)
BROKEN = Break(make_error())
AGAIN = Retry(delay=seconds(1), attempt_count=1, error=None)
REFUSED = Fail(make_error())


@pytest.mark.parametrize(
    ("settlement", "state"),
    [
        (COMPLETED, "done"),
        (Remove(), "done"),
        (BROKEN, "failed"),
        (Remove(error=make_error()), "failed"),
        (GONE_ON, None),
        (AGAIN, None),
        (REFUSED, None),
    ],
)
def test_a_node_ends_with_the_step_that_ends_its_process(
    settlement: Settlement, state: str | None
) -> None:
    metrics = Metrics()

    count_ends(metrics, make_key(), FOLLOWS, TaskType.CALL, settlement)

    expected = {} if state is None else {("rollouts", state): 1}
    assert counted(metrics.job_nodes_ended) == expected
    assert counted(metrics.jobs_ended) == {}


@pytest.mark.parametrize(
    ("settlement", "state"),
    [(COMPLETED, "done"), (BROKEN, "failed"), (Remove(), None), (GONE_ON, None), (AGAIN, None)],
)
def test_a_job_ends_with_its_leader_and_one_that_is_removed_has_not_ended(
    settlement: Settlement, state: str | None
) -> None:
    metrics = Metrics()

    count_ends(metrics, make_key(), LEADS, TaskType.JOIN, settlement)

    assert counted(metrics.jobs_ended) == ({} if state is None else {("orders", state): 1})
    assert counted(metrics.job_nodes_ended) == {}


def task_of(part: Part | None) -> RunningTask:
    return make_task(process=make_process(part=part))


@pytest.mark.parametrize(("action", "count"), [(Complete(result=b""), 1), (RemoveProcess(), 1)])
@in_virtual_time
async def test_a_step_of_a_follower_is_counted(action: Action, count: int) -> None:
    harness = Harness()
    harness.processor.script.append(make_success(action))

    await harness.carry(task_of(FOLLOWS))

    assert counted(harness.metrics.job_nodes_ended) == {("rollouts", "done"): count}


@in_virtual_time
async def test_a_settlement_that_was_fenced_ends_nothing() -> None:
    harness = Harness()
    harness.processor.script.append(make_success(Complete(result=b"")))
    harness.settlements.script.append(LeaseLost())

    await harness.carry(task_of(FOLLOWS))

    assert counted(harness.metrics.job_nodes_ended) == {}
