"""One step at a time, in order; and a call that waits is carried on as soon as it can be.

The engine here never scans: whatever is handed over, is handed over by construction.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import Reply as Answered
from tests.support.engine.replica import (
    QUIET,
    Env,
    Replica,
    answering,
    running_replica,
    timer,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = 2_000
PROCESSES = 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


async def test_two_thousand_calls_on_ten_processes_are_each_answered_once_and_in_order(
    env: Env,
) -> None:
    names = [f"p{number}" for number in range(PROCESSES)]
    for name in names:
        await env.running(name)

    async def call(number: int) -> tuple[str, bytes, Answered]:
        name, args = names[number % PROCESSES], b"%d" % number
        return name, args, await env.client.call(name, args, timeout=60)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call(number)) for number in range(CALLS)]

    results = [task.result() for task in tasks]
    assert all(answer.response == args for _, args, answer in results)
    assert len({answer.task_id for _, _, answer in results}) == CALLS
    for name in names:
        asked = [it.task.task_id for it in env.asked_for(name)][1:]
        history = (await env.client.get(name)).history
        answered = {answer.task_id: args for of, args, answer in results if of == name}
        assert asked == sorted(answered)
        assert [event.event_id for event in history] == list(range(1, CALLS // PROCESSES + 1))
        assert [event.task_id for event in history] == asked
        assert [event.payload for event in history] == [answered[task_id] for task_id in asked]


class TestHandOver:
    async def test_a_call_behind_a_running_step_is_answered_once_that_is_settled(
        self, env: Env
    ) -> None:
        hang, first_id = await env.busy("p")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(env.client.call("p", b"2"))
            await env.points.wait("admitted", 3, key=env.key("p"))
            hang.released.set()

        passed = [facts["task_id"] for facts in env.points.passed("settled", key=env.key("p"))]
        assert waiting.result().response == b"2"
        assert passed[1:] == [first_id, waiting.result().task_id]

    async def test_no_claim_stands_between_a_step_and_the_call_behind_it(self, env: Env) -> None:
        claims = ("timers_claimed", "backlog_claimed", "scan_found")
        before = [env.points.count(point) for point in claims]
        hang, _ = await env.busy("p")
        for _ in range(10):
            await env.client.notify("p")
        hang.released.set()
        await env.settled("p", 12)

        assert [env.points.count(point) for point in claims] == before

    async def test_a_call_finds_the_settlement_or_the_settlement_finds_the_call(
        self, env: Env
    ) -> None:
        # Steps and admissions race for the process's lock, a few hundred times.
        await env.running("p")

        async def caller(count: int) -> None:
            for _ in range(count):
                await env.client.call("p")

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(caller(50))

        assert (await env.client.get("p")).process.last_event_id == 200

    async def test_a_timer_and_calls_race_without_a_lost_wake_up(self, env: Env) -> None:
        # Each timer sets the next; calls come in between. All must go on to the end.
        ticks = [answering(b"t", set_timer=timer(0.002))] * 200
        env.processor.on_process("p", *ticks, answering(b"t"))
        await env.client.start("p")

        async def caller() -> None:
            for _ in range(100):
                await env.client.call("p")

        async with asyncio.TaskGroup() as group:
            group.create_task(caller())
            group.create_task(env.settled("p", 201))

        snapshot = await env.client.get("p")
        assert [event.event_id for event in snapshot.history] == list(
            range(1, snapshot.process.last_event_id + 1)
        )


class TestOrder:
    async def test_calls_and_notifies_run_in_the_order_of_their_acceptance(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        accepted = []
        for number in range(20):
            if number % 2:
                accepted.append((await env.client.notify("p")).task_id)
            else:
                accepted.append((await env.client.call("p", accept_only=True)).task_id)
        hang.released.set()
        await env.settled("p", 22)

        assert [it.task.task_id for it in env.asked_for("p")][2:] == accepted
        assert accepted == sorted(accepted)

    async def test_one_process_that_hangs_holds_up_no_other(self, env: Env) -> None:
        hang, _ = await env.busy("p")
        await env.running("q")

        answer = await env.client.call("q", b"1")

        hang.released.set()
        assert answer.response == b"1"

    async def test_repairs_run_one_at_a_time(self, env: Env) -> None:
        await env.broken("p", hang := Hang(), Answer())
        first = await env.client.repair("p", accept_only=True)
        await env.asked("p", 3)
        await env.client.repair("p", accept_only=True)
        before = len(env.asked_for("p"))
        hang.released.set()
        await env.client.await_task("p", task_id=first.task_id)

        assert before == 3
