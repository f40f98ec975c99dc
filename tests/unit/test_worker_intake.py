"""Intake: requests become tasks, and callers get answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar, cast

import pytest

from progressor import errors
from progressor.domain.admission import Admission, Import, Request, Verdict
from progressor.domain.answer import Answer, Receipt
from progressor.domain.namespace import Namespace
from progressor.domain.process import ProcessStatus
from progressor.domain.task import RunningTask, TaskResult, TaskStatus, TaskType
from progressor.storage.admissions import Admissions
from progressor.storage.processes import Put, SimpleRepair
from progressor.worker.aftermath import Aftermath
from progressor.worker.agenda import Agenda
from progressor.worker.intake import Intake
from progressor.worker.observer import Observers
from progressor.worker.replies import Replies
from progressor.worker.workers import Workers
from tests.support.builders import (
    make_cancelled,
    make_due,
    make_key,
    make_namespace,
    make_process,
    make_request,
    make_result,
    make_task,
    seconds,
)
from tests.support.clock import START
from tests.support.memory import (
    MemoryAdmissions,
    MemoryListener,
    MemoryNamespaces,
    MemoryProcesses,
    MemoryResults,
    away,
)
from tests.support.virtual_time import LoopClock, in_virtual_time, settled

KEY = make_key()
WAITING = Admission(verdict=Verdict.ACCEPTED, task_id=7)
LEASED = Admission(verdict=Verdict.ACCEPTED, task_id=7, running=make_task())
IMPORT = Import(key=KEY, status=ProcessStatus.RUNNING)

Value = TypeVar("Value")


class Bench:
    """An intake among collaborators in memory; workers carry until the end of time."""

    def __init__(self, namespace: Namespace | None = None) -> None:
        self.namespace = namespace or make_namespace()
        self.admissions = MemoryAdmissions()
        self.results = MemoryResults()
        self.processes = MemoryProcesses()
        self.observers = Observers()
        self.carried: list[int] = []
        self.workers = Workers(self._carry)
        self.agenda = Agenda(clock=LoopClock(), horizon=seconds(5), size_max=10)
        self.replies = Replies(
            results=self.results,
            listen=MemoryListener().listen,
            on_due=lambda: None,
            carried=lambda _task_id: True,
            clock=LoopClock(),
            observers=self.observers,
        )
        aftermath = Aftermath(replies=self.replies, agenda=self.agenda, replica_id=lambda: 1)
        self.intake = Intake(
            admissions=cast("Admissions", self.admissions),
            workers=self.workers,
            replies=self.replies,
            results=self.results,
            processes=self.processes,
            namespaces=MemoryNamespaces(self.namespace),
            agenda=self.agenda,
            aftermath=aftermath,
            step_grace=seconds(2),
            observers=self.observers,
        )

    async def ask(
        self, request: Request | None = None, *, timeout: float | None = None
    ) -> "asyncio.Future[Answer]":
        """Return the answer to come, once the request has been submitted."""
        return await begun(self.intake.ask(request or make_request(), timeout=timeout))

    async def accept(self) -> "asyncio.Future[Receipt]":
        return await begun(self.intake.accept(make_request()))

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.workers.run(asyncio.Event()))
        await settled()
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _carry(self, task: RunningTask) -> None:
        self.carried.append(task.task_id)
        await asyncio.get_running_loop().create_future()


async def begun(call: Coroutine[Any, Any, Value]) -> "asyncio.Future[Value]":
    future = asyncio.ensure_future(call)
    await settled()
    return future


@in_virtual_time
async def test_a_request_that_runs_at_once_is_carried_and_answered() -> None:
    bench = Bench()
    async with bench.working():
        answer = await bench.ask()
        bench.admissions.answer(LEASED)
        await settled()
        bench.replies.deliver(make_result())

        assert await answer == Answer(task_id=7, task_type=TaskType.CALL, response=b"done")

    assert bench.carried == [7]


@in_virtual_time
async def test_a_request_asks_for_the_place_that_was_reserved_for_it() -> None:
    bench = Bench(make_namespace(worker_count_max=1))

    await bench.ask()
    await bench.ask()

    assert [entry.run for entry in bench.admissions.entries] == [True, False]
    assert bench.admissions.entries[0].expires_after == seconds(32)


@in_virtual_time
async def test_a_place_that_is_not_needed_is_given_back() -> None:
    bench = Bench()
    await bench.ask()

    bench.admissions.answer(WAITING)
    await settled()

    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_a_request_without_a_place_gives_none_back() -> None:
    bench = Bench(make_namespace(worker_count_max=1))
    bench.workers.reserve(bench.namespace)
    await bench.ask()

    bench.admissions.answer(WAITING)
    await settled()

    assert bench.workers.busy_count("orders") == 1


@in_virtual_time
async def test_what_is_due_without_a_worker_makes_a_backlog() -> None:
    bench = Bench()
    await bench.ask()

    bench.admissions.answer(Admission(verdict=Verdict.ACCEPTED, task_id=7, due_now=True))
    await settled()

    assert bench.workers.has_backlog("orders")


@in_virtual_time
async def test_a_repeated_request_joins_the_earlier_task() -> None:
    bench = Bench()
    answer = await bench.ask()
    bench.admissions.answer(Admission(verdict=Verdict.DUPLICATE, task_id=7))
    await settled()

    bench.replies.deliver(make_result())

    assert (await answer).deduplicated


@in_virtual_time
async def test_a_repeated_request_gets_the_answer_that_is_there() -> None:
    bench = Bench()
    answer = await bench.ask()

    bench.admissions.answer(
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
async def test_a_refusal_is_told_as_the_error_of_its_verdict(
    verdict: Verdict, error_class: type[errors.RequestError]
) -> None:
    bench = Bench()
    answer = await bench.ask()

    bench.admissions.answer(Admission(verdict=verdict, process=make_process(corrupted_by=5)))

    with pytest.raises(error_class):
        await answer
    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_a_refusal_by_a_broken_process_says_what_broke_it() -> None:
    bench = Bench()
    answer = await bench.ask()
    broken = make_process(detail="zombie detected", corrupted_by=5)

    bench.admissions.answer(Admission(verdict=Verdict.PROCESS_FAILED, process=broken))

    with pytest.raises(errors.ProcessFailedError) as caught:
        await answer
    assert (caught.value.detail, caught.value.task_id) == ("zombie detected", 5)


@in_virtual_time
async def test_a_start_that_met_a_process_on_its_way_out_is_admitted_again() -> None:
    bench = Bench()
    answer = await bench.ask(make_request(TaskType.INIT))

    bench.admissions.answer(Admission(verdict=Verdict.GONE))
    await settled()
    bench.admissions.answer(WAITING)
    await settled()
    bench.replies.deliver(make_result())

    assert (await answer).task_id == 7
    assert len(bench.admissions.entries) == 2


@in_virtual_time
async def test_a_start_that_cannot_be_admitted_again_says_why() -> None:
    bench = Bench()
    answer = await bench.ask(make_request(TaskType.INIT))
    bench.admissions.refuses = errors.OverloadedError("9 writes wait", seconds(1))

    bench.admissions.answer(Admission(verdict=Verdict.GONE))

    with pytest.raises(errors.OverloadedError):
        await answer
    assert bench.workers.busy_count("orders") == 0


@pytest.mark.parametrize("worker_count_max", [1, 0])
@in_virtual_time
async def test_a_full_line_refuses_and_keeps_no_place(worker_count_max: int) -> None:
    bench = Bench(make_namespace(worker_count_max=worker_count_max))
    bench.admissions.refuses = errors.OverloadedError("9 writes wait", seconds(1))

    with pytest.raises(errors.OverloadedError):
        await bench.intake.ask(make_request(), timeout=None)

    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_an_outage_is_told_to_the_caller_and_keeps_no_place() -> None:
    bench = Bench()
    answer = await bench.ask()

    bench.admissions.answer(away())

    with pytest.raises(errors.StorageUnavailableError):
        await answer
    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_more_callers_than_may_wait_are_refused() -> None:
    bench = Bench(make_namespace(waiting_callers_max=1))
    await bench.ask()

    with pytest.raises(errors.OverloadedError) as caught:
        await bench.intake.ask(make_request(), timeout=None)

    assert caught.value.retry_after > seconds(0)
    assert len(bench.admissions.entries) == 1


@in_virtual_time
async def test_a_caller_who_has_gone_makes_room_for_another() -> None:
    bench = Bench(make_namespace(waiting_callers_max=1))
    gone = await bench.ask()
    gone.cancel()
    await settled()

    await bench.ask()

    assert len(bench.admissions.entries) == 2


@in_virtual_time
async def test_a_caller_who_goes_before_the_admission_takes_nothing_back() -> None:
    bench = Bench()
    async with bench.working():
        answer = await bench.ask()
        answer.cancel()
        await settled()

        bench.admissions.answer(LEASED)
        await settled()

    assert bench.carried == [7]
    assert bench.replies.waiting_count == 0


@in_virtual_time
async def test_a_caller_who_goes_after_the_admission_takes_nothing_back() -> None:
    bench = Bench()
    async with bench.working():
        answer = await bench.ask()
        bench.admissions.answer(LEASED)
        await settled()
        waited = bench.replies.waiting_count

        answer.cancel()
        await settled()

        assert bench.carried == [7]
        assert (waited, bench.replies.waiting_count) == (1, 0)


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
async def test_what_becomes_of_the_request_of_a_caller_who_has_gone_hurts_nobody(
    admission: Admission | Exception,
) -> None:
    bench = Bench()
    answer = await bench.ask()
    answer.cancel()
    await settled()

    bench.admissions.answer(admission)
    await settled()

    assert bench.workers.busy_count("orders") == 0


@in_virtual_time
async def test_a_deadline_names_the_task_that_goes_on() -> None:
    bench = Bench()
    answer = await bench.ask(timeout=3)
    bench.admissions.answer(WAITING)

    with pytest.raises(errors.DeadlineExceededError) as caught:
        await answer

    assert caught.value.task_id == 7
    assert asyncio.get_running_loop().time() == 3
    assert bench.replies.waiting_count == 0


@in_virtual_time
async def test_a_deadline_before_the_admission_knows_no_task() -> None:
    bench = Bench()

    with pytest.raises(errors.DeadlineExceededError) as caught:
        await bench.intake.ask(make_request(), timeout=3)

    assert caught.value.task_id is None


@in_virtual_time
async def test_a_request_in_an_unknown_namespace_is_refused_at_the_door() -> None:
    bench = Bench()

    with pytest.raises(errors.NamespaceNotFoundError):
        await bench.intake.ask(make_request(key=make_key(namespace="void")), timeout=None)

    assert bench.admissions.entries == []


@in_virtual_time
async def test_a_receipt_comes_as_soon_as_the_task_is_durable() -> None:
    bench = Bench()
    receipt = await bench.accept()

    bench.admissions.answer(WAITING)

    assert await receipt == Receipt(task_id=7)
    assert not bench.admissions.entries[0].request.waits
    assert bench.replies.waiting_count == 0


@in_virtual_time
async def test_a_receipt_of_a_repetition_says_so() -> None:
    bench = Bench()
    receipt = await bench.accept()

    bench.admissions.answer(Admission(verdict=Verdict.DUPLICATE, task_id=7))

    assert (await receipt).deduplicated


@in_virtual_time
async def test_a_caller_who_does_not_wait_for_the_receipt_takes_nothing_back() -> None:
    bench = Bench()
    receipt = await bench.accept()
    receipt.cancel()
    await settled()

    bench.admissions.answer(WAITING)
    await settled()

    assert bench.observers.counts["admitted"] == 1


@in_virtual_time
async def test_a_refusal_reaches_who_waits_for_a_receipt() -> None:
    bench = Bench()
    receipt = await bench.accept()

    bench.admissions.answer(Admission(verdict=Verdict.PROCESS_NOT_FOUND))

    with pytest.raises(errors.ProcessNotFoundError):
        await receipt


@in_virtual_time
async def test_a_task_that_has_ended_is_answered_from_its_record() -> None:
    bench = Bench()
    bench.results.awaited = make_result(response=b"old")

    answer = await bench.intake.await_task(KEY, "key", timeout=None)

    assert (answer.response, answer.deduplicated) == (b"old", True)


@in_virtual_time
async def test_a_task_that_has_not_ended_is_waited_for() -> None:
    bench = Bench()
    answer = await begun(bench.intake.await_task(KEY, 7, timeout=None))

    bench.replies.deliver(make_result())

    assert (await answer).deduplicated
    assert bench.replies.waiting_count == 0


@in_virtual_time
async def test_waiting_for_a_task_ends_with_the_deadline() -> None:
    bench = Bench()

    with pytest.raises(errors.DeadlineExceededError) as caught:
        await bench.intake.await_task(KEY, "key", timeout=3)

    assert caught.value.task_id == 7
    assert bench.replies.waiting_count == 0


@in_virtual_time
async def test_those_who_wait_for_known_tasks_count_as_callers() -> None:
    bench = Bench(make_namespace(waiting_callers_max=1))
    await begun(bench.intake.await_task(KEY, 7, timeout=None))

    with pytest.raises(errors.OverloadedError):
        await bench.intake.await_task(KEY, 7, timeout=None)


@in_virtual_time
async def test_a_simple_repair_without_a_timer_runs_nothing() -> None:
    assert await Bench().intake.simple_repair(KEY) is None


@in_virtual_time
async def test_the_timer_of_a_simple_repair_is_due_at_once() -> None:
    bench = Bench()
    bench.processes.repair_answer = SimpleRepair(verdict=Verdict.ACCEPTED, due=make_due(9))

    task_id = await bench.intake.simple_repair(KEY)

    assert task_id == 9
    assert bench.agenda.wait_seconds() == pytest.approx(0, abs=0.01)


@in_virtual_time
async def test_a_simple_repair_is_refused_like_any_request() -> None:
    bench = Bench()
    bench.processes.repair_answer = SimpleRepair(verdict=Verdict.PROCESS_IS_RUNNING, due=None)

    with pytest.raises(errors.ProcessIsRunningError):
        await bench.intake.simple_repair(KEY)


@pytest.mark.parametrize(
    ("verdict", "deduplicated"), [(Verdict.ACCEPTED, False), (Verdict.DUPLICATE, True)]
)
@in_virtual_time
async def test_an_import_gives_a_receipt(verdict: Verdict, deduplicated: bool) -> None:
    bench = Bench()
    bench.processes.put_answer = Put(verdict=verdict, task_id=1, due=None, told_at=START)

    assert await bench.intake.put(IMPORT) == Receipt(task_id=1, deduplicated=deduplicated)
    assert bench.agenda.wait_seconds() is None


@in_virtual_time
async def test_the_timer_of_an_import_goes_on_the_agenda() -> None:
    bench = Bench()
    due = make_due(due_at=START + seconds(2))
    bench.processes.put_answer = Put(verdict=Verdict.ACCEPTED, task_id=1, due=due, told_at=START)

    await bench.intake.put(IMPORT)

    assert bench.agenda.wait_seconds() == pytest.approx(2, abs=0.01)


@in_virtual_time
async def test_an_import_of_an_existing_process_is_refused() -> None:
    bench = Bench()
    bench.processes.put_answer = Put(
        verdict=Verdict.PROCESS_ALREADY_EXISTS, task_id=None, due=None, told_at=START
    )

    with pytest.raises(errors.ProcessAlreadyExistsError):
        await bench.intake.put(IMPORT)


@in_virtual_time
async def test_those_who_wait_for_a_removed_process_are_told() -> None:
    bench = Bench()
    answer = await begun(bench.intake.await_task(KEY, 8, timeout=None))
    bench.results.awaited = 8
    waiter: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
    bench.replies.expect(8, KEY, waiter)
    bench.processes.removed = (make_cancelled(7), make_cancelled(8))

    await bench.intake.remove(KEY)

    with pytest.raises(errors.ProcessRemovedError):
        await answer
    assert (waiter.result().status, waiter.result().removed) == (TaskStatus.CANCELLED, True)


@in_virtual_time
async def test_a_verdict_that_is_no_refusal_is_not_told_as_one() -> None:
    bench = Bench()
    bench.processes.repair_answer = SimpleRepair(verdict=Verdict.GONE, due=None)

    with pytest.raises(AssertionError, match="gone is no refusal"):
        await bench.intake.simple_repair(KEY)
