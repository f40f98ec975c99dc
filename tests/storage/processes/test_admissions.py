"""Admission: requests meet processes, and answers of those that are gone."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Verdict, decide
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.intent import Complete, Rejected, RemoveProcess
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskError, TaskResult, TaskStatus, TaskType
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import BROKEN, Store, a_request, dump, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")
REQUESTS = (TaskType.INIT, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR)
STATES = (None, *ProcessStatus)
CALLS = (TaskType.CALL, TaskType.NOTIFY)
ACCEPTING = {
    TaskType.INIT: None,
    TaskType.CALL: ProcessStatus.RUNNING,
    TaskType.NOTIFY: ProcessStatus.RUNNING,
    TaskType.REPAIR: ProcessStatus.ERROR,
}
HOUR = dt.timedelta(hours=1)
GONE = success(RemoveProcess(), response=b"bye")
REJECTED = Rejected(code=3, message="no", reason="BAD", metadata={"field": "x"})


async def process_in(store: Store, status: ProcessStatus | None) -> ProcessKey:
    """Return a process in a status, with nothing running unless it is in init."""
    key = fresh_key()
    if status is ProcessStatus.INIT:
        await store.start(key)
    elif status is ProcessStatus.RUNNING:
        await store.started(key)
    elif status is ProcessStatus.ERROR:
        await store.broken(key)
    elif status is ProcessStatus.FINISHED:
        await store.started(key, success(Complete()))
    return key


class TestEveryCellOfTheTable:
    @pytest.mark.parametrize("status", STATES)
    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_is_decided_as_the_domain_decides(
        self, store: Store, task_type: TaskType, status: ProcessStatus | None
    ) -> None:
        key = await process_in(store, status)

        admission = await store.admit(a_request(key, task_type))

        assert admission.verdict is decide(task_type, status)

    @pytest.mark.parametrize("status", STATES)
    @pytest.mark.parametrize("task_type", [TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR])
    @pytest.mark.parametrize("constraints", [None, Constraints(gates={"g": 1})])
    async def test_is_decided_by_its_range_as_well(
        self,
        store: Store,
        task_type: TaskType,
        status: ProcessStatus | None,
        constraints: Constraints | None,
    ) -> None:
        if task_type is TaskType.REPAIR:
            constraints = None
        for after in (0, 1):
            key = await process_in(store, status)
            beyond = HistoryRange(after=after)

            admission = await store.admit(
                a_request(key, task_type, history_range=beyond, constraints=constraints)
            )

            assert admission.verdict is decide(task_type, status, after=after)

    async def test_joins_the_earlier_task_before_its_range_is_looked_at(self, store: Store) -> None:
        key = await store.ready(success(events=2))
        asked = a_request(key, idempotency_key="k", history_range=HistoryRange(after=2))
        admitted = await store.admit(asked)

        repeated = await store.admit(asked)
        beyond = await store.admit(
            a_request(key, idempotency_key="k", history_range=HistoryRange(after=3))
        )

        assert admitted.verdict is Verdict.ACCEPTED
        assert (repeated.verdict, repeated.task_id) == (Verdict.DUPLICATE, admitted.task_id)
        assert beyond.verdict is Verdict.KEY_REUSED

    @pytest.mark.parametrize("status", STATES)
    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_changes_nothing_where_it_refuses(
        self,
        store: Store,
        observer: psycopg.Connection[Any],
        task_type: TaskType,
        status: ProcessStatus | None,
    ) -> None:
        if decide(task_type, status) is Verdict.ACCEPTED:
            return
        key = await process_in(store, status)
        before = dump(observer)

        await store.admit(a_request(key, task_type, idempotency_key="k"))

        assert dump(observer) == before

    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_has_a_row_for_a_namespace_that_is_not_there(
        self, store: Store, task_type: TaskType
    ) -> None:
        admission = await store.admit(a_request(fresh_key("nowhere"), task_type))

        assert admission.verdict is Verdict.NAMESPACE_NOT_FOUND

    async def test_names_the_process_that_has_failed(self, store: Store) -> None:
        key = fresh_key()
        broken_by = await store.broken(key)

        admission = await store.admit(a_request(key))

        assert admission.process is not None
        assert admission.process.detail == BROKEN.message
        assert admission.process.corrupted_by == broken_by


class TestAnAcceptedRequest:
    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_runs_at_once_where_a_worker_is_reserved(
        self, store: Store, task_type: TaskType
    ) -> None:
        key = fresh_key()
        if task_type is not TaskType.INIT:
            await store.started(key, success(events=3))
        if task_type is TaskType.REPAIR:
            await store.settled(await store.run_task(a_request(key)), BROKEN)
        asked = a_request(
            key,
            task_type,
            args=b"\0args",
            caller_context={"who": "Zoë"},
            trace_context={"traceparent": "00"},
            history_range=HistoryRange(after=3, limit=2, direction=Direction.BACKWARD),
        )

        running = await store.run_task(asked)

        assert (running.task_type, running.attempt, running.key) == (task_type, 1, key)
        assert (running.args, running.caller_context) == (asked.args, asked.caller_context)
        assert (running.trace_context, running.history_range) == (
            asked.trace_context, asked.history_range,
        )  # fmt: skip
        assert running.scheduled_at == running.started_at == store.clock.now()
        assert running.process == (await store.processes.get(key)).process

    @pytest.mark.parametrize("task_type", [TaskType.INIT, TaskType.CALL])
    async def test_waits_for_a_worker_where_none_is_reserved(
        self, store: Store, task_type: TaskType
    ) -> None:
        key = await process_in(store, ACCEPTING[task_type])

        admission = await store.admit(a_request(key, task_type, args=b"x"), run=False)

        assert (admission.due_now, admission.running) == (True, None)
        [claimed] = await store.claim(key, admission.task_id)
        assert (claimed.task.task_type, claimed.task.args) == (task_type, b"x")

    @pytest.mark.parametrize("task_type", CALLS)
    async def test_waits_behind_the_task_that_runs(self, store: Store, task_type: TaskType) -> None:
        key = fresh_key()
        init = await store.start(key)

        admission = await store.admit(a_request(key, task_type))

        assert (admission.due_now, admission.running) == (False, None)
        assert await store.claim(key, admission.task_id) == []
        following = await store.next_of(init)
        assert following.task_id == admission.task_id

    async def test_waits_behind_a_call_that_waits_for_a_worker(self, store: Store) -> None:
        key = await process_in(store, ProcessStatus.RUNNING)
        await store.admit(a_request(key), run=False)

        second = await store.admit(a_request(key))

        assert (second.due_now, second.running) == (False, None)

    async def test_has_a_higher_id_than_the_one_before(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        ids = [(await store.admit(a_request(key))).task_id for _ in range(5)]

        assert [init.task_id, *ids] == sorted({init.task_id, *(each or 0 for each in ids)})

    async def test_of_a_start_keeps_the_metadata(self, store: Store) -> None:
        key = fresh_key()

        await store.start(key, metadata={"a": [1, {"ü": None}]})

        assert (await store.processes.get(key)).process.metadata == {"a": [1, {"ü": None}]}


class TestAnIdempotencyKey:
    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_joins_the_same_request_to_the_task_that_runs(
        self, store: Store, task_type: TaskType
    ) -> None:
        key = await process_in(store, ACCEPTING[task_type])
        asked = a_request(key, task_type, idempotency_key="once")
        running = await store.run_task(asked)

        again = await store.admit(asked)

        assert (again.verdict, again.task_id) == (Verdict.DUPLICATE, running.task_id)
        assert (again.ended, again.running) == (None, None)

    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_is_answered_from_the_task_that_has_ended(
        self, store: Store, task_type: TaskType
    ) -> None:
        key = await process_in(store, ACCEPTING[task_type])
        asked = a_request(key, task_type, idempotency_key="once")
        await store.settled(await store.run_task(asked), success(response=b"yes"))

        again = await store.admit(asked)

        assert again.ended is not None
        assert (again.ended.status, again.ended.response) == (TaskStatus.FINISHED, b"yes")

    @pytest.mark.parametrize("is_rejected", [False, True])
    async def test_gives_an_error_again(self, store: Store, is_rejected: bool) -> None:
        asked = a_request(await store.ready(), idempotency_key="once")
        outcome = REJECTED if is_rejected else BROKEN
        await store.settled(await store.run_task(asked), outcome)

        ended = (await store.admit(asked)).ended

        assert ended is not None
        assert (ended.status, ended.error) == (
            TaskStatus.ERROR,
            TaskError(
                code=outcome.code, reason=outcome.reason, message=outcome.message,
                rejected=is_rejected, metadata=REJECTED.metadata if is_rejected else {},
            ),
        )  # fmt: skip

    @pytest.mark.parametrize("task_type", REQUESTS)
    async def test_is_refused_for_another_request(self, store: Store, task_type: TaskType) -> None:
        key = await process_in(store, ACCEPTING[task_type])
        await store.run_task(a_request(key, task_type, idempotency_key="once"))

        other = await store.admit(a_request(key, task_type, idempotency_key="once", args=b"other"))

        assert other.verdict is Verdict.KEY_REUSED

    @pytest.mark.parametrize("task_type", [TaskType.INIT, TaskType.NOTIFY, TaskType.REPAIR])
    async def test_is_refused_for_another_type(self, store: Store, task_type: TaskType) -> None:
        key = await process_in(store, ProcessStatus.RUNNING)
        await store.run_task(a_request(key, idempotency_key="once"))

        other = await store.admit(a_request(key, task_type, idempotency_key="once"))

        assert other.verdict is Verdict.KEY_REUSED

    async def test_means_something_else_for_another_process(self, store: Store) -> None:
        one, two = await process_in(store, ProcessStatus.RUNNING), fresh_key()
        await store.started(two)
        await store.run_task(a_request(one, idempotency_key="once"))

        running = await store.run_task(a_request(two, idempotency_key="once", args=b"other"))

        assert running.key == two

    async def test_of_a_hundred_equal_starts_at_once_runs_one(
        self, store: Store, other: Store
    ) -> None:
        asked = a_request(fresh_key(), TaskType.INIT, idempotency_key="once")

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task((store, other)[number % 2].admit(asked)) for number in range(100)
            ]

        admissions = [task.result() for task in tasks]
        assert sum(each.running is not None for each in admissions) == 1
        assert len({each.task_id for each in admissions}) == 1

    @pytest.mark.parametrize("run", [True, False])
    async def test_notes_every_replica_that_waits_once(
        self, store: Store, other: Store, run: bool
    ) -> None:
        key = await process_in(store, ProcessStatus.RUNNING)
        asked = a_request(key, idempotency_key="once")
        admission = await store.admit(asked, run=run)
        for each in (store, other, other):
            await each.admit(asked)
        task = admission.running or (await store.claim(key, admission.task_id))[0].task

        assert sorted((await store.settled(task)).reply_to) == [1, 2]


async def test_a_request_that_nobody_waits_for_names_no_replica(store: Store) -> None:
    key = fresh_key()
    init = await store.start(key)
    await store.admit(a_request(key, waits=False))

    following = await store.next_of(init)

    assert (await store.settled(following)).reply_to == ()


async def test_a_call_names_its_process_in_a_start_and_a_request_at_once(
    store: Store, other: Store
) -> None:
    """Starts and calls on the same new processes from two replicas: never a lost task."""
    keys = [fresh_key() for _ in range(50)]
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(store.admit(a_request(key, TaskType.INIT))) for key in keys]
        calls = [group.create_task(other.admit(a_request(key))) for key in keys]

    assert all(start.result().running is not None for start in starts)
    for start, call in zip(starts, calls, strict=True):
        init = start.result().running
        assert init is not None
        following = (await store.settled(init)).next
        assert (None if following is None else following.task_id) == call.result().task_id


def a_start(key: Any, **fields: Any) -> Any:
    return a_request(key, TaskType.INIT, idempotency_key="k", **fields)


class TestAStartThatIsRepeated:
    async def test_after_its_process_removed_itself_finds_its_answer(
        self, store: Store, other: Store, observer: psycopg.Connection[Any]
    ) -> None:
        key = fresh_key()
        init = await store.run_task(a_start(key))
        await store.settled(init, GONE)

        again = await other.admit(a_start(key))

        assert (again.verdict, again.task_id) == (Verdict.DUPLICATE, init.task_id)
        assert again.ended is not None
        assert (again.ended.status, again.ended.response) == (TaskStatus.FINISHED, b"bye")
        assert observer.execute("SELECT count(*) FROM progressor.processes").fetchone() == (0,)
        assert broken_invariants(observer) == {}

    async def test_long_after_its_end_finds_its_answer(self, store: Store) -> None:
        key = fresh_key()
        init = await store.run_task(a_start(key))
        await store.settled(init, success(response=b"begun"))
        store.clock.advance(HOUR)
        await store.beat()
        await store.settled(await store.run_task(a_request(key)), GONE)

        again = await store.admit(a_start(key))

        assert again.ended is not None
        assert (again.verdict, again.ended.response) == (Verdict.DUPLICATE, b"begun")

    async def test_with_another_request_is_refused(self, store: Store) -> None:
        key = fresh_key()
        await store.settled(await store.run_task(a_start(key)), GONE)

        assert (await store.admit(a_start(key, args=b"else"))).verdict is Verdict.KEY_REUSED
        call = a_request(key, idempotency_key="k")
        assert (await store.admit(call)).verdict is Verdict.KEY_REUSED

    async def test_after_a_refusal_is_asked_again(self, store: Store) -> None:
        key = fresh_key()
        await store.settled(
            await store.run_task(a_start(key)), Rejected(code=3, reason="NO", message="no")
        )

        # It never came to be.
        assert (await store.admit(a_start(key))).verdict is Verdict.ACCEPTED

    async def test_starts_anew_once_the_answer_is_not_kept_any_more(self, store: Store) -> None:
        key = fresh_key()
        await store.settled(await store.run_task(a_start(key)), GONE)
        store.clock.advance(HOUR)
        await store.retention.delete_old_replies(age=HOUR / 2, limit=99)

        assert (await store.admit(a_start(key))).verdict is Verdict.ACCEPTED

    async def test_beside_others_leaves_them_as_they_are(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        keys = [fresh_key() for _ in range(6)]
        for key in keys[:3]:
            await store.settled(await store.run_task(a_start(key)), GONE)

        found = await asyncio.gather(*(store.admit(a_start(key)) for key in reversed(keys)))

        assert [each.verdict for each in reversed(found)] == ["duplicate"] * 3 + ["accepted"] * 3
        count = observer.execute("SELECT count(*) FROM progressor.processes").fetchone()
        assert count == (3,)
        assert broken_invariants(observer) == {}

    async def test_with_another_key_starts_anew(self, store: Store) -> None:
        key = fresh_key()
        await store.settled(await store.run_task(a_start(key)), GONE)

        anew = await store.admit(a_request(key, TaskType.INIT, idempotency_key="another"))

        assert anew.verdict is Verdict.ACCEPTED


async def test_a_call_that_removed_its_process_is_answered_once_more(store: Store) -> None:
    key = await store.ready()
    call = await store.run_task(a_request(key, idempotency_key="k", args=b"1"))
    await store.settled(call, GONE)

    again = await store.admit(a_request(key, idempotency_key="k", args=b"1"))
    other = await store.admit(a_request(key, idempotency_key="k", args=b"2"))
    unknown = await store.admit(a_request(key, idempotency_key="unknown"))

    assert again.ended is not None
    assert (again.verdict, again.ended.response) == (Verdict.DUPLICATE, b"bye")
    assert (other.verdict, unknown.verdict) == (Verdict.KEY_REUSED, Verdict.PROCESS_NOT_FOUND)


async def test_a_task_of_a_removed_process_is_awaited_by_its_key(store: Store) -> None:
    key = fresh_key()
    init = await store.run_task(a_start(key))
    await store.settled(init, GONE)

    found = await store.results.await_task(key, "k")

    assert isinstance(found, TaskResult)
    assert (found.task_id, found.response) == (init.task_id, b"bye")
