"""A whole engine as a role of PostgreSQL that reads and writes rows, and owns nothing."""

import asyncio
import datetime as dt
from collections.abc import Iterator

import pytest

from progressor.sdk import BulkKind
from progressor.settings.sections import Database
from progressor.storage.postgres.migrations import grants_configured
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import answering, open_env, running_replica
from tests.support.storage.doctor.doctor import execute, role
from tests.system.engine.test_examples import play

SOON = dt.timedelta(seconds=0.1)


@pytest.fixture
def runtime(own_database: str) -> Iterator[str]:
    """Return how to connect as the role, which has what `progressor migrate` prints."""
    with role(own_database, "engine_runtime") as conninfo:
        granted = grants_configured(Database(dsn=own_database), own_database, role="engine_runtime")
        execute(own_database, *granted)
        yield conninfo


async def test_it_serves_repairs_deletes_and_examines(
    runtime: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"scanner.retention_interval_seconds": "0.2", "audit.calls": "true"}
    async with (
        running_replica(runtime, settings) as replica,
        open_env(replica, finished_process_retention=SOON, task_retention=SOON) as env,
    ):
        await env.timed("timed", answering(b"fired"), after=0.01)
        await env.settled("timed", 2)
        await env.broken("broken", answering())
        bulk = await env.client.bulk.start(BulkKind.RETRY)
        await env.client.result(bulk.operation_id, namespace="progressor.operations", timeout=60)
        await env.settled("broken", 3)
        await env.finished("finished")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while [it async for it in env.client.list() if it.process_id == "finished"]:
                await replica.points.wait("beat")
        await env.client.namespaces.pause(env.namespace, reason="rights")
        await env.client.namespaces.resume(env.namespace)
        entries = [it async for it in env.client.access.audit()]
        report = await env.client.replicas.run_doctor()

    assert entries
    # The server of the tests does not wait for the disk.
    failed = {it.check for it in report.findings if it.state.value == "failed"}
    assert failed <= {"durability"}
    [told] = [it.words for it in report.findings if it.check == "roles"]
    assert told == "engine_runtime reads and writes rows, and must not change the schema"
    assert "permission denied" not in caplog.text


@pytest.mark.parametrize(
    "example", ["job", pytest.param("rollout", marks=pytest.mark.slow), "nightly"]
)
async def test_jobs_gates_and_schedules_run(runtime: str, example: str) -> None:
    """The examples check what they play."""
    code, printed = await play(runtime, "--example", example)

    assert code == 0, printed
    assert "permission denied" not in printed
