"""Requests: how they are admitted, what their callers get, and what is answered without a step."""

import asyncio

import pytest

from progressor import errors
from progressor.domain.processes.admission import Admission, Verdict
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.processes.task import TaskResult, TaskStatus, TaskType
from progressor.storage.postgres import attempt
from progressor.storage.postgres.rows.effects import NO_EFFECTS, Cancellation, Effects, Later
from progressor.storage.processes.processes import Put, Recovery
from tests.support.builders import (
    make_cancelled,
    make_error,
    make_key,
    make_namespace,
    make_process,
    make_request,
    make_result,
    seconds,
)
from tests.support.runtime.harness import (
    IMPORT,
    KEY,
    LEASED,
    WAITING,
    Harness,
    begun,
)
from tests.support.runtime.memory import (
    away,
)
from tests.support.runtime.virtual_time import settled


async def test_a_request_that_runs_at_once_is_carried_and_answered(harness: Harness) -> None:
    async with harness.running():
        answer = await harness.ask()
        harness.admissions.answer(LEASED)
        await settled()
        harness.replies.deliver(make_result())

        assert await answer == Reply(task_id=7, task_type=TaskType.CALL, response=b"done")

    assert harness.begun_ids == [7]


@pytest.mark.parametrize(
    ("admission", "has_backlog"),
    [(WAITING, False), (Admission(verdict=Verdict.ACCEPTED, task_id=7, due_now=True), True)],
    ids=["waits", "due without a worker"],
)
async def test_a_slot_that_is_not_needed_is_given_back(
    harness: Harness, admission: Admission, has_backlog: bool
) -> None:
    await harness.ask()

    harness.admissions.answer(admission)
    await settled()

    assert (harness.slots.busy_total, harness.slots.has_backlog("orders")) == (0, has_backlog)


async def test_a_repeated_request_joins_the_earlier_task(harness: Harness) -> None:
    answer = await harness.ask()
    harness.admissions.answer(Admission(verdict=Verdict.DUPLICATE, task_id=7))
    await settled()

    harness.replies.deliver(make_result())

    assert (await answer).deduplicated


async def test_a_repeated_request_gets_the_answer_that_is_there(harness: Harness) -> None:
    answer = await harness.ask()

    harness.admissions.answer(
        Admission(verdict=Verdict.DUPLICATE, task_id=7, ended=make_result(response=b"old"))
    )

    assert (await answer).response == b"old"
    assert (await answer).deduplicated


@pytest.mark.parametrize(
    ("verdict", "error_class"),
    [
        (Verdict.KEY_REUSED, errors.IdempotencyKeyReusedError),
        (Verdict.NAMESPACE_NOT_FOUND, errors.NamespaceNotFoundError),
        (Verdict.PROCESS_NOT_FOUND, errors.ProcessNotFoundError),
        (Verdict.PROCESS_ALREADY_EXISTS, errors.ProcessAlreadyExistsError),
        (Verdict.PROCESS_FAILED, errors.ProcessFailedError),
        (Verdict.PROCESS_IS_RUNNING, errors.ProcessIsRunningError),
        (Verdict.PROCESS_FINISHED, errors.ProcessFinishedError),
    ],
)
async def test_a_refusal_is_reported_as_the_error_of_its_verdict(
    harness: Harness, verdict: Verdict, error_class: type[errors.RequestError]
) -> None:
    answer = await harness.ask()

    harness.admissions.answer(Admission(verdict=verdict, process=make_process(corrupted_by=5)))

    with pytest.raises(error_class):
        await answer
    assert harness.slots.busy_total == 0


async def test_a_refusal_by_a_broken_process_says_what_broke_it(harness: Harness) -> None:
    answer = await harness.ask()
    broken = make_process(detail="zombie detected", corrupted_by=5)

    harness.admissions.answer(
        Admission(
            verdict=Verdict.PROCESS_FAILED,
            process=broken,
            failure=make_error(code=10, reason="ZOMBIE"),
        )
    )

    with pytest.raises(errors.ProcessFailedError, match="is in error") as caught:
        await answer
    error = caught.value
    assert (error.own, error.task_id, error.detail) == (False, None, "zombie detected")
    assert (error.broken_by, error.failure_code, error.failure_reason) == (5, 10, "ZOMBIE")


async def test_a_start_that_met_a_process_on_its_way_out_is_admitted_again(
    harness: Harness,
) -> None:
    answer = await harness.ask(make_request(TaskType.INIT))

    harness.admissions.answer(Admission(verdict=Verdict.GONE))
    await settled()
    harness.admissions.answer(WAITING)
    await settled()
    harness.replies.deliver(make_result())

    assert (await answer).task_id == 7
    assert len(harness.admissions.entries) == 2


