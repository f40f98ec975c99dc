"""Each cause of waiting, produced for real: it is named, and what removes it lets the task run."""

import asyncio
import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from progressor.cli.main import main
from progressor.runtime.core.context import JITTER
from progressor.sdk import (
    Constraints,
    Wait,
    WaitCause,
)
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.reads import all_silent, first_wait, named, said
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    open_env,
    running_replica,
)
from tests.support.faults.faults import stalled_before
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS: Mapping[str, str] = {}
HOUR = dt.timedelta(hours=1)
SLOWLY = dataclasses.replace(NOW_AND_THEN, initial_interval=dt.timedelta(seconds=3), attempts_max=8)


async def look_again(replica: Replica) -> None:
    """Wait until the replica has told more than once what it knows by now."""
    beats = replica.points.count("beat")
    await replica.points.wait("beat", beats + 8)


def is_out_of_reach(wait: Wait) -> bool:
    return wait.processor_unreachable_since is not None


async def test_a_free_worker_is_waited_for_until_there_is_one(
    replica: Replica, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_env(replica, worker_count_max=1) as env:
        hang, _ = await env.busy("h")
        accepted = await env.client.start("p", accept_only=True)
        wait = await named(env, "p", WaitCause.NO_FREE_WORKER, lambda each: each.busy_count == 1)
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


async def test_a_processor_that_is_down_is_named_until_it_is_back(
    replica: Replica, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_env(replica, retry_policy=SLOWLY) as env:
        await env.running("p")
        await env.processor.stop()
        stopped_at = dt.datetime.now(dt.UTC)
        accepted = await env.client.call("p", accept_only=True)
        wait = await named(env, "p", WaitCause.PROCESSOR_UNREACHABLE, is_out_of_reach)
        [line] = await said(env, "p", capfd)
        await env.processor.restart()
        await env.settled("p", 3)
        afterwards = await env.client.get("p")

    unreachable = wait.processor_unreachable_since
    # An attempt at which it was not reached does not count.
    assert (wait.task_id, wait.attempt) == (accepted.task_id, 1)
    assert wait.last_error is not None
    assert wait.last_error.reason == "PROCESSOR_UNAVAILABLE"
    assert unreachable is not None
    assert dt.timedelta(seconds=-1) < unreachable - stopped_at < dt.timedelta(seconds=10)
    assert "The processor has been unreachable since " in line
    assert afterwards.waits == ()


async def test_a_processor_that_hangs_is_named_as_a_step_that_runs_and_then_as_a_retry(
    replica: Replica, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_env(replica, retry_policy=SLOWLY, step_timeout=dt.timedelta(seconds=3)) as env:
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


MUTEX = Constraints(gates={"g": 1})


async def accepted(env: Env, process_id: str, constraints: Constraints | None) -> int:
    """Start a process whose init task has constraints, and return the task."""
    answer = await env.client.start(process_id, accept_only=True, constraints=constraints)
    return answer.task_id


async def holding(env: Env, process_id: str, constraints: Constraints = MUTEX) -> Hang:
    """Start a process that holds its gates until it is released."""
    hang = Hang()
    env.processor.on_process(process_id, hang, Answer())
    await accepted(env, process_id, constraints)
    await env.asked(process_id)
    return hang


async def test_a_full_gate_is_waited_for_until_it_is_left(
    env: Env, replica: Replica, capfd: pytest.CaptureFixture[str]
) -> None:
    hang = await holding(env, "h")
    first = await accepted(env, "p", MUTEX)
    await accepted(env, "q", MUTEX)
    wait = await named(env, "p", WaitCause.GATE)
    other = await named(env, "q", WaitCause.GATE)
    [line] = await said(env, "p", capfd)
    await look_again(replica)
    asked = [len(env.asked_for(each)) for each in "pq"]
    hang.released.set()
    await env.settled("p")
    await env.settled("q")

    assert asked == [0, 0]
    [gate], [behind] = wait.gates, other.gates
    assert (gate.gate, gate.capacity, gate.held) == ("g", 1, 1)
    assert [holder.process_id for holder in gate.holders] == ["h"]
    assert (gate.position, gate.waiting_count, behind.position) == (1, 2, 2)
    assert wait.spent is not None
    assert wait.spent.gates > dt.timedelta()
    assert line.startswith(
        f"Task {first} (init) waits for gate g, as number 1 of 2 in the queue, which is full: "
        f"1 of 1 held, by task {gate.holders[0].task_id} of process h since "
    )


async def test_a_list_of_causes_has_those_whose_first_task_waits_so(
    env: Env, capfd: pytest.CaptureFixture[str]
) -> None:
    hang = await holding(env, "h")
    await accepted(env, "gated", MUTEX)
    await accepted(env, "later", Constraints(run_at=dt.datetime.now(dt.UTC) + HOUR))
    await env.running("idle")
    one = [process.process_id async for process in env.client.list(causes=[WaitCause.GATE])]
    both = [
        process.process_id
        async for process in env.client.list(causes=[WaitCause.GATE, WaitCause.RUN_AT], page_size=1)
    ]
    where = ["--namespace", env.namespace, "--address", env.replica.address]
    capfd.readouterr()
    code = await asyncio.to_thread(main, ["list", *where, "--cause", "gate", "--json"])
    told = json.loads(capfd.readouterr().out)
    hang.released.set()
    await env.settled("gated")

    assert (one, both) == (["gated"], ["later", "gated"])
    assert code == 0
    assert [each["process_id"] for each in told["processes"]] == ["gated"]


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


def is_late(wait: Wait) -> bool:
    return wait.silent_since is not None


@pytest.mark.parametrize(
    "end", ["killed", *(pytest.param(each, marks=pytest.mark.slow) for each in list(ENDS)[1:])]
)
async def test_a_replica_that_is_presumed_dead_is_named_until_another_collects_its_task(
    own_database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], end: str
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
        assert f"in replica {wait.replica_id} and should have ended by " in line
        assert "; the task is collected at " in line
        assert len(env.asked_for("p")) == 2


async def test_no_replica_is_named_until_one_can_write_its_heartbeat_again(
    own_database: str, capfd: pytest.CaptureFixture[str]
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
