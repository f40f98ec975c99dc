"""SIGSTOP of a replica past its lease, while another takes over; then SIGCONT.

What it comes back with is refused by the fence, and counted; nothing of what the other one did
changes. Two moments matter: its processor answers while it cannot hear; or its settlement is on the
way, where the network keeps it until everything is over.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.telemetry.metrics.registry import METRICS
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import Env, Replica, answering, response
from tests.support.faults.crowd import Way, every_way
from tests.support.faults.env import EVENTS, asked_twice, rows
from tests.support.faults.faults import stalled_before
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang, Step
from tests.support.storage.doctor.invariants import Past
from tests.support.storage.doctor.judge import judged_env
from tests.support.telemetry.collector import Collector, running_collector

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTLE = '"settle_tasks"('
COUNT = 10
FENCED, ABANDONED = METRICS["fenced"].name, METRICS["abandoned"].name

EVERYTHING = """
    SELECT t::text, p::text FROM progressor.tasks t
    JOIN progressor.processes p USING (slot, namespace, process_id)
    WHERE t.namespace = %(namespace)s ORDER BY t.task_id"""
CALLS = """
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
        assert rows(observer, env, CALLS) == [("finished", 2, b"in time")] * COUNT
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
