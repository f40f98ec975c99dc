"""An idempotency key outlives its process, as long as the answers of removed processes are kept."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.intent import Rejected, RemoveProcess
from progressor.domain.processes.task import TaskResult, TaskStatus, TaskType
from tests.support.clock import ManualClock
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import Store, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
GONE = success(RemoveProcess(), response=b"bye")


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

    async def test_long_after_its_end_finds_its_answer(
        self, store: Store, clock: ManualClock
    ) -> None:
        key = fresh_key()
        init = await store.run_task(a_start(key))
        await store.settled(init, success(response=b"begun"))
        clock.advance(HOUR)
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

    async def test_starts_anew_once_the_answer_is_not_kept_any_more(
        self, store: Store, clock: ManualClock
    ) -> None:
        key = fresh_key()
        await store.settled(await store.run_task(a_start(key)), GONE)
        clock.advance(HOUR)
        await store.results.delete_old_replies(age=HOUR / 2)

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
    key = fresh_key()
    await store.started(key)
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
