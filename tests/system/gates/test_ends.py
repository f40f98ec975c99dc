"""When gates are given back, and timers that wait for them; with two replicas on one database.

No replica here ever scans: whatever runs, runs by itself. Requests go to both in turn.
"""

import dataclasses
import datetime as dt

import pytest

from progressor.sdk import RetryPolicy
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess, UnsetTimer
from progressor.v1.types_pb2 import GATE_HOLD_PROCESS, Constraints
from tests.support.engine.gates import CONSTRAINED, Gated, constraints, open_gated
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
SOON = RetryPolicy(initial_interval=dt.timedelta(milliseconds=10), jitter=0.0)
COUNT = 24
DATABASE, ROLLOUT = "database", "rollout"
INVALID_ARGUMENT = 3


def names(count: int = COUNT) -> list[str]:
    return [f"p{number}" for number in range(count)]


def version(number: str) -> Constraints:
    return constraints(order=(DATABASE, number))


def version_and_gate(number: str) -> Constraints:
    """Return what makes a task wait behind smaller versions, and for the database."""
    return constraints(DATABASE, order=("v", number))


class TestHoldOfTheProcess:
    @pytest.mark.parametrize(
        "end",
        [
            answering(complete=Complete()),
            answering(remove=RemoveProcess()),
            broken(),
        ],
        ids=["finished", "removed", "broken"],
    )
    async def test_it_lasts_until_the_process_is(self, gated: Gated, end: Answer) -> None:
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

    async def test_a_request_to_remove_it_ends_it_too(self, gated: Gated) -> None:
        made = constraints(DATABASE, hold=GATE_HOLD_PROCESS)
        await gated.finished(("p", await gated.start("p", made)))
        next_one = await gated.start("q", made)
        await gated.env.client.remove("p")
        await gated.finished(("q", next_one))

        assert len(gated.begun("q")) == 1


class TestTimers:
    async def test_that_are_due_at_once_pass_one_by_one(self, gated: Gated) -> None:
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

    async def test_wait_for_their_gates_and_let_calls_pass(self, gated: Gated) -> None:
        (hang,) = await gated.held("first")
        await gated.call("first", constraints(DATABASE))
        await gated.has_begun("first")
        made = timer(0.0, args=CONSTRAINED, constraints=constraints(DATABASE))
        gated.env.processor.on_process("p", answering(set_timer=made), Answer())
        await gated.start("p", args=b"")
        await gated.until(lambda: gated.state("p") == ["gates"])
        passed = await gated.answered("p", args=b"call")
        state = gated.state("p")
        hang.released.set()
        await gated.has_begun("p")

        assert (passed, state) == (b"call", ["gates"])
        assert gated.ended_at("first") < gated.begun_at("p")

    async def test_that_are_replaced_leave_their_place(self, gated: Gated) -> None:
        (hang,) = await gated.held("first")
        await gated.running("last")
        await gated.call("first", constraints(DATABASE))
        await gated.has_begun("first")
        made = timer(0.0, args=CONSTRAINED, constraints=constraints(DATABASE, order=("v", "1")))
        gated.env.processor.on_process(
            "p", answering(set_timer=made), answering(unset_timer=UnsetTimer()), Answer()
        )
        await gated.start("p", args=b"")
        await gated.until(lambda: gated.state("p") == ["gates"])
        last = await gated.call("last", version_and_gate("2"))
        state = gated.state("last")
        await gated.answered("p", args=b"unset")
        hang.released.set()
        await gated.finished(("last", last))

        assert state == ["order"]
        assert gated.begun("p") == []


class TestRetry:
    async def test_gives_the_gate_back_meanwhile_and_stands_in_line_again(
        self, database: str, replicas: tuple[Replica, Replica]
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

    async def test_keeps_the_place_of_its_version(
        self, database: str, replicas: tuple[Replica, Replica]
    ) -> None:
        here, there = replicas
        hourly = dataclasses.replace(SOON, initial_interval=HOUR, interval_max=HOUR)
        async with open_gated(database, here, there.address, retry_policy=hourly) as gated:
            await gated.running("small", steps=[unavailable(), Answer()])
            await gated.running("large")
            small = await gated.call("small", version("1"))
            await gated.until(lambda: gated.state("small") == ["time"])
            large = await gated.call("large", version("2"))
            state = gated.state("large")
            await gated.cancel("small", small)
            await gated.finished(("large", large))

        assert state == ["order"]


class TestAProcess:
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
    async def test_whose_step_ends_it_gives_its_gates_back(self, gated: Gated, end: Answer) -> None:
        hang = Hang(response=end.response)
        await gated.running("p", steps=[hang, Answer()])
        await gated.running("q")
        await gated.call("p", constraints(DATABASE, ROLLOUT))
        await gated.has_begun("p")
        behind = await gated.call("q", constraints(DATABASE, ROLLOUT))
        hang.released.set()
        await gated.finished(("q", behind))

        assert gated.ended_at("p") < gated.begun_at("q")

    @pytest.mark.parametrize(
        "end",
        [broken(), answering(complete=Complete()), answering(remove=RemoveProcess())],
        ids=["broken", "finished", "removed"],
    )
    async def test_that_ends_takes_its_tasks_out_of_every_line(
        self, gated: Gated, end: Answer
    ) -> None:
        (first,) = await gated.held("first")
        await gated.running("p", steps=[end])
        await gated.running("q")
        await gated.call("first", constraints(DATABASE))
        await gated.has_begun("first")
        await gated.call("p", constraints(DATABASE, order=("v", "1")))
        behind = await gated.call("q", version_and_gate("2"))
        state = gated.state("q")
        await gated.call("p", args=b"end")
        await gated.until(lambda: gated.state("p") == [])
        first.released.set()
        await gated.finished(("q", behind))

        assert state == ["order"]
        assert gated.begun("p") == []

    async def test_that_is_removed_on_request_in_the_middle_of_a_step_gives_them_back(
        self, gated: Gated
    ) -> None:
        (hang,) = await gated.held("p")
        await gated.running("q")
        await gated.call("p", constraints(DATABASE))
        await gated.has_begun("p")
        behind = await gated.call("q", constraints(DATABASE))
        await gated.env.client.remove("p")
        await gated.finished(("q", behind))
        hang.released.set()

        assert len(gated.begun("q")) == 1
