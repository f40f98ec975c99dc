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
from tests.support.clock import START, ManualClock
from tests.support.invariants import broken_invariants
from tests.support.spans import TRACED
from tests.support.storage import (
    BROKEN,
    NO_TIME,
    Desk,
    a_request,
    dump,
    fresh_key,
    success,
)
from tests.support.storage_locks import until_blocked

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


async def broken_by_timer(desk: Desk, **fields: Any) -> ProcessKey:
    key = fresh_key()
    init = await desk.start(key)
    timer = (await desk.settled(init, success(SetTimer(after=NO_TIME, **fields)))).next
    assert timer is not None
    await desk.settled(timer, BROKEN)
    return key


class TestPut:
    async def test_brings_a_running_process_with_history_and_timer(
        self, desk: Desk, clock: ManualClock, eye: psycopg.Connection[Any]
    ) -> None:
        long_ago = START - 365 * 24 * HOUR
        put = Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            previous_status=ProcessStatus.ERROR,
            aux_state=b"\0s",
            metadata={"m": {"ü": 1}},
            created_at=long_ago,
            status_changed_at=long_ago + HOUR,
            history=(
                NewEvent(payload=b"1", format_version=2, metadata={"e": 1}, occurred_at=long_ago),
                NewEvent(payload=b"2"),
            ),
            timer=SetTimer(after=HOUR, args=b"t", step_timeout=SECOND),
        )

        done = await desk.processes.put(put)

        assert done.verdict is Verdict.ACCEPTED
        view = await desk.processes.get(put.key)
        process = view.process
        assert (process.status, process.previous_status) == (put.status, put.previous_status)
        assert (process.aux_state, process.metadata) == (b"\0s", {"m": {"ü": 1}})
        assert (process.created_at, process.status_changed_at) == (long_ago, long_ago + HOUR)
        page = await desk.processes.history(
            put.key, HistoryRange(), last_event_id=2, bytes_max=9999
        )
        assert [(e.event_id, e.payload, e.occurred_at) for e in page.events] == [
            (1, b"1", long_ago), (2, b"2", clock.now()),
        ]  # fmt: skip
        assert done.due is not None
        assert view.timer is not None
        assert (view.timer.task_id, view.timer.due_at) == (done.due.task_id, clock.now() + HOUR)
        assert broken_invariants(eye) == {}

    async def test_brings_a_timer_at_an_instant_that_a_claim_finds(
        self, desk: Desk, clock: ManualClock
    ) -> None:
        timer = SetTimer(at=clock.now() - HOUR, remove=True)
        put = Import(key=fresh_key(), status=ProcessStatus.RUNNING, timer=timer)

        await desk.processes.put(put)

        [claimed] = await desk.claim_due()
        assert (claimed.task.task_type, claimed.task.key) == (TaskType.REMOVE, put.key)

    async def test_brings_a_timer_under_the_trace_of_who_brought_it(
        self, desk: Desk, clock: ManualClock
    ) -> None:
        put = Import(
            key=fresh_key(),
            status=ProcessStatus.RUNNING,
            timer=SetTimer(at=clock.now() - HOUR),
            trace_context=TRACED,
        )

        await desk.processes.put(put)

        [claimed] = await desk.claim_due()
        assert claimed.task.trace_context == TRACED

    @pytest.mark.parametrize("task_type", [None, TaskType.CALL, TaskType.TIMEOUT])
    async def test_brings_a_broken_process_that_can_be_repaired(
        self, desk: Desk, eye: psycopg.Connection[Any], task_type: TaskType | None
    ) -> None:
        put = Import(
            key=fresh_key(), status=ProcessStatus.ERROR, detail="", corrupted_by_type=task_type
        )
        await desk.processes.put(put)
        assert broken_invariants(eye) == {}

        repair = await desk.run_task(a_request(put.key, TaskType.REPAIR))
        written = await desk.settled(repair)

        assert (written.next is not None) == (task_type is TaskType.TIMEOUT)

    async def test_brings_a_finished_process_with_its_result(self, desk: Desk) -> None:
        put = Import(key=fresh_key(), status=ProcessStatus.FINISHED, result=b"r")

        await desk.processes.put(put)

        assert (await desk.processes.get(put.key)).process.result == b"r"

    async def test_is_refused_for_an_id_that_is_taken(
        self, desk: Desk, eye: psycopg.Connection[Any]
    ) -> None:
        key = fresh_key()
        await desk.started(key)
        before = dump(eye)

        done = await desk.processes.put(Import(key=key, status=ProcessStatus.RUNNING))

        assert (done.verdict, done.task_id) == (Verdict.PROCESS_ALREADY_EXISTS, None)
        assert dump(eye) == before

    async def test_is_known_again_by_its_key(self, desk: Desk) -> None:
        put = Import(key=fresh_key(), status=ProcessStatus.RUNNING, idempotency_key="once")
        first = await desk.processes.put(put)

        again = await desk.processes.put(put)
        other = await desk.processes.put(dataclasses.replace(put, aux_state=b"other"))

        assert (again.verdict, again.task_id) == (Verdict.DUPLICATE, first.task_id)
        assert other.verdict is Verdict.KEY_REUSED

    async def test_shares_its_keys_with_requests(self, desk: Desk) -> None:
        key = fresh_key()
        await desk.start(key, idempotency_key="once")
        put = Import(key=key, status=ProcessStatus.RUNNING, idempotency_key="once")

        assert (await desk.processes.put(put)).verdict is Verdict.KEY_REUSED

    async def test_is_refused_for_a_namespace_that_is_not_there(self, desk: Desk) -> None:
        put = Import(key=fresh_key("nowhere"), status=ProcessStatus.RUNNING)

        assert (await desk.processes.put(put)).verdict is Verdict.NAMESPACE_NOT_FOUND


