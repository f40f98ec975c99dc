"""What a task waits for before it may run, with two replicas that race on one database.

No replica here ever scans: whatever runs, runs by itself. Requests go to both in turn.
"""

import asyncio
import datetime as dt

import pytest

from progressor.sdk import RetryPolicy
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from progressor.v1.types_pb2 import GATE_HOLD_PROCESS, Constraints
from tests.support.engine.gates import (
    CONSTRAINED,
    Gated,
    constraints,
    open_gated,
    refused,
)
from tests.support.engine.replica import (
    Replica,
    answering,
    broken,
    timer,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
COUNT = 24
DATABASE, ROLLOUT = "database", "rollout"
INVALID_ARGUMENT = 3


def names(count: int = COUNT) -> list[str]:
    return [f"p{number}" for number in range(count)]


def version(number: str) -> Constraints:
    return constraints(order=(DATABASE, number))


async def test_no_task_begins_before_its_instant_and_each_does_without_a_scan(
    gated: Gated,
) -> None:
    await gated.running(*names())
    first = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.5)
    run_at = {name: first + dt.timedelta(milliseconds=10 * i) for i, name in enumerate(names())}
    async with asyncio.TaskGroup() as group:
        for name in names():
            group.create_task(gated.answered(name, constraints(run_at=run_at[name])))

    for name in names():
        (begun,) = gated.begun(name)
        assert begun.at >= run_at[name].timestamp()


class TestVersionOrder:
    async def test_a_smaller_one_that_waits_blocks(self, gated: Gated) -> None:
        await gated.running("small", "large")
        waits = constraints(order=(DATABASE, "1.9"), run_at=dt.datetime.now(dt.UTC) + HOUR)
        small = await gated.call("small", waits)
        large = await gated.call("large", version("1.10"))
        states = gated.state("small"), gated.state("large")
        await gated.cancel("small", small)
        await gated.finished(("large", large))

        assert states == (["time"], ["order"])
        assert gated.begun("small") == []

    async def test_a_smaller_one_that_runs_blocks(self, gated: Gated) -> None:
        (hang,) = await gated.held("small")
        await gated.running("large")
        await gated.call("small", version("1"))
        await gated.has_begun("small")
        large = await gated.call("large", version("2"))
        states = gated.state("small"), gated.state("large")
        hang.released.set()
        await gated.finished(("large", large))

        assert states == (["available"], ["order"])
        assert gated.ended_at("small") < gated.begun_at("large")

    @pytest.mark.parametrize(
        "failure", [broken(), reject(INVALID_ARGUMENT)], ids=["broken", "rejected"]
    )
    async def test_one_that_failed_does_not(self, gated: Gated, failure: Answer) -> None:
        hang = Hang(response=failure.response)
        await gated.running("small", steps=[hang, Answer()])
        await gated.running("large")
        await gated.call("small", version("1"))
        await gated.has_begun("small")
        large = await gated.call("large", version("2"))
        state = gated.state("large")
        hang.released.set()
        await gated.finished(("large", large))

        assert state == ["order"]
        assert len(gated.begun("small")) == 1

    async def test_many_that_come_at_once_over_both_run_in_their_order(self, gated: Gated) -> None:
        # Turned around, so that none comes in the order in which it is to run.
        versions = {name: f"1.{COUNT - number}" for number, name in enumerate(names())}
        await gated.running(*names())
        (hang,) = await gated.held("first")
        await gated.call("first", version("0"))
        await gated.has_begun("first")
        async with asyncio.TaskGroup() as group:
            calls = {
                name: group.create_task(gated.call(name, version(versions[name])))
                for name in names()
            }
        hang.released.set()
        await gated.finished(*((name, task.result()) for name, task in calls.items()))

        assert gated.at_once() == 1
        assert [note.process_id for note in gated.begun()] == ["first", *reversed(names())]


class TestOneAtATimeOnADatabase:
    async def test_there_are_never_two_however_many_come_over_both(self, gated: Gated) -> None:
        await gated.running(*names())
        async with asyncio.TaskGroup() as group:
            for name in names() * 4:
                group.create_task(gated.answered(name, constraints(DATABASE)))

        assert len(gated.begun()) == 4 * COUNT
        assert gated.at_once() == 1

    async def test_one_that_is_available_is_enough_to_keep_another_out(
        self, two_workers: Gated
    ) -> None:
        gated = two_workers
        busy = await gated.held("b0", "b1")
        for name in ("b0", "b1"):
            await gated.call(name, args=b"busy")
            await gated.has_begun(name, args=b"busy")
        await gated.start("p", constraints(DATABASE))
        last = await gated.start("q", constraints(DATABASE))
        states = gated.state("p"), gated.state("q")
        for hang in busy:
            hang.released.set()
        await gated.finished(("q", last))

        assert states == (["available"], ["gates"])
        assert gated.at_once() == 1


