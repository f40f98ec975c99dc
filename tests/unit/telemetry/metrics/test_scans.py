"""What is counted of scans: claims, lateness, what was missed, and what waits."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from progressor.domain.views.activity import QUEUES_MAX, Queue
from progressor.runtime.upkeep.scans import QueueScan
from progressor.storage.postgres.pools import Pool, Pools
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import make_namespace
from tests.support.runtime.harness import Harness
from tests.support.runtime.memory import MemoryNamespaces
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.telemetry.measured import counted, recorded


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
async def test_a_look_that_finds_nothing_is_told_of_all_namespaces() -> None:
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

    def __init__(self, *found: Queue) -> None:
        self.found = found
        self.asked: list[tuple[str, ...]] = []

    async def count(self, namespaces: Sequence[str]) -> Sequence[Queue]:
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


QUEUE = Queue(
    namespace="orders", due=4, due_seconds=1.5, timers=3, retries=2, retry_seconds=2.5, behind=1,
    behind_seconds=3.5,
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
        ("orders", "behind_task"): 1,
    }
    assert counted(metrics.queue_oldest_age) == {
        ("orders", "retry"): 2.5,
        ("orders", "no_free_worker"): 1.5,
        ("orders", "behind_task"): 3.5,
    }


@in_virtual_time
async def test_metrics_of_constraints_exist_once_there_were_constraints() -> None:
    metrics = Metrics()
    other = dataclasses.replace(QUEUE, namespace="invoices")
    waiting = dataclasses.replace(
        QUEUE, run_at=9, order=8, order_seconds=8.5, gate=7, gate_seconds=7.5, available=6,
        available_seconds=6.5, held=5, full_gates=4,
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
        "timer", "retry", "no_free_worker", "behind_task",
    ]  # fmt: skip
    # A series that has begun ends at zero.
    assert counted(metrics.queue_tasks)["orders", "gate"] == 0
    assert counted(metrics.gates_full) == {("orders",): 0}


@in_virtual_time
async def test_all_namespaces_that_are_looked_at_are_told_of_with_every_cause() -> None:
    metrics = Metrics()
    found = [
        dataclasses.replace(QUEUE, namespace=f"n{number}", gate=1) for number in range(QUEUES_MAX)
    ]
    scan = scan_of(CountedQueues(*found), metrics)

    await scan.scan()

    assert len(counted(metrics.queue_tasks)) == 8 * QUEUES_MAX


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


def test_connections_are_used_or_idle_and_who_waits_is_told_by_pool() -> None:
    metrics = Metrics()

    pools().observed_by(metrics)

    assert counted(metrics.pool_connections) == {
        ("front", "used"): 3, ("front", "idle"): 5,
        ("worker", "used"): 0, ("worker", "idle"): 1,
        ("scan", "used"): 1, ("scan", "idle"): 0,
    }  # fmt: skip
    assert counted(metrics.pool_waiting) == {("front",): 2, ("worker",): 0, ("scan",): 0}
    assert counted(metrics.pool_wait) == {("front",): 70, ("worker",): 0, ("scan",): 1}
