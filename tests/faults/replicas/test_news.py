"""What one replica has to tell another, lost on the way: the caller is answered all the same."""

import asyncio

import pytest

from tests.support.engine.replica import Replica
from tests.support.faults.env import FaultEnv
from tests.support.faults.faults import FAULTS
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

losses = pytest.mark.parametrize(
    "fault", ["cut before", "cut after", "backend terminated", "disk full", "stalled before"]
)


@losses
async def test_a_caller_elsewhere_is_answered_although_nobody_told_its_replica(
    env: FaultEnv, second_replica: Replica, fault: str
) -> None:
    process_id = env.fresh()
    hang, _ = await env.busy(process_id)
    async with env.client_at(second_replica.address) as elsewhere, asyncio.TaskGroup() as group:
        waiting = group.create_task(elsewhere.call(process_id, b"2"))
        await second_replica.points.wait("admitted", key=env.key(process_id))
        async with env.under("pg_notify(", FAULTS[fault]):
            hang.released.set()
    await env.at_rest()

    assert waiting.result().response == b"2"
    assert env.events(process_id) == [b"busy", b"2"]
    env.judge()


@losses
async def test_a_caller_here_is_answered_although_the_answer_could_not_be_read_at_once(
    env: FaultEnv, second_replica: Replica, fault: str
) -> None:
    process_id = await env.fresh_running(hang := Hang(), Answer())
    async with env.client_at(second_replica.address) as elsewhere, asyncio.TaskGroup() as group:
        await elsewhere.call(process_id, b"busy", accept_only=True)
        await env.asked(process_id, 2)
        waiting = group.create_task(env.client.call(process_id, b"2"))
        await env.points.wait("admitted", 2, key=env.key(process_id))
        async with env.under("LEFT JOIN progressor.replies", FAULTS[fault]):
            hang.released.set()
    await env.at_rest()

    assert waiting.result().response == b"2"
    assert env.events(process_id) == [b"busy", b"2"]
    env.judge()
