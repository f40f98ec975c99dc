"""Several timers of one process: set, replaced and unset by name, run by their instants."""

import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.intent import (
    TIMERS_MAX,
    Complete,
    Failed,
    Outcome,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.processes.policy import OnError
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from progressor.storage.steps.settlements import Written
from tests.support.storage.constrained import on
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import BROKEN, Store, a_request, connect, fresh_key, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
AGAIN = Failed(code=2, reason="AGAIN", message="", retryable=True, retry_after=HOUR)


def after(hours: float, **fields: Any) -> SetTimer:
    return SetTimer(after=hours * HOUR, **fields)


async def timers_of(store: Store, key: ProcessKey) -> dict[str, TaskStatus]:
    """Return the timers by their instants, after a look at all invariants."""
    view = await store.processes.get(key)
    return {it.name: it.status for it in (view.timer, *view.later_timers) if it is not None}


async def fired(store: Store) -> RunningTask:
    [claimed] = await store.claim_due()
    return claimed.task


async def with_timers(store: Store, *names: str, **fields: Any) -> ProcessKey:
    """Return a running process with timers due in one hour, two hours and so on."""
    timers = {name: after(hours, **fields) for hours, name in enumerate(names, 1)}
    return await store.ready(success(timers=timers))


@pytest.fixture(autouse=True)
async def _invariants(store: Store, observer: psycopg.Connection[Any]) -> Any:
    yield
    assert broken_invariants(observer, now=store.clock.now()) == {}


async def test_the_earliest_runs_first_and_the_others_keep_their_instants(store: Store) -> None:
    step_timeout, wanted = dt.timedelta(seconds=3), HistoryRange(after=1, limit=2)
    init = await store.start(fresh_key(), trace_context={"traceparent": "00-1"})
    late = after(3, args=b"l", history_range=wanted, step_timeout=step_timeout)
    timers = {"late": late, "early": after(1, args=b"e")}

    written = await store.settled(init, success(after(2, args=b"u"), timers=timers))

    start = store.clock.now()
    assert written.due is not None
    assert written.due.due_at == start + HOUR
    ran = []
    while written.due is not None:
        store.clock.advance(HOUR)
        ran.append(task := await fired(store))
        written = await store.settled(task)
    assert [(it.timer_name, it.args, it.scheduled_at - start) for it in ran] == [
        ("early", b"e", HOUR), ("", b"u", 2 * HOUR), ("late", b"l", 3 * HOUR)
    ]  # fmt: skip
    last = ran[-1]
    assert (last.history_range, last.step_timeout) == (wanted, step_timeout)
    assert last.trace_context == {"traceparent": "00-1"}


async def test_several_that_are_overdue_run_in_one_worker_by_their_instants(store: Store) -> None:
    key = await with_timers(store, "b", "a")
    store.clock.advance(3 * HOUR)
    names = []

    following: RunningTask | None = await fired(store)
    while following is not None:
        assert following.task_type is TaskType.TIMEOUT
        names.append(following.timer_name)
        following = (await store.settled(following)).next

    assert (names, await timers_of(store, key)) == (["b", "a"], {})


async def test_due_at_one_instant_run_in_the_order_in_which_they_were_set(store: Store) -> None:
    init = await store.start(fresh_key())
    timers = {name: after(0) for name in ("b", "a", "c")}

    following = await store.next_of(init, success(timers=timers))

    names = [following.timer_name]
    for _ in range(2):
        following = await store.next_of(following)
        names.append(following.timer_name)
    assert names == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("change", "left", "cancelled"),
    [
        ({"timers": {"a": after(9)}}, ["b", "", "a"], 1),
        ({"timers": {"a": UnsetTimer()}}, ["b", ""], 1),
        ({"timers": {"b": UnsetTimer(), "c": after(0.5), "x": UnsetTimer()}}, ["c", "a", ""], 1),
        ({"timer": after(0.5)}, ["", "a", "b"], 1),
        ({"timer": UnsetTimer()}, ["a", "b"], 1),
        ({"timer": UnsetTimer(), "timers": {"a": UnsetTimer(), "b": UnsetTimer()}}, [], 3),
        ({}, ["a", "b", ""], 0),
    ],
)
async def test_a_change_is_of_the_timer_of_its_name_alone(
    store: Store, change: dict[str, Any], left: list[str], cancelled: int
) -> None:
    key = await store.ready(success(after(3), timers={"a": after(1), "b": after(2)}))
    call = await store.run_task(a_request(key))
    blocked = dict.fromkeys(("a", "b", ""), TaskStatus.BLOCKED)
    assert await timers_of(store, key) == blocked

    written = await store.settled(call, success(**change))

    found = [TaskStatus.WAITING if it == left[0] else TaskStatus.BLOCKED for it in left]
    assert list((await timers_of(store, key)).items()) == list(zip(left, found, strict=True))
    assert len(written.cancelled) == cancelled


