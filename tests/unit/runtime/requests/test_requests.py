"""Requests: how a request becomes a task, reserves a worker, or is refused."""

import pytest

from progressor import errors
from progressor.domain.processes.admission import Admission, Verdict
from progressor.domain.processes.reply import Reply
from progressor.domain.processes.task import TaskType
from tests.support.builders import (
    make_error,
    make_namespace,
    make_process,
    make_request,
    make_result,
    seconds,
)
from tests.support.runtime.requests import LEASED, WAITING, Harness
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_a_request_that_runs_at_once_is_carried_and_answered() -> None:
    harness = Harness()
    async with harness.working():
        answer = await harness.ask()
        harness.admissions.answer(LEASED)
        await settled()
        harness.replies.deliver(make_result())

        assert await answer == Reply(task_id=7, task_type=TaskType.CALL, response=b"done")

    assert harness.carried == [7]


@in_virtual_time
async def test_a_place_that_is_not_needed_is_given_back() -> None:
    harness = Harness()
    await harness.ask()

    harness.admissions.answer(WAITING)
    await settled()

    assert harness.slots.busy_count("orders") == 0


@in_virtual_time
async def test_what_is_due_without_a_worker_makes_a_backlog() -> None:
    harness = Harness()
    await harness.ask()

    harness.admissions.answer(Admission(verdict=Verdict.ACCEPTED, task_id=7, due_now=True))
    await settled()

    assert harness.slots.has_backlog("orders")


@in_virtual_time
async def test_a_repeated_request_joins_the_earlier_task() -> None:
    harness = Harness()
    answer = await harness.ask()
    harness.admissions.answer(Admission(verdict=Verdict.DUPLICATE, task_id=7))
    await settled()

    harness.replies.deliver(make_result())

    assert (await answer).deduplicated


@in_virtual_time
async def test_a_repeated_request_gets_the_answer_that_is_there() -> None:
    harness = Harness()
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
@in_virtual_time
async def test_a_refusal_is_reported_as_the_error_of_its_verdict(
    verdict: Verdict, error_class: type[errors.RequestError]
) -> None:
    harness = Harness()
    answer = await harness.ask()

    harness.admissions.answer(Admission(verdict=verdict, process=make_process(corrupted_by=5)))

    with pytest.raises(error_class):
        await answer
    assert harness.slots.busy_count("orders") == 0


@in_virtual_time
async def test_a_refusal_by_a_broken_process_says_what_broke_it() -> None:
    harness = Harness()
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


@in_virtual_time
async def test_a_start_that_met_a_process_on_its_way_out_is_admitted_again() -> None:
    harness = Harness()
    answer = await harness.ask(make_request(TaskType.INIT))

    harness.admissions.answer(Admission(verdict=Verdict.GONE))
    await settled()
    harness.admissions.answer(WAITING)
    await settled()
    harness.replies.deliver(make_result())

    assert (await answer).task_id == 7
    assert len(harness.admissions.entries) == 2


@in_virtual_time
async def test_a_start_that_cannot_be_admitted_again_says_why() -> None:
    harness = Harness()
    answer = await harness.ask(make_request(TaskType.INIT))
    harness.admissions.refuses = errors.OverloadedError("9 writes wait", seconds(1))

    harness.admissions.answer(Admission(verdict=Verdict.GONE))

    with pytest.raises(errors.OverloadedError):
        await answer
    assert harness.slots.busy_count("orders") == 0


@pytest.mark.parametrize("worker_count_max", [1, 0])
@in_virtual_time
async def test_a_full_line_refuses_and_keeps_no_place(worker_count_max: int) -> None:
    harness = Harness(make_namespace(worker_count_max=worker_count_max))
    harness.admissions.refuses = errors.OverloadedError("9 writes wait", seconds(1))

    with pytest.raises(errors.OverloadedError):
        await harness.requests.ask(make_request(), timeout=None)

    assert harness.slots.busy_count("orders") == 0
