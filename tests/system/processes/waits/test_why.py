"""Each cause of waiting, produced for real: it is named, and what removes it lets the task run.

Causes that lie in a replica, or between it and PostgreSQL, are in test_why_replicas.
"""

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import ProcessStatus, TaskType, Wait, WaitCause
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    open_env,
    running_replica,
    unavailable,
)
from tests.support.engine.waiting import first_wait, named, said
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
SLOWLY = dataclasses.replace(NOW_AND_THEN, initial_interval=dt.timedelta(seconds=3), attempts_max=8)
HOURLY = dataclasses.replace(SLOWLY, initial_interval=HOUR, interval_max=HOUR)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica) as env:
        yield env


async def look_again(replica: Replica) -> None:
    """Wait until the replica has told more than once what it knows by now."""
    beats = replica.points.count("beat")
    await replica.points.wait("beat", beats + 8)


def is_out_of_reach(wait: Wait) -> bool:
    return wait.processor_unreachable_since is not None


class TestATimer:
    async def test_is_waited_for_until_it_is_due(
        self, env: Env, capfd: pytest.CaptureFixture[str]
    ) -> None:
        await env.timed("p", after=3)
        wait = await named(env, "p", WaitCause.TIMER)
        [line] = await said(env, "p", capfd)
        await env.settled("p", 2)

        timeout = (await env.client.trace("p")).tasks[1]
        assert wait.until is not None
        assert timeout.started_at is not None
        assert (wait.task_id, wait.type) == (timeout.task_id, TaskType.TIMEOUT)
        assert wait.until <= timeout.started_at
        assert line.startswith(f"Task {wait.task_id} (timeout) is a timer, until ")


class TestATaskBeforeIt:
    async def test_is_waited_for_until_it_has_ended(
        self, env: Env, capfd: pytest.CaptureFixture[str]
    ) -> None:
        hang, task_id = await env.busy("p")
        behind = await env.client.call("p", accept_only=True)
        last = await env.client.notify("p")

        running, second, third = (await env.client.get("p")).waits
        lines = await said(env, "p", capfd)
        asked_count = len(env.asked_for("p"))
        hang.released.set()
        await env.settled("p", 4)

        assert (running.cause, running.task_id) == (WaitCause.RUNNING, task_id)
        assert running.replica_id == env.replica.engine.replica_id
        assert [second.task_id, third.task_id] == [behind.task_id, last.task_id]
        assert (second.behind_task_id, second.behind_type) == (task_id, TaskType.CALL)
        assert (second.behind_runs, second.behind_since) == (True, running.since)
        assert (third.behind_task_id, third.behind_runs) == (behind.task_id, False)
        assert lines == [running.explanation, second.explanation, third.explanation]
        assert (
            f"Task {third.task_id} (notify) waits behind task {second.task_id} (call)" in lines[2]
        )
        assert asked_count == 2
        assert (await env.client.get("p")).waits == ()


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


class TestAProcessWithoutTasks:
    async def test_waits_for_a_repair_where_it_is_broken(
        self, env: Env, capfd: pytest.CaptureFixture[str]
    ) -> None:
        task_id = await env.broken("p")
        [line] = await said(env, "p", capfd)
        await env.client.simple_repair("p")
        repaired = await env.client.get("p")

        assert f"broken by task {task_id}: it broke; it waits for a repair." in line
        assert repaired.process.status is ProcessStatus.RUNNING
        assert repaired.explanation.startswith("The process waits for nothing")

    async def test_waits_for_nothing_where_it_is_finished(
        self, env: Env, capfd: pytest.CaptureFixture[str]
    ) -> None:
        await env.finished("p")

        [line] = await said(env, "p", capfd)

        assert line.startswith("The process has been finished since ")
        assert line.endswith("it waits for nothing.")
