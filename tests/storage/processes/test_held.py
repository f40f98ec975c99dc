"""What waits on a process in error, and the task that brings it back."""

import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.admission import Request, Verdict
from progressor.domain.processes.intent import Complete, Outcome, Rejected, RemoveProcess, SetTimer
from progressor.domain.processes.policy import OnError
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from tests.support.storage.constrained import on
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import BROKEN, NO_TIME, Store, a_request, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
REFUSED = Rejected(code=3, reason="NO", message="no")


async def test_a_request_acknowledged_for_a_key_that_a_caller_waits_for_is_held(
    store: Store,
) -> None:
    key = await store.ready()
    call = await store.run_task(a_request(key))
    waited = await store.admit(a_request(key, idempotency_key="k"), run=False)
    accepted = await store.admit(a_request(key, idempotency_key="k", waits=False), run=False)
    assert (accepted.verdict, accepted.task_id) == (Verdict.DUPLICATE, waited.task_id)

    await store.settled(call, BROKEN)
    await store.recover(key)

    assert accepted.task_id is not None
    assert await store.task_status(key, accepted.task_id) is TaskStatus.WAITING


async def test_a_gated_request_acknowledged_for_a_key_that_a_caller_waits_for_is_held(
    store: Store,
) -> None:
    key = await store.ready()
    call = await store.run_task(a_request(key))
    one = a_request(key, idempotency_key="k", constraints=on("g"))
    two = a_request(key, idempotency_key="k", constraints=on("g"), waits=False)
    waited = await store.admit(one, run=False)
    accepted = await store.admit(two, run=False)
    assert (accepted.verdict, accepted.task_id) == (Verdict.DUPLICATE, waited.task_id)

    await store.settled(call, BROKEN)

    assert accepted.task_id is not None
    assert await store.task_status(key, accepted.task_id) is not TaskStatus.CANCELLED


async def test_a_cancelled_retry_keeps_its_idempotency_key(store: Store) -> None:
    key = await store.ready()
    call = await store.run_task(a_request(key, idempotency_key="k"))
    await store.settled(call, BROKEN)
    await store.recover(key, retries=True)

    await store.cancel(key, "k")

    again = await store.admit(a_request(key, idempotency_key="k"))
    assert (again.verdict, again.task_id) == (Verdict.DUPLICATE, call.task_id)


