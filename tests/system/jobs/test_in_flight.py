"""What comes from outside while jobs are at work: cancel, retry, deadline, remove."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from progressor.sdk import RetryPolicy
from tests.support.engine.gates import refused
from tests.support.engine.job_env import JobEnv, done, failing, open_jobs
from tests.support.engine.points import eventually
from tests.support.engine.replica import (
    Replica,
    answering,
    timer,
)
from tests.support.models.jobs.graphs import SEED_EXAMPLE, Graph
from tests.support.processor.scripted import Answer
from tests.support.storage.doctor.invariants import broken_invariants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS: Mapping[str, str] = {}
TWO_AND_ONE: Graph = {"a": (), "b": (), "c": ("a",)}
SOON = Duration(nanos=300_000_000)
SLOWLY = RetryPolicy(initial_interval=dt.timedelta(hours=1), jitter=0.0)


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(database: str, replica: Replica) -> AsyncIterator[JobEnv]:
    async with open_jobs(database, replica, retry_policy=SLOWLY, one_at_a_time=False) as jobs:
        yield jobs
        await eventually(lambda: broken_invariants(jobs.observer, at_rest=True) == {})
        assert jobs.env.points.count("job_recovered") == 0


async def status(jobs: JobEnv, process_id: str) -> tuple[str, str | None]:
    process = (await jobs.env.client.get(process_id)).process
    return str(process.status), process.detail


class TestCancel:
    async def test_ends_what_waits_and_lets_steps_in_hand_end(self, jobs: JobEnv) -> None:
        jobs.env.processor.on_process("job/b", answering(set_timer=timer(3600)))
        jobs.hold("job", "ac")
        await jobs.submit("job", TWO_AND_ONE, hold=False)
        await jobs.asked("job", "a", "b")
        await jobs.env.settled("job/b")

        told = await jobs.cancel("job", "no need")
        await jobs.become("job", {"b": "cancelled"})

        assert jobs.state("job") == "cancelled"
        assert told.counts.running >= 1
        assert jobs.states("job") == {"a": "running", "b": "cancelled", "c": "cancelled"}
        assert (await status(jobs, "job/b"))[0] == "error"
        assert "no need" in str((await status(jobs, "job/b"))[1])
        assert (await status(jobs, "job"))[0] == "finished"
        jobs.release("job", "a", answering(set_timer=timer(3600)).response)
        await jobs.become("job", {"a": "cancelled"})
        assert "JOB_CANCELLED" in str((await status(jobs, "job/a"))[1])
        assert jobs.asked_for("job", "c") == []

    async def test_by_many_at_once_and_while_nodes_end_is_done_once(self, jobs: JobEnv) -> None:
        await jobs.submit("job", SEED_EXAMPLE)
        await jobs.asked("job", "1", "2", "3")
        async with asyncio.TaskGroup() as group:
            for name in "123":
                group.create_task(jobs.end("job", name), name=name)
            cancels = [group.create_task(refused_or(jobs, "job"), name="cancel") for _ in range(5)]

        assert sorted(cancel.result() for cancel in cancels) == ["JOB_ENDED"] * 4 + ["cancelled"]
        for name in "456":
            jobs.release("job", name)
        await eventually(lambda: "running" not in jobs.states("job").values())
        assert jobs.state("job") == "cancelled"


async def refused_or(jobs: JobEnv, job_id: str) -> str:
    try:
        return await refused(jobs.cancel(job_id))
    except AssertionError:
        return "cancelled"


async def test_a_deadline_fails_the_job_and_stops_its_nodes(jobs: JobEnv) -> None:
    jobs.env.processor.on_process("job/b", answering(set_timer=timer(3600)))
    jobs.hold("job", "ac")
    await jobs.submit("job", TWO_AND_ONE, hold=False, timeout=SOON)

    assert await jobs.ended("job") == "failed"
    await jobs.become("job", {"b": "cancelled", "c": "cancelled"})
    assert (await jobs.get("job")).job.detail == "DEADLINE_EXCEEDED"
    await jobs.end("job", "a")
    assert jobs.states("job")["a"] == "done"


async def test_a_retry_begins_the_failed_nodes_again_and_those_they_kept_waiting(
    jobs: JobEnv,
) -> None:
    jobs.hold("job", SEED_EXAMPLE, Answer(done()))
    await jobs.submit("job", SEED_EXAMPLE, hold=False)
    for name in "1235":
        await jobs.end("job", name)
    await jobs.end("job", "4", failing())
    await jobs.end("job", "6")
    await jobs.end("job", "8")
    assert await jobs.ended("job") == "failed"

    for name in "79":
        jobs.release("job", name)
    assert await jobs.retry("job") == ["4"]

    assert await jobs.ended("job") == "done"
    # The same init, with attempts of its own.
    assert jobs.tasks("job/4") == [("init", "finished", 1)]
    attempts = {node.name: node.attempt for node in (await jobs.get("job")).nodes}
    assert attempts == {**dict.fromkeys(SEED_EXAMPLE, 1), "4": 2}
    assert len(jobs.env.asked_for("job/1")) == 1


async def test_a_removal_of_the_leader_stops_its_followers(jobs: JobEnv) -> None:
    jobs.env.processor.on_process("job/b", answering(set_timer=timer(3600)))
    jobs.hold("job", "ac")
    await jobs.submit("job", TWO_AND_ONE, hold=False)
    await jobs.asked("job", "a")
    await jobs.env.settled("job/b")

    await jobs.env.client.remove("job")
    await eventually(lambda: _status(jobs, "job/b") == "error")
    assert await refused(jobs.get("job")) == "JOB_NOT_FOUND"
    jobs.release("job", "a", answering(set_timer=timer(3600)).response)

    await eventually(lambda: _status(jobs, "job/a") == "error")
    assert _status(jobs, "job/c") is None


def _status(jobs: JobEnv, process_id: str) -> str | None:
    row = jobs.observer.execute(
        "SELECT status::text FROM progressor.processes WHERE namespace = %s AND process_id = %s",
        [jobs.env.namespace, process_id],
    ).fetchone()
    return None if row is None else row[0]
