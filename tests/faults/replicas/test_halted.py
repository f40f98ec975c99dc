"""Replicas and processors that are killed, frozen past their leases, or held up, at work.

What a frozen replica comes back with is refused by the fence, and counted; nothing of what the
other one did changes. Two moments matter: its processor answers while it cannot hear; or its
settlement is on the way, where the network keeps it until everything is over.
"""

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.sdk import (
    BYTES,
    Client,
    EngineUnavailableError,
    NamespaceConfig,
    OnError,
    RetryPolicy,
    ZombiePolicy,
)
from progressor.telemetry.metrics.registry import METRICS
from tests.faults.replicas.crowd import Crowd, Way, crowd_at_work, every_way
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import Env, Replica, answering, response
from tests.support.faults.env import CALLS, EVENTS, LEASED, asked_twice, rows
from tests.support.faults.faults import stalled_before
from tests.support.faults.processor import STREAM, UNARY, processor_process
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang, Step
from tests.support.storage.doctor.invariants import Past
from tests.support.storage.doctor.judge import judged_env
from tests.support.telemetry.collector import Collector, running_collector

pytestmark = pytest.mark.asyncio(loop_scope="module")

CROWD = 20
LEASE_AND_SCANS = 5.0
"""Lease timeout (1 s) and a few scans (0.2 s each), with patience for a busy machine."""
PROCESSES = """
    SELECT p.status::text, p.detail, p.last_event_id, t.args, t.status::text
    FROM progressor.processes p
    LEFT JOIN progressor.tasks t
        ON (t.slot, t.namespace, t.process_id, t.task_id)
            = (p.slot, p.namespace, p.process_id, p.corrupted_by)
    WHERE p.namespace = %(namespace)s"""
TASKS = """
    SELECT process_id, array_agg(concat_ws(' ', task_type, convert_from(args, 'UTF8'), status,
        'attempt', attempt_count, error_reason, error_message) ORDER BY task_id)
    FROM progressor.tasks WHERE namespace = %(namespace)s GROUP BY process_id"""
WAITING = """
    SELECT process_id, task_type::text, status::text, due_at IS NOT NULL
    FROM progressor.schedule WHERE namespace = %(namespace)s"""


async def killed(crowd: Crowd) -> float:
    """Kill the replica that carries a crowd; return when."""
    crowd.victim.kill()
    await crowd.victim.left()
    return time.monotonic()


class TestWhereThePolicySaysFail:
    @every_way
    async def test_all_that_it_carried_ends_as_zombies_and_all_that_waits_is_cancelled(
        self, second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path, way: Way
    ) -> None:
        async with judged_env(
            second_replica, **way, zombie_policy=ZombiePolicy.FAIL, on_error=OnError.CANCEL
        ) as env:
            async with crowd_at_work(env, observer, tmp_path, count=CROWD) as crowd:
                killed_at = await killed(crowd)
                here = [await caller for caller in crowd.callers_here]
                took = time.monotonic() - killed_at
                there = [await caller for caller in crowd.callers_there]
                at_work = await crowd.answers_at_work()

            assert took < LEASE_AND_SCANS
            assert set(here) == {errors.ProcessFailedError}
            assert set(there) == {EngineUnavailableError}
            assert set(at_work) == {errors.ProcessFailedError}
            assert (
                rows(observer, env, PROCESSES)
                == [("error", "zombie detected", 0, b"1", "error")] * CROWD
            )
            ended = [
                "init  finished attempt 1",
                "timeout  cancelled attempt 0 PROCESS_FAILED zombie detected",
                "call 1 error attempt 1 ZOMBIE zombie detected",
                "call 2 cancelled attempt 0 PROCESS_FAILED zombie detected",
                "notify 3 cancelled attempt 0 PROCESS_FAILED zombie detected",
                "call 4 cancelled attempt 0 PROCESS_FAILED zombie detected",
            ]
            assert dict(rows(observer, env, TASKS)) == dict.fromkeys(crowd.names, ended)
            assert rows(observer, env, WAITING) + rows(observer, env, LEASED) == []
            assert len(env.processor.requests) == 2 * CROWD

    async def test_a_repair_brings_them_back(
        self, second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path
    ) -> None:
        async with judged_env(
            second_replica, zombie_policy=ZombiePolicy.FAIL, on_error=OnError.CANCEL
        ) as env:
            async with crowd_at_work(env, observer, tmp_path, count=1) as crowd:
                await killed(crowd)
                [await caller for caller in crowd.callers_here]
            past = Past()
            past.look(observer)
            await env.client.simple_repair("p0")
            answer = await env.client.call("p0", b"5")

            assert answer.response == b"5"
            assert rows(observer, env, EVENTS) == [("p0", [b"5"])]
            assert past.look(observer) == []


