"""Receipts, repairs, imports and removals: requests that are answered without a step."""

import asyncio

import pytest

from progressor import errors
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.reply import Receipt
from progressor.domain.processes.task import TaskResult, TaskStatus
from progressor.storage.processes.processes import Put, SimpleRepair
from progressor.storage.rows.effects import Cancellation, Effects, Later
from tests.support.builders import (
    make_cancelled,
)
from tests.support.runtime.requests import IMPORT, KEY, WAITING, Harness, begun
from tests.support.runtime.virtual_time import in_virtual_time, settled


def ended(*task_ids: int, removed: bool) -> Effects:
    return Effects(
        cancelled=tuple(
            Cancellation(namespace="orders", task=make_cancelled(each), removed=removed)
            for each in task_ids
        )
    )


@in_virtual_time
async def test_a_receipt_comes_as_soon_as_the_task_is_durable() -> None:
    harness = Harness()
    receipt = await harness.accept()

    harness.admissions.answer(WAITING)

    assert await receipt == Receipt(task_id=7)
    assert not harness.admissions.entries[0].request.waits
    assert harness.replies.waiting_count == 0


@in_virtual_time
async def test_a_caller_who_does_not_wait_for_the_receipt_takes_nothing_back() -> None:
    harness = Harness()
    receipt = await harness.accept()
    receipt.cancel()
    await settled()

    harness.admissions.answer(WAITING)
    await settled()

    assert harness.observers.counts["admitted"] == 1


@in_virtual_time
async def test_the_timer_of_a_simple_repair_is_due_at_once() -> None:
    harness = Harness()
    harness.processes.repair_answer = SimpleRepair(verdict=Verdict.ACCEPTED, task_id=9)
    harness.processes.effects = Effects(due=((KEY, 9),))

    task_id = await harness.requests.simple_repair(KEY)

    assert task_id == 9
    assert harness.due_queue.wait_seconds() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("verdict", "deduplicated"), [(Verdict.ACCEPTED, False), (Verdict.DUPLICATE, True)]
)
@in_virtual_time
async def test_an_import_gives_a_receipt(verdict: Verdict, deduplicated: bool) -> None:
    harness = Harness()
    harness.processes.put_answer = Put(verdict=verdict, task_id=1)

    assert await harness.requests.put(IMPORT) == Receipt(task_id=1, deduplicated=deduplicated)
    assert harness.due_queue.wait_seconds() is None


@in_virtual_time
async def test_the_timer_of_an_import_is_put_in_the_due_queue() -> None:
    harness = Harness()
    harness.processes.effects = Effects(upcoming=(Later(KEY, 7, 2.0),))

    await harness.requests.put(IMPORT)

    assert harness.due_queue.wait_seconds() == pytest.approx(2, abs=0.01)


@in_virtual_time
async def test_an_import_of_an_existing_process_is_refused() -> None:
    harness = Harness()
    harness.processes.put_answer = Put(verdict=Verdict.PROCESS_ALREADY_EXISTS, task_id=None)

    with pytest.raises(errors.ProcessAlreadyExistsError):
        await harness.requests.put(IMPORT)


@in_virtual_time
async def test_those_who_wait_for_a_removed_process_are_told() -> None:
    harness = Harness()
    answer = await begun(harness.requests.await_task(KEY, 8, timeout=None))
    harness.results.awaited = 8
    waiter: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
    harness.replies.expect(8, KEY, waiter)
    harness.processes.effects = ended(7, 8, removed=True)

    await harness.requests.remove(KEY)

    with pytest.raises(errors.ProcessRemovedError):
        await answer
    assert (waiter.result().status, waiter.result().removed) == (TaskStatus.CANCELLED, True)


@in_virtual_time
@pytest.mark.parametrize(
    ("removed", "kind"),
    [(False, errors.TaskCancelledError), (True, errors.ProcessRemovedError)],
)
async def test_those_who_wait_for_a_cancelled_task_are_told(
    *, removed: bool, kind: type[errors.RequestError]
) -> None:
    harness = Harness()
    answer = await begun(harness.requests.await_task(KEY, 7, timeout=None))
    harness.results.awaited = 7
    harness.processes.effects = ended(7, removed=removed)

    assert await harness.requests.cancel(KEY, "its key") == 7
    with pytest.raises(kind):
        await answer


@in_virtual_time
async def test_an_accepting_verdict_is_not_reported_as_a_refusal() -> None:
    harness = Harness()
    harness.processes.repair_answer = SimpleRepair(verdict=Verdict.GONE, task_id=None)

    with pytest.raises(AssertionError, match="gone is not a refusal"):
        await harness.requests.simple_repair(KEY)
