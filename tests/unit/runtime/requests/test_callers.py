"""Callers: their limit, their deadlines, and what happens when they leave."""

import asyncio

import pytest

from progressor import errors
from progressor.domain.processes.admission import Admission, Verdict
from progressor.storage.rows.effects import Effects
from tests.support.builders import (
    make_key,
    make_namespace,
    make_request,
    make_result,
    seconds,
)
from tests.support.runtime.memory import (
    away,
)
from tests.support.runtime.requests import KEY, LEASED, WAITING, Harness, begun
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_more_callers_than_may_wait_are_refused() -> None:
    harness = Harness(make_namespace(waiting_callers_max=1))
    await harness.ask()

    with pytest.raises(errors.OverloadedError) as caught:
        await harness.requests.ask(make_request(), timeout=None)

    assert caught.value.retry_after > seconds(0)
    assert len(harness.admissions.entries) == 1


@in_virtual_time
async def test_a_caller_who_has_gone_makes_room_for_another() -> None:
    harness = Harness(make_namespace(waiting_callers_max=1))
    gone = await harness.ask()
    gone.cancel()
    await settled()

    await harness.ask()

    assert len(harness.admissions.entries) == 2


@in_virtual_time
async def test_a_caller_who_goes_before_the_admission_takes_nothing_back() -> None:
    harness = Harness()
    async with harness.working():
        answer = await harness.ask()
        answer.cancel()
        await settled()

        harness.admissions.answer(LEASED)
        await settled()

    assert harness.carried == [7]
    assert harness.replies.waiting_count == 0


@pytest.mark.parametrize(
    "admission", [WAITING, Admission(verdict=Verdict.PROCESS_FINISHED)], ids=["admitted", "refused"]
)
@in_virtual_time
async def test_the_effects_of_a_batch_are_applied_although_the_caller_has_gone(
    admission: Admission,
) -> None:
    # One request of a batch carries the effects of all.
    harness = Harness()
    answer = await harness.ask()
    answer.cancel()
    await settled()

    harness.admissions.answer(admission, Effects(due=((KEY, 9),)))
    await settled()

    assert harness.due_queue.changed.is_set()


@pytest.mark.parametrize(
    "admission",
    [
        Admission(verdict=Verdict.PROCESS_FINISHED),
        Admission(verdict=Verdict.DUPLICATE, task_id=7, ended=make_result()),
        away(),
    ],
    ids=["refused", "ended", "away"],
)
@in_virtual_time
async def test_the_outcome_for_a_caller_that_has_gone_is_ignored(
    admission: Admission | Exception,
) -> None:
    harness = Harness()
    answer = await harness.ask()
    answer.cancel()
    await settled()

    harness.admissions.answer(admission)
    await settled()

    assert harness.slots.busy_count("orders") == 0


@in_virtual_time
async def test_a_deadline_names_the_task_that_goes_on() -> None:
    harness = Harness()
    answer = await harness.ask(timeout=3)
    harness.admissions.answer(WAITING)

    with pytest.raises(errors.DeadlineExceededError) as caught:
        await answer

    assert caught.value.task_id == 7
    assert asyncio.get_running_loop().time() == 3
    assert harness.replies.waiting_count == 0


@in_virtual_time
async def test_a_request_in_an_unknown_namespace_is_refused_before_admission() -> None:
    harness = Harness()

    with pytest.raises(errors.NamespaceNotFoundError):
        await harness.requests.ask(make_request(key=make_key(namespace="void")), timeout=None)

    assert harness.admissions.entries == []


@in_virtual_time
async def test_a_task_that_has_ended_is_answered_from_its_record() -> None:
    harness = Harness()
    harness.results.awaited = make_result(response=b"old")

    answer = await harness.requests.await_task(KEY, "key", timeout=None)

    assert (answer.response, answer.deduplicated) == (b"old", True)


@in_virtual_time
async def test_a_task_that_has_not_ended_is_waited_for() -> None:
    harness = Harness()
    answer = await begun(harness.requests.await_task(KEY, 7, timeout=None))

    harness.replies.deliver(make_result())

    assert (await answer).deduplicated
    assert harness.replies.waiting_count == 0


@in_virtual_time
async def test_waiting_for_a_task_ends_with_the_deadline() -> None:
    harness = Harness()

    with pytest.raises(errors.DeadlineExceededError) as caught:
        await harness.requests.await_task(KEY, "key", timeout=3)

    assert caught.value.task_id == 7
    assert harness.replies.waiting_count == 0


@in_virtual_time
async def test_those_who_wait_for_known_tasks_count_as_callers() -> None:
    harness = Harness(make_namespace(waiting_callers_max=1))
    await begun(harness.requests.await_task(KEY, 7, timeout=None))

    with pytest.raises(errors.OverloadedError):
        await harness.requests.await_task(KEY, 7, timeout=None)