class TestSoManyOfARollout:
    async def test_no_more_run_than_its_limit(self, gated: Gated) -> None:
        hangs = gated.will_hold(*names(8))
        made = constraints(ROLLOUT, capacity=3)
        tasks = [(name, await gated.start(name, made)) for name in names(8)]
        for name in names(3):
            await gated.has_begun(name)
        states = gated.states()
        for number, hang in enumerate(hangs):
            hang.released.set()
            # Each end admits the next one in line, and no other.
            if number + 3 < len(hangs):
                await gated.has_begun(f"p{number + 3}")
        await gated.finished(*tasks)

        assert states == {"available": 3, "gates": 5}
        assert gated.at_once() == 3

    async def test_it_is_kept_together_with_one_at_a_time_on_each_database(
        self, gated: Gated
    ) -> None:
        databases = {name: f"db{number % 5}" for number, name in enumerate(names())}
        await gated.running(*names())
        tasks: list[asyncio.Task[bytes]] = []
        async with asyncio.TaskGroup() as group:
            for name in names() * 3:
                made = constraints(databases[name])
                made.gates.add(gate=ROLLOUT, capacity=3)
                tasks.append(group.create_task(gated.answered(name, made)))

        assert len(gated.begun()) == len(tasks)
        assert gated.at_once() <= 3
        for database in set(databases.values()):
            assert gated.at_once([name for name in names() if databases[name] == database]) == 1


async def test_tasks_that_want_gates_crosswise_all_pass_in_the_end(gated: Gated) -> None:
    wanted = {
        name: tuple({f"g{number % 4}", f"g{(number // 4 + number) % 4}"})
        for number, name in enumerate(names())
    }
    await gated.running(*names())
    async with asyncio.TaskGroup() as group:
        for name in names() * 3:
            # In whatever order they are named.
            group.create_task(gated.answered(name, constraints(*wanted[name])))

    assert len(gated.begun()) == 3 * COUNT
    for number in range(4):
        assert gated.at_once([each for each in names() if f"g{number}" in wanted[each]]) == 1


async def test_the_highest_priority_goes_first_and_of_two_alike_the_older_one(gated: Gated) -> None:
    priorities = {"p5": 5, "p3": 3, "p1": 1, "q0": 0, "q1": 1, "q5": 5}
    (hang,) = await gated.held("first")
    await gated.running(*priorities)
    await gated.call("first", constraints(DATABASE))
    await gated.has_begun("first")
    tasks = [
        (name, await gated.call(name, constraints(DATABASE, priority=priority)))
        for name, priority in priorities.items()
    ]
    line = await gated.line(DATABASE)
    hang.released.set()
    await gated.finished(*tasks)

    in_order = ["p1", "q1", "p3", "q0", "p5", "q5"]
    assert line == in_order
    assert [note.process_id for note in gated.begun()] == ["first", *in_order]


SOON = RetryPolicy(initial_interval=dt.timedelta(milliseconds=10), jitter=0.0)


@pytest.mark.parametrize(
    "end",
    [
        answering(complete=Complete()),
        answering(remove=RemoveProcess()),
        broken(),
    ],
    ids=["finished", "removed", "broken"],
)
async def test_a_hold_of_the_process_lasts_until_it_ends(gated: Gated, end: Answer) -> None:
    made = constraints(DATABASE, hold=GATE_HOLD_PROCESS)
    hang = Hang(response=end.response)
    gated.env.processor.on_process("p", answering(), Answer(), hang, Answer())
    await gated.finished(("p", await gated.start("p", made)))
    next_one = await gated.start("q", made)
    # Its own tasks pass, those that name the gate as well.
    passed = await gated.answered("p", made)
    await gated.call("p", args=b"end")
    await gated.has_begun("p", args=b"end")
    state, holders = gated.state("q"), gated.holders()
    hang.released.set()
    await gated.finished(("q", next_one))

    assert (passed, state, holders) == (CONSTRAINED, ["gates"], {DATABASE: 1})
    assert gated.holders() == {DATABASE: 1}


async def test_timers_that_are_due_at_once_pass_one_by_one(gated: Gated) -> None:
    made = timer(0.3, args=CONSTRAINED, constraints=constraints(DATABASE))
    for name in names():
        gated.env.processor.on_process(name, answering(set_timer=made), answering())
    for name in names():
        await gated.start(name, args=b"")
    for name in names():
        await gated.has_begun(name)
    await gated.at_rest()

    assert len(gated.begun()) == COUNT
    assert gated.at_once() == 1


