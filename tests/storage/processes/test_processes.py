"""Processes as people see them, and the rare writes: put, remove, simple repair."""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.admission import Import, Verdict
from progressor.domain.processes.event import HistoryRange, NewEvent
from progressor.domain.processes.intent import Complete, RemoveProcess, SetTimer
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.storage.processes.processes import WAITS_MAX
from tests.support.clock import START
from tests.support.postgres.locks import until_blocked
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    BROKEN,
    NO_TIME,
    Store,
    a_request,
    dump,
    fresh_key,
    success,
)
from tests.support.telemetry.spans import TRACED

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


async def broken_by_timer(store: Store, **fields: Any) -> ProcessKey:
    key = fresh_key()
    init = await store.start(key)
    timer = await store.next_of(init, success(SetTimer(after=NO_TIME, **fields)))
    await store.settled(timer, BROKEN)
    return key


class TestPut:
    async def test_brings_a_running_process_with_history_and_timer(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        long_ago = START - 365 * 24 * HOUR
        put = Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            previous_status=ProcessStatus.ERROR,
            aux_state=b"\0s",
            state_version=2,
            metadata={"m": {"ü": 1}},
            created_at=long_ago,
            status_changed_at=long_ago + HOUR,
            history=(
                NewEvent(payload=b"1", format_version=2, metadata={"e": 1}, occurred_at=long_ago),
                NewEvent(payload=b"2"),
            ),
            timer=SetTimer(after=HOUR, args=b"t", step_timeout=SECOND),
        )

        done = await store.put(put)

        assert done.verdict is Verdict.ACCEPTED
        view = await store.processes.get(put.key)
        process = view.process
        assert (process.status, process.previous_status) == (put.status, put.previous_status)
        assert (process.aux_state, process.metadata) == (b"\0s", {"m": {"ü": 1}})
        assert process.state_version == 2
        assert (process.created_at, process.status_changed_at) == (long_ago, long_ago + HOUR)
        page = await store.processes.history(
            put.key, HistoryRange(), last_event_id=2, bytes_max=9999
        )
        assert [(e.event_id, e.payload, e.occurred_at) for e in page.events] == [
            (1, b"1", long_ago), (2, b"2", store.clock.now()),
        ]  # fmt: skip
        assert view.timer is not None
        [timer] = store.reported[-1].upcoming
        assert (timer.task_id, timer.seconds) == (view.timer.task_id, HOUR.total_seconds())
        assert view.timer.due_at == store.clock.now() + HOUR
        assert broken_invariants(observer) == {}

    async def test_brings_a_timer_at_an_instant_that_a_claim_finds(self, store: Store) -> None:
        timer = SetTimer(at=store.clock.now() - HOUR, remove=True)
        put = Import(key=fresh_key(), status=ProcessStatus.RUNNING, timer=timer)

        await store.put(put)

        [claimed] = await store.claim_due()
        assert (claimed.task.task_type, claimed.task.key) == (TaskType.REMOVE, put.key)

    async def test_brings_a_timer_under_the_trace_of_who_brought_it(self, store: Store) -> None:
        put = Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            timer=SetTimer(at=store.clock.now() - HOUR),
            trace_context=TRACED,
        )

        await store.put(put)

        [claimed] = await store.claim_due()
        assert claimed.task.trace_context == TRACED

    @pytest.mark.parametrize("task_type", [None, TaskType.CALL, TaskType.TIMEOUT])
    async def test_brings_a_broken_process_that_can_be_repaired(
        self, store: Store, observer: psycopg.Connection[Any], task_type: TaskType | None
    ) -> None:
        put = Import(
            key=fresh_key(), status=ProcessStatus.ERROR, detail="", corrupted_by_type=task_type
        )
        await store.put(put)
        assert broken_invariants(observer) == {}

        repair = await store.run_task(a_request(put.key, TaskType.REPAIR))
        written = await store.settled(repair)

        assert (written.next is not None) == (task_type is TaskType.TIMEOUT)

    async def test_brings_a_finished_process_with_its_result(self, store: Store) -> None:
        put = Import(key=fresh_key(), status=ProcessStatus.FINISHED, result=b"r")

        await store.put(put)

        assert (await store.processes.get(put.key)).process.result == b"r"

    async def test_is_refused_for_an_id_that_is_taken(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        key = await store.ready()
        before = dump(observer)

        done = await store.put(Import(key=key, status=ProcessStatus.RUNNING))

        assert (done.verdict, done.task_id) == (Verdict.PROCESS_ALREADY_EXISTS, None)
        assert dump(observer) == before

    async def test_is_known_again_by_its_key(self, store: Store) -> None:
        put = Import(key=fresh_key(), status=ProcessStatus.RUNNING, idempotency_key="once")
        first = await store.put(put)

        again = await store.put(put)
        other = await store.put(dataclasses.replace(put, aux_state=b"other"))

        assert (again.verdict, again.task_id) == (Verdict.DUPLICATE, first.task_id)
        assert other.verdict is Verdict.KEY_REUSED

    async def test_shares_its_keys_with_requests(self, store: Store) -> None:
        key = fresh_key()
        await store.start(key, idempotency_key="once")
        put = Import(key=key, status=ProcessStatus.RUNNING, idempotency_key="once")

        assert (await store.put(put)).verdict is Verdict.KEY_REUSED

    async def test_is_refused_for_a_namespace_that_is_not_there(self, store: Store) -> None:
        put = Import(key=fresh_key("nowhere"), status=ProcessStatus.RUNNING)

        assert (await store.put(put)).verdict is Verdict.NAMESPACE_NOT_FOUND


class TestRemove:
    async def test_leaves_nothing_and_tells_what_was_under_way(
        self, store: Store, other: Store, observer: psycopg.Connection[Any]
    ) -> None:
        before = dump(observer)
        key = await store.ready(success(SetTimer(after=HOUR), events=3))
        call = await store.run_task(a_request(key))
        waiting = await other.admit(a_request(key))

        cancelled = await store.remove(key)

        assert {each.task_id: set(each.reply_to) for each in cancelled if each.reply_to} == {
            call.task_id: {store.replica_id},
            waiting.task_id: {other.replica_id},
        }
        assert {each.task_type for each in cancelled} == {TaskType.CALL, TaskType.TIMEOUT}
        # But for the answer of its start, whose caller may not have heard of it.
        assert {**dump(observer), "replies": ()} == {**before, "replies": ()}

    async def test_is_refused_where_there_is_nothing(self, store: Store) -> None:
        with pytest.raises(errors.ProcessNotFoundError):
            await store.remove(fresh_key())

    async def test_that_is_held_up_on_its_way_does_not_meet_a_later_process_of_the_id(
        self, store: Store, database: str, observer: psycopg.Connection[Any]
    ) -> None:
        key = await store.ready()
        with psycopg.connect(database) as holder:
            holder.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                [key.process_id],
            )
            removing = asyncio.ensure_future(store.remove(key))
            await until_blocked(observer)
            holder.execute(
                "UPDATE progressor.processes SET init_task_id = init_task_id + 1"
                " WHERE process_id = %s",
                [key.process_id],
            )
            holder.commit()

            with pytest.raises(errors.ProcessNotFoundError):
                await removing

        assert (await store.processes.get(key)).process.key == key

    @pytest.mark.parametrize(
        "answer", [BROKEN, success(Complete()), success()], ids=["error", "finished", "running"]
    )
    async def test_takes_a_process_in_any_status(self, store: Store, answer: Any) -> None:
        key = await store.ready(answer)

        await store.remove(key)

        with pytest.raises(errors.ProcessNotFoundError):
            await store.processes.get(key)