async def test_a_call_goes_first_and_the_earliest_wakes_after_it(store: Store) -> None:
    key = await with_timers(store, "a", "b")
    call = await store.run_task(a_request(key))
    behind = await store.admit(a_request(key))
    store.clock.advance(HOUR)

    second = await store.next_of(call)

    assert second.task_id == behind.task_id
    assert (await store.next_of(second)).timer_name == "a"
    assert await store.claim_due() == []


async def test_one_that_waits_for_its_retry_does_not_keep_an_earlier_one_from_firing(
    store: Store,
) -> None:
    key = await with_timers(store, "a", "b")
    store.clock.advance(1.5 * HOUR)

    written = await store.settled(await fired(store), AGAIN)

    assert written.due is not None
    assert written.due.due_at == store.clock.now() + HOUR / 2
    assert await timers_of(store, key) == {"b": TaskStatus.WAITING, "a": TaskStatus.BLOCKED}
    store.clock.advance(HOUR / 2)
    following = await store.settled(await fired(store))
    assert following.due is not None
    store.clock.advance(HOUR / 2)
    task = await fired(store)
    assert (task.timer_name, task.attempt) == ("a", 2)


async def test_one_that_is_tried_again_is_followed_at_once_by_one_that_is_overdue(
    store: Store,
) -> None:
    key = await with_timers(store, "a", "b")
    store.clock.advance(2 * HOUR)

    following = await store.next_of(await fired(store), AGAIN)

    assert following.timer_name == "b"
    assert await timers_of(store, key) == {"a": TaskStatus.BLOCKED}


@pytest.mark.parametrize("retries", [True, False], ids=["retry", "simple repair"])
async def test_all_are_held_with_their_instants_and_come_back(store: Store, retries: bool) -> None:
    key = await with_timers(store, "a", "b", "c")
    store.clock.advance(HOUR)
    broken = await fired(store)
    await store.settled(broken, BROKEN)
    held = await store.processes.get(key)
    assert await timers_of(store, key) == dict.fromkeys(("b", "c"), TaskStatus.BLOCKED)
    assert [it.timer_name for it in held.waits] == ["b", "c"]
    store.clock.advance(HOUR)
    assert await store.claim_due() == []

    again = await store.recover(key, retries=retries)

    [claimed] = await store.claim(key, again.task_id)
    assert (claimed.task.timer_name, claimed.task.task_id) == ("a", broken.task_id)
    following = await store.next_of(claimed.task, success(timers={"a": after(3)}))
    assert following.timer_name == "b"
    waiting = {"c": TaskStatus.WAITING, "a": TaskStatus.BLOCKED}
    await store.settled(following)
    assert await timers_of(store, key) == waiting


async def test_a_repair_that_says_nothing_about_the_broken_timer_sets_it_again(
    store: Store,
) -> None:
    key = await with_timers(store, "a", "b")
    store.clock.advance(HOUR)
    await store.settled(await fired(store), BROKEN)
    repair = await store.run_task(a_request(key, TaskType.REPAIR))

    following = await store.next_of(repair, success(timers={"b": after(5)}))

    assert (following.timer_name, following.attempt) == ("a", 1)
    assert list(await timers_of(store, key)) == ["b"]


@pytest.mark.parametrize("change", [after(1), UnsetTimer()])
async def test_a_repair_that_changes_the_broken_timer_does_not_set_it_again(
    store: Store, change: SetTimer | UnsetTimer
) -> None:
    key = await with_timers(store, "a", "b")
    store.clock.advance(HOUR)
    await store.settled(await fired(store), BROKEN)
    repair = await store.run_task(a_request(key, TaskType.REPAIR))

    written = await store.settled(repair, success(timers={"a": change}))

    assert written.next is None
    left = {"a", "b"} if isinstance(change, SetTimer) else {"b"}
    assert (await timers_of(store, key)).keys() == left


@pytest.mark.parametrize(
    "outcome", [success(Complete(b"done"), timers={"c": after(0)}), BROKEN], ids=["end", "break"]
)
async def test_the_end_of_the_process_cancels_all(store: Store, outcome: Outcome) -> None:
    key = await with_timers(store, "a", "b")
    call = await store.run_task(a_request(key))
    cancelling = dataclasses.replace(store.namespace, on_error=OnError.CANCEL)

    written = await dataclasses.replace(store, namespace=cancelling).settled(call, outcome)

    assert (len(written.cancelled), await timers_of(store, key)) == (2, {})