async def test_a_start_that_is_admitted_again_has_its_audit_entry_though_its_caller_is_gone(
    harness: Harness,
) -> None:
    with attempt.of("entry"):
        answer = await harness.ask(make_request(TaskType.INIT))
    answer.cancel()

    harness.admissions.answer(Admission(verdict=Verdict.GONE))
    await settled()

    assert [it.audit for it in harness.admissions.entries] == ["entry", "entry"]


async def test_a_start_that_cannot_be_admitted_again_says_why(harness: Harness) -> None:
    answer = await harness.ask(make_request(TaskType.INIT))
    harness.admissions.refuses = errors.OverloadedError("9 writes wait", seconds(1))

    harness.admissions.answer(Admission(verdict=Verdict.GONE))

    with pytest.raises(errors.OverloadedError):
        await answer
    assert harness.slots.busy_total == 0


@pytest.mark.parametrize("worker_count_max", [1, 0])
async def test_a_full_line_refuses_and_keeps_no_place(worker_count_max: int) -> None:
    harness = Harness(make_namespace(worker_count_max=worker_count_max))
    harness.admissions.refuses = errors.OverloadedError("9 writes wait", seconds(1))

    with pytest.raises(errors.OverloadedError):
        await harness.requests.ask(make_request(), timeout=None)

    assert harness.slots.busy_total == 0


async def test_more_callers_than_may_wait_are_refused_until_one_has_gone() -> None:
    harness = Harness(make_namespace(waiting_callers_max=1))
    gone = await harness.ask()

    for call in (
        harness.requests.ask(make_request(), timeout=None),
        harness.requests.await_task(KEY, 7, timeout=None),
    ):
        with pytest.raises(errors.OverloadedError) as caught:
            await call
        assert caught.value.retry_after > seconds(0)
    gone.cancel()
    await settled()
    waiting = await begun(harness.requests.await_task(KEY, 7, timeout=None))

    assert not waiting.done()
    assert len(harness.admissions.entries) == 1
    with pytest.raises(errors.OverloadedError):
        await harness.requests.ask(make_request(), timeout=None)
    waiting.cancel()
    await settled()
    assert not (await harness.ask()).done()


async def test_a_caller_who_goes_before_the_admission_takes_nothing_back(harness: Harness) -> None:
    async with harness.running():
        answer = await harness.ask()
        answer.cancel()
        await settled()

        harness.admissions.answer(LEASED)
        await settled()

    assert harness.begun_ids == [7]
    assert harness.replies.waiting_count == 0


@pytest.mark.parametrize(
    "admission",
    [
        WAITING,
        Admission(verdict=Verdict.PROCESS_FINISHED),
        Admission(verdict=Verdict.DUPLICATE, task_id=7, ended=make_result()),
        away(),
    ],
    ids=["admitted", "refused", "ended", "away"],
)
async def test_of_an_admission_whose_caller_has_gone_only_the_effects_are_applied(
    harness: Harness, admission: Admission | Exception
) -> None:
    answer = await harness.ask()
    answer.cancel()
    await settled()

    # One request of a batch has the effects of all.
    harness.admissions.answer(admission, Effects(due=((KEY, 9),)))
    await settled()

    assert harness.slots.busy_total == 0
    assert harness.due_queue.changed.is_set() is isinstance(admission, Admission)


@pytest.mark.parametrize("is_known", [False, True], ids=["request", "known task"])
async def test_a_deadline_names_the_task_that_goes_on(harness: Harness, is_known: bool) -> None:
    if is_known:
        answer = await begun(harness.requests.await_task(KEY, "key", timeout=3))
    else:
        answer = await harness.ask(timeout=3)
        harness.admissions.answer(WAITING)

    with pytest.raises(errors.DeadlineExceededError) as caught:
        await answer

    assert caught.value.task_id == 7
    assert asyncio.get_running_loop().time() == 3
    assert harness.replies.waiting_count == 0


async def test_a_request_in_an_unknown_namespace_is_refused_before_admission(
    harness: Harness,
) -> None:
    with pytest.raises(errors.NamespaceNotFoundError):
        await harness.requests.ask(make_request(key=make_key(namespace="void")), timeout=None)

    assert harness.admissions.entries == []


