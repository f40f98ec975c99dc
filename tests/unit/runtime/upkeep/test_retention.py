"""Retention: goes on while anything is old, in one replica; reads tasks where some may be old."""

import asyncio
import datetime as dt
from collections.abc import Mapping
from typing import Any
from unittest import mock

from progressor.runtime.upkeep.retention import (
    BATCH_SECONDS,
    RANGE_PAGES,
    REPLICAS_AGE,
    REPLIES_AGE,
)
from progressor.storage.replicas.retention import DeletedProcesses, DeletedTasks, TaskTable
from tests.support.builders import make_namespace, seconds
from tests.support.runtime.harness import Harness
from tests.support.telemetry.measured import counted

LIMIT = 10
SOON = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
AGE = dt.timedelta(hours=3)


def deleted(count: int) -> DeletedProcesses:
    return DeletedProcesses(count, more=count == LIMIT, reached_at=SOON, overdue=7.0)


async def test_old_answers_and_dead_replicas_go_everywhere(harness: Harness) -> None:
    harness.retention.delete_old_replies.side_effect = [LIMIT, 3]

    await harness.retaining.scan()

    one = mock.call(age=REPLIES_AGE, limit=LIMIT)
    assert harness.retention.delete_old_replies.await_args_list == [one] * 2
    assert harness.replicas.dead_deleted == [REPLICAS_AGE]
    harness.retention.delete_finished.assert_not_awaited()
    assert counted(harness.metrics.retention_deleted)["reply",] == LIMIT + 3


async def test_finished_processes_go_in_batches_until_none_is_left() -> None:
    harness = Harness(make_namespace(finished_process_retention=seconds(60)))
    counts = [LIMIT] * 99 + [1]
    seen: list[float] = []

    async def delete(_namespace: str, **_: Any) -> DeletedProcesses:
        seen.append(harness.retaining.overdue)
        return deleted(counts[len(seen) - 1])

    harness.retention.delete_finished.side_effect = delete

    await harness.retaining.scan()

    first, second, *_ = harness.retention.delete_finished.await_args_list
    assert first == mock.call("orders", age=seconds(60), limit=LIMIT, after=None)
    assert second == mock.call("orders", age=seconds(60), limit=LIMIT, after=SOON)
    assert seen == [0.0] + [7.0] * 99
    assert harness.retaining.overdue == 0.0
    assert counted(harness.metrics.retention_deleted)["process",] == sum(counts)


async def test_the_items_of_bulk_operations_go_in_batches_until_none_is_left(
    harness: Harness,
) -> None:
    harness.bulks.delete.side_effect = [True, True, False]

    await harness.retaining.scan()

    assert harness.bulks.delete.await_count == 3


async def test_batches_are_smaller_while_they_take_long() -> None:
    harness = Harness(make_namespace(finished_process_retention=seconds(60)))
    took = [2 * BATCH_SECONDS, 2 * BATCH_SECONDS, 0, 0]
    limits: list[int] = []

    async def delete(_namespace: str, *, limit: int, **_: Any) -> DeletedProcesses:
        limits.append(limit)
        await asyncio.sleep(took[len(limits) - 1])
        return deleted(LIMIT)._replace(more=len(limits) < len(took))

    harness.retention.delete_finished.side_effect = delete

    await harness.retaining.scan()

    assert limits == [10, 5, 2, 4]


async def test_a_replica_without_the_round_deletes_nothing() -> None:
    harness = Harness(make_namespace(finished_process_retention=AGE, task_retention=AGE))
    harness.retention.hold_round.return_value = False

    await harness.retaining.scan()
    await harness.old_tasks.scan()

    harness.retention.delete_old_replies.assert_not_awaited()
    harness.retention.delete_finished.assert_not_awaited()
    harness.retention.delete_old_tasks.assert_not_awaited()


class Tasks:
    """A table of tasks, by ranges: when the next task is due, by the clock of the loop."""

    def __init__(self, harness: Harness, *ranges: float | None) -> None:
        self.due = list(ranges)
        self.read: list[int] = []
        self.counts: dict[int, list[int]] = {}
        self._harness = harness
        harness.retention.delete_old_tasks.side_effect = self._delete
        self.grow()

    def grow(self, *ranges: float | None) -> None:
        self.due += ranges
        table = TaskTable(1, RANGE_PAGES * len(self.due) - 1)
        self._harness.retention.measure_tasks.return_value = table

    async def _delete(
        self, pages: range, _ages: Mapping[str, dt.timedelta], *, limit: int
    ) -> DeletedTasks:
        number = pages.start // RANGE_PAGES
        assert limit == LIMIT
        assert pages == range(number * RANGE_PAGES, (number + 1) * RANGE_PAGES)
        self.read.append(number)
        due_at, now = self.due[number], asyncio.get_running_loop().time()
        count = self.counts[number].pop(0) if self.counts.get(number) else 0
        return DeletedTasks(count, None if due_at is None else due_at - now)

    async def scanned(self) -> list[int]:
        """Scan, and return the ranges that were read."""
        self.read.clear()
        await self._harness.old_tasks.scan()
        return list(self.read)


async def test_a_range_of_tasks_is_read_again_once_one_may_be_due() -> None:
    harness = Harness(make_namespace(task_retention=AGE))
    now, age = asyncio.get_running_loop().time(), AGE.total_seconds()
    tasks = Tasks(harness, None, now + age / 2, now + 1)

    assert await tasks.scanned() == [0, 1, 2]
    assert await tasks.scanned() == []
    tasks.grow(None)
    assert await tasks.scanned() == [3]
    await asyncio.sleep(age / 10)
    tasks.due[2] = None
    assert await tasks.scanned() == [2]
    await asyncio.sleep(age / 2)
    tasks.due[1] = None
    assert await tasks.scanned() == [1]
    await asyncio.sleep(age * 0.7)
    assert await tasks.scanned() == [0, 2, 3]


async def test_a_range_is_read_until_all_that_is_old_is_gone() -> None:
    harness = Harness(make_namespace(task_retention=AGE))
    tasks = Tasks(harness, None, None)
    tasks.counts[0] = [LIMIT, LIMIT, 1]

    assert await tasks.scanned() == [0, 0, 0, 1]
    assert counted(harness.metrics.retention_deleted)["task",] == 2 * LIMIT + 1


async def test_a_shorter_retention_has_all_ranges_read_again() -> None:
    harness = Harness(make_namespace(task_retention=AGE))
    tasks = Tasks(harness, None, None)

    assert await tasks.scanned() == [0, 1]
    harness.namespaces.by_name["orders"] = make_namespace(task_retention=AGE / 2)
    assert await tasks.scanned() == [0, 1]


async def test_reading_what_is_not_old_takes_a_hundredth_of_the_time() -> None:
    harness = Harness(make_namespace(task_retention=AGE))
    tasks = Tasks(harness, *[None] * 20)
    delete = harness.retention.delete_old_tasks.side_effect

    async def slowly(*arguments: Any, **named: Any) -> DeletedTasks:
        await asyncio.sleep(0.01)
        found: DeletedTasks = await delete(*arguments, **named)
        return found

    harness.retention.delete_old_tasks.side_effect = slowly
    begun_at = asyncio.get_running_loop().time()
    assert len(await tasks.scanned()) == 20

    took = asyncio.get_running_loop().time() - begun_at
    assert 20 * 0.01 / took < 0.011
