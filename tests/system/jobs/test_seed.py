"""The two examples of seeds/job-center.md, step by step, through a replica that never scans.

After each completion the tables are looked at as the settlement left them: exactly those nodes
have been submitted that the text says, without any help.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.engine.job_env import JobEnv, failing, open_jobs
from tests.support.engine.replica import Replica
from tests.support.models.jobs.graphs import SEED_EXAMPLE

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCESSFUL = [("1", ""), ("2", "456"), ("3", ""), ("5", ""), ("4", "7"), ("6", "89"), ("8", ""),
              ("9", ""), ("7", "")]  # fmt: skip
"""Steps 2 .. 10: what completes, and what is submitted by that."""

LEADER_RAN = [("init", "finished", 1), ("join", "finished", 1)]


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(database: str, replica: Replica) -> AsyncIterator[JobEnv]:
    async with open_jobs(database, replica) as jobs:
        yield jobs


async def completes(jobs: JobEnv, name: str) -> set[str]:
    """Complete a node, and return those that were submitted by its settlement."""
    before = jobs.in_state("job", "running")
    await jobs.end("job", name)
    now = jobs.in_state("job", "running")
    assert before - now == {name}
    await jobs.asked("job", *now)
    return now - before


async def test_the_successful_job(jobs: JobEnv) -> None:
    await jobs.submit("job", SEED_EXAMPLE)
    assert jobs.in_state("job", "running") == {"1", "2", "3"}
    assert jobs.in_state("job", "waiting") == set("456789")

    for name, submitted in SUCCESSFUL:
        assert jobs.tasks("job") == [("init", "finished", 1)]
        assert await completes(jobs, name) == set(submitted)

    assert await jobs.ended("job") == "done"
    assert set(jobs.states("job").values()) == {"done"}
    assert jobs.tasks("job") == LEADER_RAN
    assert len(jobs.env.processor.requests) == len(SEED_EXAMPLE)
    told = await jobs.get("job")
    assert {node.name: node.result for node in told.nodes} == {
        name: name.encode() for name in SEED_EXAMPLE
    }


async def test_the_failed_job(jobs: JobEnv) -> None:
    await jobs.submit("job", SEED_EXAMPLE)
    for name, submitted in SUCCESSFUL[:4]:
        assert await completes(jobs, name) == set(submitted)

    await jobs.end("job", "4", failing("no disk"))
    assert jobs.in_state("job", "failed") == {"4"}
    assert jobs.in_state("job", "skipped") == {"7", "9"}
    assert jobs.in_state("job", "running") == {"6"}
    assert await completes(jobs, "6") == {"8"}
    assert jobs.in_state("job", "skipped") == {"7", "9"}
    assert jobs.tasks("job") == [("init", "finished", 1)]
    await jobs.end("job", "8")

    assert await jobs.ended("job") == "failed"
    assert jobs.tasks("job") == [("init", "finished", 1), ("join", "error", 1)]
    assert jobs.asked_for("job", "79") == []
    told = await jobs.get("job")
    nodes = {node.name: node for node in told.nodes}
    assert (nodes["4"].error.reason, nodes["4"].error.message) == ("BROKEN", "no disk")
    assert (nodes["7"].skipped_because_of, nodes["9"].skipped_because_of) == ("4", "4")
    assert "4" in told.job.detail
