"""What tasks with constraints wait for, as the tables tell, and where their time went."""

import dataclasses
import datetime as dt
import random
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from progressor.domain.views.process import ProcessQuery
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    GatesFull,
    GateWait,
    NoFreeWorker,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    TimeSpent,
    Wait,
)
from progressor.storage.postgres.context import STARVATION_TIMEOUT
from progressor.storage.processes import listings
from tests.support.models.gates.walk import Walk
from tests.support.storage.constrained import on
from tests.support.storage.store import (
    NAMESPACE,
    UNREACHABLE,
    Store,
    a_request,
    fresh_key,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
INIT, CALL = TaskType.INIT, TaskType.CALL


MUTEX = Constraints(gates={"mutex": 1})


def version(text: str, *gates: str, key: str = "o") -> Constraints:
    """Return constraints on an order, and on gates."""
    return on(*gates, order=Order(key, Version.parse(text)))


async def admitted(
    store: Store, constraints: Constraints, *, key: ProcessKey | None = None, call: bool = False
) -> tuple[ProcessKey, int]:
    """Admit a start, or a call on a process that is there; return the process and the task."""
    key = key or fresh_key()
    request = a_request(key, CALL if call else INIT, constraints=constraints)
    admission = await store.admit(request)
    assert admission.task_id is not None, admission
    return key, admission.task_id


async def held(
    store: Store, *gates: str, capacity: int | None = 1, **fields: Any
) -> tuple[ProcessKey, RunningTask]:
    """Start a process that holds gates, and runs."""
    key, task_id = await admitted(store, on(*gates, capacity=capacity, **fields))
    [claimed] = await store.claim(key, task_id)
    return key, claimed.task


async def wait_of(store: Store, key: ProcessKey, task_id: int | None = None) -> Wait:
    """Return what a task waits for, the only one unless said; List says the same of the first."""
    await store.beat()
    waits = (await store.processes.get(key)).waits
    firsts = await store.processes.first_waits([key])
    assert firsts == {key: waits[0]}
    [found] = [it for it in waits if task_id in {None, it.task_id}]
    return found


def gates_of(wait: Wait) -> dict[str, GateWait]:
    """Return the full gates that a wait names."""
    [found] = [it for it in wait.causes if isinstance(it, GatesFull)]
    return {it.gate: it for it in found.gates}


def kinds(wait: Wait) -> list[type[Cause]]:
    return [type(it) for it in wait.causes]


class TestACauseAlone:
    async def test_is_an_instant_until_it_has_come(self, store: Store) -> None:
        at = store.clock.now() + HOUR
        key, _ = await admitted(store, Constraints(run_at=at))
        early = await wait_of(store, key)
        store.clock.advance(HOUR)
        await store.gates.promote_due(["orders"])

        late = await wait_of(store, key)

        assert (early.cause, early.besides) == (RunAtNotDue(until=at), ())
        assert early.status is TaskStatus.WAITING
        assert isinstance(late.cause, NoFreeWorker)
        assert (late.status, late.cause.since) == (TaskStatus.AVAILABLE, at)

    async def test_is_the_smallest_version_before_it_and_of_these_the_oldest(
        self, store: Store
    ) -> None:
        first, oldest = await admitted(store, version("1.9"))
        await admitted(store, version("1.9.0"))
        await admitted(store, version("1.10"))
        key, _ = await admitted(store, version("2"))
        available = await wait_of(store, key)
        [claimed] = await store.claim(first, oldest)
        running = await wait_of(store, key)
        await store.settled(claimed.task, UNREACHABLE)
        retried = await wait_of(store, key)

        told = [it.cause.order for it in (available, running, retried)]  # type: ignore[union-attr]

        assert {(it.process_id, it.task_id) for it in told} == {(first.process_id, oldest)}
        assert {(it.order, str(it.version)) for it in told} == {
            (Order("o", Version.parse("2")), "1.9")
        }
        assert [it.status for it in told] == ["available", "running", "waiting"]

    async def test_is_a_full_gate_with_who_holds_it_and_the_place_in_line(
        self, store: Store
    ) -> None:
        since = store.clock.now()
        one, first = await held(store, "g", capacity=2)
        store.clock.advance(SECOND)
        two, second = await held(store, "g", hold=GateHold.PROCESS)
        keys = [(await admitted(store, on("g")))[0] for _ in range(3)]
        waits = [await wait_of(store, key) for key in keys]
        await store.settled(first, continues=False)

        passed = await wait_of(store, keys[0])

        [gates] = {tuple(gates_of(it)["g"].holders) for it in waits}
        assert [(it.process_id, it.task_id, it.held_at) for it in gates] == [
            (one.process_id, first.task_id, since),
            (two.process_id, second.task_id, since + SECOND),
        ]
        assert [it.hold for it in gates] == [GateHold.TASK, GateHold.PROCESS]
        places = [gates_of(it)["g"] for it in waits]
        assert [(it.position, it.waiting_count) for it in places] == [(1, 3), (2, 3), (3, 3)]
        assert {(it.held, it.capacity) for it in places} == {(2, 2)}
        assert all(it.besides == () for it in waits)
        assert (passed.status, kinds(passed)) == (TaskStatus.AVAILABLE, [NoFreeWorker])

    async def test_is_a_gate_that_lets_nobody_pass(self, store: Store) -> None:
        key, _ = await admitted(store, on("shut", capacity=0))
        waiting = await wait_of(store, key)
        await store.set_capacity("shut", 1)

        passed = await wait_of(store, key)

        assert gates_of(waiting) == {
            "shut": GateWait(
                gate="shut", capacity=0, held=0, holders=(), position=1, waiting_count=1
            )
        }
        assert passed.status is TaskStatus.AVAILABLE

    async def test_is_a_task_of_its_own_process(self, store: Store) -> None:
        key = await store.ready()
        running = await store.run_task(a_request(key))
        _, task_id = await admitted(store, on("g"), key=key, call=True)
        waiting = await wait_of(store, key, task_id)
        await store.settled(running, continues=False)

        passed = await wait_of(store, key, task_id)

        assert isinstance(waiting.cause, BehindTask)
        assert (waiting.cause.task_id, waiting.cause.is_running) == (running.task_id, True)
        assert (waiting.besides, waiting.status) == ((), TaskStatus.WAITING)
        assert passed.status is TaskStatus.AVAILABLE

    async def test_is_its_retry_and_meanwhile_others_have_its_gates(self, store: Store) -> None:
        key, task = await held(store, "g")
        other, _ = await admitted(store, on("g"))
        await store.settled(task, UNREACHABLE)
        waiting = await wait_of(store, key)
        passed = await wait_of(store, other)

        policy = store.namespace.policy_for(INIT)
        assert waiting.cause == RetryNotDue(
            until=store.clock.now() + SECOND, attempts_max=policy.attempts_max
        )
        assert (waiting.attempt, waiting.last_error is not None) == (2, True)
        assert {name: it.position for name, it in gates_of(waiting).items()} == {"g": 0}
        assert passed.status is TaskStatus.AVAILABLE


class TestSeveralCauses:
    async def test_are_all_told_and_removing_one_leaves_the_others(self, store: Store) -> None:
        at = store.clock.now() + HOUR
        _, holder = await held(store, "g")
        smaller, smaller_id = await admitted(store, version("1"))
        key = await store.ready()
        running = await store.run_task(a_request(key))
        wanted = dataclasses.replace(version("2", "g"), run_at=at)
        _, task_id = await admitted(store, wanted, key=key, call=True)
        told = [await wait_of(store, key, task_id)]
        store.clock.advance(HOUR)
        await store.gates.promote_due(["orders"])
        told.append(await wait_of(store, key, task_id))
        [claimed] = await store.claim(smaller, smaller_id)
        await store.settled(claimed.task, continues=False)
        told.append(await wait_of(store, key, task_id))
        await store.settled(running, continues=False)
        told.append(await wait_of(store, key, task_id))
        await store.settled(holder, continues=False)
        last = await wait_of(store, key, task_id)

        everything = [RunAtNotDue, BehindVersion, BehindTask, GatesFull]
        assert [kinds(it) for it in told] == [everything[at:] for at in range(4)]
        assert [gates_of(it)["g"].position for it in told] == [0, 0, 0, 1]
        assert (last.status, kinds(last)) == (TaskStatus.AVAILABLE, [NoFreeWorker])

    async def test_are_all_gates_that_are_full_but_only_one_has_a_line(self, store: Store) -> None:
        await held(store, "a")
        await held(store, "c")
        key, _ = await admitted(store, on("a", "b", "c"))

        gates = gates_of(await wait_of(store, key))

        assert {name: it.position for name, it in gates.items()} == {"a": 1, "c": 0}
        assert [it.waiting_count for it in gates.values()] == [1, 0]

    async def test_are_none_that_the_own_process_holds(self, store: Store) -> None:
        await held(store, "b")
        key, task = await held(store, "a", hold=GateHold.PROCESS)
        await store.settled(task)
        _, task_id = await admitted(store, on("a", "b"), key=key, call=True)

        assert list(gates_of(await wait_of(store, key, task_id))) == ["b"]


class TestTheOrder:
    async def test_is_that_in_which_they_run(self, store: Store) -> None:
        await held(store, "g")
        key = await store.ready(success(SetTimer(after=HOUR)))
        running = await store.run_task(a_request(key))
        low = await admitted(store, on("g", priority=5), key=key, call=True)
        high = await admitted(store, on("g", priority=1), key=key, call=True)
        plain = await store.admit(a_request(key))
        waits = (await store.processes.get(key)).waits

        tasks = [it.task_id for it in waits]
        assert tasks[:4] == [running.task_id, plain.task_id, high[1], low[1]]
        assert [it.task_type for it in waits[4:]] == [TaskType.TIMEOUT]
        behind = [
            next(it for it in each.causes if isinstance(it, BehindTask)) for each in waits[1:]
        ]
        # What was asked for later waits behind those with constraints once they pass.
        assert [it.task_id for it in behind] == [
            running.task_id, running.task_id, running.task_id, plain.task_id,
        ]  # fmt: skip

    async def test_begins_with_an_init_task_though_that_waits_for_gates(self, store: Store) -> None:
        await held(store, "g")
        key, init = await admitted(store, on("g"))
        call = await store.admit(a_request(key))
        first, second = (await store.processes.get(key)).waits

        assert (first.task_id, kinds(first)) == (init, [GatesFull])
        assert second.task_id == call.task_id
        assert isinstance(second.cause, BehindTask)
        assert (second.cause.task_id, second.cause.is_running) == (init, False)

    async def test_of_a_line_is_by_age_beyond_the_patience_and_by_priority_before(
        self, store: Store
    ) -> None:
        await held(store, "g")
        names = {}
        for name, gates, priority, pause in (
            ("oldest", ("g",), 4, SECOND),
            ("older", ("f", "g"), 5, STARVATION_TIMEOUT),
            ("low", ("g",), 4, SECOND),
            ("high", ("f", "g"), 2, SECOND),
            ("same", ("g",), 2, SECOND),
        ):
            key, _ = await admitted(store, on(*gates, priority=priority))
            names[name] = key
            store.clock.advance(pause)

        places = {name: gates_of(await wait_of(store, key))["g"] for name, key in names.items()}

        assert sorted(places, key=lambda it: places[it].position) == [
            "oldest", "older", "high", "same", "low",
        ]  # fmt: skip
        assert {it.waiting_count for it in places.values()} == {5}

    @pytest.mark.parametrize("seed", range(3))
    async def test_of_a_line_is_the_one_in_which_they_pass(self, store: Store, seed: int) -> None:
        chosen = random.Random(seed)
        _, holder = await held(store, "g")
        waiting = {}
        for _ in range(12):
            extra = chosen.sample(("f", "h"), chosen.randrange(3))
            constraints = on("g", *extra, priority=chosen.randrange(1, 6))
            key, task_id = await admitted(store, constraints)
            waiting[task_id] = key
            store.clock.advance(chosen.choice((SECOND, STARVATION_TIMEOUT / 6)))
        while waiting:
            places = {
                task_id: gates_of(await wait_of(store, key))["g"].position
                for task_id, key in waiting.items()
            }
            assert sorted(places.values()) == list(range(1, len(waiting) + 1))
            store.clock.advance(SECOND)
            await store.settled(holder, continues=False)
            [task_id] = [
                it for it, key in waiting.items()
                if (await wait_of(store, key)).status is TaskStatus.AVAILABLE
            ]  # fmt: skip
            assert places[task_id] == 1
            [claimed] = await store.claim(waiting.pop(task_id), task_id)
            holder = claimed.task


class TestWhatIsAvailable:
    async def test_waits_behind_a_step_in_hand_where_it_has_waited_for_long(
        self, store: Store
    ) -> None:
        _, holder = await held(store, "g")
        key = await store.ready()
        _, task_id = await admitted(store, on("g"), key=key, call=True)
        store.clock.advance(STARVATION_TIMEOUT)
        running = await store.run_task(a_request(key))
        await store.settled(holder, continues=False)

        wait = await wait_of(store, key, task_id)

        assert wait.status is TaskStatus.AVAILABLE
        assert isinstance(wait.cause, BehindTask)
        assert (wait.cause.task_id, wait.cause.is_running) == (running.task_id, True)
        assert await store.task_status(key, task_id) is TaskStatus.AVAILABLE

    async def test_runs_once_it_is_claimed(self, store: Store) -> None:
        key, task = await held(store, "g")

        wait = await wait_of(store, key)

        assert (wait.status, kinds(wait)) == (TaskStatus.RUNNING, [Running])
        assert await store.task_status(key, task.task_id) is TaskStatus.RUNNING


class TestATimer:
    async def test_is_told_while_it_waits_for_its_constraints(self, store: Store) -> None:
        _, holder = await held(store, "g")
        key = await store.ready(success(SetTimer(after=HOUR, constraints=on("g"))))
        early, timer = await wait_of(store, key), (await store.processes.get(key)).timer
        running = await store.run_task(a_request(key))
        store.clock.advance(HOUR)
        await store.gates.promote_due(["orders"])
        view = await store.processes.get(key)
        aside = await wait_of(store, key, early.task_id)
        traced = await store.task_status(key, early.task_id)
        await store.settled(running, continues=False)
        due = await wait_of(store, key)
        await store.settled(holder, continues=False)
        passed = await wait_of(store, key)

        assert timer is not None
        assert (timer.task_id, timer.status) == (early.task_id, TaskStatus.WAITING)
        assert kinds(early) == [TimerNotDue, GatesFull]
        assert view.timer is not None
        assert (view.timer.status, traced) == (TaskStatus.BLOCKED, TaskStatus.BLOCKED)
        assert (kinds(aside), aside.status) == ([BehindTask, GatesFull], TaskStatus.BLOCKED)
        assert kinds(due) == [GatesFull]
        assert (passed.status, kinds(passed)) == (TaskStatus.AVAILABLE, [NoFreeWorker])
        assert passed.cause.since == store.clock.now()  # type: ignore[union-attr]  # not its own instant


class TestAList:
    async def test_has_only_those_whose_first_task_waits_so(self, store: Store) -> None:
        runs, _ = await held(store, "g")
        gated, _ = await admitted(store, on("g"))
        await store.started(fresh_key())
        timed, _ = await store.timed()

        async def found(*causes: type[Cause]) -> set[ProcessKey]:
            page = await store.processes.page(ProcessQuery(causes=causes))
            assert page.next_before is None
            assert all(it.first_wait is not None for it in page.listed)
            return {it.process.key for it in page.listed}

        assert await found(GatesFull) == {gated}
        assert await found(TimerNotDue, GatesFull) == {timed, gated}
        assert await found(Running) == {runs}
        assert await found(RunAtNotDue) == set()

    async def test_goes_on_behind_what_was_looked_at(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listings, "LOOKED_AT_MAX", 7)
        monkeypatch.setattr(listings, "CHUNK_MAX", 3)
        await held(store, "g")
        wanted = []
        for number in range(25):
            if number % 12 == 0:
                wanted.append((await admitted(store, on("g")))[0])
            else:
                await store.started(fresh_key())
        pages, query = [], ProcessQuery(page_size=2, causes=(GatesFull,))
        while True:
            page = await store.processes.page(query)
            pages.append([it.process.key for it in page.listed])
            if page.next_before is None:
                break
            query = dataclasses.replace(query, before=page.next_before)

        assert sorted(it.process_id for page in pages for it in page) == sorted(
            it.process_id for it in wanted
        )
        assert [] in pages
        assert len(pages) == 4

    @pytest.mark.parametrize("count", [2, 3, 4])
    async def test_without_causes_is_as_long_as_asked_for(self, store: Store, count: int) -> None:
        keys = [(await store.start(fresh_key())).key for _ in range(3)]

        page = await store.processes.page(ProcessQuery(page_size=count))

        assert len(page.listed) == min(count, 3)
        assert (page.next_before is None) == (count >= 3)
        assert {it.process.key for it in page.listed} <= set(keys)


class TestATrace:
    async def test_has_the_constraints_and_where_the_time_went(self, store: Store) -> None:
        wanted = version("1.2", "g", "h")
        _, holder = await held(store, "g")
        key, task_id = await admitted(store, wanted)
        store.clock.advance(2 * SECOND)
        await store.settled(holder, continues=False)
        store.clock.advance(3 * SECOND)
        [claimed] = await store.claim(key, task_id)
        store.clock.advance(5 * SECOND)
        [before] = await store.processes.trace(key, after=0, limit=10)
        await store.settled(claimed.task)
        [traced] = await store.processes.trace(key, after=0, limit=10)

        nothing = dt.timedelta()
        assert (before.constraints, before.spent) == (wanted, None)
        assert traced.constraints == wanted
        assert traced.spent == TimeSpent(
            time=nothing,
            order=nothing,
            process=nothing,
            gates=2 * SECOND,
            available=3 * SECOND,
            running=5 * SECOND,
        )

    async def test_has_neither_of_a_task_without(self, store: Store) -> None:
        key = await store.ready()

        [traced] = await store.processes.trace(key, after=0, limit=10)

        assert (traced.constraints, traced.spent) == (None, None)


def seconds_of(task: RunningTask) -> tuple[float, ...]:
    """Return what it has spent in seconds."""
    assert task.spent is not None
    return tuple(part / 1e6 for part in task.spent)


async def claimed(store: Store) -> RunningTask:
    """Return the one task that is due."""
    [each] = await store.claim_due()
    return each.task


async def test_each_wait_is_told_by_its_cause(store: Store) -> None:
    holder, smaller, key = fresh_key(), fresh_key(), fresh_key()
    for each in (holder, smaller, key):
        await store.started(each)
    await store.admit(a_request(holder, constraints=MUTEX), run=False)
    holding = await claimed(store)
    one = Constraints(order=Order("v", Version((1,))))
    await store.admit(a_request(smaller, constraints=one), run=False)
    before = await claimed(store)
    busy = await store.run_task(a_request(key))
    constraints = Constraints(
        run_at=store.clock.now() + SECOND, order=Order("v", Version((2,))), gates={"mutex": 1}
    )
    await store.admit(a_request(key, constraints=constraints), run=False)

    store.clock.advance(SECOND)
    await store.gates.promote_due([NAMESPACE.name])
    store.clock.advance(2 * SECOND)
    await store.settled(before)
    store.clock.advance(3 * SECOND)
    await store.settled(busy)
    store.clock.advance(4 * SECOND)
    await store.settled(holding)
    store.clock.advance(5 * SECOND + dt.timedelta(microseconds=7))

    assert seconds_of(await claimed(store)) == (1, 2, 3, 4, 5.000007, 0)


async def test_what_it_ran_and_waited_for_its_retry_is_told_too(store: Store) -> None:
    key = await store.ready()
    await store.admit(a_request(key, constraints=MUTEX), run=False)
    first = await claimed(store)
    store.clock.advance(2 * SECOND)
    written = await store.settled(first, UNREACHABLE)
    assert written.next is None
    delay = dt.timedelta()
    while not (again := await store.claim_due()):
        store.clock.advance(SECOND)
        delay += SECOND
        await store.gates.promote_due([NAMESPACE.name])

    assert seconds_of(first) == (0, 0, 0, 0, 0, 0)
    assert seconds_of(again[0].task) == (delay.total_seconds(), 0, 0, 0, 0, 2)


async def test_a_timer_has_waited_for_its_time_since_it_was_set(store: Store) -> None:
    holder = fresh_key()
    await store.started(holder)
    await store.admit(a_request(holder, constraints=MUTEX), run=False)
    holding = await claimed(store)
    await store.timed(5 * SECOND, constraints=MUTEX)
    store.clock.advance(5 * SECOND)
    await store.gates.promote_due([NAMESPACE.name])
    store.clock.advance(2 * SECOND)
    await store.settled(holding)
    store.clock.advance(SECOND)

    assert seconds_of(await claimed(store)) == (5, 0, 0, 2, 1, 0)


async def test_who_has_no_constraints_has_no_ledger_though_its_process_has_been_gated(
    store: Store,
) -> None:
    key = await store.ready()
    later = Constraints(run_at=store.clock.now() + SECOND)
    await store.admit(a_request(key, constraints=later), run=False)
    await store.admit(a_request(key), run=False)

    assert (await claimed(store)).spent is None


@pytest.mark.parametrize("seed", range(6))
async def test_its_parts_add_up_to_its_life_until_the_attempt_began(
    store: Store, observer: psycopg.Connection[Any], seed: int
) -> None:
    walk = Walk(store, store.clock, seed)
    count = 0
    for _ in range(200):
        await walk.step()
        for task in walk.claimed:
            found = observer.execute(
                "SELECT created_at, constraints IS NOT NULL FROM progressor.tasks"
                " WHERE task_id = %s",
                (task.task_id,),
            ).fetchone()
            assert found is not None
            created_at, is_constrained = found

            assert (task.spent is not None) == is_constrained
            if task.spent is not None:
                life = (task.started_at - created_at) // dt.timedelta(microseconds=1)
                assert sum(task.spent) == life
                assert min(task.spent) >= 0
                assert task.attempt > 1 or task.spent[5] == 0
                count += 1
        walk.claimed.clear()

    assert count > 0