async def test_a_task_that_has_ended_is_answered_from_its_record(harness: Harness) -> None:
    harness.results.awaited = make_result(response=b"old")

    answer = await harness.requests.await_task(KEY, "key", timeout=None)

    assert (answer.response, answer.deduplicated) == (b"old", True)


async def test_a_task_that_has_not_ended_is_waited_for(harness: Harness) -> None:
    answer = await begun(harness.requests.await_task(KEY, 7, timeout=None))

    harness.replies.deliver(make_result())

    assert (await answer).deduplicated
    assert harness.replies.waiting_count == 0


def ended(*task_ids: int, removed: bool) -> Effects:
    return Effects(
        cancelled=tuple(
            Cancellation(namespace="orders", task=make_cancelled(each), removed=removed)
            for each in task_ids
        )
    )


async def test_a_receipt_comes_as_soon_as_the_task_is_durable(harness: Harness) -> None:
    receipt = await harness.accept()

    harness.admissions.answer(WAITING)

    assert await receipt == Receipt(task_id=7)
    assert not harness.admissions.entries[0].request.waits
    assert harness.replies.waiting_count == 0


async def test_a_caller_who_does_not_wait_for_the_receipt_takes_nothing_back(
    harness: Harness,
) -> None:
    receipt = await harness.accept()
    receipt.cancel()
    await settled()

    harness.admissions.answer(WAITING)
    await settled()

    assert harness.observers.counts["admitted"] == 1


async def test_the_timer_of_a_simple_repair_is_due_at_once(harness: Harness) -> None:
    repaired = Recovery(verdict=Verdict.ACCEPTED, task_id=9)
    harness.processes.recover.return_value = repaired, Effects(due=((KEY, 9),))

    task_id = await harness.requests.recover(KEY, retries=False)

    assert task_id == 9
    assert harness.due_queue.wait_seconds() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("verdict", "effects", "due_in"),
    [
        (Verdict.ACCEPTED, NO_EFFECTS, None),
        (Verdict.ACCEPTED, Effects(upcoming=(Later(KEY, 7, 2.0),)), pytest.approx(2, abs=0.01)),
        (Verdict.DUPLICATE, NO_EFFECTS, None),
    ],
)
async def test_an_import_gives_a_receipt_and_its_timer_is_put_in_the_due_queue(
    harness: Harness, verdict: Verdict, effects: Effects, due_in: float | None
) -> None:
    harness.processes.put.return_value = Put(verdict=verdict, task_id=1), effects

    receipt = await harness.requests.put(IMPORT)

    assert receipt == Receipt(task_id=1, deduplicated=verdict is Verdict.DUPLICATE)
    assert harness.due_queue.wait_seconds() == due_in


async def test_an_import_of_an_existing_process_is_refused(harness: Harness) -> None:
    put = Put(verdict=Verdict.PROCESS_ALREADY_EXISTS, task_id=None)
    harness.processes.put.return_value = put, NO_EFFECTS

    with pytest.raises(errors.ProcessAlreadyExistsError):
        await harness.requests.put(IMPORT)


async def test_those_who_wait_for_a_removed_process_are_told(harness: Harness) -> None:
    answer = await begun(harness.requests.await_task(KEY, 8, timeout=None))
    harness.results.awaited = 8
    waiter: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
    harness.replies.expect(8, KEY, waiter)
    harness.processes.remove.return_value = ended(7, 8, removed=True)

    await harness.requests.remove(KEY)

    with pytest.raises(errors.ProcessRemovedError):
        await answer
    assert (waiter.result().status, waiter.result().removed) == (TaskStatus.CANCELLED, True)


@pytest.mark.parametrize(
    ("removed", "kind"),
    [(False, errors.TaskCancelledError), (True, errors.ProcessRemovedError)],
)
async def test_those_who_wait_for_a_cancelled_task_are_told(
    harness: Harness, *, removed: bool, kind: type[errors.RequestError]
) -> None:
    answer = await begun(harness.requests.await_task(KEY, 7, timeout=None))
    harness.results.awaited = 7
    harness.processes.cancel.return_value = 7, ended(7, removed=removed)

    assert await harness.requests.cancel(KEY, "its key") == 7
    with pytest.raises(kind):
        await answer


async def test_an_accepting_verdict_is_not_reported_as_a_refusal(harness: Harness) -> None:
    gone = Recovery(verdict=Verdict.GONE, task_id=None)
    harness.processes.recover.return_value = gone, NO_EFFECTS

    with pytest.raises(AssertionError, match="gone is not a refusal"):
        await harness.requests.recover(KEY, retries=False)
