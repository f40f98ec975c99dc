"""Settlement: what each outcome, and a retry, does to task, process, timer and queue."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.event import HistoryRange, NewEvent
from progressor.domain.processes.intent import (
    Action,
    Complete,
    Failed,
    Intent,
    Lost,
    Outcome,
    Rejected,
    Released,
    RemoveProcess,
    SetTimer,
    Succeeded,
    UnsetTimer,
)
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import ZOMBIE_DETECTED
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from progressor.domain.views.wait import ProcessFailed
from progressor.storage.steps.settlements import LeaseLost, Written
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    Store,
    a_request,
    dump,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)
REFUSED = Rejected(code=3, message="no", reason="BAD", metadata={"field": "x"})
IN_AN_HOUR = SetTimer(after=HOUR)
EVERY_OUTCOME: tuple[Outcome, ...] = (
    success(events=2),
    success(IN_AN_HOUR),
    success(UnsetTimer()),
    success(Complete(b"result")),
    success(RemoveProcess()),
    REFUSED,
    BROKEN,
    UNREACHABLE,
    Lost(),
    Released(),
)


class TestASuccess:
    async def test_saves_events_state_metadata_and_response_together(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        events = (
            NewEvent(payload=b"\0one", format_version=7, metadata={"a": "ü"}),
            NewEvent(payload=b""),
        )
        intent = Intent(
            events=events, aux_state=b"\xff", metadata={"m": 1}, response=b"r", state_version=3
        )

        written = await store.settled(init, Succeeded(intent))

        process = (await store.processes.get(key)).process
        assert (process.status, process.previous_status) == (
            ProcessStatus.RUNNING, ProcessStatus.INIT,
        )  # fmt: skip
        assert (process.aux_state, process.metadata, process.last_event_id) == (
            b"\xff", {"m": 1}, 2,
        )  # fmt: skip
        assert process.state_version == 3
        [traced] = await store.processes.trace(key, after=0, limit=9)
        assert [(e.event_id, e.payload, e.format_version, e.metadata) for e in traced.events] == [
            (1, b"\0one", 7, {"a": "ü"}), (2, b"", 0, None),
        ]  # fmt: skip
        assert (traced.response, traced.finished_at) == (b"r", store.clock.now())
        assert written.process == process

    async def test_leaves_what_it_does_not_mention(self, store: Store) -> None:
        key = await store.ready(success(aux_state=b"s", metadata={"m": 1}))

        await store.settled(await store.run_task(a_request(key)))

        process = (await store.processes.get(key)).process
        assert (process.aux_state, process.metadata) == (b"s", {"m": 1})

    @pytest.mark.parametrize(
        ("state", "version", "expected"), [(None, 0, 2), (b"t", 3, 3), (b"t", 0, 0), (b"", 0, 0)]
    )
    async def test_replaces_the_version_of_the_state_with_the_state(
        self, store: Store, state: bytes | None, version: int, expected: int
    ) -> None:
        key = await store.ready(success(aux_state=b"s", state_version=2))
        call = await store.run_task(a_request(key))
        other = await store.run_task(a_request(await store.ready(success())))
        assert call.process.state_version == 2

        written, _ = await asyncio.gather(
            store.settled(call, success(aux_state=state, state_version=version)),
            store.settled(other, success(aux_state=b"o")),
        )

        process = (await store.processes.get(key)).process
        assert (process.state_version, written.process) == (expected, process)

    async def test_overwrites_with_what_is_empty(self, store: Store) -> None:
        key = await store.ready(success(aux_state=b"s", metadata={"m": 1}))

        await store.settled(
            await store.run_task(a_request(key)), success(aux_state=b"", metadata={})
        )

        process = (await store.processes.get(key)).process
        assert (process.aux_state, process.metadata) == (b"", {})

    async def test_numbers_events_on_from_those_before(self, store: Store) -> None:
        key = await store.ready(success(events=2))
        await store.settled(await store.run_task(a_request(key)), success(events=3))

        process = (await store.processes.get(key)).process
        page = await store.processes.history(
            key, HistoryRange(), last_event_id=process.last_event_id, bytes_max=9999
        )
        assert [event.event_id for event in page.events] == [1, 2, 3, 4, 5]

    async def test_of_a_repair_clears_the_error(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)

        repair = await store.run_task(a_request(key, TaskType.REPAIR))
        await store.settled(repair)

        process = (await store.processes.get(key)).process
        assert process.status is ProcessStatus.RUNNING
        assert (process.detail, process.corrupted_by) == (None, None)

    async def test_of_a_repair_without_action_runs_the_timer_that_broke_it_again(
        self, store: Store
    ) -> None:
        key, _ = await store.timed(NO_TIME, args=b"a", step_timeout=SECOND)
        [claimed] = await store.claim_due()
        await store.settled(claimed.task, BROKEN)
        repair = await store.run_task(a_request(key, TaskType.REPAIR))

        following = await store.next_of(repair)

        assert (following.task_type, following.args) == (TaskType.TIMEOUT, b"a")
        assert (following.step_timeout, following.scheduled_at) == (SECOND, store.clock.now())
        assert following.task_id != claimed.task.task_id

    @pytest.mark.parametrize("action", [IN_AN_HOUR, UnsetTimer()])
    async def test_of_a_repair_with_an_action_does_not(self, store: Store, action: Action) -> None:
        key, _ = await store.timed(NO_TIME)
        await store.settled((await store.claim_due())[0].task, BROKEN)

        repair = await store.run_task(a_request(key, TaskType.REPAIR))

        assert (await store.settled(repair, success(action))).next is None

    async def test_of_a_repair_sends_the_repairs_behind_it_away(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)
        first = await store.run_task(a_request(key, TaskType.REPAIR))
        second = await store.admit(a_request(key, TaskType.REPAIR))

        written = await store.settled(first)

        assert [each.task_id for each in written.cancelled] == [second.task_id]
        error = await store.error_of(key, second.task_id)
        assert error.reason == "PROCESS_IS_RUNNING"

    async def test_tells_the_state_that_the_next_step_begins_with(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        await store.admit(a_request(key, args=b"next"))

        following = await store.next_of(init, success(events=1, aux_state=b"s"))

        assert following.args == b"next"
        assert following.process == (await store.processes.get(key)).process


class TestCompletion:
    async def test_ends_the_process_with_its_result(self, store: Store) -> None:
        key = fresh_key()

        written = await store.started(key, success(Complete(b"result")))

        process = (await store.processes.get(key)).process
        assert (process.status, process.result) == (ProcessStatus.FINISHED, b"result")
        assert (written.next, written.due) == (None, None)

    async def test_cancels_timer_and_line_and_names_who_waits(
        self, store: Store, other: Store
    ) -> None:
        key, timer = await store.timed()
        call = await store.run_task(a_request(key))
        waiting = await other.admit(a_request(key))

        written = await store.settled(call, success(Complete()))

        assert {(each.task_id, each.reply_to) for each in written.cancelled} == {
            (timer, ()), (waiting.task_id, (other.replica_id,)),
        }  # fmt: skip
        error = await store.error_of(key, waiting.task_id)
        assert error.reason == "PROCESS_FINISHED"

    async def test_by_a_repair_leaves_no_error_behind(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)

        await store.settled(
            await store.run_task(a_request(key, TaskType.REPAIR)), success(Complete())
        )

        process = (await store.processes.get(key)).process
        assert (process.status, process.detail) == (ProcessStatus.FINISHED, None)


class TestRemoval:
    @pytest.mark.parametrize(
        ("outcome", "status"),
        [(success(RemoveProcess(), response=b"bye"), TaskStatus.FINISHED),
         (REFUSED, TaskStatus.ERROR)],
    )  # fmt: skip
    async def test_leaves_the_answer_and_nothing_else(
        self, store: Store, observer: psycopg.Connection[Any], outcome: Outcome, status: TaskStatus
    ) -> None:
        before = dump(observer)
        key = fresh_key()
        init = await store.start(key)
        waiting = await store.admit(a_request(key))

        written = await store.settled(init, outcome)

        assert [each.task_id for each in written.cancelled] == [waiting.task_id]
        assert (written.process, written.next, written.due) == (None, None, None)
        result = await store.results.await_task(key, init.task_id)
        assert not isinstance(result, int)
        assert (result.status, result.response) == (
            status, b"bye" if status is TaskStatus.FINISHED else b"",
        )  # fmt: skip
        after = dump(observer)
        assert {**after, "replies": ()} == {**before, "replies": ()}

    async def test_by_a_timer_leaves_no_answer(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        key, timer = await store.timed(NO_TIME, remove=True)
        [claimed] = await store.claim(key, timer)

        await store.settled(claimed.task, success(RemoveProcess()))

        assert claimed.task.task_type is TaskType.REMOVE
        query = "SELECT FROM progressor.replies WHERE task_id = %s"
        assert observer.execute(query, (timer,)).fetchone() is None

    async def test_stands_in_a_batch_with_others(self, store: Store) -> None:
        one, two, three = fresh_key(), fresh_key(), fresh_key()
        tasks = [await store.start(key) for key in (one, two, three)]
        outcomes = [success(RemoveProcess()), success(events=1), success(RemoveProcess())]

        futures = [
            store.settlements.submit(store.entry(task, outcome))
            for task, outcome in zip(tasks, outcomes, strict=True)
        ]
        written = [await future for future in futures]

        processes = [each.process if isinstance(each, Written) else None for each in written]
        assert [None if p is None else p.key for p in processes] == [None, two, None]


class TestARefusal:
    @pytest.mark.parametrize("task_type", [TaskType.CALL, TaskType.NOTIFY])
    async def test_ends_the_task_and_leaves_the_process(
        self, store: Store, task_type: TaskType
    ) -> None:
        key = await store.ready(success(events=1))
        before = (await store.processes.get(key)).process
        task = await store.run_task(a_request(key, task_type))

        written = await store.settled(task, REFUSED)

        assert (await store.processes.get(key)).process == before == written.process
        error = await store.error_of(key, task.task_id)
        assert (error.code, error.reason, error.message) == (3, "BAD", "no")
        assert (error.rejected, error.metadata) == (True, {"field": "x"})

    async def test_of_a_repair_leaves_the_error(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)
        before = (await store.processes.get(key)).process

        await store.settled(await store.run_task(a_request(key, TaskType.REPAIR)), REFUSED)

        assert (await store.processes.get(key)).process == before


class TestAFailureForGood:
    async def test_breaks_the_process_and_cancels_whose_callers_wait(self, store: Store) -> None:
        key, timer = await store.timed()
        call = await store.run_task(a_request(key))
        waiting = await store.admit(a_request(key))
        accepted = await store.admit(a_request(key, TaskType.NOTIFY, waits=False))

        written = await store.settled(call, BROKEN)

        process = (await store.processes.get(key)).process
        assert (process.status, process.previous_status) == (
            ProcessStatus.ERROR, ProcessStatus.RUNNING,
        )  # fmt: skip
        assert (process.detail, process.corrupted_by) == (BROKEN.message, call.task_id)
        assert [each.task_id for each in written.cancelled] == [waiting.task_id]
        waits = (await store.processes.get(key)).waits
        assert [(it.task_id, type(it.cause)) for it in waits] == [
            (accepted.task_id, ProcessFailed), (timer, ProcessFailed),
        ]  # fmt: skip
        error = await store.error_of(key, waiting.task_id)
        assert (error.reason, error.message) == ("PROCESS_FAILED", BROKEN.message)
        assert error.metadata == {
            "broken_by": str(call.task_id),
            "failure_code": str(BROKEN.code),
            "failure_reason": BROKEN.reason,
        }

    async def test_of_a_repair_lets_the_next_repair_try(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)
        before = (await store.processes.get(key)).process
        first = await store.run_task(a_request(key, TaskType.REPAIR))
        second = await store.admit(a_request(key, TaskType.REPAIR))

        written = await store.settled(first, BROKEN)

        assert written.next is not None
        assert (written.next.task_id, written.next.process) == (second.task_id, before)
        assert (await store.processes.get(key)).process == before

    async def test_of_a_timer_run_again_gives_the_repair_behind_it_the_new_error(
        self, store: Store
    ) -> None:
        key, _ = await store.timed(NO_TIME)
        await store.settled((await store.claim_due())[0].task, BROKEN)
        due = (await store.recover(key)).due
        assert due is not None
        [again] = await store.claim(key, due.task_id)
        await store.admit(a_request(key, TaskType.REPAIR))
        worse = Failed(code=13, reason="BUG", message="worse", retryable=False)

        following = (await store.settled(again.task, worse)).next

        process = (await store.processes.get(key)).process
        assert (process.detail, process.corrupted_by) == ("worse", due.task_id)
        assert following is not None
        assert following.process == process


class TestTheLine:
    async def test_runs_in_the_order_of_task_ids(self, store: Store) -> None:
        key = fresh_key()
        task: RunningTask | None = await store.start(key)
        types = (TaskType.CALL, TaskType.NOTIFY, TaskType.CALL)
        waiting = [(await store.admit(a_request(key, each))).task_id for each in types]

        ran = []
        while task is not None:
            ran.append(task.task_id)
            task = (await store.settled(task)).next

        assert ran[1:] == waiting

    async def test_is_brought_on_for_a_claim_where_the_worker_does_not_go_on(
        self, store: Store
    ) -> None:
        key = fresh_key()
        init = await store.start(key)
        first = await store.admit(a_request(key))
        second = await store.admit(a_request(key))

        written = await store.settled(init, continues=False)

        assert written.next is None
        assert await store.claim(key, second.task_id) == []
        [claimed] = await store.claim_due()
        assert claimed.task.task_id == first.task_id


class TestALostLease:
    @pytest.mark.parametrize("outcome", EVERY_OUTCOME)
    async def test_changes_nothing_whatever_the_outcome(
        self, store: Store, other: Store, observer: psycopg.Connection[Any], outcome: Outcome
    ) -> None:
        key, _ = await store.timed()
        late = await store.run_task(a_request(key))
        await store.admit(a_request(key))
        await other.settled(late, Lost(), continues=False)
        await other.claim(key, late.task_id)
        before = dump(observer)

        settled = await store.settle(late, outcome)

        assert settled == LeaseLost()
        assert dump(observer) == before

    @pytest.mark.parametrize("outcome", EVERY_OUTCOME)
    async def test_of_a_removed_process_changes_nothing(
        self, store: Store, observer: psycopg.Connection[Any], outcome: Outcome
    ) -> None:
        key = fresh_key()
        late = await store.start(key)
        await store.remove(key)
        await store.start(key)
        before = dump(observer)

        settled = await store.settle(late, outcome)

        assert settled == LeaseLost()
        assert dump(observer) == before

    async def test_stands_in_a_batch_with_leases_that_hold(self, store: Store) -> None:
        tasks = [await store.start(fresh_key()) for _ in range(4)]
        await store.remove(tasks[2].key)

        futures = [store.settlements.submit(store.entry(task)) for task in tasks]

        assert [isinstance(await each, Written) for each in futures] == [True, True, False, True]


class TestABatch:
    async def test_gives_each_process_its_own_events_where_one_before_is_lost(
        self, store: Store
    ) -> None:
        tasks = [await store.start(fresh_key()) for _ in range(4)]
        await store.remove(tasks[1].key)
        payloads = [[b"0a", b"0b"], [b"lost"], [], [b"3"]]
        outcomes = [
            Succeeded(Intent(events=tuple(NewEvent(payload=each) for each in some)))
            for some in payloads
        ]

        await settled_together(store, tasks, outcomes)

        for number in (0, 2, 3):
            page = await store.processes.history(
                tasks[number].key,
                HistoryRange(),
                last_event_id=len(payloads[number]),
                bytes_max=9999,
            )
            assert [event.payload for event in page.events] == payloads[number]

    async def test_gives_each_process_its_own_timer_among_those_that_set_none(
        self, store: Store
    ) -> None:
        tasks = [await store.start(fresh_key()) for _ in range(4)]
        outcomes: list[Outcome] = [
            success(),
            success(SetTimer(at=store.clock.now() + HOUR, args=b"at", step_timeout=SECOND)),
            UNREACHABLE,
            success(SetTimer(after=NO_TIME, history_range=HistoryRange(after=1, limit=2))),
        ]

        written = await settled_together(store, tasks, outcomes)

        assert [each.due and each.due.due_at - store.clock.now() for each in written] == [
            None, HOUR, SECOND, None,
        ]  # fmt: skip
        following = [each.next for each in written]
        assert following[:3] == [None, None, None]
        assert following[3] is not None
        assert following[3].history_range == HistoryRange(after=1, limit=2)
        assert (following[3].args, following[3].step_timeout) == (b"", None)

    async def test_moves_each_line_in_its_own_way(self, store: Store) -> None:
        """One ends its process, the next has nothing behind it, the third a call and a timer."""
        ends, lone, called = [await store.start(fresh_key()) for _ in range(3)]
        timed, timer = await store.timed()
        keeps = await store.run_task(a_request(timed))
        in_vain = await store.admit(a_request(ends.key))
        first = await store.admit(a_request(called.key))

        written = await settled_together(
            store,
            [ends, lone, called, keeps],
            [success(Complete()), success(), success(), success()],
        )

        assert [[each.task_id for each in one.cancelled] for one in written] == [
            [in_vain.task_id], [], [], [],
        ]  # fmt: skip
        assert [one.next and one.next.task_id for one in written] == [
            None, None, first.task_id, None,
        ]  # fmt: skip
        assert [one.due and one.due.task_id for one in written] == [None, None, None, timer]
        assert await store.task_status(timed, timer) is TaskStatus.WAITING


async def settled_together(
    store: Store, tasks: Sequence[RunningTask], outcomes: Sequence[Outcome]
) -> list[Any]:
    """Settle tasks in one batch."""
    async with store.pool.connection() as connection:
        entries = [
            store.entry(task, outcome) for task, outcome in zip(tasks, outcomes, strict=True)
        ]
        return list(await store.settlements._plain._kind.write(connection, entries, False))


class TestARetry:
    async def test_waits_its_time_and_keeps_its_place(self, store: Store) -> None:
        key = await store.ready()
        call = await store.run_task(a_request(key, args=b"first"))
        later = await store.admit(a_request(key))

        written = await store.settled(call, UNREACHABLE)

        assert written.due is not None
        assert (written.next, written.due.due_at) == (None, store.clock.now() + SECOND)
        assert written.due.task_id == call.task_id
        assert await store.claim(key, call.task_id) == []
        assert await store.claim(key, later.task_id) == []
        store.clock.advance(SECOND)
        [again] = await store.claim_due()
        assert (again.task.task_id, again.task.attempt, again.task.args) == (
            call.task_id, 2, b"first",
        )  # fmt: skip
        assert again.task.first_started_at == call.started_at
        assert again.task.scheduled_at == call.scheduled_at
        following = await store.next_of(again.task)
        assert following.task_id == later.task_id

    async def test_counts_attempts_and_its_own_waits_but_no_outage(self, store: Store) -> None:
        call = await store.run_task(a_request(await store.ready()))
        away = dataclasses.replace(UNREACHABLE, unreachable=True)
        store.clock.advance(SECOND)
        await store.settled(call, UNREACHABLE)

        tried_for = []
        for outcome in (away, UNREACHABLE, away):
            store.clock.advance(dt.timedelta(hours=1))
            [again] = await store.claim_due()
            tried_for.append(again.task.tried_for)
            store.clock.advance(SECOND)
            await store.settled(again.task, outcome)

        assert tried_for == [2 * SECOND, 2 * SECOND, 4 * SECOND]

    async def test_keeps_the_timer_blocked(self, store: Store) -> None:
        key, timer = await store.timed()
        store.clock.advance(HOUR)
        call = await store.run_task(a_request(key))

        await store.settled(call, UNREACHABLE)

        assert await store.claim(key, timer) == []

    async def test_of_a_timer_yields_to_calls(self, store: Store) -> None:
        key, timer = await store.timed(NO_TIME)
        [claimed] = await store.claim(key, timer)
        waiting = await store.admit(a_request(key))

        written = await store.settled(claimed.task, UNREACHABLE)

        assert written.next is not None
        assert (written.next.task_id, written.due) == (waiting.task_id, None)
        store.clock.advance(SECOND)
        assert await store.claim(key, timer) == []
        following = await store.next_of(written.next)
        assert (following.task_id, following.attempt) == (timer, 2)

    async def test_of_a_timer_alone_waits_like_a_timer(self, store: Store) -> None:
        key, timer = await store.timed(NO_TIME)
        [claimed] = await store.claim(key, timer)

        written = await store.settled(claimed.task, UNREACHABLE)

        assert written.due is not None
        assert (written.due.task_id, written.due.due_at) == (timer, store.clock.now() + SECOND)
        call = await store.run_task(a_request(key))
        assert call.task_type is TaskType.CALL

    async def test_is_the_last_when_the_attempts_are_spent(self, store: Store) -> None:
        key = fresh_key()
        task = await store.start(key)
        for attempt in range(2, NAMESPACE.retry_policy.attempts_max + 1):
            await store.settled(task, UNREACHABLE)
            store.clock.advance(SECOND)
            task = (await store.claim(key, task.task_id))[0].task
            assert task.attempt == attempt

        await store.settled(task, UNREACHABLE)

        assert (await store.processes.get(key)).process.status is ProcessStatus.ERROR

    async def test_of_a_released_task_does_not_count(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)

        await store.settled(init, Released(), continues=False)

        [again] = await store.claim(key, init.task_id)
        assert again.task.attempt == 1

    async def test_of_a_lost_task_counts(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)

        await store.settled(init, Lost(), continues=False)

        [again] = await store.claim(key, init.task_id)
        assert again.task.attempt == 2

    async def test_of_a_lost_task_breaks_the_process_at_the_last_attempt(
        self, store: Store
    ) -> None:
        key = fresh_key()
        task = await store.start(key)
        for _ in range(NAMESPACE.retry_policy.attempts_max - 1):
            await store.settled(task, Lost(), continues=False)
            task = (await store.claim(key, task.task_id))[0].task

        await store.settled(task, Lost())

        process = (await store.processes.get(key)).process
        assert (process.status, process.detail) == (ProcessStatus.ERROR, ZOMBIE_DETECTED)
