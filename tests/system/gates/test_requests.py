"""What is asked about tasks that wait for gates; with two replicas on one database.

No replica here ever scans: whatever runs, runs by itself. Requests go to both in turn.
"""

import asyncio

import pytest

from progressor.v1.types_pb2 import GATE_HOLD_PROCESS, Constraints
from tests.support.engine.gates import (
    CONSTRAINED,
    Gated,
    constraints,
    refused,
)
from tests.support.engine.replica import (
    Replica,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 24
DATABASE, ROLLOUT = "database", "rollout"


def names(count: int = COUNT) -> list[str]:
    return [f"p{number}" for number in range(count)]


def version_and_gate(number: str) -> Constraints:
    """Return what makes a task wait behind smaller versions, and for the database."""
    return constraints(DATABASE, order=("v", number))


class TestCancel:
    async def test_of_one_that_waits_lets_its_successor_in(self, gated: Gated) -> None:
        (hang,) = await gated.held("first")
        await gated.running("p", "q")
        await gated.call("first", constraints(DATABASE))
        await gated.has_begun("first")
        task = await gated.call("p", constraints(DATABASE, order=("v", "1")))
        successor = await gated.call("q", version_and_gate("2"))
        cancelled = await gated.cancel("p", task)
        hang.released.set()
        await gated.finished(("q", successor))

        assert cancelled == task
        assert gated.begun("p") == []
        assert await gated.ended_as("p", task) == "TASK_CANCELLED"

    async def test_of_one_that_is_available_gives_its_gates_to_the_next(
        self, two_workers: Gated
    ) -> None:
        gated = two_workers
        busy = await gated.held("b0", "b1")
        await gated.running("p", "q")
        for name in ("b0", "b1"):
            await gated.call(name, args=b"busy")
            await gated.has_begun(name, args=b"busy")
        task = await gated.call("p", constraints(DATABASE), idempotency_key="k")
        successor = await gated.call("q", constraints(DATABASE))
        before = gated.state("p"), gated.state("q")
        await gated.cancel("p", "k")
        after = gated.state("p"), gated.state("q")
        for hang in busy:
            hang.released.set()
        await gated.finished(("q", successor))

        assert (before, after) == ((["available"], ["gates"]), ([], ["available"]))
        assert gated.begun("p") == []
        assert await gated.ended_as("p", task) == "TASK_CANCELLED"

    async def test_is_told_to_whoever_waits_wherever_they_are(
        self, gated: Gated, replicas: tuple[Replica, Replica]
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

        assert [it.result() for it in waiting] == ["TASK_CANCELLED"] * 4


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

    async def test_that_is_lowered_takes_the_place_of_the_youngest_that_is_available(
        self, two_workers: Gated
    ) -> None:
        gated = two_workers
        hangs = gated.will_hold(*names(4))
        made = constraints(ROLLOUT, capacity=4)
        tasks = [(name, await gated.start(name, made)) for name in names(4)]
        await gated.until(lambda: len(gated.begun()) == 2)
        await gated.set_capacity(ROLLOUT, 3)
        await gated.until(lambda: gated.holders() == {ROLLOUT: 3})
        states, holders, of_the_youngest = gated.states(), gated.holders(), gated.state("p3")
        for hang in hangs:
            hang.released.set()
        await gated.finished(*tasks)

        assert (states, holders) == ({"available": 3, "gates": 1}, {ROLLOUT: 3})
        assert of_the_youngest == ["gates"]

    async def test_of_none_lets_nobody_in_until_there_is_one(self, gated: Gated) -> None:
        await gated.running("p")
        await gated.set_capacity(DATABASE, 0)
        task = await gated.call("p", constraints(DATABASE, capacity=None))
        state = gated.state("p")
        await gated.set_capacity(DATABASE, 1)
        await gated.finished(("p", task))

        assert state == ["gates"]


class TestAnIdempotencyKey:
    async def test_means_one_execution_however_many_ask_over_both(self, gated: Gated) -> None:
        (hang,) = await gated.held("first")
        await gated.running("p")
        await gated.call("first", constraints(DATABASE))
        await gated.has_begun("first")
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(
                    gated.call("p", constraints(DATABASE, "other"), idempotency_key="k")
                )
                for _ in range(10)
            ]
        async with asyncio.TaskGroup() as group:
            # The gates in another order are the same ones.
            answers = [
                group.create_task(
                    gated.answered("p", constraints("other", DATABASE), idempotency_key="k")
                )
                for _ in range(10)
            ]
            hang.released.set()

        assert len({it.result() for it in asked}) == 1
        assert {it.result() for it in answers} == {CONSTRAINED}
        assert len(gated.begun("p")) == 1

    @pytest.mark.parametrize(
        "other",
        [
            None,
            constraints("other"),
            constraints(DATABASE, priority=1),
            constraints(DATABASE, order=("v", "1")),
            constraints(DATABASE, hold=GATE_HOLD_PROCESS),
        ],
        ids=["none", "gates", "priority", "order", "hold"],
    )
    async def test_with_other_constraints_is_refused(
        self, gated: Gated, other: Constraints | None
    ) -> None:
        await gated.running("p")
        await gated.answered("p", constraints(DATABASE), idempotency_key="k")

        reason = await refused(gated.answered("p", other, idempotency_key="k"))

        assert reason == "IDEMPOTENCY_KEY_REUSED"
