"""Causes of waiting that lie in a replica, or on its way to PostgreSQL, produced for real.

Replicas are killed, stopped or cut off while another one looks on, which collects nothing: so the
cause stays until it is removed.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from progressor.runtime.core.context import JITTER
from progressor.sdk import TaskStatus, Wait, WaitCause
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.reads import all_silent, first_wait, named, said
from tests.support.engine.replica import Env, open_env, running_replica
from tests.support.faults.faults import stalled_before
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)
NEVER_SCANNING: Mapping[str, str] = {"scanner.interval_seconds": "3600"}
# So long that a missing heartbeat is seen before the lease is over: facts are read each second.
LEASE_TIMEOUT = dt.timedelta(seconds=4)
VICTIM: Mapping[str, str] = {"replica.lease_timeout_seconds": "4"}
# A statement that is stuck stays so until the way is free again, and no replica here collects.
PATIENT: Mapping[str, str] = {**NEVER_SCANNING, "database.statement_timeout_seconds": "60"}
SETTLE = '"settle_tasks"('

Do = Callable[[ReplicaProcess, Proxy], None]

ENDS: Mapping[str, Do] = {
    "killed": lambda victim, _proxy: victim.kill(),
    "stopped": lambda victim, _proxy: victim.freeze(),
    "cut off from PostgreSQL": lambda _victim, proxy: proxy.stall(),
}
RETURNS: Mapping[str, Do] = {
    "stopped": lambda victim, _proxy: victim.thaw(),
    "cut off from PostgreSQL": lambda _victim, proxy: proxy.restore(),
}


def is_late(wait: Wait) -> bool:
    return wait.silent_since is not None


class TestAReplicaThatIsPresumedDead:
    @pytest.mark.parametrize(
        "end", ["killed", *(pytest.param(it, marks=pytest.mark.slow) for it in RETURNS)]
    )
    async def test_is_named_until_another_collects_its_task(
        self, own_database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], end: str
    ) -> None:
        with running_proxy(own_database) as proxy:
            async with (
                running_replica(own_database, NEVER_SCANNING) as onlooker,
                open_env(onlooker, one_at_a_time=False) as env,
                running_process(proxy.conninfo, tmp_path, VICTIM) as victim,
                env.client_at(victim.address) as there,
            ):
                await env.running("p", Hang(), Answer())
                accepted = await there.call("p", accept_only=True)
                await env.asked("p", 2)
                running = await named(env, "p", WaitCause.RUNNING)
                ENDS[end](victim, proxy)
                late = await first_wait(env.client, "p", WaitCause.RUNNING, is_late)
                dead = await named(env, "p", WaitCause.PRESUMED_DEAD)
                [line] = await said(env, "p", capfd)
                asked_count = len(env.asked_for("p"))
                async with running_replica(own_database):
                    answer = await env.client.await_task("p", task_id=accepted.task_id)

        assert (dead.task_id, dead.replica_id) == (accepted.task_id, running.replica_id)
        assert late.silent_since == dead.silent_since
        assert dead.silent_since is not None
        assert dead.collected_at == dead.silent_since + LEASE_TIMEOUT + HOUR * (1 + JITTER)
        assert f"by replica {dead.replica_id}, which has been silent since " in line
        assert "presumed dead; the task is collected at " in line
        assert asked_count == 2
        assert answer.task_id == accepted.task_id

    @pytest.mark.parametrize("end", RETURNS)
    async def test_is_named_until_it_returns(
        self, own_database: str, tmp_path: Path, end: str
    ) -> None:
        with running_proxy(own_database) as proxy:
            async with (
                running_replica(own_database, NEVER_SCANNING) as onlooker,
                open_env(onlooker, one_at_a_time=False) as env,
                running_process(proxy.conninfo, tmp_path) as victim,
                env.client_at(victim.address) as there,
            ):
                await env.running("p", Hang(), Answer())
                accepted = await there.call("p", accept_only=True)
                await env.asked("p", 2)
                ENDS[end](victim, proxy)
                await named(env, "p", WaitCause.PRESUMED_DEAD)
                RETURNS[end](victim, proxy)
                answer = await env.client.await_task("p", task_id=accepted.task_id)

        assert answer.task_id == accepted.task_id

    async def test_has_its_task_collected_by_when_it_was_told(
        self, own_database: str, tmp_path: Path
    ) -> None:
        async with (
            running_replica(own_database) as replica,
            open_env(replica, one_at_a_time=False) as env,
            running_process(own_database, tmp_path, VICTIM) as victim,
            env.client_at(victim.address) as there,
        ):
            await env.running("p", Hang(), Answer())
            accepted = await there.call("p", accept_only=True)
            await env.asked("p", 2)
            victim.kill()
            late = await first_wait(env.client, "p", WaitCause.RUNNING, is_late)
            await env.client.await_task("p", task_id=accepted.task_id)
            tasks = (await env.client.trace("p")).tasks

        [call] = [it for it in tasks if it.task_id == accepted.task_id]
        assert (call.status, call.attempt_count) == (TaskStatus.FINISHED, 2)
        assert call.started_at is not None
        assert late.collected_at is not None
        # The scan itself takes a while on a busy machine.
        assert call.started_at < late.collected_at + dt.timedelta(seconds=5)


class TestAStepThatOverruns:
    """Its processor has answered, and its settlement is on a way on which nothing moves."""

    @pytest.fixture
    def proxy(self, own_database: str) -> Iterator[Proxy]:
        with running_proxy(own_database) as proxy:
            yield proxy

    async def overrun(self, env: Env, victim: ReplicaProcess, proxy: Proxy) -> int:
        """Bring process p into a step that overruns, and return its task."""
        hang = Hang()
        await env.running("p", hang, Answer())
        async with env.client_at(victim.address) as there:
            accepted = await there.call("p", accept_only=True)
        await env.asked("p", 2)
        fault = proxy.arm(stalled_before(SETTLE))
        hang.released.set()
        await fault.struck()
        return accepted.task_id

    async def test_is_named_until_its_settlement_comes_through(
        self, own_database: str, tmp_path: Path, proxy: Proxy, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with (
            running_replica(own_database, NEVER_SCANNING) as onlooker,
            open_env(onlooker, step_timeout=dt.timedelta(seconds=2)) as env,
            running_process(proxy.conninfo, tmp_path, PATIENT) as victim,
        ):
            task_id = await self.overrun(env, victim, proxy)
            wait = await named(env, "p", WaitCause.OVERRUN)
            [line] = await said(env, "p", capfd)
            proxy.restore()
            answer = await env.client.await_task("p", task_id=task_id)

        assert (wait.task_id, answer.task_id) == (task_id, task_id)
        assert wait.collected_at is not None
        assert f"in replica {wait.replica_id} and ought to have ended by " in line
        assert "; the task is collected at " in line
        assert len(env.asked_for("p")) == 2

    async def test_is_named_until_another_collects_it(
        self, own_database: str, tmp_path: Path, proxy: Proxy
    ) -> None:
        async with (
            running_replica(own_database, NEVER_SCANNING) as onlooker,
            open_env(onlooker, step_timeout=dt.timedelta(seconds=2)) as env,
            running_process(proxy.conninfo, tmp_path, PATIENT) as victim,
        ):
            task_id = await self.overrun(env, victim, proxy)
            await named(env, "p", WaitCause.OVERRUN)
            async with running_replica(own_database):
                await env.client.await_task("p", task_id=task_id)

        assert [it.task.attempt for it in env.asked_for("p")[1:]] == [1, 2]


class TestNoReplica:
    async def test_is_named_until_one_can_write_its_heartbeat_again(
        self, own_database: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with (
            running_replica(own_database) as replica,
            open_env(replica) as env,
        ):
            with psycopg.connect(own_database) as other:
                other.execute(
                    "SELECT FROM progressor.replicas WHERE replica_id = %s FOR UPDATE",
                    [replica.engine.replica_id],
                )
                await all_silent(env.client)
                await env.client.start("p", accept_only=True)
                wait = await named(env, "p", WaitCause.NO_REPLICA)
                [line] = await said(env, "p", capfd)
                asked_count = len(env.asked_for("p"))
            await env.settled("p")

        assert wait.since is not None
        assert line.endswith("and no replica serves: 0 draining, 1 silent.")
        assert asked_count == 0
