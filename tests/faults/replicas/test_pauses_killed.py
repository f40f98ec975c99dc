"""Pauses and resumes one after the other while replicas are killed: nothing starts in a pause."""

import functools
from pathlib import Path

import pytest

from progressor.sdk import Activity, Client, ReplicaState
from tests.support.engine.points import eventually
from tests.support.engine.process import running_process
from tests.support.engine.replica import Replica, answering, open_env, timer

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESSES = 20


async def beaten(client: Client) -> None:
    """Wait until each living replica has written three heartbeats more: one is taken in by then."""
    for _ in range(3):
        before = await client.replicas.activity()
        await eventually(functools.partial(_beat_since, client, before))


async def _beat_since(client: Client, before: Activity) -> bool:
    seen = {it.replica_id: it.heartbeat_at for it in before.replicas}
    found = (await client.replicas.activity()).replicas
    living = [it for it in found if it.state is not ReplicaState.SILENT]
    return all(it.heartbeat_at != seen.get(it.replica_id) for it in living)


@pytest.mark.slow
async def test_a_storm_of_pauses_and_kills_starts_nothing_in_a_pause_and_loses_nothing(
    second_replica: Replica, tmp_path: Path
) -> None:
    async with open_env(second_replica, one_at_a_time=False) as env:
        for number in range(PROCESSES):
            env.processor.on_process(f"p{number}", answering(b"tick", set_timer=timer()))
        # Killed before the pause, in it, and after it.
        for turn, when in enumerate(("before", "within", "after")):
            (directory := tmp_path / when).mkdir()
            async with running_process(second_replica.engine.dsn, directory) as victim:
                async with env.client_at(victim.address) as there:
                    for number in range(0 if turn else PROCESSES):
                        await there.start(f"p{number}", accept_only=True)
                    await env.processor.received(len(env.processor.requests) + PROCESSES)
                if when == "before":
                    victim.kill()
                await env.client.namespaces.pause(env.namespace, reason=f"storm {turn}")
                await beaten(env.client)
                begun_count = len(env.processor.requests)
                if when == "within":
                    victim.kill()
                await beaten(env.client)
                assert len(env.processor.requests) == begun_count
                await env.client.namespaces.resume(env.namespace)
                await env.processor.received(begun_count + PROCESSES)
        for number in range(PROCESSES):
            await env.asked(f"p{number}", len(env.asked_for(f"p{number}")) + 1)
