"""Bounds: more work than workers, a namespace that hangs, and callers beyond what may wait.

The engine here never scans: what finds no free worker is taken as workers become free.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.sdk import WaitCause
from tests.support.engine.replica import (
    QUIET,
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    running_replica,
    timer,
)
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESSES = 50


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def narrow(replica: Replica) -> AsyncIterator[Env]:
    """Return a namespace with two workers."""
    async with open_env(replica, worker_count_max=2) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="module")
async def hanging(narrow: Env) -> Hang:
    """Return what keeps both workers busy, with processes ``h0`` and ``h1``."""
    hang = Hang()
    for name in ("h0", "h1"):
        narrow.processor.on_process(name, hang)
        await narrow.client.start(name, accept_only=True)
    await narrow.asked("h0")
    await narrow.asked("h1")
    return hang


class TestMoreWorkThanWorkers:
    async def test_all_of_it_runs_without_a_scan(self, narrow: Env) -> None:
        async with asyncio.TaskGroup() as group:
            started = [
                group.create_task(narrow.client.start(f"p{number}", b"%d" % number))
                for number in range(PROCESSES)
            ]

        answers = [task.result().response for task in started]
        assert answers == [b"%d" % number for number in range(PROCESSES)]

    async def test_no_more_steps_run_at_once_than_there_are_workers(
        self, narrow: Env, hanging: Hang
    ) -> None:
        await narrow.client.start("p", accept_only=True)

        waits = (await narrow.client.get("p")).waits

        asked = len(narrow.processor.requests)
        hanging.released.set()
        await narrow.settled("p")
        assert [wait.cause for wait in waits] == [WaitCause.NO_FREE_WORKER]
        assert asked == 2

    async def test_what_waits_for_a_worker_runs_the_oldest_first(
        self, narrow: Env, hanging: Hang
    ) -> None:
        names = [f"p{number}" for number in range(20)]
        for name in names:
            await narrow.client.start(name, accept_only=True)
        hanging.released.set()
        for name in names:
            await narrow.settled(name)

        ran = [it.process.process_id for it in narrow.processor.requests][2:]
        # Two workers at once: neighbours may arrive the other way round.
        assert all(abs(ran.index(name) - place) <= 2 for place, name in enumerate(names)), ran

    async def test_a_request_that_has_just_come_does_not_pass_those_that_wait(
        self, narrow: Env, hanging: Hang
    ) -> None:
        for name in ("first", "second"):
            await narrow.client.start(name, accept_only=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(narrow.client.start("third"))
            await narrow.points.wait("admitted", key=narrow.key("third"))
            hanging.released.set()

        ran = [it.process.process_id for it in narrow.processor.requests]
        assert ran.index("first") < ran.index("third")

    async def test_timers_that_find_no_worker_run_later(
        self, narrow: Env, replica: Replica
    ) -> None:
        names = [f"p{number}" for number in range(10)]
        for name in names:
            await narrow.timed(name, answering(b"fired"), after=0.8)
        hang = Hang()
        for name in ("h0", "h1"):
            narrow.processor.on_process(name, hang)
            await narrow.client.start(name, accept_only=True)
        # A clock that this namespace's workers do not hold up.
        async with open_env(replica) as clock:
            clock.processor.on_process("c", answering(set_timer=timer(0.9)), answering())
            await clock.client.start("c")
            await clock.settled("c", 2)
        fired_before = [name for name in names if len(narrow.asked_for(name)) > 1]
        hang.released.set()
        for name in names:
            await narrow.settled(name, 2)

        assert fired_before == []

    async def test_calls_behind_a_step_need_no_worker_of_their_own(self, replica: Replica) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            hang, _ = await env.busy("p")
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(env.client.call("p", b"1")) for _ in range(5)]
                await env.points.wait("admitted", 7, key=env.key("p"))
                hang.released.set()

            assert [call.result().response for call in calls] == [b"1"] * 5

    async def test_a_process_that_drives_itself_lets_others_have_their_turn(
        self, replica: Replica
    ) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            env.processor.on_process("endless", answering(b"t", set_timer=timer()))
            await env.client.start("endless")

            answer = await env.client.start("p", b"1")

            assert answer.response == b"1"

    async def test_a_worker_count_can_be_raised_at_run_time(
        self, narrow: Env, hanging: Hang
    ) -> None:
        config = await narrow.client.namespaces.get(narrow.namespace)
        await narrow.client.namespaces.update(
            dataclasses.replace(config, worker_count_max=3), fields=["worker_count_max"]
        )

        answer = await narrow.client.start("p", b"1")

        hanging.released.set()
        assert answer.response == b"1"


async def test_a_namespace_that_hangs_does_not_starve_another(
    narrow: Env, hanging: Hang, replica: Replica
) -> None:
    for number in range(20):
        await narrow.client.start(f"p{number}", accept_only=True)
    async with open_env(replica) as other:
        await other.client.start("p", b"1")
        answers = [(await other.client.call("p", b"%d" % n)).response for n in range(10)]

    hanging.released.set()
    assert answers == [b"%d" % n for n in range(10)]


class TestWaitingCallers:
    @pytest_asyncio.fixture(loop_scope="module")
    async def crowded(self, replica: Replica) -> AsyncIterator[Env]:
        """Return a namespace in which two callers may wait, and do; ``p`` hangs."""
        async with open_env(replica, waiting_callers_max=2) as env:
            hang, _ = await env.busy("p")
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(env.client.call("p", b"waits"))
                await env.points.wait("admitted", 4, key=env.key("p"))
                yield env
                hang.released.set()

    async def test_beyond_the_bound_are_told_to_come_back(self, crowded: Env) -> None:
        status = await refusal(crowded.client.call("p"))

        assert (status.code, status.reason) == (StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert status.retry_after is not None
        assert status.retry_after > dt.timedelta()

    async def test_beyond_the_bound_leave_no_task(self, crowded: Env) -> None:
        before = (await crowded.client.trace("p")).tasks

        await refusal(crowded.client.call("p"))

        assert len((await crowded.client.trace("p")).tasks) == len(before)

    async def test_do_not_keep_out_those_who_do_not_wait(self, crowded: Env) -> None:
        assert (await crowded.client.notify("p")).task_id

    async def test_of_one_namespace_do_not_keep_out_those_of_another(
        self, crowded: Env, replica: Replica
    ) -> None:
        async with open_env(replica, waiting_callers_max=1) as other:
            answer = await other.client.start("p", b"1")

        assert crowded.namespace != other.namespace
        assert answer.response == b"1"

    async def test_are_counted_as_callers_and_not_as_tasks(self, replica: Replica) -> None:
        async with open_env(replica, waiting_callers_max=3) as env:
            hang, _ = await env.busy("p")
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(env.client.call("p", b"1", idempotency_key="k"))
                await env.points.wait("admitted", 5, key=env.key("p"))
                status = await refusal(env.client.call("p", b"1", idempotency_key="k"))
                hang.released.set()

            assert status.reason == "OVERLOADED"

    async def test_that_come_all_at_once_keep_to_the_bound_too(self, replica: Replica) -> None:
        async with open_env(replica, waiting_callers_max=5) as env:
            hang, _ = await env.busy("p")

            async def outcome() -> str:
                try:
                    await env.client.call("p")
                except Exception as error:  # noqa: BLE001  # which one is the claim
                    return type(error).__name__
                return "answered"

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(outcome()) for _ in range(20)]
                await env.points.wait("admitted", 7, key=env.key("p"))
                hang.released.set()

            outcomes = [task.result() for task in tasks]
            assert outcomes.count("answered") + outcomes.count("OverloadedError") == 20
            assert "OverloadedError" in outcomes

    async def test_make_room_when_they_give_up(self, replica: Replica) -> None:
        async with open_env(replica, waiting_callers_max=1) as env:
            hang, _ = await env.busy("p")
            status = await refusal(env.client.call("p", b"1", timeout=0.2))
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(env.client.call("p", b"2"))
                await env.points.wait("admitted", 4, key=env.key("p"))
                hang.released.set()

            assert status.reason == "DEADLINE_EXCEEDED"
            assert waiting.result().response == b"2"
