"""The engine is killed twice in the middle of a bulk operation: each process is retried once."""

import collections
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor.sdk import (
    BulkKind,
    BulkState,
    Client,
    Fail,
    NamespaceConfig,
    Processor,
    ProcessStatus,
    Step,
)
from tests.support.engine.points import eventually
from tests.support.engine.process import ReplicaProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 120
RETRY_ALL: dict[str, Any] = {"operation_id": "retry-all", "rate_max": 50, "id_prefix": "p"}


@contextlib.asynccontextmanager
async def killed_at_the_end(database: str, log: Path) -> AsyncIterator[Client]:
    """Run an engine in a process of its own, which is killed when the context is left."""
    settings = {"database.dsn": database, "log.format": "json", "server.bind": "127.0.0.1:0"}
    victim = ReplicaProcess(settings, log=log)
    async with victim.running():
        served = await victim.log_record("engine serves")
        async with Client(served["addresses"][0], namespace="bulk-killed") as client:
            yield client


async def test_each_process_is_retried_once_through_kills(
    database: str, observer: psycopg.Connection[Any], tmp_path: Path
) -> None:
    begun: collections.Counter[str] = collections.Counter()  # first attempts
    processor = Processor("bulk-killed")

    @processor.init
    async def init(step: Step[Any]) -> None:
        # Of a step in flight when the engine is killed there is a second attempt.
        begun[step.process_id] += step.attempt == 1
        if begun[step.process_id] == 1 == step.attempt:
            raise Fail("not yet")

    def done_count() -> int:
        [(count,)] = observer.execute(
            "SELECT sum(done_count) FROM progressor.bulk_operations"
        ).fetchall()
        return int(count or 0)

    async with processor.running("127.0.0.1:0") as target:
        async with killed_at_the_end(database, tmp_path / "1.log") as client:
            config = NamespaceConfig(name="bulk-killed", processor_targets=(target,))
            await client.namespaces.create(config)
            for each in (*(f"p{it}" for it in range(COUNT)), "q"):
                with pytest.raises(Exception, match="not yet"):
                    await client.start(each)
            await client.bulk.start(BulkKind.RETRY, **RETRY_ALL)
            await eventually(lambda: done_count() >= COUNT / 3)
        async with killed_at_the_end(database, tmp_path / "2.log"):
            await eventually(lambda: done_count() >= COUNT * 2 / 3)
        async with killed_at_the_end(database, tmp_path / "3.log") as client:
            await client.result("retry-all", namespace="progressor.operations")
            bulk = await client.bulk.get("retry-all")
            repeated = await client.bulk.start(BulkKind.RETRY, **RETRY_ALL)

            async def all_run() -> bool:
                found = {it.status async for it in client.list(id_prefix="p")}
                return found == {ProcessStatus.RUNNING}

            await eventually(all_run)
            left = (await client.get("q")).process.status

    assert (bulk.state, bulk.matched_count, bulk.done_count) == (BulkState.DONE, COUNT, COUNT)
    assert repeated == bulk
    assert left is ProcessStatus.ERROR
    assert begun["q"] == 1
    # A first attempt of which the processor did not hear was lost with the engine.
    assert set(begun.values()) <= {1, 2}
    # A first attempt of which the processor did not hear was lost with the engine.
    assert sum(begun.values()) >= 1.5 * COUNT
