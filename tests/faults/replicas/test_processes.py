"""A processor dies in the middle of its steps, or the event loop of an engine stands still."""

import asyncio
import datetime as dt
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor.sdk import BYTES, Client, NamespaceConfig, RetryPolicy
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import Replica
from tests.support.faults.env import CALLS, EVENTS, rows
from tests.support.faults.processor import STREAM, UNARY, processor_process
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELD_UP_SECONDS = 2.0
"""Twice the lease timeout. To stand still is what is tested here: nothing is waited for by it."""


class TestAProcessorIsKilled:
    @pytest.mark.parametrize("mode", [STREAM, UNARY])
    async def test_its_steps_are_asked_for_again_once_it_is_back(
        self, second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path, mode: str
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


class TestAnEventLoopIsHeldUp:
    @pytest.mark.parametrize("where", ["claimed", "answered"])
    async def test_for_longer_than_the_lease_its_heart_beats_on_and_nobody_takes_over(
        self, second_replica: Replica, observer: psycopg.Connection[Any], tmp_path: Path, where: str
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
