"""Settlement by a retry: the same task waits for its next attempt, in its place."""

import datetime as dt

import pytest

from progressor.domain.processes.intent import Lost, Released
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import ZOMBIE_DETECTED
from progressor.domain.processes.task import TaskType
from tests.support.clock import ManualClock
from tests.support.storage.store import NAMESPACE, NO_TIME, UNREACHABLE, Store, a_request, fresh_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


class TestARetry:
    async def test_waits_its_time_and_keeps_its_place(
        self, store: Store, clock: ManualClock
    ) -> None:
        key = fresh_key()
        await store.started(key)
        call = await store.run_task(a_request(key, args=b"first"))
        later = await store.admit(a_request(key))

        written = await store.settled(call, UNREACHABLE)

        assert written.due is not None
        assert (written.next, written.due.due_at) == (None, clock.now() + SECOND)
        assert written.due.task_id == call.task_id
        assert await store.claim(key, call.task_id) == []
        assert await store.claim(key, later.task_id) == []
        clock.advance(SECOND)
        [again] = await store.claim_due()
        assert (again.task.task_id, again.task.attempt, again.task.args) == (
            call.task_id, 2, b"first",
        )  # fmt: skip
        assert again.task.first_started_at == call.started_at
        assert again.task.scheduled_at == call.scheduled_at
        following = (await store.settled(again.task)).next
        assert following is not None
        assert following.task_id == later.task_id

    async def test_keeps_the_timer_blocked(self, store: Store, clock: ManualClock) -> None:
        key, timer = await store.timed()
        clock.advance(HOUR)
        call = await store.run_task(a_request(key))

        await store.settled(call, UNREACHABLE)

        assert await store.claim(key, timer) == []

    async def test_of_a_timer_yields_to_calls(self, store: Store, clock: ManualClock) -> None:
        key, timer = await store.timed(NO_TIME)
        [claimed] = await store.claim(key, timer)
        waiting = await store.admit(a_request(key))

        written = await store.settled(claimed.task, UNREACHABLE)

        assert written.next is not None
        assert (written.next.task_id, written.due) == (waiting.task_id, None)
        clock.advance(SECOND)
        assert await store.claim(key, timer) == []
        following = (await store.settled(written.next)).next
        assert following is not None
        assert (following.task_id, following.attempt) == (timer, 2)

    async def test_of_a_timer_alone_waits_like_a_timer(
        self, store: Store, clock: ManualClock
    ) -> None:
        key, timer = await store.timed(NO_TIME)
        [claimed] = await store.claim(key, timer)

        written = await store.settled(claimed.task, UNREACHABLE)

        assert written.due is not None
        assert (written.due.task_id, written.due.due_at) == (timer, clock.now() + SECOND)
        call = await store.run_task(a_request(key))
        assert call.task_type is TaskType.CALL

    async def test_is_the_last_when_the_attempts_are_spent(
        self, store: Store, clock: ManualClock
    ) -> None:
        key = fresh_key()
        task = await store.start(key)
        for attempt in range(2, NAMESPACE.retry_policy.attempts_max + 1):
            await store.settled(task, UNREACHABLE)
            clock.advance(SECOND)
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
