"""What is counted of requests, steps and scans, and of what waits."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from progressor import errors
from progressor.api.calls.request_count import NAMESPACES_MAX, RequestCount
from progressor.domain.processes.admission import Import, Verdict
from progressor.domain.processes.event import Event, NewEvent
from progressor.domain.processes.intent import (
    Complete,
    KeepTimer,
    Outcome,
    RemoveProcess,
    SetTimer,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import Leadership, Part, ProcessStatus, process_key
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import Claim, RunningTask, TaskType
from progressor.domain.views.activity import QUEUES_MAX, NamespaceQueue
from progressor.runtime.core.measures import count_ends
from progressor.runtime.upkeep.scans import QueueScan
from progressor.storage.postgres.pools import Pool, Pools
from progressor.storage.postgres.rows.effects import NO_EFFECTS
from progressor.storage.processes.processes import Put
from progressor.storage.steps.settlements import LeaseLost, Payloads
from progressor.telemetry.instruments import OVERFLOW
from progressor.telemetry.metrics.registry import Metrics
from progressor.v1 import namespace_service_pb2, process_service_pb2
from tests.support.builders import (
    make_error,
    make_key,
    make_namespace,
    make_new_events,
    make_process,
    make_request,
    make_success,
    make_task,
    make_written,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.harness import KEY, WAITING, Harness
from tests.support.runtime.memory import MemoryNamespaces
from tests.support.runtime.virtual_time import in_virtual_time, settled
from tests.support.telemetry.measured import counted, recorded

RETRY_AFTER = seconds(1)
NOT_FOUND = 5


@in_virtual_time
async def test_preparing_a_request_lasts_until_it_is_durable() -> None:
    harness = Harness()
    await harness.ask(make_request(args=b"four"))
    await asyncio.sleep(0.05)

    harness.admissions.answer(WAITING)
    await settled()

    labels = ("orders", "call")
    assert recorded(harness.metrics.request_preparing) == {labels: (1, 50)}
    assert counted(harness.metrics.admitted) == {labels: 1}
    assert counted(harness.metrics.bytes_written) == {("orders", "args"): 4}
    assert counted(harness.metrics.callers_waiting) == {(): 1}


@in_virtual_time
async def test_an_import_writes_its_history() -> None:
    harness = Harness()
    harness.processes.put.return_value = Put(verdict=Verdict.ACCEPTED, task_id=1), NO_EFFECTS
    history = (NewEvent(payload=b"one"), NewEvent(payload=b"three"))

    await harness.requests.put(
        Import(key=KEY, status=ProcessStatus.RUNNING, history=history, aux_state=b"state")
    )

    assert counted(harness.metrics.events_written) == {("orders",): 2}
    assert counted(harness.metrics.bytes_written) == {
        ("orders", "events"): 8,
        ("orders", "aux_state"): 5,
    }


def rejected() -> errors.RejectedError:
    return errors.RejectedError("no", code=NOT_FOUND, processor_reason="of its own")


@pytest.mark.parametrize(
    ("error", "outcome", "reason", "names_it"),
    [
        (errors.ProcessFinishedError("p"), "refused", "PROCESS_FINISHED", True),
        (errors.ProcessNotFoundError("orders", "p"), "refused", "PROCESS_NOT_FOUND", True),
        (errors.NamespaceNotFoundError("orders"), "refused", "NAMESPACE_NOT_FOUND", False),
        (
            errors.InvalidRequestError(errors.FieldViolation("args", "too long")),
            "refused",
            "INVALID_REQUEST",
            False,
        ),
        (rejected(), "failed", "REJECTED", True),
        (errors.ProcessFailedError("p", "why", task_id=7), "failed", "PROCESS_FAILED", True),
        (errors.RepairFailedError("p", "why", 7), "failed", "REPAIR_FAILED", True),
        (errors.OverloadedError("callers", RETRY_AFTER), "unavailable", "OVERLOADED", False),
        (errors.ShuttingDownError(RETRY_AFTER), "unavailable", "SHUTTING_DOWN", False),
        (errors.DeadlineExceededError(7), "unavailable", "DEADLINE_EXCEEDED", False),
        (errors.StorageUnavailableError("away"), "unavailable", "STORAGE_UNAVAILABLE", False),
        (errors.StorageRefusedError("a value"), "internal", "INTERNAL", False),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Exception) else None,
)
def test_the_end_of_a_request_is_counted_by_who_must_act(
    error: errors.ProgressorError,
    outcome: str,
    reason: str,
    names_it: bool,
) -> None:
    metrics = Metrics()
    request = process_service_pb2.CallRequest(namespace="orders")

    RequestCount(metrics).refused("Call", request, error)

    name = "orders" if names_it else ""
    assert counted(metrics.requests) == {(name, "Call", outcome, reason): 1}


def test_a_namespace_that_was_found_once_is_named_whatever_comes() -> None:
    metrics = Metrics()
    count = RequestCount(metrics)
    request = process_service_pb2.CallRequest(namespace="orders")

    count.left("Call", request)
    count.answered("Call", request)
    count.left("Call", request)
    count.broke("Call", request)

    assert counted(metrics.requests) == {
        ("", "Call", "cancelled", ""): 1,
        ("orders", "Call", "ok", ""): 1,
        ("orders", "Call", "cancelled", ""): 1,
        ("orders", "Call", "internal", "INTERNAL"): 1,
    }


def test_a_request_of_an_operator_is_about_no_namespace() -> None:
    metrics = Metrics()
    request = namespace_service_pb2.CreateNamespaceRequest()

    RequestCount(metrics).answered("CreateNamespace", request)

    assert counted(metrics.requests) == {("", "CreateNamespace", "ok", ""): 1}


def test_namespaces_beyond_the_bound_are_counted_as_one() -> None:
    metrics = Metrics()
    count = RequestCount(metrics)
    for number in range(NAMESPACES_MAX + 5):
        count.answered("Call", SimpleNamespace(namespace=f"real-{number}"))

    assert counted(metrics.requests)[OVERFLOW, "Call", "ok", ""] == 5


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


@in_virtual_time
async def test_what_only_the_scan_finds_is_counted() -> None:
    harness = Harness()
    harness.make_due(1)
    async with harness.running():
        await harness.due.scan()

    assert counted(harness.metrics.scan_found) == {("orders", "timeout"): 1}
    assert recorded(harness.metrics.timers_scanning) == {("orders", "timeout"): (1, 0)}
    assert recorded(harness.metrics.calls_scanning) == {}


@in_virtual_time
async def test_an_empty_count_is_reported_for_all_namespaces() -> None:
    harness = Harness(make_namespace(), make_namespace("invoices"))

    await harness.due.scan()

    both = {("orders", "call"): (1, 0), ("invoices", "call"): (1, 0)}
    assert recorded(harness.metrics.calls_scanning) == both
    assert recorded(harness.metrics.timers_scanning).keys() == {
        ("orders", "timeout"),
        ("invoices", "timeout"),
    }
    assert counted(harness.metrics.scan_found) == {}


class CountedQueues:
    """Queues as a test has it."""

    def __init__(self, *found: NamespaceQueue) -> None:
        self.found = found
        self.asked: list[tuple[str, ...]] = []

    async def count(self, namespaces: Sequence[str]) -> Sequence[NamespaceQueue]:
        self.asked.append(tuple(namespaces))
        return self.found


def scan_of(
    queues: CountedQueues, metrics: Metrics, namespaces: MemoryNamespaces | None = None
) -> QueueScan:
    return QueueScan(
        queues=cast("Any", queues),
        namespaces=cast("Any", namespaces or MemoryNamespaces()),
        metrics=metrics,
    )


QUEUE = NamespaceQueue(
    namespace="orders", due_count=4, due_age=seconds(1.5), timer_count=3, retry_count=2,
    retry_age=seconds(2.5), behind_count=1, behind_age=seconds(3.5), process_failed_count=5,
    process_failed_age=seconds(4.5),
)  # fmt: skip


@in_virtual_time
async def test_what_the_last_look_found_is_what_the_metrics_tell() -> None:
    metrics = Metrics()
    scan = scan_of(CountedQueues(QUEUE), metrics)
    assert counted(metrics.queue_tasks) == {}

    await scan.scan()

    assert counted(metrics.queue_tasks) == {
        ("orders", "timer"): 3,
        ("orders", "retry"): 2,
        ("orders", "no_free_worker"): 4,
        ("orders", "processor_unreachable"): 0,
        ("orders", "paused"): 0,
        ("orders", "behind_task"): 1,
        ("orders", "process_failed"): 5,
    }
    assert counted(metrics.queue_oldest_age) == {
        ("orders", "retry"): 2.5,
        ("orders", "no_free_worker"): 1.5,
        ("orders", "processor_unreachable"): 0,
        ("orders", "paused"): 0,
        ("orders", "behind_task"): 3.5,
        ("orders", "process_failed"): 4.5,
    }


@in_virtual_time
async def test_what_is_due_in_a_paused_namespace_waits_for_no_worker() -> None:
    metrics = Metrics()
    paused = dataclasses.replace(
        QUEUE, available_count=6, available_age=seconds(6.5), paused_age=seconds(60)
    )

    await scan_of(CountedQueues(paused), metrics).scan()

    causes = ("no_free_worker", "processor_unreachable", "available", "paused")
    tasks, ages = counted(metrics.queue_tasks), counted(metrics.queue_oldest_age)
    assert [tasks["orders", cause] for cause in causes] == [0, 0, 0, 10]
    assert [ages["orders", cause] for cause in causes] == [0, 0, 0, 6.5]


@in_virtual_time
async def test_metrics_of_constraints_exist_once_there_were_constraints() -> None:
    metrics = Metrics()
    other = dataclasses.replace(QUEUE, namespace="invoices")
    waiting = dataclasses.replace(
        QUEUE, run_at_count=9, order_count=8, order_age=seconds(8.5), gate_count=7,
        gate_age=seconds(7.5), available_count=6, available_age=seconds(6.5), held_count=5,
        full_gate_count=4,
    )  # fmt: skip
    queues = CountedQueues(waiting, other)
    scan = scan_of(queues, metrics)

    await scan.scan()
    tasks, ages = counted(metrics.queue_tasks), counted(metrics.queue_oldest_age)
    held, full = counted(metrics.gates_held), counted(metrics.gates_full)
    queues.found = (QUEUE, other)
    await scan.scan()

    causes = ("run_at", "order", "gate", "available")
    assert [tasks["orders", cause] for cause in causes] == [9, 8, 7, 6]
    assert (ages["orders", "order"], ages["orders", "gate"]) == (8.5, 7.5)
    assert ages["orders", "available"] == 6.5
    assert (held, full) == ({("orders",): 5}, {("orders",): 4})
    assert [cause for name, cause in tasks if name == "invoices"] == [
        "timer", "retry", "no_free_worker", "processor_unreachable", "paused",
        "behind_task", "process_failed",
    ]  # fmt: skip
    # A series that has begun ends at zero.
    assert counted(metrics.queue_tasks)["orders", "gate"] == 0
    assert counted(metrics.gates_full) == {("orders",): 0}


@in_virtual_time
async def test_every_counted_namespace_is_reported_with_every_cause() -> None:
    metrics = Metrics()
    found = [
        dataclasses.replace(QUEUE, namespace=f"n{number}", gate_count=1)
        for number in range(QUEUES_MAX)
    ]
    scan = scan_of(CountedQueues(*found), metrics)

    await scan.scan()

    assert len(counted(metrics.queue_tasks)) == 11 * QUEUES_MAX


@in_virtual_time
async def test_one_look_is_at_so_many_namespaces() -> None:
    many = [make_namespace(f"n{number}") for number in range(QUEUES_MAX + 1)]
    queues = CountedQueues()

    namespaces = MemoryNamespaces(*many)
    await scan_of(queues, Metrics(), namespaces).scan()

    assert [len(asked) for asked in queues.asked] == [QUEUES_MAX]


@in_virtual_time
async def test_a_look_before_the_namespaces_were_read_reads_them() -> None:
    namespaces = MemoryNamespaces()
    namespaces.by_name.clear()
    queues = CountedQueues()

    await scan_of(queues, Metrics(), namespaces).scan()

    assert namespaces.refresh_count == 1
    assert queues.asked == []


class CountedPool:
    """A pool as its statistics tell of it."""

    def __init__(self, name: str, *, lent: int, **stats: int) -> None:
        self.name, self.lent_count, self.stats = name, lent, stats

    def get_stats(self) -> dict[str, int]:
        return self.stats


def pools() -> Pools:
    front = CountedPool("front", lent=3, pool_available=5, requests_waiting=2, requests_wait_ms=70)
    worker = CountedPool("worker", lent=0, pool_available=1)
    scan = CountedPool("scan", lent=1, requests_wait_ms=1)
    return Pools(front=cast("Pool", front), worker=cast("Pool", worker), scan=cast("Pool", scan))


def test_connections_and_their_waiters_are_reported_by_pool() -> None:
    metrics = Metrics()

    pools().observed_by(metrics)

    assert counted(metrics.pool_connections) == {
        ("front", "used"): 3, ("front", "idle"): 5,
        ("worker", "used"): 0, ("worker", "idle"): 1,
        ("scan", "used"): 1, ("scan", "idle"): 0,
    }  # fmt: skip
    assert counted(metrics.pool_waiting) == {("front",): 2, ("worker",): 0, ("scan",): 0}
    assert counted(metrics.pool_wait) == {("front",): 70, ("worker",): 0, ("scan",): 1}