class TestSimpleRepair:
    async def test_brings_a_process_broken_by_a_call_to_running_at_once(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)

        repaired = await store.recover(key)

        assert (repaired.verdict, repaired.due) == (Verdict.ACCEPTED, None)
        process = (await store.processes.get(key)).process
        assert (process.status, process.detail) == (ProcessStatus.RUNNING, None)
        assert process.status_changed_at == store.clock.now()

    async def test_runs_the_timer_again_that_broke_it(
        self, store: Store, observer: psycopg.Connection[Any]
    ) -> None:
        key = await broken_by_timer(store, args=b"t", step_timeout=SECOND)

        repaired = await store.recover(key)

        assert repaired.due is not None
        assert repaired.due.due_at == store.clock.now()
        assert (await store.processes.get(key)).process.status is ProcessStatus.ERROR
        assert broken_invariants(observer) == {}
        [claimed] = await store.claim(key, repaired.due.task_id)
        assert (claimed.task.args, claimed.task.step_timeout) == (b"t", SECOND)
        await store.settled(claimed.task)
        assert (await store.processes.get(key)).process.status is ProcessStatus.RUNNING

    async def test_twice_runs_it_once(self, store: Store) -> None:
        key = await broken_by_timer(store)
        await store.recover(key)

        again = await store.recover(key)

        assert again.verdict is Verdict.PROCESS_IS_RUNNING
        assert len(await store.claim_due()) == 1

    async def test_waits_for_a_repair_under_way(self, store: Store) -> None:
        key = fresh_key()
        await store.broken(key)
        await store.run_task(a_request(key, TaskType.REPAIR))

        assert (await store.recover(key)).verdict is Verdict.PROCESS_IS_RUNNING

    @pytest.mark.parametrize(
        ("answer", "verdict"),
        [
            (success(), Verdict.PROCESS_IS_RUNNING),
            (success(Complete()), Verdict.PROCESS_FINISHED),
            (success(RemoveProcess()), Verdict.PROCESS_NOT_FOUND),
        ],
    )
    async def test_is_refused_in_every_other_status(
        self, store: Store, answer: Any, verdict: Verdict
    ) -> None:
        key = fresh_key()
        init = await store.start(key)
        assert (await store.recover(key)).verdict is Verdict.PROCESS_IS_RUNNING
        await store.settled(init, answer)

        assert (await store.recover(key)).verdict is verdict


class TestGet:
    async def test_names_no_more_than_may_be(self, store: Store) -> None:
        key = fresh_key()
        await store.start(key)
        futures = [store.admit(a_request(key)) for _ in range(WAITS_MAX + 5)]
        for each in futures:
            await each

        assert len((await store.processes.get(key)).waits) == WAITS_MAX

    async def test_is_refused_where_there_is_nothing(self, store: Store) -> None:
        with pytest.raises(errors.ProcessNotFoundError):
            await store.processes.get(fresh_key())