async def test_more_than_a_process_can_have_are_refused_and_change_nothing(store: Store) -> None:
    names = [str(number) for number in range(TIMERS_MAX)]
    key = await with_timers(store, *names)
    call = await store.run_task(a_request(key))

    with pytest.raises(errors.TooManyTimersError, match="at most 32 timers"):
        await store.settle(call, success(timers={"one more": after(1)}))

    assert list(await timers_of(store, key)) == names
    written = await store.settled(call, success(timers={"0": UnsetTimer(), "one more": after(0)}))
    assert written.next is not None
    assert written.next.timer_name == "one more"


async def test_an_import_has_them(store: Store) -> None:
    key = fresh_key()
    timers = {"a": after(1), "b": after(3, args=b"b")}
    put = Import(key=key, status=ProcessStatus.RUNNING, timer=after(2), timers=timers)

    await store.put(put)

    expected = {"a": TaskStatus.WAITING, "": TaskStatus.BLOCKED, "b": TaskStatus.BLOCKED}
    assert await timers_of(store, key) == expected
    assert put.fingerprint() != dataclasses.replace(put, timers={}).fingerprint()
    store.clock.advance(HOUR)
    assert (await fired(store)).timer_name == "a"


async def test_a_cancelled_one_lets_the_next_wait(store: Store) -> None:
    key = await with_timers(store, "a", "b")
    first = (await store.processes.get(key)).timer
    assert first is not None

    await store.cancel(key, first.task_id)

    assert await timers_of(store, key) == {"b": TaskStatus.WAITING}


async def test_a_trace_names_them(store: Store) -> None:
    key = await with_timers(store, "a", "b")

    traced = await store.processes.trace(key, after=0, limit=9)

    assert [it.timer_name for it in traced] == ["", "a", "b"]


async def test_one_with_constraints_that_waits_for_a_gate_keeps_no_other_from_firing(
    store: Store,
) -> None:
    await store.set_gate("g", 0)
    init = await store.start(fresh_key())
    timers = {"gated": after(1, constraints=on("g")), "free": after(2)}
    await store.settled(init, success(timers=timers))
    store.clock.advance(2 * HOUR)

    task = await fired(store)

    assert task.timer_name == "free"
    await store.settled(task)
    store.reported.clear()
    await store.set_gate("g", 1)
    [due] = [due for promoted in store.reported for due in promoted.due]
    [claimed] = await store.claim(*due)
    assert claimed.task.timer_name == "gated"
    await store.settled(claimed.task, success(timers={"gated": after(1, constraints=on("g"))}))
    assert await timers_of(store, init.key) == {"gated": TaskStatus.WAITING}


async def test_one_with_constraints_does_not_wait_for_a_later_one(store: Store) -> None:
    timers = {"gated": after(1, constraints=on("g")), "free": after(2)}
    key = await store.ready(success(timers=timers))
    store.clock.advance(HOUR)

    await store.gates.promote_due([store.namespace.name])

    task = await fired(store)
    assert (task.key, task.timer_name) == (key, "gated")
    await store.settled(task)
    assert await timers_of(store, key) == {"free": TaskStatus.WAITING}


@pytest.mark.parametrize("named", [False, True])
async def test_only_a_step_with_named_timers_pays_for_them(
    store: Store, database: str, named: bool
) -> None:
    task = await store.start(fresh_key())
    async with await connect(database) as connection:
        await connection.execute("SET track_functions = 'pl'")
        first = success(timers={"a": after(0)}) if named else success(after(0))
        for outcome in (first, success(after(1))):
            entry = store.entry(task, outcome)
            [written] = await store.settlements._plain._kind.write(connection, [entry], False)
            assert isinstance(written, Written)
            task = written.next or task
        await connection.execute("SELECT pg_stat_force_next_flush()")

        called = await connection.execute(
            "SELECT funcname, calls FROM pg_stat_user_functions"
            " WHERE funcname IN ('settle_timers', 'insert_timers')"
        )
        found: dict[str, int] = dict(await called.fetchall())
        await connection.execute("SELECT pg_stat_reset()")

    assert found == ({"settle_timers": 2, "insert_timers": 2} if named else {})


@pytest.mark.parametrize("change", [UnsetTimer(), after(3)], ids=["unset", "replaced"])
async def test_a_timer_that_is_cancelled_before_its_retry_ends_without_the_error(
    store: Store, change: SetTimer | UnsetTimer
) -> None:
    key = await with_timers(store, "a")
    store.clock.advance(HOUR)
    timer = await fired(store)
    await store.settled(timer, AGAIN)
    call = await store.run_task(a_request(key))

    await store.settled(call, success(timers={"a": change}))

    [ended] = await store.processes.trace(key, after=timer.task_id - 1, limit=1)
    assert (ended.status, ended.error) == (TaskStatus.CANCELLED, None)
