"""The checks of a task before it may run, each with two replicas that race on one database.

No replica here ever scans: whatever runs, runs by itself. Requests go to both in turn.
"""

import asyncio
import datetime as dt

import pytest

from progressor.v1.types_pb2 import Constraints
from tests.support.engine.gates import CONSTRAINED, Gated, constraints
from tests.support.engine.replica import (
    broken,
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


class TestRunAt:
    async def test_no_task_begins_before_its_instant_and_each_does_without_a_scan(
        self, gated: Gated
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

    async def test_a_start_and_a_notification_can_wait_for_it_too(self, gated: Gated) -> None:
        run_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.5)
        await gated.running("q")
        started = await gated.start("p", constraints(run_at=run_at))
        behind = await gated.call("p", args=b"behind")
        notified = await gated.notify("q", constraints(run_at=run_at))
        await gated.finished(("p", started), ("p", behind), ("q", notified))

        assert all(begun.at >= run_at.timestamp() for begun in gated.begun())
        assert gated.begun_at("p") < gated.begun_at("p", b"behind")

    async def test_one_that_has_passed_holds_nothing_up(self, gated: Gated) -> None:
        await gated.running("p")

        assert await gated.answered("p", constraints(run_at=dt.datetime.now(dt.UTC) - HOUR))

    async def test_a_task_that_waits_for_it_holds_up_no_other_of_its_process(
        self, gated: Gated
    ) -> None:
        await gated.running("p")
        await gated.call("p", constraints(run_at=dt.datetime.now(dt.UTC) + HOUR))

        assert await gated.answered("p", args=b"other") == b"other"


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

    async def test_a_smaller_one_that_is_available_blocks(self, two_workers: Gated) -> None:
        gated = two_workers
        first, second = await gated.held("b0", "b1")
        for name in ("b0", "b1"):
            await gated.call(name, args=b"busy")
            await gated.has_begun(name, args=b"busy")
        await gated.start("small", version("1"))
        large = await gated.start("large", version("2"))
        states = gated.state("small"), gated.state("large")
        first.released.set()
        second.released.set()
        await gated.finished(("large", large))

        assert states == (["available"], ["order"])
        assert gated.ended_at("small") < gated.begun_at("large")

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

    async def test_one_that_failed_before_does_not(self, gated: Gated) -> None:
        await gated.running("small", steps=[broken()])
        await gated.running("large")
        await gated.call("small", version("1"))
        await gated.at_rest()

        assert await gated.answered("large", version("2")) == CONSTRAINED

    async def test_an_equal_one_or_a_larger_one_does_not(self, gated: Gated) -> None:
        (hang,) = await gated.held("first")
        await gated.running("equal", "smaller")
        await gated.call("first", version("2"))
        await gated.has_begun("first")

        assert await gated.answered("equal", version("2.0")) == CONSTRAINED
        assert await gated.answered("smaller", version("1.99")) == CONSTRAINED
        hang.released.set()

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

    async def test_starts_keep_it_too(self, gated: Gated) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(gated.start(name, constraints(DATABASE)))
                for name in names()
            }
        await gated.finished(*((name, task.result()) for name, task in tasks.items()))

        assert len(gated.begun()) == COUNT
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

    async def test_those_that_are_available_count_like_those_that_run(
        self, two_workers: Gated
    ) -> None:
        gated = two_workers
        hangs = gated.will_hold(*names(6))
        made = constraints(ROLLOUT, capacity=3)
        tasks = [(name, await gated.start(name, made)) for name in names(6)]
        # Two run, in the one worker of each replica, and the third has none.
        await gated.until(lambda: len(gated.begun()) == 2)
        states, holders = gated.states(), gated.holders()
        for hang in hangs:
            hang.released.set()
        await gated.finished(*tasks)

        assert (states, holders) == ({"available": 3, "gates": 3}, {ROLLOUT: 3})
        assert gated.at_once() <= 2

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


class TestAllOrNone:
    async def test_one_that_cannot_have_all_keeps_none(self, gated: Gated) -> None:
        (first,) = await gated.held("first")
        (both,) = await gated.held("both")
        await gated.running("other")
        await gated.call("first", constraints("b"))
        await gated.has_begun("first")
        last = await gated.call("both", constraints("a", "b"))
        holders = gated.holders()
        passed = await gated.answered("other", constraints("a"))
        first.released.set()
        await gated.has_begun("both")
        held = gated.holders()
        both.released.set()
        await gated.finished(("both", last))

        assert (holders, passed) == ({"b": 1}, CONSTRAINED)
        assert held == {"a": 1, "b": 1}

    async def test_whoever_crosses_over_both_passes_in_the_end(self, gated: Gated) -> None:
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
            assert gated.at_once([it for it in names() if f"g{number}" in wanted[it]]) == 1


class TestPriority:
    async def test_the_highest_goes_first_and_of_two_alike_the_older_one(
        self, gated: Gated
    ) -> None:
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
