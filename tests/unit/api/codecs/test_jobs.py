"""Requests of JobService: violations by field; jobs, pages and changes in answers."""

import dataclasses
import datetime as dt
from typing import Any

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from progressor import errors
from progressor.api import jobs as job_codec
from progressor.api.jobs import (
    WATCH_SECONDS_MAX,
    WATCH_SECONDS_MIN,
    WATCHERS_MAX,
    JobServicer,
)
from progressor.api.processes.responses import PAGE_BYTES_MAX
from progressor.clock import SystemClock
from progressor.domain.jobs.job import JobState
from progressor.domain.processes.process import process_key
from progressor.storage.jobs.jobs import Jobs
from progressor.v1 import job_service_pb2 as pb
from progressor.v1 import nodes_pb2
from tests.support.api.memory import Memory, make_job, make_node
from tests.support.runtime.stubs import stub
from tests.unit.api.codecs.test_processes import fields_of
from tests.unit.api.test_calls import Context

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
NAMED: dict[str, Any] = {"namespace": "orders", "job_id": "job"}
KEY = process_key("orders", "job")
PAST = timestamp_pb2.Timestamp(seconds=1)


def submission(**fields: Any) -> pb.SubmitJobRequest:
    return pb.SubmitJobRequest(**NAMED | {"nodes": [nodes_pb2.NodeSpec(name="a")]} | fields)


def submit(**fields: Any) -> job_codec.Submission:
    return job_codec.submit_from_wire(submission(**fields), now=NOON)


def test_all_violations_of_a_submission_are_reported_together() -> None:
    message = pb.SubmitJobRequest(
        namespace="Orders",
        nodes=[
            nodes_pb2.NodeSpec(name="a", namespace="Stock"),
            nodes_pb2.NodeSpec(name="b", zombie_policy=9),  # type: ignore[arg-type]  # a newer client
        ],
        deadline=PAST,
        idempotency_key="",
        caller_context={"a": "\0"},
    )
    message.metadata["a"] = float("nan")

    assert fields_of(lambda: job_codec.submit_from_wire(message, now=NOON)) == [
        "namespace",
        "job_id",
        "nodes[0].namespace",
        "nodes[1].zombie_policy",
        "deadline",
        "caller_context['a']",
        "metadata.a",
    ]


def test_a_deadline_that_has_passed_is_refused_but_to_a_repetition() -> None:
    assert fields_of(lambda: submit(deadline=PAST)) == ["deadline"]
    repeated = submit(deadline=PAST, idempotency_key="key")

    assert repeated.action.deadline == PAST.ToDatetime(dt.UTC)


@pytest.mark.parametrize(
    "due",
    [
        {"timeout": duration_pb2.Duration()},
        {"timeout": duration_pb2.Duration(seconds=-1)},
        {"deadline": timestamp_pb2.Timestamp(seconds=10**12)},
    ],
    ids=str,
)
def test_an_invalid_deadline_or_timeout_is_refused_by_its_field(due: dict[str, Any]) -> None:
    retrial = pb.RetryJobRequest(**NAMED | due)

    assert fields_of(lambda: submit(**due)) == list(due)
    assert fields_of(lambda: job_codec.retry_from_wire(retrial, now=NOON)) == list(due)


def test_a_retry_has_a_deadline_in_the_future_if_any() -> None:
    def retry(**due: Any) -> job_codec.Retrial:
        return job_codec.retry_from_wire(pb.RetryJobRequest(**NAMED | due), now=NOON)

    assert retry() == job_codec.Retrial(key=KEY, deadline=None, timeout=None)
    assert fields_of(lambda: retry(deadline=PAST)) == ["deadline"]


def test_a_reason_is_bounded_and_has_no_nul() -> None:
    def cancel(reason: str) -> job_codec.Cancellation:
        return job_codec.cancel_from_wire(pb.CancelJobRequest(**NAMED, reason=reason))

    assert cancel("x" * 1024) == job_codec.Cancellation(key=KEY, reason="x" * 1024)
    assert fields_of(lambda: cancel("x" * 1025)) == ["reason"]
    assert fields_of(lambda: cancel("\0")) == ["reason"]


def test_all_violations_of_a_listing_are_reported_together() -> None:
    message = pb.ListJobsRequest(
        states=[1, 9],  # type: ignore[list-item]  # a newer client
        schedule_id="\n",
        page_size=1001,
        page_token="x",
    )

    assert fields_of(lambda: job_codec.list_from_wire(message)) == [
        "namespace",
        "states[1]",
        "schedule_id",
        "page_token",
        "page_size",
    ]


def test_changes_come_in_messages_that_any_client_can_read_and_go_on_from() -> None:
    nodes = [make_node(i, target="x" * 1024**2) for i in range(7)]

    told = list(job_codec.changes_to_wire(make_job(revision=9), nodes, sent_revision=4))

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
