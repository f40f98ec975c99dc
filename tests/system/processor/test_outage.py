"""A processor that is away: nothing breaks, nothing is asked meanwhile, and all is done soon after.

``OUTAGE_SECONDS=60`` makes the outage as long as the bar says, and checks how long the timers take
afterwards; the suite has a shorter one, and no bound in seconds.
"""

import asyncio
import os
from pathlib import Path

import pytest

from progressor.processor.breaker import RAMP_FIRST
from progressor.sdk import BYTES, Client, NamespaceConfig, NewTimer, RetryPolicy
from progressor.sdk.values.processes import ProcessStatus
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import free_ports, running_process
from tests.support.engine.replica import Env, Replica, open_env
from tests.support.faults.processor import SERVES, STREAM, TIMERS, UNARY, processor_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

IS_BAR = "OUTAGE_SECONDS" in os.environ
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
        # Its connection, and in a stream the stream, is in use when it dies.
        await client.start("p")
        processor.kill()
        await processor.left()
        before = {it: replica.points.count("settled", settlement=it) for it in ("Finish", "Retry")}
        async with asyncio.TaskGroup() as group:
            for number in range(COUNT):
                group.create_task(client.put(f"p-{number}", timer=NewTimer()))
        # A duration is what is tested: the timers are due, and stay so.
        await asyncio.sleep(OUTAGE_SECONDS)
        tried = replica.points.count("settled", settlement="Retry") - before["Retry"]
        await processor.start()
        await replica.points.wait("settled", before["Finish"] + COUNT, settlement="Finish")
        statuses = [it.status async for it in client.list(page_size=1000)]

    arrivals = sorted(float(line) for line in (tmp_path / TIMERS).read_text().split())
    assert statuses == [ProcessStatus.RUNNING] * (COUNT + 1)
    assert len(arrivals) == COUNT
    # Only what was claimed before the breaker opened was tried at all.
    assert tried < COUNT
    # They do not all come at once: the ramp alone takes over two seconds for them.
    assert COUNT > 3 * RAMP_FIRST
    assert sum(at < arrivals[0] + 1 for at in arrivals) < COUNT
    if IS_BAR:
        returned_at = float((tmp_path / SERVES).read_text())
        assert arrivals[-1] - returned_at < 10


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
    second_replica: Replica, database: str, tmp_path: Path
) -> None:
    """The other is a process whose connections to processors go by a proxy that does not exist."""
    [port] = free_ports(1, range(22_000, 23_000))
    proxied = {"http_proxy": f"http://127.0.0.1:{port}", "no_proxy": ""}
    async with (
        open_env(second_replica, retry_policy=ONCE) as env,
        running_process(database, tmp_path, environment=proxied) as cut_off,
        env.client_at(cut_off.address) as client,
    ):
        await env.running("p")

        answer = await client.call("p", b"1")

        assert answer.response == b"1"
        assert env.points.count("settled", task_id=answer.task_id, settlement="Finish") == 1