class TestWhereThePolicySaysRetry:
    @every_way
    async def test_all_goes_on_elsewhere_in_its_order_and_none_is_broken(
        self, second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path, way: Way
    ) -> None:
        async with judged_env(second_replica, **way) as env:
            async with crowd_at_work(env, observer, tmp_path, count=CROWD) as crowd:
                killed_at = await killed(crowd)
                for name in crowd.names:
                    await env.asked(name, 3)
                took = time.monotonic() - killed_at
                here = [await caller for caller in crowd.callers_here]
                there = [await caller for caller in crowd.callers_there]
                at_work = await crowd.answers_at_work()

            assert took < LEASE_AND_SCANS
            assert set(here) == {b"4"}
            assert set(there) == {EngineUnavailableError}
            assert set(at_work) == {b"1"}
            assert rows(observer, env, PROCESSES) == [("running", None, 4, None, None)] * CROWD
            ended = [
                "init  finished attempt 1",
                "timeout  waiting attempt 0",
                "call 1 finished attempt 2",
                "call 2 finished attempt 1",
                "notify 3 finished attempt 1",
                "call 4 finished attempt 1",
            ]
            assert dict(rows(observer, env, TASKS)) == dict.fromkeys(crowd.names, ended)
            in_order = [b"1", b"2", b"3", b"4"]
            assert dict(rows(observer, env, EVENTS)) == dict.fromkeys(crowd.names, in_order)
            assert sorted(rows(observer, env, WAITING)) == [
                (name, "timeout", "waiting", True) for name in sorted(crowd.names)
            ]
            self.check_what_the_processor_saw(crowd)

    def check_what_the_processor_saw(self, crowd: Crowd) -> None:
        """Assert that each lease was asked about once, under an attempt and token of its own."""
        for name in crowd.names:
            tasks = [request.task for request in crowd.env.asked_for(name)]
            assert [(task.args, task.attempt) for task in tasks] == [
                (b"", 1), (b"1", 1), (b"1", 2), (b"2", 1), (b"3", 1), (b"4", 1)
            ]  # fmt: skip
            tokens = [task.token for task in tasks]
            assert tokens == sorted(set(tokens))
        assert asked_twice(crowd.env) == []


SETTLE = '"settle_tasks"('
COUNT = 10
FENCED, ABANDONED = METRICS["fenced"].name, METRICS["abandoned"].name
EVERYTHING = """
    SELECT t::text, p::text FROM progressor.tasks t
    JOIN progressor.processes p USING (slot, namespace, process_id)
    WHERE t.namespace = %(namespace)s ORDER BY t.task_id"""
ANSWERED = """
    SELECT status::text, attempt_count, response FROM progressor.tasks
    WHERE namespace = %(namespace)s AND task_type = 'call' ORDER BY task_id"""


@pytest_asyncio.fixture(loop_scope="module")
async def collector() -> AsyncIterator[Collector]:
    async with running_collector() as collector:
        yield collector


async def prepared(env: Env, late: Hang, in_time: Step) -> list[str]:
    """Bring processes into being whose next call is answered late, and then in time."""
    names = [f"p{number}" for number in range(COUNT)]
    for name in names:
        await env.running(name, late, in_time, Answer())
    return names


def late_answer() -> Hang:
    return Hang(response=response(b"late", aux_state=b"late", response=b"late"))


async def test_what_was_answered_meanwhile_is_let_go_or_refused(
    second_replica: Replica,
    observer: psycopg.Connection[tuple[object, ...]],
    collector: Collector,
    tmp_path: Path,
) -> None:
    async with judged_env(second_replica) as env:
        in_time = answering(b"in time", response=b"in time")
        names = await prepared(env, late := late_answer(), in_time)
        settings = {"telemetry.otlp_endpoint": collector.endpoint}
        async with (
            running_process(second_replica.engine.dsn, tmp_path, settings) as frozen,
            env.client_at(frozen.address) as there,
        ):
            for name in names:
                await there.call(name, b"1", idempotency_key="1", accept_only=True)
            await env.processor.received(2 * COUNT, seconds=PATIENCE_SECONDS)
            frozen.freeze()
            # It is answered while it cannot hear it, and hears of it first thing after.
            late.released.set()
            answers, before, past = await taken_over(env, observer, names)
            frozen.thaw()
            again = [(await there.call(name, b"2")).response for name in names]
            frozen.terminate()
            await frozen.left()

        assert answers == [b"in time"] * COUNT
        assert collector.count(FENCED) + collector.count(ABANDONED) == COUNT
        assert again == [b"2"] * COUNT
        assert [task for task, _ in rows(observer, env, EVERYTHING)][: 2 * COUNT] == [
            task for task, _ in before
        ]
        assert past.look(observer) == []
        assert dict(rows(observer, env, EVENTS)) == {name: [b"in time", b"2"] for name in names}
        assert asked_twice(env) == []


