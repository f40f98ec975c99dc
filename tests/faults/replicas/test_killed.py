"""kill -9 of one of two replicas, with processes at work and others waiting behind them."""

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.sdk import EngineUnavailableError, ZombiePolicy
from tests.support.engine.replica import Replica
from tests.support.faults.crowd import Crowd, Way, crowd_at_work, every_way
from tests.support.faults.env import EVENTS, LEASED, asked_twice, rows
from tests.support.storage.doctor.invariants import Past
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 20
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
        async with judged_env(second_replica, **way, zombie_policy=ZombiePolicy.FAIL) as env:
            async with crowd_at_work(env, observer, tmp_path, count=COUNT) as crowd:
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
                == [("error", "zombie detected", 0, b"1", "error")] * COUNT
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
            assert len(env.processor.requests) == 2 * COUNT

    async def test_a_repair_brings_them_back(
        self, second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path
    ) -> None:
        async with judged_env(second_replica, zombie_policy=ZombiePolicy.FAIL) as env:
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
            async with crowd_at_work(env, observer, tmp_path, count=COUNT) as crowd:
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
            assert rows(observer, env, PROCESSES) == [("running", None, 4, None, None)] * COUNT
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
