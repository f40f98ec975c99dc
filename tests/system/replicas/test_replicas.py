"""A replica is killed, frozen or too slow: its steps go to others, and no step is settled twice."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from progressor.processor.client import ProcessorClient
from progressor.sdk import ZombiePolicy
from tests.support.engine.process import running_process
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    timer,
)
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_AND_SCANS = 5.0

"""Lease timeout (1 s) and a few scans (0.2 s each), with patience for a busy machine. Far less than
the step timeout of 30 s, by which a lost step would be found without leases."""


class TestAReplicaThatIsKilled:
    async def test_tells_the_callers_behind_the_zombie_on_other_replicas(
        self, second_replica: Replica, tmp_path: Path
    ) -> None:
        async with open_env(
            second_replica, one_at_a_time=False, zombie_policy=ZombiePolicy.FAIL
        ) as env:
            await env.running("p", Hang())
            dsn = second_replica.engine.dsn
            async with (
                running_process(dsn, tmp_path) as victim,
                env.client_at(victim.address) as there,
            ):
                accepted = await there.call("p", b"1", accept_only=True)
                await env.asked("p", 2)
                async with asyncio.TaskGroup() as group:
                    waiting = group.create_task(refusal(env.client.call("p", b"2")))
                    await second_replica.points.wait("admitted", 2, key=env.key("p"))
                    victim.kill()

            status = waiting.result()
            assert (status.reason, status.metadata["own"]) == ("PROCESS_FAILED", "false")
            assert status.metadata["broken_by"] == str(accepted.task_id)
            assert status.metadata["failure_reason"] == "ZOMBIE"

    async def test_has_its_timers_fired_by_another(
        self, second_replica: Replica, tmp_path: Path
    ) -> None:
        async with open_env(second_replica) as env:
            in_a_while = answering(set_timer=timer(1.0, args=b"tick"))
            env.processor.on_process("p", in_a_while, answering(b"fired"))
            async with (
                running_process(second_replica.engine.dsn, tmp_path) as victim,
                env.client_at(victim.address) as there,
            ):
                await there.start("p")
                victim.kill()
            async with asyncio.timeout(LEASE_AND_SCANS):
                await env.settled("p")

            assert env.asked_for("p")[1].task.args == b"tick"


class TestAStepThatOverruns:
    @pytest.fixture
    def never_heard(self, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
        """Keep what the processor answers to first attempts of calls until the event is set."""
        heard = asyncio.Event()
        ask = ProcessorClient.ask

        async def late(client: ProcessorClient, task: Any, *args: Any, **kwargs: Any) -> Any:
            outcome = await ask(client, task, *args, **kwargs)
            if task.attempt == 1 and task.task_type == "call":
                await heard.wait()
            return outcome

        monkeypatch.setattr(ProcessorClient, "ask", late)
        return heard

    @pytest_asyncio.fixture(loop_scope="module")
    async def quick(self, second_replica: Replica) -> AsyncIterator[Env]:
        """Return an environment whose steps may take a second, and 500 ms of grace."""
        async with open_env(second_replica, step_timeout=dt.timedelta(seconds=1)) as env:
            yield env

    async def test_its_timeout_and_grace_is_collected_and_retried(
        self, quick: Env, never_heard: asyncio.Event
    ) -> None:
        await quick.running("p", answering(response=b"1"), answering(response=b"2"))

        answer = await quick.client.call("p")

        (collected,) = quick.points.passed("zombie_collected", task_id=answer.task_id)
        never_heard.set()
        assert answer.response == b"2"
        assert (collected["cause"], collected["settlement"]) == ("overrun", "Retry")

    async def test_is_fenced_off_when_it_settles_late(
        self, quick: Env, never_heard: asyncio.Event
    ) -> None:
        first = answering(b"first", aux_state=b"first", response=b"1")
        await quick.running("p", first, answering(b"second", response=b"2"))
        answer = await quick.client.call("p")

        never_heard.set()
        await quick.points.wait("fenced", task_id=answer.task_id)

        snapshot = await quick.client.get("p")
        assert [event.payload for event in snapshot.history] == [b"second"]
        assert snapshot.process.state is None
