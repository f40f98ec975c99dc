"""Settlement and the timer: set, replaced, pushed aside by calls, woken, run."""

import datetime as dt

import pytest

from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.intent import KeepTimer, Outcome, Rejected, SetTimer, UnsetTimer
from progressor.domain.processes.task import TaskStatus, TaskType
from tests.support.storage.store import NO_TIME, Store, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)
IN_AN_HOUR = SetTimer(after=HOUR)
REFUSED = Rejected(code=3, message="no", reason="BAD")


class TestTheTimer:
    async def test_is_set_at_an_instant_with_all_that_was_asked(self, store: Store) -> None:
        wanted = HistoryRange(after=1, limit=2, direction=Direction.BACKWARD)
        at = store.clock.now() + dt.timedelta(microseconds=1)
        key = fresh_key()

        written = await store.started(
            key, success(SetTimer(at=at, args=b"a", history_range=wanted, step_timeout=SECOND))
        )

        assert written.due is not None
        assert (written.due.due_at, written.next) == (at, None)
        store.clock.advance(dt.timedelta(microseconds=1))
        [claimed] = await store.claim(key, written.due.task_id)
        task = claimed.task
        assert (task.task_type, task.args) == (TaskType.TIMEOUT, b"a")
        assert (task.history_range, task.step_timeout) == (wanted, SECOND)
        assert (claimed.due_at, claimed.set_by, task.scheduled_at) == (at, store.replica_id, at)

    async def test_carries_the_trace_of_the_step_that_set_it(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key, trace_context={"traceparent": "00-1"})

        following = await store.next_of(init, success(SetTimer(after=NO_TIME)))

        assert following.trace_context == {"traceparent": "00-1"}

    async def test_due_now_runs_on_in_the_same_worker(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        timer = SetTimer(at=store.clock.now() - HOUR)

        following = await store.next_of(init, success(timer))

        assert (following.task_type, following.attempt) == (TaskType.TIMEOUT, 1)
        assert following.scheduled_at == store.clock.now() - HOUR

    async def test_due_now_is_left_to_a_claim_where_the_worker_does_not_go_on(
        self, store: Store
    ) -> None:
        key = fresh_key()
        init = await store.start(key)

        written = await store.settled(init, success(SetTimer(after=NO_TIME)), continues=False)

        assert (written.next, written.due is not None) == (None, True)
        assert [each.task.key for each in await store.claim_due()] == [key]

    async def test_replaces_the_one_before(self, store: Store) -> None:
        key, old = await store.timed()
        call = await store.run_task(a_request(key))

        written = await store.settled(call, success(SetTimer(after=2 * HOUR)))

        assert written.due is not None
        assert written.due.task_id != old
        assert await store.task_status(key, old) is TaskStatus.CANCELLED
        assert [each.task_id for each in written.cancelled] == [old]

    async def test_is_cancelled_by_unset(self, store: Store) -> None:
        key, old = await store.timed()
        call = await store.run_task(a_request(key))

        written = await store.settled(call, success(UnsetTimer()))

        assert (written.due, (await store.processes.get(key)).timer) == (None, None)
        assert await store.task_status(key, old) is TaskStatus.CANCELLED

    async def test_is_blocked_by_an_admitted_call(self, store: Store) -> None:
        key, timer = await store.timed()

        await store.run_task(a_request(key))

        store.clock.advance(HOUR)
        view = await store.processes.get(key)
        assert view.timer is not None
        assert view.timer.status is TaskStatus.BLOCKED
        assert await store.claim(key, timer) == []
        assert await store.task_status(key, timer) is TaskStatus.BLOCKED

    @pytest.mark.parametrize("outcome", [success(KeepTimer()), REFUSED])
    async def test_wakes_when_the_call_is_over(self, store: Store, outcome: Outcome) -> None:
        key, timer = await store.timed()

        written = await store.settled(await store.run_task(a_request(key)), outcome)

        assert written.due is not None
        assert written.due.task_id == timer
        assert await store.task_status(key, timer) is TaskStatus.WAITING

    @pytest.mark.parametrize("outcome", [success(KeepTimer()), REFUSED])
    async def test_runs_at_once_when_the_call_is_over_and_it_is_overdue(
        self, store: Store, outcome: Outcome
    ) -> None:
        key, timer = await store.timed()
        call = await store.run_task(a_request(key))
        store.clock.advance(2 * HOUR)

        following = await store.next_of(call, outcome)

        assert (following.task_id, following.task_type) == (timer, TaskType.TIMEOUT)

    async def test_stays_blocked_while_another_call_is_in_line(self, store: Store) -> None:
        key, timer = await store.timed()
        first = await store.run_task(a_request(key))
        second = await store.admit(a_request(key))
        store.clock.advance(2 * HOUR)

        written = await store.settled(first)

        assert written.next is not None
        assert (written.next.task_id, written.due) == (second.task_id, None)
        assert await store.claim(key, timer) == []
        following = await store.next_of(written.next)
        assert following.task_id == timer

    async def test_set_while_a_call_is_in_line_waits_for_it(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        await store.admit(a_request(key))

        written = await store.settled(init, success(SetTimer(after=NO_TIME)))

        assert written.next is not None
        assert written.next.task_type is TaskType.CALL
        view = await store.processes.get(key)
        assert view.timer is not None
        assert view.timer.status is TaskStatus.BLOCKED
        following = await store.next_of(written.next)
        assert following.task_type is TaskType.TIMEOUT

    async def test_is_shown_waiting_by_a_trace_once_it_waits(self, store: Store) -> None:
        key = fresh_key()
        init = await store.start(key)
        await store.admit(a_request(key))
        written = await store.settled(init, success(IN_AN_HOUR))
        assert written.next is not None

        due = (await store.settled(written.next)).due

        assert due is not None
        assert await store.task_status(key, due.task_id) is TaskStatus.WAITING

    async def test_that_has_run_is_gone(self, store: Store) -> None:
        key, timer = await store.timed(NO_TIME)
        [claimed] = await store.claim(key, timer)

        written = await store.settled(claimed.task, success())

        assert (written.next, written.due) == (None, None)
        assert (await store.processes.get(key)).timer is None
