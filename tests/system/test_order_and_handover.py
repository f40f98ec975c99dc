"""One step at a time, in order; and a call that waits is carried on as soon as it can be.

The engine here never scans: whatever is handed over, is handed over by construction.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import Answer as Answered
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    QUIET,
    Replica,
    Stage,
    answering,
    open_stage,
    running_replica,
    timer,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = 2_000
PROCESSES = 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    async with open_stage(replica) as stage:
        yield stage


async def test_two_thousand_calls_on_ten_processes_are_each_answered_once_and_in_order(
    stage: Stage,
) -> None:
    names = [f"p{number}" for number in range(PROCESSES)]
    for name in names:
        await stage.running(name)

    async def call(number: int) -> tuple[str, bytes, Answered]:
        name, args = names[number % PROCESSES], b"%d" % number
        return name, args, await stage.client.call(name, args, timeout=60)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call(number)) for number in range(CALLS)]

    results = [task.result() for task in tasks]
    assert all(answer.response == args for _, args, answer in results)
    assert len({answer.task_id for _, _, answer in results}) == CALLS
    for name in names:
        asked = [it.task.task_id for it in stage.asked_for(name)][1:]
        history = (await stage.client.get(name)).history
        answered = {answer.task_id: args for of, args, answer in results if of == name}
        assert asked == sorted(answered)
        assert [event.event_id for event in history] == list(range(1, CALLS // PROCESSES + 1))
        assert [event.task_id for event in history] == asked
        assert [event.payload for event in history] == [answered[task_id] for task_id in asked]


class TestHandOver:
    async def test_a_call_behind_a_running_step_is_answered_once_that_is_settled(
        self, stage: Stage
    ) -> None:
        hang, first_id = await stage.busy("p")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(stage.client.call("p", b"2"))
            await stage.points.wait("admitted", 3, key=stage.key("p"))
            hang.released.set()

        passed = [facts["task_id"] for facts in stage.points.passed("settled", key=stage.key("p"))]
        assert waiting.result().response == b"2"
        assert passed[1:] == [first_id, waiting.result().task_id]

    async def test_no_claim_stands_between_a_step_and_the_call_behind_it(
        self, stage: Stage
    ) -> None:
        claims = ("timers_claimed", "backlog_claimed", "scan_found")
        before = [stage.points.count(point) for point in claims]
        hang, _ = await stage.busy("p")
        for _ in range(10):
            await stage.client.notify("p")
        hang.released.set()
        await stage.settled("p", 12)

        assert [stage.points.count(point) for point in claims] == before

    async def test_a_call_finds_the_settlement_or_the_settlement_finds_the_call(
        self, stage: Stage
    ) -> None:
        # Steps and admissions race for the process's lock, a few hundred times.
        await stage.running("p")

        async def caller(count: int) -> None:
            for _ in range(count):
                await stage.client.call("p")

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(caller(50))

        assert (await stage.client.get("p")).process.last_event_id == 200

    async def test_a_timer_and_calls_race_without_a_lost_wake_up(self, stage: Stage) -> None:
        # Each timer sets the next; calls come in between. All must go on to the end.
        ticks = [answering(b"t", set_timer=timer(0.002))] * 200
        stage.processor.on_process("p", *ticks, answering(b"t"))
        await stage.client.start("p")

        async def caller() -> None:
            for _ in range(100):
                await stage.client.call("p")

        async with asyncio.TaskGroup() as group:
            group.create_task(caller())
            group.create_task(stage.settled("p", 201))

        snapshot = await stage.client.get("p")
        assert [event.event_id for event in snapshot.history] == list(
            range(1, snapshot.process.last_event_id + 1)
        )


class TestOrder:
    async def test_calls_and_notifies_run_in_the_order_of_their_acceptance(
        self, stage: Stage
    ) -> None:
        hang, _ = await stage.busy("p")
        accepted = []
        for number in range(20):
            if number % 2:
                accepted.append((await stage.client.notify("p")).task_id)
            else:
                accepted.append((await stage.client.call("p", accept_only=True)).task_id)
        hang.released.set()
        await stage.settled("p", 22)

        assert [it.task.task_id for it in stage.asked_for("p")][2:] == accepted
        assert accepted == sorted(accepted)

    async def test_one_process_that_hangs_holds_up_no_other(self, stage: Stage) -> None:
        hang, _ = await stage.busy("p")
        await stage.running("q")

        answer = await stage.client.call("q", b"1")

        hang.released.set()
        assert answer.response == b"1"

    async def test_repairs_run_one_at_a_time(self, stage: Stage) -> None:
        await stage.broken("p", hang := Hang(), Answer())
        first = await stage.client.repair("p", accept_only=True)
        await stage.asked("p", 3)
        await stage.client.repair("p", accept_only=True)
        before = len(stage.asked_for("p"))
        hang.released.set()
        await stage.client.await_task("p", task_id=first.task_id)

        assert before == 3
