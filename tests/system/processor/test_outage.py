"""A processor that is away: nothing breaks, nothing is asked meanwhile, and all is done soon after.

``OUTAGE_SECONDS=60`` makes the outage as long as the bar says; the suite has a shorter one.
"""

import asyncio
import os
from pathlib import Path

import pytest

from progressor.processor.breaker import RAMP_FIRST
from progressor.sdk import BYTES, Client, NamespaceConfig, RetryPolicy
from progressor.sdk.values.processes import ProcessStatus
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import free_ports
from tests.support.engine.replica import Env, Replica, open_env
from tests.support.faults.processor import STREAM, TIMERS, UNARY, processor_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "2"))
COUNT = 500
ONCE = RetryPolicy(attempts_max=1)


@pytest.mark.parametrize("mode", [STREAM, UNARY])
async def test_timers_due_while_their_processor_is_dead_all_run_soon_after_and_none_breaks(
    replica: Replica, tmp_path: Path, mode: str
) -> None:
    [port] = free_ports(1, range(21_000, 22_000))
    address, name = f"127.0.0.1:{port}", f"outage-{mode}"
    async with (
        asyncio.timeout(PATIENCE_SECONDS + OUTAGE_SECONDS),
        processor_process(address, mode, tmp_path) as processor,
        Client(replica.address, namespace=name, codec=BYTES) as client,
    ):
        described = NamespaceConfig(name=name, processor_targets=(address,), retry_policy=ONCE)
        await client.namespaces.create(described)
        async with asyncio.TaskGroup() as group:
            for number in range(COUNT):
                group.create_task(client.start(f"p-{number}", b"timer 3"))
        before = {it: replica.points.count("settled", settlement=it) for it in ("Finish", "Retry")}
        processor.kill()
        await processor.left()
        # A duration is what is tested: the timers come due, and stay so.
        await asyncio.sleep(3 + OUTAGE_SECONDS)
        tried = replica.points.count("settled", settlement="Retry") - before["Retry"]
        await processor.start()
        await replica.points.wait("settled", before["Finish"] + COUNT, settlement="Finish")
        statuses = [it.status async for it in client.list(page_size=1000)]

    arrivals = sorted(float(line) for line in (tmp_path / TIMERS).read_text().split())
    first_second = sum(at < arrivals[0] + 1 for at in arrivals)
    assert statuses == [ProcessStatus.RUNNING] * COUNT
    assert len(arrivals) == COUNT
    # Only what was claimed before the breaker opened was tried at all.
    assert tried < COUNT
    assert first_second <= 2 * RAMP_FIRST
    assert arrivals[-1] - arrivals[0] < 10


async def test_a_task_waits_for_its_processor_without_being_tried(env: Env) -> None:
    await env.running("p")
    await env.running("q")
    await env.processor.stop()
    await env.client.call("p", accept_only=True)
    await env.settled("p", settlement="Retry")
    for _ in range(5):
        await env.client.call("q", accept_only=True)
    claimed = env.points.count("claimed", key=env.key("q"))
    await env.processor.restart()
    await env.settled("q", 6, settlement="Finish")

    assert claimed == 1


async def test_a_replica_that_reaches_the_processor_takes_over_what_another_cannot_ask(
    replica: Replica, second_replica: Replica
) -> None:
    """The first is given a target of its own, where nobody listens."""
    async with open_env(replica, retry_policy=ONCE) as env:
        await env.running("p")
        channels = replica.engine._wiring._channels  # type: ignore[union-attr]
        connection = channels._connections[env.processor.target]
        [port] = free_ports(1, range(22_000, 23_000))
        await connection.close()
        dead = type(connection)(f"127.0.0.1:{port}")
        dead.namespace_count = connection.namespace_count
        channels._connections[env.processor.target] = dead
        channels._rounds[env.namespace].connections = (dead,)

        answer = await env.client.call("p", b"1")

        assert answer.response == b"1"
        assert replica.points.count("settled", key=env.key("p"), settlement="Retry") == 1
        assert second_replica.points.count("settled", key=env.key("p")) == 1
        await channels.close()