@every_way
async def test_settlements_that_arrive_late_are_refused_and_counted(
    second_replica: Replica,
    observer: psycopg.Connection[tuple[object, ...]],
    collector: Collector,
    proxy: Proxy,
    tmp_path: Path,
    way: Way,
) -> None:
    async with judged_env(second_replica, **way) as env:
        late, in_time = late_answer(), Hang(response=response(b"in time", response=b"in time"))
        names = await prepared(env, late, in_time)
        settings = {"telemetry.otlp_endpoint": collector.endpoint}
        async with (
            running_process(proxy.conninfo, tmp_path, settings) as frozen,
            env.client_at(frozen.address) as there,
        ):
            for name in names:
                await there.call(name, b"1", idempotency_key="1", accept_only=True)
            await env.processor.received(2 * COUNT, seconds=PATIENCE_SECONDS)
            # However many batches they make, on whatever connections: none arrives in time.
            on_the_way, *_ = [proxy.arm(stalled_before(SETTLE)) for _ in names]
            late.released.set()
            await on_the_way.struck()
            frozen.freeze()
            # They arrive while the others carry the same tasks, under leases of their own.
            await env.processor.received(3 * COUNT, seconds=PATIENCE_SECONDS)
            before = rows(observer, env, EVERYTHING)
            proxy.restore()
            frozen.thaw()
            frozen.terminate()
            await frozen.left()
            after = rows(observer, env, EVERYTHING)
            in_time.released.set()
            answers = [
                (await env.client.await_task(name, idempotency_key="1")).response for name in names
            ]

        assert collector.count(FENCED) > 0
        assert collector.count(FENCED) + collector.count(ABANDONED) == COUNT
        assert after == before
        assert answers == [b"in time"] * COUNT
        assert rows(observer, env, ANSWERED) == [("finished", 2, b"in time")] * COUNT
        assert dict(rows(observer, env, EVENTS)) == {name: [b"in time"] for name in names}
        assert asked_twice(env) == []


async def taken_over(
    env: Env, observer: psycopg.Connection[tuple[object, ...]], names: list[str]
) -> tuple[list[bytes], list[Any], Past]:
    """Wait until all calls were answered by the other replica.

    Returns:
        The answers, the rows of tasks and processes as they are then, and the memory of what has
        ended.
    """
    answers = [(await env.client.await_task(name, idempotency_key="1")).response for name in names]
    past = Past()
    past.look(observer)
    return answers, rows(observer, env, EVERYTHING), past


HELD_UP_SECONDS = 2.0
"""Twice the lease timeout. To stand still is what is tested here: nothing is waited for by it."""


@pytest.mark.parametrize("mode", [STREAM, UNARY])
async def test_the_steps_of_a_killed_processor_are_asked_for_again_once_it_is_back(
    second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path, mode: str
) -> None:
    address = f"unix:{tmp_path}/processor.sock"
    namespace = f"killed-{mode}"
    policy = RetryPolicy(
        initial_interval=dt.timedelta(milliseconds=50), coefficient=1.0, attempts_max=1000
    )
    config = NamespaceConfig(name=namespace, processor_targets=(address,), retry_policy=policy)
    async with Client(
        second_replica.address, namespace=namespace, codec=BYTES, timeout=PATIENCE_SECONDS
    ) as client:
        await client.namespaces.create(config)
        async with processor_process(address, mode, tmp_path) as dying:
            for number in range(10):
                await client.start(f"p{number}")
            async with asyncio.TaskGroup() as group:
                calls = [
                    group.create_task(client.call(f"p{number}", b"%d" % number))
                    for number in range(9)
                ]
                calls.append(group.create_task(client.call("p9", b"die")))
                await dying.left()
                async with processor_process(address, mode, tmp_path):
                    await asyncio.wait(calls)

        answers = [call.result().response for call in calls]
        assert answers == [*(b"%d" % number for number in range(9)), b"die"]
        counts = observer.execute(
            "SELECT process_id, count(*) FROM progressor.events WHERE namespace = %s"
            " GROUP BY process_id ORDER BY process_id",
            [namespace],
        ).fetchall()
        assert counts == [(f"p{number}", 1) for number in range(10)]


@pytest.mark.parametrize("where", ["claimed", "answered"])
async def test_an_event_loop_held_up_for_longer_than_the_lease_loses_no_lease(
    second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path, where: str
) -> None:
    async with judged_env(second_replica) as env:
        await env.running("p")

        def hold_up(point: str, facts: dict[str, object]) -> None:
            if point == where and facts["key"] == env.key("p"):
                # In the way of everything else on the loop, as a bug or a swapped machine is.
                time.sleep(HELD_UP_SECONDS)

        async with running_process(second_replica.engine.dsn, tmp_path):
            second_replica.points.observers.add(hold_up)
            try:
                answer = await env.client.call("p", b"1")
            finally:
                second_replica.points.observers._observers.remove(hold_up)

        assert answer.response == b"1"
        assert len(env.asked_for("p")) == 2
        assert rows(observer, env, CALLS) == [("finished", 1)]
        assert rows(observer, env, EVENTS) == [("p", [b"1"])]