async def test_a_cancelled_retry_of_an_init_leaves_the_process_in_error(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    key = fresh_key()
    init = await store.start(key)
    notify = await store.admit(a_request(key, TaskType.NOTIFY, waits=False), run=False)
    await store.settled(init, BROKEN)
    await store.recover(key, retries=True)

    await store.cancel(key, init.task_id)

    view = await store.processes.get(key)
    assert view.process.status is ProcessStatus.ERROR
    assert broken_invariants(observer, now=store.clock.now()) == {}
    again = await store.recover(key, retries=True)
    assert again.due is not None
    [claimed] = await store.claim(key, again.task_id)
    following = await store.next_of(claimed.task)
    assert following.task_id == notify.task_id


async def test_a_repair_is_next_after_one_that_failed_where_no_task_broke_the_process(
    store: Store,
) -> None:
    key = await store.ready()
    await store.halt(key, "its job was cancelled")
    first = await store.run_task(a_request(key, TaskType.REPAIR))
    second = await store.admit(a_request(key, TaskType.REPAIR))

    following = (await store.settled(first, BROKEN)).next

    assert following is not None
    assert following.task_id == second.task_id


@pytest.mark.parametrize(
    "timers", [{"timer": SetTimer(after=HOUR)}, {"timers": {"a": SetTimer(after=HOUR)}}]
)
async def test_a_repair_runs_the_timer_again_whose_retry_was_cancelled(
    store: Store, timers: dict[str, Any]
) -> None:
    key = await store.ready(success(**timers))
    store.clock.advance(HOUR)
    [due] = await store.claim_due()
    await store.settled(due.task, BROKEN)
    await store.recover(key, retries=True)
    [again] = await store.claim_due()
    await store.cancel(key, again.task.task_id)

    repair = await store.run_task(a_request(key, TaskType.REPAIR))
    following = await store.next_of(repair)

    assert (following.task_type, following.timer_name) == (due.task.task_type, due.task.timer_name)


async def broken_as(store: Store, kind: str) -> RunningTask:
    """Start a process, and return the task in hand that is about to break it."""
    fields: dict[str, Any] = {"constraints": on("g")} if kind.startswith("gated") else {}
    init = await store.start(fresh_key())
    if kind == "init":
        return init
    if kind.endswith("timer"):
        await store.settled(init, success(SetTimer(after=NO_TIME, **fields)), continues=False)
    else:
        await store.settled(init, success(SetTimer(after=HOUR)), continues=False)
        await store.admit(a_request(init.key, **fields), run=False)
    [claimed] = await store.claim_due()
    return claimed.task


async def run_all_reported(store: Store, following: RunningTask | None) -> list[int]:
    """Run the following task and all due ones, each reported to a replica; return the ids."""
    ran: list[int] = []
    while True:
        if following is None:
            reported = {task_id for effects in store.reported for _, task_id in effects.due}
            claimed = await store.claim_due()
            if not claimed:
                return ran
            following = claimed[0].task
            assert following.task_id in reported
        ran.append(following.task_id)
        store.reported.clear()
        following = (await store.settled(following)).next


NOTIFIES: tuple[dict[str, Any], ...] = ({}, {"constraints": on("g")}, {"constraints": on("h")}, {})


@pytest.mark.parametrize("retries", [True, False], ids=["retry", "simple repair"])
@pytest.mark.parametrize("again", [success(), BROKEN, REFUSED], ids=["runs", "breaks", "refused"])
@pytest.mark.parametrize("kind", ["init", "call", "timer", "gated call", "gated timer"])
async def test_held_tasks_run_in_order_and_are_reported_as_due(
    store: Store, observer: psycopg.Connection[Any], kind: str, again: Outcome, retries: bool
) -> None:
    if kind == "init" and again is REFUSED:
        pytest.skip("it removes the process")
    task = await broken_as(store, kind)
    key = task.key
    held = []
    for fields in NOTIFIES:
        request = a_request(key, TaskType.NOTIFY, waits=False, **fields)
        held.append((await store.admit(request, run=False)).task_id)
    await store.settled(task, BROKEN)
    store.reported.clear()

    recovered, following = await store.recover(key, retries=retries), None
    if recovered.task_id is not None:
        [claimed] = await store.claim_due()
        assert claimed.task.task_id == task.task_id
        assert await store.results.await_task(key, task.task_id) == task.task_id
        store.reported.clear()
        written = await store.settled(claimed.task, again)
        assert written.reply_to == (store.replica_id,)
        assert broken_invariants(observer, now=store.clock.now()) == {}
        following = written.next
        if again is BROKEN:
            await store.recover(key, retries=True)
            [claimed] = await store.claim_due()
            store.reported.clear()
            following = (await store.settled(claimed.task)).next

    assert await run_all_reported(store, following) == held
    view = await store.processes.get(key)
    assert view.process.status is ProcessStatus.RUNNING
    assert (view.timer is not None) == kind.endswith("call")
    assert broken_invariants(observer, now=store.clock.now()) == {}


@pytest.mark.parametrize("kind", ["init", "call", "timer", "gated call", "gated timer"])
@pytest.mark.parametrize("action", [Complete(b""), RemoveProcess()], ids=["complete", "remove"])
async def test_a_retry_that_ends_the_process_leaves_no_held_task(
    store: Store, observer: psycopg.Connection[Any], kind: str, action: Complete | RemoveProcess
) -> None:
    task = await broken_as(store, kind)
    for fields in NOTIFIES:
        request = a_request(task.key, TaskType.NOTIFY, waits=False, **fields)
        await store.admit(request, run=False)
    await store.settled(task, BROKEN)
    await store.recover(task.key, retries=True)
    [claimed] = await store.claim_due()

    written = await store.settled(claimed.task, success(action))

    expected = len(NOTIFIES) + kind.endswith("call")
    assert len(written.cancelled) == expected
    assert broken_invariants(observer, now=store.clock.now()) == {}
    assert await store.claim_due() == []


async def test_what_is_held_stays_so_if_the_namespace_begins_to_cancel(
    store: Store, observer: psycopg.Connection[Any]
) -> None:
    task = await broken_as(store, "call")
    held = []
    for fields in NOTIFIES:
        request = a_request(task.key, TaskType.NOTIFY, waits=False, **fields)
        held.append((await store.admit(request, run=False)).task_id)
    await store.settled(task, BROKEN)
    await store.recover(task.key, retries=True)
    [claimed] = await store.claim_due()
    cancelling = dataclasses.replace(
        store, namespace=dataclasses.replace(store.namespace, on_error=OnError.CANCEL)
    )

    await cancelling.settled(claimed.task, BROKEN)

    assert broken_invariants(observer, now=store.clock.now()) == {}
    assert await store.claim_due() == []
    await store.recover(task.key, retries=True)
    [claimed] = await store.claim_due()
    store.reported.clear()
    following = (await store.settled(claimed.task)).next
    assert await run_all_reported(store, following) == held


@pytest.mark.parametrize(
    ("held", "elsewhere"),
    [(1, None), (1, 3), (2, 1)],
    ids=["held there", "in a cycle with another process", "not looked at by the order"],
)
async def test_a_task_run_again_does_not_wait_for_smaller_versions(
    store: Store, observer: psycopg.Connection[Any], held: int, elsewhere: int | None
) -> None:
    key, other = await store.ready(), await store.ready()
    await store.admit(_notify(key, 5), run=False)
    [claimed] = await store.claim_due()
    behind = [await store.admit(_notify(key, held), run=False)]
    if elsewhere is not None:
        behind.append(await store.admit(_notify(other, elsewhere), run=False))
    await store.settled(claimed.task, BROKEN)

    recovered = await store.recover(key, retries=True)

    assert recovered.due is not None
    [again] = await store.claim(key, recovered.due.task_id)
    following = (await store.settled(again.task)).next
    assert broken_invariants(observer, now=store.clock.now()) == {}
    assert set(await run_all_reported(store, following)) == {it.task_id for it in behind}


def _notify(key: ProcessKey, version: int) -> Request:
    order = Order(key="o", version=Version((version,)))
    return a_request(key, TaskType.NOTIFY, waits=False, constraints=Constraints(order=order))


@pytest.mark.parametrize("accepts", [False, True], ids=["timers", "timers and a call"])
async def test_the_first_of_what_is_held_is_not_the_oldest_timer(
    store: Store, accepts: bool
) -> None:
    later, sooner = SetTimer(after=HOUR), SetTimer(after=dt.timedelta(minutes=1))
    key = await store.ready(success(later, timers={"b": sooner}))
    call = await store.run_task(a_request(key))
    if accepts:
        await store.admit(a_request(key, waits=False))
    await store.settled(call, BROKEN)

    found = (await store.processes.get(key)).waits
    firsts = await store.processes.first_waits([key])

    assert firsts == {key: found[0]}
    assert (found[0].task_type is TaskType.CALL, found[0].timer_name == "b") == (
        accepts, not accepts,
    )  # fmt: skip