class TestRemove:
    async def test_leaves_nothing_and_tells_what_was_under_way(
        self, desk: Desk, other: Desk, eye: psycopg.Connection[Any]
    ) -> None:
        before = dump(eye)
        key = fresh_key()
        await desk.started(key, success(SetTimer(after=HOUR), events=3))
        call = await desk.run_task(a_request(key))
        waiting = await other.admit(a_request(key))

        cancelled = await desk.processes.remove(key)

        assert {each.task_id: set(each.reply_to) for each in cancelled if each.reply_to} == {
            call.task_id: {desk.replica_id},
            waiting.task_id: {other.replica_id},
        }
        assert {each.task_type for each in cancelled} == {TaskType.CALL, TaskType.TIMEOUT}
        # But for the answer of its start, whose caller may not have heard of it.
        assert {**dump(eye), "replies": ()} == {**before, "replies": ()}

    async def test_is_refused_where_there_is_nothing(self, desk: Desk) -> None:
        with pytest.raises(errors.ProcessNotFoundError):
            await desk.processes.remove(fresh_key())

    async def test_that_is_held_up_on_its_way_does_not_meet_a_later_process_of_the_id(
        self, desk: Desk, database: str, eye: psycopg.Connection[Any]
    ) -> None:
        key = fresh_key()
        await desk.started(key)
        with psycopg.connect(database) as holder:
            holder.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
                [key.process_id],
            )
            removing = asyncio.ensure_future(desk.processes.remove(key))
            await until_blocked(eye)
            holder.execute(
                "UPDATE progressor.processes SET init_task_id = init_task_id + 1"
                " WHERE process_id = %s",
                [key.process_id],
            )
            holder.commit()

            with pytest.raises(errors.ProcessNotFoundError):
                await removing

        assert (await desk.processes.get(key)).process.key == key

    @pytest.mark.parametrize(
        "answer", [BROKEN, success(Complete()), success()], ids=["error", "finished", "running"]
    )
    async def test_takes_a_process_in_any_status(self, desk: Desk, answer: Any) -> None:
        key = fresh_key()
        await desk.started(key, answer)

        await desk.processes.remove(key)

        with pytest.raises(errors.ProcessNotFoundError):
            await desk.processes.get(key)


class TestSimpleRepair:
    async def test_brings_a_process_broken_by_a_call_to_running_at_once(
        self, desk: Desk, clock: ManualClock
    ) -> None:
        key = fresh_key()
        await desk.broken(key)

        repaired = await desk.processes.simple_repair(key)

        assert (repaired.verdict, repaired.due) == (Verdict.ACCEPTED, None)
        process = (await desk.processes.get(key)).process
        assert (process.status, process.detail) == (ProcessStatus.RUNNING, None)
        assert process.status_changed_at == clock.now()

    async def test_runs_the_timer_again_that_broke_it(
        self, desk: Desk, clock: ManualClock, eye: psycopg.Connection[Any]
    ) -> None:
        key = await broken_by_timer(desk, args=b"t", step_timeout=SECOND)

        repaired = await desk.processes.simple_repair(key)

        assert repaired.due is not None
        assert repaired.due.due_at == clock.now()
        assert (await desk.processes.get(key)).process.status is ProcessStatus.ERROR
        assert broken_invariants(eye) == {}
        [claimed] = await desk.claim(key, repaired.due.task_id)
        assert (claimed.task.args, claimed.task.step_timeout) == (b"t", SECOND)
        await desk.settled(claimed.task)
        assert (await desk.processes.get(key)).process.status is ProcessStatus.RUNNING

    async def test_twice_runs_it_once(self, desk: Desk) -> None:
        key = await broken_by_timer(desk)
        await desk.processes.simple_repair(key)

        again = await desk.processes.simple_repair(key)

        assert again.verdict is Verdict.PROCESS_IS_RUNNING
        assert len(await desk.claim_due()) == 1

    async def test_waits_for_a_repair_under_way(self, desk: Desk) -> None:
        key = fresh_key()
        await desk.broken(key)
        await desk.run_task(a_request(key, TaskType.REPAIR))

        assert (await desk.processes.simple_repair(key)).verdict is Verdict.PROCESS_IS_RUNNING

    @pytest.mark.parametrize(
        ("answer", "verdict"),
        [
            (success(), Verdict.PROCESS_IS_RUNNING),
            (success(Complete()), Verdict.PROCESS_FINISHED),
            (success(RemoveProcess()), Verdict.PROCESS_NOT_FOUND),
        ],
    )
    async def test_is_refused_in_every_other_status(
        self, desk: Desk, answer: Any, verdict: Verdict
    ) -> None:
        key = fresh_key()
        init = await desk.start(key)
        assert (await desk.processes.simple_repair(key)).verdict is Verdict.PROCESS_IS_RUNNING
        await desk.settled(init, answer)

        assert (await desk.processes.simple_repair(key)).verdict is verdict


class TestGet:
    async def test_names_no_more_than_may_be(self, desk: Desk) -> None:
        key = fresh_key()
        await desk.start(key)
        futures = [desk.admit(a_request(key)) for _ in range(WAITS_MAX + 5)]
        for each in futures:
            await each

        assert len((await desk.processes.get(key)).waits) == WAITS_MAX

    async def test_is_refused_where_there_is_nothing(self, desk: Desk) -> None:
        with pytest.raises(errors.ProcessNotFoundError):
            await desk.processes.get(fresh_key())
