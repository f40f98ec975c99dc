"""Watches of jobs: changes in messages that fit, pauses that grow, and a bound on watchers."""

import dataclasses
from typing import Any

import pytest

from progressor import errors
from progressor.api.jobs import (
    WATCH_SECONDS_MAX,
    WATCH_SECONDS_MIN,
    WATCHERS_MAX,
    JobServicer,
    changes_to_wire,
)
from progressor.api.processes.responses import PAGE_BYTES_MAX
from progressor.clock import SystemClock
from progressor.domain.jobs.job import JobState
from progressor.storage.jobs.jobs import Jobs
from progressor.v1 import job_service_pb2 as pb
from tests.support.api.memory import Memory, make_job, make_node
from tests.support.runtime.stubs import stub
from tests.unit.api.test_calls import Context

NAMED: dict[str, Any] = {"namespace": "orders", "job_id": "job"}


def test_changes_come_in_messages_that_any_client_can_read_and_go_on_from() -> None:
    nodes = [make_node(i, target="x" * 1024**2) for i in range(7)]

    told = list(changes_to_wire(make_job(revision=9), nodes, sent_revision=4))

    assert [[node.name for node in it.nodes] for it in told] == [
        ["n0", "n1"],
        ["n2", "n3"],
        ["n4", "n5"],
        ["n6"],
    ]
    assert [it.job.revision for it in told] == [4, 4, 4, 9]
    assert all(it.job.job_id == "job" for it in told)
    assert all(it.ByteSize() < PAGE_BYTES_MAX + 1024 for it in told)


class Watched:
    """A servicer of a job that is found with one revision after another, and its pauses."""

    def __init__(self, *revisions: int) -> None:
        """Take the revisions, the last of which is that of a job that is done."""
        jobs = [make_job(revision=it) for it in revisions]
        jobs[-1] = dataclasses.replace(jobs[-1], state=JobState.DONE)
        self.pauses: list[float] = []
        backend = Memory(jobs=stub(Jobs, changes=[(it, ()) for it in jobs])).backend()
        self.servicer = JobServicer(lambda: backend, clock=SystemClock(), pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))

    async def told(self) -> list[int]:
        request = pb.WatchJobRequest(**NAMED)
        return [it.job.revision async for it in self.servicer.watch_job(request, Context())]


async def test_a_watch_looks_less_often_while_nothing_changes() -> None:
    watched = Watched(1, 1, 1, 1, 1, 2, 2, 2, 3)

    assert await watched.told() == [1, 2, 3]
    assert watched.pauses == [0.05, 0.075, 0.113, 0.169, 0.253, 0.05, 0.075, 0.113]


async def test_a_watch_polls_at_least_once_a_second() -> None:
    watched = Watched(*[1] * 20, 2)

    assert await watched.told() == [1, 2]
    assert (watched.pauses[0], watched.pauses[-1]) == (WATCH_SECONDS_MIN, WATCH_SECONDS_MAX)


async def test_the_number_of_watchers_is_bounded() -> None:
    servicer = Watched(*[1] * (WATCHERS_MAX + 2)).servicer
    request = pb.WatchJobRequest(**NAMED)
    watches = [servicer.watch_job(request, Context()) for _ in range(WATCHERS_MAX + 1)]
    for watch in watches[:-1]:
        await anext(watch)

    with pytest.raises(errors.OverloadedError):
        await anext(watches[-1])
    await watches[0].aclose()
    assert (await anext(servicer.watch_job(request, Context()))).job.job_id == "job"
    for watch in watches:
        await watch.aclose()
