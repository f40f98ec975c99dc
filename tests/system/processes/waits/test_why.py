"""Each cause of waiting, produced for real: it is named, and what removes it lets the task run.

Causes that lie in a replica, or between it and PostgreSQL, are in test_why_replicas.
"""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import Wait, WaitCause
from tests.support.engine.reads import first_wait, named, said
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Replica,
    open_env,
    running_replica,
    unavailable,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SLOWLY = dataclasses.replace(NOW_AND_THEN, initial_interval=dt.timedelta(seconds=3), attempts_max=8)
HOURLY = dataclasses.replace(SLOWLY, initial_interval=HOUR, interval_max=HOUR)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


async def look_again(replica: Replica) -> None:
    """Wait until the replica has told more than once what it knows by now."""
    beats = replica.points.count("beat")
    await replica.points.wait("beat", beats + 8)


def is_out_of_reach(wait: Wait) -> bool:
    return wait.processor_unreachable_since is not None


class TestAFreeWorker:
    async def test_is_waited_for_until_there_is_one(
        self, replica: Replica, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            hang, _ = await env.busy("h")
            accepted = await env.client.start("p", accept_only=True)
            wait = await named(env, "p", WaitCause.NO_FREE_WORKER, lambda it: it.busy_count == 1)
            [line] = await said(env, "p", capfd)
            holder = await named(env, "h", WaitCause.RUNNING)
            await look_again(replica)
            asked_count = len(env.asked_for("p"))
            hang.released.set()
            await env.settled("p")

        assert (wait.task_id, wait.worker_count) == (accepted.task_id, 1)
        assert line.endswith("and no worker is free: 1 of 1 are busy.")
        assert holder.replica_id == replica.engine.replica_id
        assert asked_count == 0

    async def test_may_also_be_one_more(self, replica: Replica) -> None:
        async with open_env(replica, worker_count_max=1) as env:
            await env.busy("h")
            await env.client.start("p", accept_only=True)
            await named(env, "p", WaitCause.NO_FREE_WORKER, lambda it: it.busy_count == 1)
            config = await env.client.namespaces.get(env.namespace)
            await env.client.namespaces.update(dataclasses.replace(config, worker_count_max=2))
            await env.settled("p")
            holder = await first_wait(env.client, "h", WaitCause.RUNNING)

        assert holder.attempt == 1


class TestAProcessorThatIsDown:
    async def test_is_told_with_the_retry_that_waits_for_it_until_it_is_back(
        self, replica: Replica, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with open_env(replica, retry_policy=SLOWLY) as env:
            await env.running("p")
            await env.processor.stop()
            stopped_at = dt.datetime.now(dt.UTC)
            accepted = await env.client.call("p", accept_only=True)
            wait = await named(env, "p", WaitCause.RETRY, is_out_of_reach)
            [line] = await said(env, "p", capfd)
            await env.processor.restart()
            await env.settled("p", 3)
            afterwards = await env.client.get("p")

        unreachable = wait.processor_unreachable_since
        assert (wait.task_id, wait.attempts_max) == (accepted.task_id, 8)
        assert wait.attempt >= 2
        assert wait.last_error is not None
        assert wait.last_error.reason == "PROCESSOR_UNAVAILABLE"
        assert unreachable is not None
        assert dt.timedelta(seconds=-1) < unreachable - stopped_at < dt.timedelta(seconds=10)
        assert f"attempt {wait.attempt} of 8" in line
        assert "after PROCESSOR_UNAVAILABLE: " in line
        assert "The processor has been unreachable since " in line
        assert afterwards.waits == ()

    async def test_is_told_no_more_once_it_is_connected_though_the_retry_is_not_due(
        self, replica: Replica
    ) -> None:
        async with open_env(replica, retry_policy=HOURLY) as env:
            await env.running("p")
            await env.processor.stop()
            await env.client.call("p", accept_only=True)
            await named(env, "p", WaitCause.RETRY, is_out_of_reach)
            await env.processor.restart()
            wait = await named(env, "p", WaitCause.RETRY, lambda it: not is_out_of_reach(it))
            await look_again(replica)

        assert wait.until is not None
        assert wait.until > dt.datetime.now(dt.UTC) + HOUR / 2
        assert len(env.asked_for("p")) == 1

    async def test_is_not_taken_for_one_that_says_that_it_is_unavailable(
        self, replica: Replica
    ) -> None:
        async with open_env(replica, retry_policy=HOURLY) as env:
            await env.running("p", unavailable())
            await env.client.call("p", accept_only=True)
            await env.settled("p", 2)
            await look_again(replica)
            wait = await named(env, "p", WaitCause.RETRY)

        assert wait.last_error is not None
        assert (wait.last_error.reason, wait.processor_unreachable_since) == ("NOT_NOW", None)


class TestAProcessorThatHangs:
    async def test_is_told_as_a_step_that_runs_and_then_as_the_retry_after_its_timeout(
        self, replica: Replica, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with open_env(
            replica, retry_policy=SLOWLY, step_timeout=dt.timedelta(seconds=3)
        ) as env:
            await env.running("p", Hang(), Answer())
            accepted = await env.client.call("p", accept_only=True)
            running = await named(env, "p", WaitCause.RUNNING)
            retry = await named(env, "p", WaitCause.RETRY)
            [line] = await said(env, "p", capfd)
            await look_again(replica)
            again = await first_wait(env.client, "p", WaitCause.RETRY)
            answer = await env.client.await_task("p", task_id=accepted.task_id)

        assert (running.replica_id, running.attempt) == (replica.engine.replica_id, 1)
        assert retry.last_error is not None
        assert (retry.last_error.reason, retry.attempt) == ("STEP_TIMEOUT", 2)
        # It is there: what is wrong with it is that it does not answer.
        assert not is_out_of_reach(running)
        assert not is_out_of_reach(again)
        assert "waits for its retry, attempt 2 of 8, at " in line
        assert ", after STEP_TIMEOUT: " in line
        assert answer.task_id == accepted.task_id
