"""`step.once` while processors and replicas are killed, at every point up to the settlement.

A file outside the engine counts how often the function ran: at most twice, and only if the kill
fell after it returned and before its result was stored.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from progressor.sdk import Client, NamespaceConfig
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.process import ChildProcess, ReplicaProcess, running_process
from tests.support.engine.replica import NOW_AND_THEN, Replica
from tests.support.faults.faults import Fault, stalled_after, stalled_before
from tests.support.faults.once import BEGUN, DONE, POINTS, STORED, connected, count, once_process
from tests.support.faults.processor import STREAM, UNARY
from tests.support.postgres.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODES = pytest.mark.parametrize("mode", [STREAM, UNARY])
STORE, SETTLE = '"store_memos"(', '"settle_tasks"('
RUNS = {BEGUN: 1, DONE: 2, STORED: 1}


@contextlib.asynccontextmanager
async def served(
    replica: Replica, directory: Path, mode: str
) -> AsyncIterator[tuple[Client, ChildProcess]]:
    """Run a processor and yield a client of its namespace, with a process "p"."""
    address = f"unix:{directory}/processor.sock"
    name = f"once-{directory.name}".lower().replace("[", "-").replace("]", "")[:64]
    config = NamespaceConfig(name=name, processor_targets=(address,), retry_policy=NOW_AND_THEN)
    async with (
        once_process(address, mode, directory, replica.address) as processor,
        Client(replica.address, namespace=name, timeout=PATIENCE_SECONDS) as client,
    ):
        await client.namespaces.create(config)
        await client.start("p")
        yield client, processor


@pytest.mark.matrix
@MODES
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_processor_does_again_only_what_was_not_stored(
    second_replica: Replica, tmp_path: Path, mode: str, point: str
) -> None:
    async with served(second_replica, tmp_path, mode) as (client, processor):
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.call("p", point))
            await processor.left()
            await processor.start()
            await connected(f"unix:{tmp_path}/processor.sock")
        answer = call.result()

    assert (answer.response, count(tmp_path)) == (RUNS[point], RUNS[point])


@contextlib.asynccontextmanager
async def killed(
    proxy: Proxy, directory: Path, client: Client, args: str
) -> AsyncIterator[tuple[ReplicaProcess, int]]:
    """Call through a replica of its own, which the block kills; it yields the task."""
    engine = directory / "engine"
    engine.mkdir()
    async with (
        running_process(proxy.conninfo, engine) as victim,
        Client(victim.address, namespace=client.namespace) as there,
    ):
        accepted = await there.call("p", args, accept_only=True)
        yield victim, accepted.task_id
        victim.kill()
        await victim.left()


@pytest.mark.matrix
@MODES
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_replica_has_done_again_only_what_was_not_stored(
    second_replica: Replica, proxy: Proxy, tmp_path: Path, mode: str, point: str
) -> None:
    async with served(second_replica, tmp_path, mode) as (client, _):
        async with killed(proxy, tmp_path, client, f"hold {point}") as (_, task_id):
            await eventually((tmp_path / point).exists)
        answer = await client.await_task("p", task_id=task_id)

    assert (answer.response, count(tmp_path)) == (RUNS[point], RUNS[point])


@pytest.mark.parametrize(
    ("fault", "statement", "runs_max"),
    [
        (stalled_before, STORE, 2),
        (stalled_after, STORE, 1),
        (stalled_before, SETTLE, 1),
        (stalled_after, SETTLE, 1),
    ],
    ids=["before the store", "after the store", "before the settlement", "after the settlement"],
)
async def test_a_replica_killed_in_the_middle_of_a_write_loses_no_stored_result(
    second_replica: Replica,
    proxy: Proxy,
    tmp_path: Path,
    fault: Callable[[str], Fault],
    statement: str,
    runs_max: int,
) -> None:
    async with served(second_replica, tmp_path, STREAM) as (client, _):
        struck = proxy.arm(fault(statement))
        async with killed(proxy, tmp_path, client, "nowhere"):
            await struck.struck()
        proxy.restore()
        [*_, task] = (await client.trace("p")).tasks
        answer = await client.await_task("p", task_id=task.task_id)

    # A write that was under way may still have come in time.
    assert answer.response == count(tmp_path) <= runs_max