async def test_a_retry_gives_the_gate_back_meanwhile_and_queues_again(
    database: str, replicas: tuple[Replica, Replica]
) -> None:
    here, there = replicas
    async with open_gated(database, here, there.address, retry_policy=SOON) as gated:
        first = Hang(response=unavailable().response)
        await gated.running("p", steps=[first, Answer()])
        (second,) = await gated.held("q")
        task = await gated.call("p", constraints(DATABASE))
        await gated.has_begun("p")
        behind = await gated.call("q", constraints(DATABASE))
        first.released.set()
        await gated.has_begun("q")
        # Its retry is due by now, or soon; the gate is full.
        await gated.until(lambda: gated.state("p") == ["gates"])
        holders = gated.holders()
        second.released.set()
        await gated.finished(("q", behind), ("p", task))

    assert holders == {DATABASE: 1}
    assert [note.attempt for note in gated.begun("p")] == [1, 2]
    assert gated.at_once() == 1


@pytest.mark.parametrize(
    "end",
    [
        broken(),
        answering(complete=Complete()),
        answering(remove=RemoveProcess()),
        reject(INVALID_ARGUMENT),
    ],
    ids=["broken", "finished", "removed", "rejected"],
)
async def test_a_process_whose_step_ends_it_gives_its_gates_back(gated: Gated, end: Answer) -> None:
    hang = Hang(response=end.response)
    await gated.running("p", steps=[hang, Answer()])
    await gated.running("q")
    await gated.call("p", constraints(DATABASE, ROLLOUT))
    await gated.has_begun("p")
    behind = await gated.call("q", constraints(DATABASE, ROLLOUT))
    hang.released.set()
    await gated.finished(("q", behind))

    assert gated.ended_at("p") < gated.begun_at("q")


async def test_a_cancellation_reaches_callers_on_any_replica(
    gated: Gated, replicas: tuple[Replica, Replica]
) -> None:
    (hang,) = await gated.held("first")
    await gated.running("p")
    await gated.call("first", constraints(DATABASE))
    await gated.has_begun("first")
    task = await gated.call("p", constraints(DATABASE), idempotency_key="k")
    key = gated.env.key("p")
    before = [replica.points.count("admitted", key=key) for replica in replicas]
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(
                refused(gated.answered("p", constraints(DATABASE), idempotency_key="k"))
            )
            for _ in range(4)
        ]
        for replica, count in zip(replicas, before, strict=True):
            await replica.points.wait("admitted", count + 2, key=key)
        await gated.cancel("p", task)
    hang.released.set()

    assert [each.result() for each in waiting] == ["TASK_CANCELLED"] * 4


class TestCapacity:
    async def test_that_is_raised_lets_in_as_many_more(self, gated: Gated) -> None:
        hangs = gated.will_hold(*names(5))
        tasks = [(name, await gated.start(name, constraints(ROLLOUT))) for name in names(5)]
        await gated.has_begun("p0")
        before = gated.holders()
        await gated.set_capacity(ROLLOUT, 3)
        for name in names(3):
            await gated.has_begun(name)
        after = gated.holders(), gated.states()
        for hang in hangs:
            hang.released.set()
        await gated.finished(*tasks)

        assert before == {ROLLOUT: 1}
        assert after == ({ROLLOUT: 3}, {"available": 3, "gates": 2})
        assert gated.at_once() == 3

    async def test_that_is_lowered_stops_nobody_and_lets_nobody_in_before_it_fits(
        self, gated: Gated
    ) -> None:
        hangs = gated.will_hold(*names(5))
        made = constraints(ROLLOUT, capacity=3)
        tasks = [(name, await gated.start(name, made)) for name in names(5)]
        for name in names(3):
            await gated.has_begun(name)
        await gated.set_capacity(ROLLOUT, 1)
        held = [gated.holders()[ROLLOUT]]
        for hang, (name, task) in zip(hangs[:2], tasks[:2], strict=True):
            hang.released.set()
            await gated.finished((name, task))
            held.append(gated.holders()[ROLLOUT])
        for hang in hangs[2:]:
            hang.released.set()
        await gated.finished(*tasks)

        assert held == [3, 2, 1]
        # The two that came in last have been alone.
        assert all(gated.ended_at(name) < gated.begun_at("p3") for name in names(3))
        assert gated.ended_at("p3") < gated.begun_at("p4")
